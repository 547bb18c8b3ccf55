/*
 * Stolen time: what the hypervisor below took from a CPU.
 *
 * A thread whose CPU the hypervisor gives to somebody else is neither preempted nor moved for its
 * own kernel: only the counter `steal` of /proc/stat tells, per CPU and in ticks of 10 ms. A
 * shorter loss shows when a whole tick has come together.
 */
#ifndef PINLOAD_STEAL_H
#define PINLOAD_STEAL_H

#include "base.h"

/* Ticks per second of /proc/stat are 100 on all architectures (USER_HZ). */
#define STEAL_UNKNOWN UINT64_MAX

/*
 * Ticks that were stolen from this CPU since the machine started: 0 on a machine that has no
 * hypervisor below, STEAL_UNKNOWN where the kernel does not tell.
 */
uint64_t stolen_ticks(int cpu);

/* What grew between two answers: 0 if one of them is not known. */
static inline uint64_t stolen_between(uint64_t before, uint64_t after)
{
    return before == STEAL_UNKNOWN || after == STEAL_UNKNOWN || after < before ? 0 : after - before;
}

#endif

/*
 * The unit of work of the speed benchmarks: a chain of dependent integer steps, some 0.6 us
 * at 3.5 GHz.
 *
 * Progress is told in windows of 1 ms to a fraction of a percent, and stops down
 * to some 20 us: a round of the integer kernel (intmix.h) is twenty times too coarse
 * for that. Each step needs the result of the one before it and nothing but one
 * register, so its cost is the same on a busy core, beside a busy sibling and after
 * a sleep that left the caches cold: what changes it is the CPU's speed alone.
 * The chain is a linear congruence, whose n-th value can be computed in log n
 * steps: after the clock has stopped the work is proven, however long it was.
 */
#ifndef PINLOAD_WORK_H
#define PINLOAD_WORK_H

#include "base.h"

enum { WORK_STEPS = 512 };

/* A fixed amount of work takes as long as the CPU is slow: it is ended after this time. */
#define WORK_LIMIT_NS (3600 * NS_PER_S)

/* More than a fast CPU does in that time. */
#define WORK_LIMIT_UNITS 100000000000ULL

/* Knuth's MMIX constants. */
#define WORK_FACTOR 6364136223846793005ULL
#define WORK_ADDEND 1442695040888963407ULL

struct work {
    uint64_t value;
    uint64_t units; /* done */
};

/* Starts a chain. */
void work_begin(struct work *work);

/* Does one unit. */
static inline void work_one(struct work *work)
{
    uint64_t value = work->value;
    for (int step = 0; step < WORK_STEPS; step++) {
        value = value * WORK_FACTOR + WORK_ADDEND;
        __asm__ volatile("" : "+r"(value)); /* no two steps may be folded into one */
    }
    work->value = value;
    work->units++;
}

/* Whether the chain's value is the one that its number of units gives. */
bool work_is_proven(const struct work *work);

#endif

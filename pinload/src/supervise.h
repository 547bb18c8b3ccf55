/*
 * Three ways in which a benchmark or load ends with whoever started it.
 *
 * Nothing that spins may outlive its supervisor or go on while the supervisor
 * is stopped:
 * - the kernel kills the process when its parent ends (PDEATHSIG);
 * - a kernel timer kills it after its deadline, whatever its threads do;
 * - with `--supervised`, stdin carries heartbeat bytes: silence is noticed after
 *   1.5 s (a load may be told another time), and end of file at once. A load that is
 *   supervised may do without the deadline.
 */
#ifndef PINLOAD_SUPERVISE_H
#define PINLOAD_SUPERVISE_H

#include "base.h"

#define HEARTBEAT_LIMIT_NS (1500 * NS_PER_MS)

enum heartbeat { HEARTBEAT_CAME, HEARTBEAT_MISSED, HEARTBEAT_ENDED };

/* Ends this process when its parent ends; exits at once if that has happened. */
void die_with_parent(void);

/* The same between fork and exec, for a child of `parent`. */
void die_with_this_parent(int parent);

/* Kills this process `after_ns` from now. */
void die_after(uint64_t after_ns);

/* Waits for a byte on stdin, at most `limit_ns`. */
enum heartbeat heartbeat_wait(uint64_t limit_ns);

/*
 * For benchmarks: a thread that ends the process (code PINLOAD_ABANDONED) on silence
 * or end of file, because a paused measurement is worth nothing. It runs above
 * `policy_priority`, so that a spinning real-time benchmark cannot keep it away.
 */
bool heartbeat_guard(int policy_priority);

/*
 * When the kernel timer ends a measurement of this length. A wide margin: it is the last
 * resort against a thread that spins on, and must not cut a measurement that merely lives on
 * a crowded machine.
 */
static inline uint64_t measurement_limit_ns(uint64_t duration_ns)
{
    return 2 * duration_ns + 30 * NS_PER_S;
}

/*
 * All of that for a measurement: dies with the parent, after `limit_ns`, and (if `supervised`)
 * with the heartbeats. False after a complaint.
 */
bool supervise_measurement(uint64_t limit_ns, bool supervised, int policy_priority);

#endif

/*
 * A team of threads that does one parallel phase, and the clock of that phase.
 *
 * Sums over threads are integers (see `fixed` in numbers.h) and maxima do not depend on
 * any order: what a program computes must not depend on how many threads it has.
 */
#ifndef PINLOAD_TEAM_H
#define PINLOAD_TEAM_H

#include "../base.h"
#include "../rt.h"

#include <pthread.h>
#include <stdatomic.h>

/* Enough for every program under every sanitizer, and 1,024 of them cost no memory to speak of. */
enum { TEAM_STACK_BYTES = 256 * 1024, CACHE_LINE = 64 };

struct team;

struct member {
    _Alignas(CACHE_LINE) struct team *team;
    pthread_t thread;
    size_t index;
    uint64_t value; /* in a reduction */
    uint64_t ended_ns;
};

struct team {
    size_t threads;
    void (*work)(void *state, struct team *team, size_t thread);
    void *state;
    struct member *members;
    pthread_barrier_t barrier;
    uint64_t reduced;
    bool is_marked; /* lines on stderr where the phase begins and ends */
    uint64_t begin_ns;
    uint64_t roi_ns; /* from the moment at which all threads stand ready to the last one's end */
};

/* A half-open range of items. */
struct range {
    size_t begin, end;
};

/* The threads as a grid of rows x columns, as square as their number allows. */
struct thread_grid {
    size_t rows, columns;
};

/*
 * Runs work(state, team, i) in each thread i and waits for all. Thread i is born on the i-th
 * PU of the list and goes round if there are more threads; anywhere if the list is not given.
 * False after a complaint if a thread cannot be started: the caller must end the process.
 */
bool team_run(struct team *team, const struct cpu_list *affinity);

/* Waits for all threads; true in one of them. */
bool team_wait(struct team *team);

/* The sum of what all threads bring, in all of them; wraps around. */
uint64_t team_sum(struct team *team, size_t thread, uint64_t value);

/* The largest of the numbers (none negative) that all threads bring, in all of them. */
double team_max(struct team *team, size_t thread, double value);

/* Part number `part` of `count` items; parts differ by one item at most. */
static inline struct range range_part(size_t count, size_t parts, size_t part)
{
    return (struct range){count * part / parts, count * (part + 1) / parts};
}

struct thread_grid thread_grid(size_t threads);

/* The next item of a common list, from 0 on. */
static inline size_t ticket_take(atomic_size_t *ticket)
{
    return atomic_fetch_add_explicit(ticket, 1, memory_order_relaxed);
}

/*
 * Zeroed memory on a cache line of its own, for the life of the process; ends the process
 * with a complaint if there is none. Any thread may ask.
 */
void *memory_take(size_t count, size_t size);

/* Gives all of it back. */
void memory_release(void);

#endif

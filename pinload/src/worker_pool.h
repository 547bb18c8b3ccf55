/*
 * Workers that work side by side, as threads or as processes.
 *
 * Processes die with this one. What workers write for the one that reports lies in
 * memory that both see (`worker_pool_memory`); it is taken before they start.
 */
#ifndef PINLOAD_WORKER_POOL_H
#define PINLOAD_WORKER_POOL_H

#include "base.h"

#include <pthread.h>

enum worker_pool_kind { WORKER_POOL_THREADS, WORKER_POOL_PROCESSES };

/* Enough for the largest machine under test; a list of them still prints in no time. */
enum { WORKER_POOL_LIMIT = 1024 };

/* A moment that all workers of a pool begin at. Lies in pool memory. */
struct gate {
    pthread_barrier_t ready, open;
    uint64_t ahead_ns; /* 0 for one worker, which waits for no other */
    uint64_t start_ns;
};

/* "threads" or "processes". */
const char *worker_pool_kind_name(enum worker_pool_kind kind);

/* Zeroed memory that is shared with processes started later; NULL after a complaint. */
void *worker_pool_memory(size_t bytes);

/*
 * Runs work(shared, index) in `count` workers and waits for the last. False after a complaint
 * if a worker cannot be started or a process was killed; the caller must end then, which ends
 * the others.
 */
bool worker_pool_run(enum worker_pool_kind kind, size_t count, void (*work)(void *shared, size_t index),
              void *shared);

/* Makes a gate for `count` workers. */
void gate_prepare(struct gate *gate, size_t count);

/* Waits for all workers; returns the time (CLOCK_MONOTONIC) at which all are to begin. */
uint64_t gate_pass(struct gate *gate);

#endif

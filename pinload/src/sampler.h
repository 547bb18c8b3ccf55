/*
 * What all benchmarks share: threads, gate, barrier, memory, flags, the JSON line.
 *
 * A benchmark fills in a `struct benchmark` and a `measure` function. Each listed CPU
 * gets one pinned thread; all prepare, pass one gate, measure, and meet again at
 * a barrier, so that no thread's start or end disturbs another's measurement.
 * Memory is taken, touched and locked before the gate; output comes after.
 */
#ifndef PINLOAD_SAMPLER_H
#define PINLOAD_SAMPLER_H

#include "base.h"

#include <pthread.h>
#include <stdio.h>

#include "args.h"
#include "clock.h"
#include "figure.h"
#include "rt.h"

union sample {
    uint64_t ticks; /* a duration, until the rate of the clock is known */
    uint64_t ns;    /* a duration, after that */
    double rate;    /* work per tick, then per second */
};

struct sampler;

/* One thread's part. */
struct observation {
    const struct sampler *sampler;
    pthread_t thread;
    int cpu;    /* pinned to, or -1 if no CPU was asked for */
    int ran_on; /* CPU at the start */
    union sample *samples;
    uint64_t *begins; /* of gaps: ns from `start_ns` until each began; of benchmarks that keep them */
    size_t count;
    size_t worst; /* index of the largest kept gap */
    uint64_t dropped;
    uint64_t floor_ns;
    uint64_t floor_ticks;
    uint64_t start_ns; /* CLOCK_MONOTONIC, the same for all threads */
    uint64_t started_raw_ns;
    uint64_t ended_raw_ns;
    uint64_t observed; /* ticks until finished, then ns */
    uint64_t skipped;  /* periods that passed without a wake-up */
    uint64_t rounds;   /* work items done */
    long voluntary;
    long involuntary;
    unsigned char *disturbed; /* of rates: a mark for each window in which the CPU was lost */
    uint64_t stolen_windows;  /* of these by the hypervisor below */
    uint64_t stolen;          /* ticks that it took meanwhile from the CPU of a pinned thread */
    bool fifo_refused, unlocked, migrated, steal_unknown, floor_raised, backwards, buffered, broken;
    int error; /* errno of `broken` */
    const char *broken_at;
    void *own; /* the benchmark's own state */
};

struct sampler {
    const char *probe;
    bool in_ticks; /* samples and `observed` are ticks until finished */
    bool is_rate;
    bool keeps_begins;
    uint64_t duration_ns;
    uint64_t max_samples;
    struct cpu_list cpus; /* empty: one thread, not pinned */
    struct policy policy;
    bool supervised;
    bool no_deep_sleep; /* keep all CPUs out of sleep states with a latency, as cyclictest does */
    bool kept_awake;    /* and the kernel agreed */
    struct tick_clock clock;
    bool (*prepare)(struct observation *); /* in the thread, before the gate; may be NULL */
    void (*measure)(struct observation *);
    void (*extra)(FILE *, const struct observation *); /* more JSON members; may be NULL */
    const void *settings;                              /* the benchmark's own arguments */
};

/* Help for `no_deep_sleep`, which is for benchmarks that sleep. */
#define DMA_LATENCY_HELP "keep all CPUs awake by cpu_dma_latency 0 while it runs, as cyclictest does"

/* Runs it and prints one JSON line per observation; returns the exit code. */
int sampler_run(struct sampler *sampler);

/* Keeps a sample; when the memory is full the worst is still kept, and the loss counted. */
void keep_sample(struct observation *observation, union sample sample);

/* The same of a gap that began so long after `start_ns`; for benchmarks that keep begins. */
void keep_gap(struct observation *observation, uint64_t ticks, uint64_t begin_ns);

/* Keeps a window of a benchmark of rates, with a mark if its thread lost its CPU meanwhile. */
void keep_window(struct observation *observation, double rate, struct quiet *quiet);

/* Notes that the observation cannot go on. */
void observation_broke(struct observation *observation, const char *at, int error);

#endif

/*
 * Memory traffic beside a measurement: threads that read, write or copy, on chosen CPUs and a
 * chosen node, that can be paused and slowed, and that count what they moved.
 */
#ifndef PINLOAD_TRAFFIC_H
#define PINLOAD_TRAFFIC_H

#include "base.h"

#include <pthread.h>
#include <stdatomic.h>

#include "area.h"
#include "caches.h"
#include "rt.h"

enum traffic_kind { TRAFFIC_READ, TRAFFIC_WRITE, TRAFFIC_COPY };

enum { TRAFFIC_LIMIT = 256 };

struct traffic;

struct traffic_thread {
    pthread_t thread;
    struct traffic *traffic;
    int cpu;
    struct area area;
    _Atomic uint64_t moved; /* bytes */
    bool ready;
} __attribute__((aligned(64))); /* no two counters in one cache line */

struct traffic {
    enum traffic_kind kind;
    uint64_t bytes; /* of each thread's memory */
    struct area_wish wish;
    struct cpu_list cpus; /* one after the other, round about */
    size_t count;
    _Atomic uint64_t delay_ns; /* pause of each thread after each block of 64 KiB */
    _Atomic int state;
    struct traffic_thread *threads;
    pthread_barrier_t touched;
};

/* "read", "write" or "copy". */
bool traffic_kind_parse(const char *argument, const char *text, enum traffic_kind *kind);

const char *traffic_kind_name(enum traffic_kind kind);

/*
 * The CPUs of the traffic if none were named: all that this process may use but `measured`.
 * To be called before this thread is pinned; complains, naming `argument`, if that leaves none.
 */
bool traffic_cpus(const char *argument, const struct cpu_list *measured, struct cpu_list *cpus);

/*
 * Sets the memory of each of `count` threads: `mib`, or if that is 0 twice the last cache, to miss
 * it; `least_mib` at least, and all of them not more than an eighth of what is free.
 */
void traffic_size(struct traffic *traffic, uint64_t mib, uint64_t least_mib,
                  const struct caches *caches);

/* Flags a memory that the last cache holds, so that the traffic may never reach memory. */
void traffic_flag(const struct traffic *traffic, const struct caches *caches,
                  struct figure *figure);

/* Starts `count` threads that touch their memory and then wait; false after a complaint. */
bool traffic_open(struct traffic *traffic);

/* Lets them work, or makes them wait; they have heard it after some 10 us. */
void traffic_go(struct traffic *traffic, bool go);

/* Bytes moved by all since the start; a copy's count twice, read and written. */
uint64_t traffic_moved(const struct traffic *traffic);

void traffic_close(struct traffic *traffic);

#endif

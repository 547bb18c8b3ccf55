/*
 * The six micro-benchmarks with which Buchert, Nussbaum and Gustedt judged methods of CPU
 * emulation ("Methods for Emulation of Multi-Core CPU Performance", HPCC 2011): result =
 * work over elapsed time.
 *
 *   cpu        units of integer work (work.h)
 *   udp        datagrams of 1 KiB to an address that no host has
 *   sleep      integer work, a sleep, integer work
 *   memory     blocks of a stream through arrays of 128 MiB, larger than the caches of then;
 *              a last cache that holds them is told (`fits-in-last-cache`)
 *   processes  integer work in several processes, until the last has been waited for
 *   threads    the same in threads
 *
 * And one beside them, of a program whose data a cache holds:
 *
 *   cache      1024 loads from 4 MiB, each of which waits for the one before it
 *
 * Each in two forms: a fixed time (`--seconds`), as the paper for cpu, udp, sleep and memory; or a
 * fixed amount (`--units`, for each worker and each stretch of work), as the paper for processes
 * and threads, whose result is the amount of one worker over the time until the last has ended:
 * it shows a schedule that is unfair to one of them.
 * Elapsed time holds the making and joining of workers, as in the paper. The time of working
 * leaves out the sleep.
 */
#include "micro.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "args.h"
#include "area.h"
#include "caches.h"
#include "cycle.h"
#include "worker_pool.h"
#include "datagram.h"
#include "stream.h"
#include "supervise.h"
#include "work.h"

struct micro;

/* What is measured, and how to do one unit of it. */
struct kind {
    bool (*measure)(struct micro *micro);
    bool has_workers; /* --workers counts */
};

struct worker {
    uint64_t units;
    bool proven;
};

struct micro {
    const char *name;
    const struct kind *kind;
    uint64_t units;       /* of each stretch of work; 0: by time */
    uint64_t duration_ns; /* of each stretch of work; 0: by amount */
    uint64_t workers;
    uint64_t sleep_ns;
    uint64_t memory_mib;
    uint64_t cache_kib;
    bool supervised;
    struct worker *worker; /* in pool memory */
    uint64_t begin_ns;
    uint64_t elapsed_ns;
    uint64_t asleep_ns;
    uint64_t cpu_ns;
};

/* Does units until the amount or the time since `begin` is reached; false if one failed. */
static bool stretch(const struct micro *micro, uint64_t begin, bool (*one)(void *), void *own,
                    uint64_t *units)
{
    const uint64_t end = begin + micro->duration_ns;
    uint64_t done = 0;
    bool good = true;
    while (good && (micro->units ? done < micro->units : monotonic_ns() < end)) {
        good = one(own);
        done++;
    }
    *units += done;
    return good;
}

static void start_clock(struct micro *micro)
{
    micro->cpu_ns = used_cpu_ns();
    micro->begin_ns = monotonic_ns();
}

static void stop_clock(struct micro *micro)
{
    micro->elapsed_ns = monotonic_ns() - micro->begin_ns;
    micro->cpu_ns = used_cpu_ns() - micro->cpu_ns;
}

static bool one_unit(void *own)
{
    work_one(own);
    return true;
}

static bool prove(const struct work *work)
{
    if (!work_is_proven(work))
        complain("wrong result of the work");
    return work_is_proven(work);
}

static bool measure_cpu(struct micro *micro)
{
    struct work work;
    work_begin(&work);
    start_clock(micro);
    stretch(micro, micro->begin_ns, one_unit, &work, &micro->worker->units);
    stop_clock(micro);
    return prove(&work);
}

static bool measure_sleep(struct micro *micro)
{
    struct work work;
    work_begin(&work);
    start_clock(micro);
    stretch(micro, micro->begin_ns, one_unit, &work, &micro->worker->units);
    const uint64_t asleep = monotonic_ns();
    sleep_until(asleep + micro->sleep_ns);
    const uint64_t awake = monotonic_ns();
    stretch(micro, awake, one_unit, &work, &micro->worker->units);
    stop_clock(micro);
    micro->asleep_ns = awake - asleep;
    return prove(&work);
}

static bool one_datagram(void *own)
{
    const int error = datagrams_send(own);
    if (error)
        complain("cannot send a datagram to 192.0.2.1: %s", strerror(error));
    return !error;
}

static bool measure_udp(struct micro *micro)
{
    struct datagrams datagrams;
    const int error = datagrams_open(&datagrams);
    if (error) {
        complain("cannot make a network namespace with a route for UDP datagrams (run as root, or "
                 "allow user namespaces): %s",
                 strerror(error));
        return false;
    }
    start_clock(micro);
    const bool good = stretch(micro, micro->begin_ns, one_datagram, &datagrams,
                              &micro->worker->units);
    stop_clock(micro);
    datagrams_close(&datagrams);
    return good;
}

static bool one_block(void *own)
{
    stream_block(own);
    return true;
}

static bool measure_memory(struct micro *micro)
{
    struct stream stream;
    if (!stream_open(&stream, micro->memory_mib)) {
        complain("--memory-mib: no memory for %" PRIu64 " MiB", micro->memory_mib);
        return false;
    }
    while (stream_touch(&stream))
        ;
    start_clock(micro);
    stretch(micro, micro->begin_ns, one_block, &stream, &micro->worker->units);
    stop_clock(micro);
    stream_close(&stream);
    return true;
}

static bool loads(void *own)
{
    struct line **at = own;
    *at = cycle_follow(*at, 64);
    return true;
}

static bool measure_cache(struct micro *micro)
{
    struct caches caches;
    struct area area;
    const struct area_wish wish = {.pages = PAGES_SMALL, .node = -1};
    if (!area_open(&area, "--cache-kib", micro->cache_kib << 10, &wish))
        return false;
    caches_read(&caches, sched_getcpu());
    const uint64_t lines = (micro->cache_kib << 10) / caches.line;
    struct line *at = (struct line *)(void *)area.bytes;
    cycle_link(area.bytes, lines, caches.line, true, 1);
    at = cycle_follow(at, lines / CYCLE_UNROLLED);
    start_clock(micro);
    stretch(micro, micro->begin_ns, loads, &at, &micro->worker->units);
    stop_clock(micro);
    area_close(&area);
    return true;
}

static void work_along(void *shared, size_t index)
{
    const struct micro *micro = shared;
    struct worker *worker = &micro->worker[index];
    struct work work;
    work_begin(&work);
    stretch(micro, micro->begin_ns, one_unit, &work, &worker->units);
    worker->proven = work_is_proven(&work);
}

static bool measure_pool(struct micro *micro, enum worker_pool_kind kind)
{
    start_clock(micro);
    const bool joined = worker_pool_run(kind, micro->workers, work_along, micro);
    stop_clock(micro);
    for (uint64_t i = 0; joined && i < micro->workers; i++) {
        if (!micro->worker[i].proven) {
            complain("worker %" PRIu64 ": wrong result of the work", i);
            return false;
        }
    }
    return joined;
}

static bool measure_processes(struct micro *micro)
{
    return measure_pool(micro, WORKER_POOL_PROCESSES);
}

static bool measure_threads(struct micro *micro)
{
    return measure_pool(micro, WORKER_POOL_THREADS);
}

static const char *const names[] = {"cpu", "udp", "sleep", "memory", "processes", "threads", "cache"};

static const struct kind kinds[] = {
    {measure_cpu, false},    {measure_udp, false},      {measure_sleep, false},
    {measure_memory, false}, {measure_processes, true}, {measure_threads, true},
    {measure_cache, false},
};

/* A stream that the last cache holds is no stream through memory. */
static void print_memory(const struct micro *micro)
{
    struct caches caches;
    caches_read(&caches, sched_getcpu());
    const uint64_t last = caches_last(&caches) >> 20;
    printf(",\"memory_mib\":%" PRIu64 ",\"flags\":[", micro->memory_mib);
    if (micro->memory_mib <= last)
        printf("\"fits-in-last-cache %" PRIu64 " of %" PRIu64 " MiB\"", micro->memory_mib, last);
    fputc(']', stdout);
}

static int report(const struct micro *micro)
{
    uint64_t units = 0;
    for (uint64_t i = 0; i < micro->workers; i++)
        units += micro->worker[i].units;
    printf("{\"probe\":\"micro-%s\",\"units\":%" PRIu64 ",\"elapsed_ns\":%" PRIu64
           ",\"working_ns\":%" PRIu64 ",\"cpu_ns\":%" PRIu64 ",\"workers\":[",
           micro->name, units, micro->elapsed_ns, micro->elapsed_ns - micro->asleep_ns,
           micro->cpu_ns);
    for (uint64_t i = 0; i < micro->workers; i++)
        printf("%s%" PRIu64, i ? "," : "", micro->worker[i].units);
    fputc(']', stdout);
    if (micro->kind->measure == measure_memory)
        print_memory(micro);
    fputs("}\n", stdout);
    return output_end();
}

static int run(struct micro *micro)
{
    const uint64_t limit = micro->units ? WORK_LIMIT_NS
                                        : measurement_limit_ns(2 * micro->duration_ns);
    micro->worker = worker_pool_memory(micro->workers * sizeof *micro->worker);
    if (!micro->worker ||
        !supervise_measurement(limit + micro->sleep_ns, micro->supervised, 0))
        return PINLOAD_FAILED;
    prctl(PR_SET_TIMERSLACK, 1); /* the sleep is to end when it should */
    return micro->kind->measure(micro) ? report(micro) : PINLOAD_FAILED;
}

static bool settle(struct micro *micro)
{
    if (!micro->units == !micro->duration_ns) {
        complain("--seconds, --units: exactly one of them is required");
        return false;
    }
    if (micro->workers && !micro->kind->has_workers) {
        complain("--workers: only processes and threads take a number of workers");
        return false;
    }
    if (!micro->workers)
        micro->workers = micro->kind->has_workers ? 5 : 1;
    return true;
}

int micro_main(int argc, char **argv)
{
    struct micro micro = {.sleep_ns = NS_PER_S, .memory_mib = 128, .cache_kib = 4096};
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &micro.duration_ns, 10 * NS_PER_MS, 3600 * NS_PER_S,
         OPTIONAL, "length of each stretch of work"},
        {"--units", ARGUMENT_INTEGER, &micro.units, 1, WORK_LIMIT_UNITS, OPTIONAL,
         "or amount: units of work, datagrams, blocks of 96 KiB, 1024 loads"},
        {"--workers", ARGUMENT_INTEGER, &micro.workers, 1, WORKER_POOL_LIMIT, OPTIONAL,
         "processes, threads: how many (5)"},
        {"--sleep-seconds", ARGUMENT_SECONDS, &micro.sleep_ns, NS_PER_MS, 3600 * NS_PER_S,
         OPTIONAL, "sleep: length of the sleep (1)"},
        {"--memory-mib", ARGUMENT_INTEGER, &micro.memory_mib, 1, 65536, OPTIONAL,
         "memory: MiB of all arrays (128)"},
        {"--cache-kib", ARGUMENT_INTEGER, &micro.cache_kib, 4, 1048576, OPTIONAL,
         "cache: KiB of the data (4096)"},
        {"--supervised", ARGUMENT_FLAG, &micro.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    size_t kind = 0;
    enum parse_result parsed = arguments_word(&argc, &argv, "micro-benchmark", names,
                                              sizeof names / sizeof *names, &kind);
    if (parsed == PARSE_DONE)
        parsed = arguments_parse(argc, argv, table, sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    micro.name = names[kind];
    micro.kind = &kinds[kind];
    return settle(&micro) ? run(&micro) : PINLOAD_USAGE;
}

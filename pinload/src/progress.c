/*
 * Progress: units of work done in each millisecond by each worker, and every stop.
 *
 * Workers are threads or processes, free to migrate or one to a CPU. Each does a unit of
 * work, reads the clock, counts the unit in the window in which it ended, and notes the time
 * since the last reading if that is long: then something else had the CPU. What did, and
 * whether it was meant to, is for the reader to say: this is the picture that a program
 * has of the speed of its CPU.
 * A unit is timed before: a stop is at least four times as long, however slow the CPU is.
 */
#include "progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "args.h"
#include "worker_pool.h"
#include "rt.h"
#include "supervise.h"
#include "work.h"

#define WINDOW_NS NS_PER_MS

enum { TIMED_UNITS = 101 };

struct stop {
    uint64_t start_ns; /* since the common start */
    uint64_t length_ns;
};

struct runner {
    uint32_t *windows;
    struct stop *stops;
    uint64_t stop_count;
    uint64_t dropped;
    uint64_t units;
    uint64_t cpu_ns;
    uint64_t late_ns; /* from the common start to the first reading */
    const char *failed_at; /* a literal: the same address in all processes */
    int error;
};

struct progress {
    uint64_t duration_ns;
    uint64_t gap_min_ns;
    uint64_t unit_ns; /* without stops */
    uint64_t max_stops;
    struct cpu_list cpus; /* empty: free to migrate */
    enum worker_pool_kind kind;
    uint64_t count;
    bool supervised;
    struct gate *gate;
    struct runner *runners;
};

static size_t window_count(const struct progress *progress)
{
    return (size_t)(progress->duration_ns / WINDOW_NS);
}

/* Median time of a unit with its reading: a floor near it would record the work itself. */
static void time_unit(struct progress *progress)
{
    uint64_t times[TIMED_UNITS];
    struct work work;
    work_begin(&work);
    uint64_t last = monotonic_ns();
    for (size_t i = 0; i < TIMED_UNITS; i++) {
        work_one(&work);
        const uint64_t now = monotonic_ns();
        times[i] = now - last;
        last = now;
    }
    progress->unit_ns = median_of(times, TIMED_UNITS);
    if (progress->gap_min_ns < 4 * progress->unit_ns)
        progress->gap_min_ns = 4 * progress->unit_ns;
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
}

static int cpu_of(const struct progress *progress, size_t index)
{
    return progress->cpus.count ? progress->cpus.cpus[index % progress->cpus.count] : -1;
}

/* Pins the worker and touches its memory, before the gate. */
static void settle(const struct progress *progress, size_t index)
{
    struct runner *runner = &progress->runners[index];
    const int cpu = cpu_of(progress, index);
    if (cpu >= 0 && !thread_pin(cpu)) {
        runner->failed_at = "pinning the worker";
        runner->error = errno;
    }
    memset(runner->windows, 0, window_count(progress) * sizeof *runner->windows);
    memset(runner->stops, 0, progress->max_stops * sizeof *runner->stops);
}

static void keep_stop(const struct progress *progress, struct runner *runner, struct stop stop)
{
    if (runner->stop_count < progress->max_stops)
        runner->stops[runner->stop_count++] = stop;
    else
        runner->dropped++;
}

/* The unit that ends after the end counts for no window, and so not at all. */
static void run(const struct progress *progress, struct runner *runner, struct work *work,
                uint64_t start)
{
    const uint64_t end = start + progress->duration_ns;
    uint64_t last = monotonic_ns();
    runner->late_ns = last - start;
    while (last < end) {
        work_one(work);
        const uint64_t now = monotonic_ns();
        if (__builtin_expect(now - last >= progress->gap_min_ns, 0))
            keep_stop(progress, runner, (struct stop){last - start, now - last});
        if (now < end) {
            runner->windows[(now - start) / WINDOW_NS]++;
            runner->units++;
        }
        last = now;
    }
}

static void work_along(void *shared, size_t index)
{
    const struct progress *progress = shared;
    struct runner *runner = &progress->runners[index];
    struct work work;
    work_begin(&work);
    settle(progress, index);
    const uint64_t start = gate_pass(progress->gate);
    if (runner->failed_at)
        return;
    sleep_until(start);
    const uint64_t cpu_ns = thread_cpu_ns();
    run(progress, runner, &work, start);
    runner->cpu_ns = thread_cpu_ns() - cpu_ns;
    if (!work_is_proven(&work))
        runner->failed_at = "wrong result of the work";
}

/* One piece of shared memory: gate, runners, and behind them each one's windows and stops. */
static bool take_memory(struct progress *progress)
{
    const size_t stops = (size_t)progress->max_stops * sizeof(struct stop);
    const size_t windows = (window_count(progress) + 1) / 2 * 2 * sizeof(uint32_t);
    const size_t head = sizeof *progress->gate + progress->count * sizeof *progress->runners;
    char *memory = worker_pool_memory(head + progress->count * (stops + windows));
    if (!memory)
        return false;
    progress->gate = (struct gate *)(void *)memory;
    progress->runners = (struct runner *)(void *)(memory + sizeof *progress->gate);
    for (size_t i = 0; i < progress->count; i++) {
        char *own = memory + head + i * (stops + windows);
        progress->runners[i].stops = (struct stop *)(void *)own;
        progress->runners[i].windows = (uint32_t *)(void *)(own + stops);
    }
    return true;
}

static void print_runner(const struct progress *progress, size_t index)
{
    const struct runner *runner = &progress->runners[index];
    const size_t windows = window_count(progress);
    const int cpu = cpu_of(progress, index);
    if (cpu >= 0)
        printf("{\"cpu\":%d", cpu);
    else
        fputs("{\"cpu\":null", stdout);
    printf(",\"units\":%" PRIu64 ",\"cpu_ns\":%" PRIu64 ",\"late_ns\":%" PRIu64
           ",\"dropped\":%" PRIu64 ",\"windows\":[",
           runner->units, runner->cpu_ns, runner->late_ns, runner->dropped);
    for (size_t i = 0; i < windows; i++)
        printf("%s%" PRIu32, i ? "," : "", runner->windows[i]);
    fputs("],\"stops\":[", stdout);
    for (size_t i = 0; i < runner->stop_count; i++)
        printf("%s[%" PRIu64 ",%" PRIu64 "]", i ? "," : "", runner->stops[i].start_ns,
               runner->stops[i].length_ns);
    fputs("]}", stdout);
}

static bool all_good(const struct progress *progress)
{
    bool good = true;
    for (size_t i = 0; i < progress->count; i++) {
        const struct runner *runner = &progress->runners[i];
        if (runner->failed_at) {
            complain("worker %zu: %s%s%s", i, runner->failed_at, runner->error ? ": " : "",
                     runner->error ? strerror(runner->error) : "");
            good = false;
        }
    }
    return good;
}

static int report(const struct progress *progress)
{
    uint64_t units = 0, cpu_ns = 0;
    for (size_t i = 0; i < progress->count; i++) {
        units += progress->runners[i].units;
        cpu_ns += progress->runners[i].cpu_ns;
    }
    printf("{\"probe\":\"progress\",\"kind\":\"%s\",\"start_ns\":%" PRIu64 ",\"window_ns\":%" PRIu64
           ",\"gap_min_ns\":%" PRIu64 ",\"unit_ns\":%" PRIu64 ",\"elapsed_ns\":%" PRIu64 ",\"units\":%" PRIu64
           ",\"cpu_ns\":%" PRIu64 ",\"workers\":[",
           worker_pool_kind_name(progress->kind), progress->gate->start_ns, (uint64_t)WINDOW_NS, progress->gap_min_ns,
           progress->unit_ns, progress->duration_ns, units, cpu_ns);
    for (size_t i = 0; i < progress->count; i++) {
        if (i > 0)
            fputc(',', stdout);
        print_runner(progress, i);
    }
    fputs("]}\n", stdout);
    return output_end();
}

static int measure(struct progress *progress)
{
    if (!take_memory(progress) ||
        !supervise_measurement(measurement_limit_ns(progress->duration_ns), progress->supervised,
                               0))
        return PINLOAD_FAILED;
    prctl(PR_SET_TIMERSLACK, 1); /* for a start at the start; workers inherit it */
    time_unit(progress);
    gate_prepare(progress->gate, progress->count);
    if (!worker_pool_run(progress->kind, progress->count, work_along, progress) || !all_good(progress))
        return PINLOAD_FAILED;
    return report(progress);
}

static bool choose_kind(struct progress *progress, uint64_t threads, uint64_t processes)
{
    if (!threads == !processes) {
        complain("--threads, --processes: exactly one of them is required");
        return false;
    }
    progress->kind = threads ? WORKER_POOL_THREADS : WORKER_POOL_PROCESSES;
    progress->count = threads ? threads : processes;
    if (progress->duration_ns % WINDOW_NS != 0) {
        complain("--seconds: not a whole number of milliseconds");
        return false;
    }
    return true;
}

int progress_main(int argc, char **argv)
{
    struct progress progress = {.gap_min_ns = 20000, .max_stops = 100000};
    uint64_t threads = 0, processes = 0;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &progress.duration_ns, 10 * NS_PER_MS, 600 * NS_PER_S,
         REQUIRED, "how long to measure, in whole milliseconds"},
        {"--threads", ARGUMENT_INTEGER, &threads, 1, WORKER_POOL_LIMIT, OPTIONAL,
         "number of workers, as threads of one process"},
        {"--processes", ARGUMENT_INTEGER, &processes, 1, WORKER_POOL_LIMIT, OPTIONAL,
         "number of workers, as processes"},
        {"--cpus", ARGUMENT_CPUS, &progress.cpus, 0, 0, OPTIONAL,
         "one CPU to each worker in turn (free to migrate)"},
        {"--gap-min-ns", ARGUMENT_INTEGER, &progress.gap_min_ns, 1000, NS_PER_S, OPTIONAL,
         "stops below this, or four units, are not recorded (20000)"},
        {"--max-stops", ARGUMENT_INTEGER, &progress.max_stops, 1, 10000000, OPTIONAL,
         "memory for stops, per worker (100000)"},
        {"--supervised", ARGUMENT_FLAG, &progress.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    const int code = choose_kind(&progress, threads, processes) ? measure(&progress)
                                                                : PINLOAD_USAGE;
    free(progress.cpus.cpus);
    return code;
}

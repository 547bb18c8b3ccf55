/*
 * How long operations of the operating system take. See os_latency.h.
 *
 * Each is repeated until a window of two milliseconds is full, and the mean of the window is
 * a sample: the distribution is over windows. Windows in which the thread was preempted are
 * left out, except of those that make processes, where the child may well run first.
 */
#include "os_latency.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "args.h"
#include "figure.h"
#include "memory.h"
#include "rt.h"
#include "supervise.h"
#include "laps.h"

enum { OPERATION_LIMIT = 32, CALIBRATION_TRIES = 3 };

struct latency {
    uint64_t duration_ns;
    uint64_t window_us;
    uint64_t rss_mib;
    const char *operations_text;
    const char *directory;
    struct integer_list descriptors;
    struct cpu_list cpus;
    bool supervised;
    const struct operation *operations[OPERATION_LIMIT];
    const char *names[OPERATION_LIMIT];
    size_t count;
    uint64_t chosen; /* bits */
    struct laps windows;
    struct os os;
};

static void collect(struct latency *latency)
{
    const struct operation *const parts[] = {os_calls, os_processes, os_memory, os_files};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        for (const struct operation *one = parts[part]; one->name; one++) {
            if (latency->count == OPERATION_LIMIT)
                abort();
            latency->names[latency->count] = one->name;
            latency->operations[latency->count++] = one;
        }
    }
}

/* One window of n operations; `keep` it or not. Its length, 0 after a complaint. */
static uint64_t one_window(struct latency *latency, const struct operation *operation, uint64_t n,
                           bool keep)
{
    struct os *os = &latency->os;
    if (operation->prepare && !operation->prepare(os, n))
        return 0;
    lap_begin(&latency->windows);
    const bool good = operation->run(os, n);
    const uint64_t elapsed = lap_end(&latency->windows);
    if (keep)
        lap_keep(&latency->windows, (double)elapsed / (double)n);
    return good && (!operation->tidy || operation->tidy(os, n)) ? elapsed : 0;
}

/* How many operations fill a window; 0 after a complaint. */
static uint64_t fill_window(struct latency *latency, const struct operation *operation)
{
    uint64_t n = 1;
    for (;;) {
        uint64_t best = UINT64_MAX;
        for (int i = 0; i < CALIBRATION_TRIES; i++) {
            const uint64_t elapsed = one_window(latency, operation, n, false);
            if (elapsed == 0)
                return 0;
            best = elapsed < best ? elapsed : best;
        }
        const uint64_t window_ns = latency->window_us * NS_PER_US;
        if (best >= window_ns) /* too many by less than a factor of two, unless one is too long */
            return n * window_ns / best ? n * window_ns / best : 1;
        if (n == operation->most)
            return n;
        n = n > operation->most / 2 ? operation->most : 2 * n;
    }
}

static bool print(struct latency *latency, const struct operation *operation)
{
    const struct os *os = &latency->os;
    struct figure figure = {
        .probe = "os-latency",
        .unit = "ns",
        .family = FIGURE_CAPACITY,
        .cpu = latency->cpus.count ? latency->cpus.cpus[0] : -1,
    };
    const uint64_t resident_kib = memory_resident_kib();
    figure_label(&figure, "operation", "%s", operation->name);
    figure_label(&figure, "rss-mib", "%" PRIu64, latency->rss_mib);
    if (operation->descriptors)
        figure_label(&figure, "descriptors", "%" PRIu64, os->descriptors);
    if (operation->files)
        figure_label(&figure, "filesystem", "%s", os->scratch.filesystem);
    if (resident_kib)
        figure_flag(&figure, "resident-kib %" PRIu64, resident_kib);
    if (os->touches && (os->faults < os->touches * 9 / 10 || os->faults > os->touches * 11 / 10))
        figure_flag(&figure, "faults %" PRIu64 " of %" PRIu64 " touches", os->faults, os->touches);
    laps_figure(&latency->windows, &figure);
    return figure_print(stdout, &figure);
}

static bool measure(struct latency *latency, const struct operation *operation)
{
    struct os *os = &latency->os;
    os->faults = os->touches = 0;
    if (operation->open && !operation->open(os))
        return false;
    laps_begin(&latency->windows, operation->quiet_only);
    const uint64_t n = fill_window(latency, operation);
    if (n == 0)
        return false;
    os->faults = os->touches = 0;
    laps_begin(&latency->windows, operation->quiet_only);
    do {
        if (one_window(latency, operation, n, true) == 0)
            return false;
    } while (laps_go_on(&latency->windows));
    const bool good = print(latency, operation);
    if (operation->close)
        operation->close(os);
    return good;
}

static bool measure_all(struct latency *latency)
{
    for (size_t i = 0; i < latency->count; i++) {
        const struct operation *operation = latency->operations[i];
        if (!(latency->chosen >> i & 1))
            continue;
        for (size_t d = 0; d < (operation->descriptors ? latency->descriptors.count : 1); d++) {
            latency->os.descriptors = latency->descriptors.values[d];
            if (!measure(latency, operation))
                return false;
        }
    }
    return true;
}

/* Grows this process to what was asked for, in small pages. */
static bool grow(const struct latency *latency)
{
    const uint64_t available_kib = memory_available_kib();
    const size_t bytes = (size_t)latency->rss_mib * 1024 * 1024;
    if (bytes == 0)
        return true;
    if (latency->rss_mib * 1024 > available_kib) {
        complain("--rss-mib: %" PRIu64 " MiB, and %" PRIu64 " MiB are available; use less",
                 latency->rss_mib, available_kib / 1024);
        return false;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        complain_errno("--rss-mib: cannot take %" PRIu64 " MiB", latency->rss_mib);
        return false;
    }
    madvise(memory, bytes, MADV_NOHUGEPAGE); /* a kernel without them refuses */
    memset(memory, 0x5A, bytes);
    return true;
}

static bool needs_files(const struct latency *latency)
{
    for (size_t i = 0; i < latency->count; i++)
        if (latency->chosen >> i & 1 && latency->operations[i]->files)
            return true;
    return false;
}

static int run(struct latency *latency)
{
    const bool files = needs_files(latency);
    const uint64_t figures = latency->count + 2 * latency->descriptors.count;
    if (!supervise_measurement(measurement_limit_ns(2 * figures * latency->duration_ns),
                               latency->supervised, 0))
        return PINLOAD_FAILED;
    if (latency->cpus.count && !thread_pin(latency->cpus.cpus[0])) {
        complain_errno("--cpus: cannot pin");
        return PINLOAD_FAILED;
    }
    latency->os.page = (size_t)sysconf(_SC_PAGESIZE);
    if (!laps_open(&latency->windows, latency->duration_ns, 50 * NS_PER_US) ||
        (files && !scratch_open(&latency->os.scratch, latency->directory)))
        return PINLOAD_FAILED;
    const bool good = grow(latency) && measure_all(latency);
    if (files)
        scratch_close(&latency->os.scratch);
    laps_close(&latency->windows);
    free(latency->cpus.cpus);
    return good ? output_end() : PINLOAD_FAILED;
}

static bool check(struct latency *latency)
{
    latency->chosen = (UINT64_C(1) << latency->count) - 1;
    if (latency->operations_text &&
        !choose_words("--operations", latency->operations_text, latency->names, latency->count,
                      &latency->chosen))
        return false;
    if (latency->cpus.count > 1) {
        complain("--cpus: %zu CPUs; one thread measures, on one of them", latency->cpus.count);
        return false;
    }
    return true;
}

int os_latency_main(int argc, char **argv)
{
    static struct latency latency = {
        .window_us = 2000,
        .descriptors = {.count = 2, .values = {10, 100}},
    };
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &latency.duration_ns, 10 * NS_PER_MS, 3600 * NS_PER_S,
         REQUIRED, "how long to measure each operation"},
        {"--operations", ARGUMENT_TEXT, &latency.operations_text, 0, 0, OPTIONAL,
         "some of them with commas between (all); a wrong one lists them"},
        {"--cpus", ARGUMENT_CPUS, &latency.cpus, 0, 0, OPTIONAL, "one CPU"},
        {"--descriptors", ARGUMENT_LIST, &latency.descriptors, 1, OS_DESCRIPTORS, OPTIONAL,
         "select, poll: how many (10,100)"},
        {"--rss-mib", ARGUMENT_INTEGER, &latency.rss_mib, 0, 1048576, OPTIONAL,
         "MiB that this process has resident beyond its own (0)"},
        {"--directory", ARGUMENT_TEXT, &latency.directory, 0, 0, OPTIONAL,
         "where files are made ($TMPDIR or /tmp)"},
        {"--window-us", ARGUMENT_INTEGER, &latency.window_us, 100, 1000000, OPTIONAL,
         "length of a window (2000)"},
        {"--supervised", ARGUMENT_FLAG, &latency.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    if (argc == 1 && !strcmp(argv[0], "child"))
        return PINLOAD_OK; /* the small program of the operations that start one */
    collect(&latency);
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    return check(&latency) ? run(&latency) : PINLOAD_USAGE;
}

/*
 * Bursts: a fixed number of units of work, then a sleep, over and over; each one's duration raw.
 *
 * A CPU that is slow at each moment shows the same speed in a burst of any length; one that
 * is slow on average lets a task that has slept spend what it saved. How many units make
 * a burst of the wanted length is the caller's to say, from the unthrottled rate.
 * Two times are kept of each burst: how late it began after the sleep was to end, and how long
 * it took from its first instruction. Something that has the CPU when the sleep ends
 * is in the first, and only in the first.
 */
#include "burst.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "args.h"
#include "supervise.h"
#include "work.h"

struct sample {
    uint64_t burst_ns;
    uint64_t late_ns;
};

struct burst {
    uint64_t units;
    uint64_t sleep_ns;
    uint64_t duration_ns;
    uint64_t max_samples;
    bool supervised;
    struct sample *samples;
    uint64_t count;
    uint64_t dropped;
    uint64_t elapsed_ns;
    uint64_t cpu_ns;
};

/* The first burst comes after a sleep too. A burst that has begun is always ended. */
static bool run(struct burst *burst)
{
    struct work work;
    const uint64_t cpu_ns = used_cpu_ns();
    const uint64_t begin = monotonic_ns();
    uint64_t now = begin;
    work_begin(&work);
    do {
        const uint64_t due = now + burst->sleep_ns;
        sleep_until(due);
        const uint64_t started = monotonic_ns();
        for (uint64_t i = 0; i < burst->units; i++)
            work_one(&work);
        now = monotonic_ns();
        if (burst->count < burst->max_samples)
            burst->samples[burst->count++] = (struct sample){now - started, started - due};
        else
            burst->dropped++;
    } while (now - begin < burst->duration_ns);
    burst->elapsed_ns = now - begin;
    burst->cpu_ns = used_cpu_ns() - cpu_ns;
    return work_is_proven(&work);
}

static int report(const struct burst *burst)
{
    printf("{\"probe\":\"burst\",\"units\":%" PRIu64 ",\"sleep_ns\":%" PRIu64
           ",\"elapsed_ns\":%" PRIu64 ",\"cpu_ns\":%" PRIu64 ",\"dropped\":%" PRIu64
           ",\"burst_ns\":[",
           burst->units, burst->sleep_ns, burst->elapsed_ns, burst->cpu_ns, burst->dropped);
    for (uint64_t i = 0; i < burst->count; i++)
        printf("%s%" PRIu64, i ? "," : "", burst->samples[i].burst_ns);
    fputs("],\"late_ns\":[", stdout);
    for (uint64_t i = 0; i < burst->count; i++)
        printf("%s%" PRIu64, i ? "," : "", burst->samples[i].late_ns);
    fputs("]}\n", stdout);
    return output_end();
}

static int measure(struct burst *burst)
{
    const size_t bytes = (size_t)burst->max_samples * sizeof *burst->samples;
    burst->samples = malloc(bytes);
    if (!burst->samples) {
        complain("--max-samples: no memory for %" PRIu64, burst->max_samples);
        return PINLOAD_FAILED;
    }
    memset(burst->samples, 0xA5, bytes); /* first touch, before the clock runs */
    /* One burst of a slow CPU may begin just before the end: an hour is more than any. */
    int code = PINLOAD_FAILED;
    if (supervise_measurement(measurement_limit_ns(burst->duration_ns) + WORK_LIMIT_NS,
                              burst->supervised, 0)) {
        prctl(PR_SET_TIMERSLACK, 1); /* normal threads' timers may else fire up to 50 us late */
        if (run(burst))
            code = report(burst);
        else
            complain("wrong result of the work");
    }
    free(burst->samples);
    return code;
}

int burst_main(int argc, char **argv)
{
    struct burst burst = {.max_samples = 200000};
    uint64_t sleep_us = 0;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &burst.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         REQUIRED, "how long to measure; the last burst is ended"},
        {"--units", ARGUMENT_INTEGER, &burst.units, 1, WORK_LIMIT_UNITS, REQUIRED,
         "units of work in a burst"},
        {"--sleep-us", ARGUMENT_INTEGER, &sleep_us, 1, 60000000, REQUIRED,
         "length of the sleep before each burst"},
        {"--max-samples", ARGUMENT_INTEGER, &burst.max_samples, 1, 10000000, OPTIONAL,
         "memory for bursts (200000)"},
        {"--supervised", ARGUMENT_FLAG, &burst.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    burst.sleep_ns = sleep_us * NS_PER_US;
    return measure(&burst);
}

/*
 * Wake-up: sleeps until absolute times of an open-loop schedule and records how
 * late each wake-up came.
 *
 * The schedule never shifts. Periods that passed while the thread was late are
 * samples too, each with the lateness that a sleeper of that period would have
 * seen; without them one stall of a second would be one sample among thousands
 * (coordinated omission).
 */
#include "wakeup.h"

#include <inttypes.h>
#include <sched.h>
#include <sys/prctl.h>

#include "sampler.h"

struct wakeup_settings {
    uint64_t period_ns;
};

static bool prepare(struct observation *o)
{
    /* Normal threads' timers may otherwise fire up to 50 us late on purpose. */
    if (prctl(PR_SET_TIMERSLACK, 1) != 0) {
        observation_broke(o, "setting the timer slack", 0);
        return false;
    }
    return true;
}

static void measure(struct observation *o)
{
    const struct wakeup_settings *settings = o->sampler->settings;
    const uint64_t end = o->start_ns + o->sampler->duration_ns;
    uint64_t due = o->start_ns + settings->period_ns;
    while (due <= end) {
        sleep_until(due);
        const uint64_t now = monotonic_ns();
        keep_sample(o, (union sample){.ns = now > due ? now - due : 0});
        due += settings->period_ns;
        while (due <= now && due <= end) {
            keep_sample(o, (union sample){.ns = now - due});
            o->skipped++;
            due += settings->period_ns;
        }
        if (sched_getcpu() != o->ran_on)
            o->migrated = true;
    }
    o->observed = monotonic_ns() - o->start_ns;
}

static void extra(FILE *out, const struct observation *o)
{
    const struct wakeup_settings *settings = o->sampler->settings;
    fprintf(out, "\"period_ns\":%" PRIu64 ",\"skipped\":%" PRIu64 ",", settings->period_ns,
            o->skipped);
}

int wakeup_main(int argc, char **argv)
{
    struct wakeup_settings settings = {0};
    struct sampler sampler = {
        .probe = "wakeup",
        .max_samples = 200000,
        .prepare = prepare,
        .measure = measure,
        .extra = extra,
        .settings = &settings,
    };
    uint64_t period_us = 1000;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &sampler.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         REQUIRED, "how long to measure"},
        {"--cpus", ARGUMENT_CPUS, &sampler.cpus, 0, 0, REQUIRED, "CPUs, or all: one thread each"},
        {"--policy", ARGUMENT_POLICY, &sampler.policy, 0, 0, OPTIONAL, "other (default) or fifo:N"},
        {"--period-us", ARGUMENT_INTEGER, &period_us, 50, 1000000, OPTIONAL,
         "time between two wake-ups (1000)"},
        {"--max-samples", ARGUMENT_INTEGER, &sampler.max_samples, 1, 10000000, OPTIONAL,
         "memory for samples, per CPU (200000)"},
        {"--dma-latency", ARGUMENT_FLAG, &sampler.no_deep_sleep, 0, 0, OPTIONAL, DMA_LATENCY_HELP},
        {"--supervised", ARGUMENT_FLAG, &sampler.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    settings.period_ns = period_us * NS_PER_US;
    if (settings.period_ns > sampler.duration_ns) {
        complain("--period-us: the period is longer than --seconds");
        return PINLOAD_USAGE;
    }
    return sampler_run(&sampler);
}

/*
 * Compute rate: rounds of a fixed integer kernel per second, one sample per window.
 *
 * Windows are short (5 ms) because on a shared machine the best short windows
 * repeat within a few percent where an average over a second does not. A window
 * ends with the round that is running, and its rate is taken over the time that
 * it really lasted; those in which the thread lost its CPU are kept and marked. Every round's checksum is verified.
 */
#include "compute.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

#include "intmix.h"
#include "sampler.h"

struct compute_settings {
    uint64_t window_ns;
};

static bool prepare(struct observation *o)
{
    struct intmix *work = malloc(sizeof *work);
    if (!work) {
        observation_broke(o, "taking the working memory", ENOMEM);
        return false;
    }
    intmix_init(work);
    o->own = work;
    return true;
}

static void measure(struct observation *o)
{
    const struct compute_settings *settings = o->sampler->settings;
    const struct tick_clock *clock = &o->sampler->clock;
    const uint64_t window = rough_ticks(clock, settings->window_ns);
    const uint64_t length = rough_ticks(clock, o->sampler->duration_ns);
    const uint64_t begin = read_ticks(clock->hardware);
    uint64_t now = begin;
    while (now - begin < length) {
        struct quiet quiet = quiet_begin();
        const uint64_t window_begin = read_ticks(clock->hardware);
        uint64_t rounds = 0;
        do {
            if (intmix_round(o->own) != INTMIX_CHECKSUM) {
                observation_broke(o, "checksum of the integer kernel", 0);
                return;
            }
            rounds++;
            now = read_ticks(clock->hardware);
        } while (now - window_begin < window);
        /* Per tick, until the rate of the clock is known. */
        keep_window(o, (double)rounds / (double)(now - window_begin), &quiet);
        o->observed += now - window_begin;
        o->rounds += rounds;
        if (sched_getcpu() != o->ran_on)
            o->migrated = true;
    }
}

static void extra(FILE *out, const struct observation *o)
{
    const struct compute_settings *settings = o->sampler->settings;
    fprintf(out, "\"window_ns\":%" PRIu64 ",\"rounds\":%" PRIu64 ",\"checksum\":%" PRIu32 ",",
            settings->window_ns, o->rounds, INTMIX_CHECKSUM);
}

int compute_main(int argc, char **argv)
{
    struct compute_settings settings = {0};
    struct sampler sampler = {
        .probe = "compute",
        .in_ticks = true,
        .is_rate = true,
        .max_samples = 200000,
        .prepare = prepare,
        .measure = measure,
        .extra = extra,
        .settings = &settings,
    };
    uint64_t window_ms = 5;
    bool unsafe_full_duty = false;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &sampler.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         REQUIRED, "how long to measure"},
        {"--cpus", ARGUMENT_CPUS, &sampler.cpus, 0, 0, REQUIRED, "CPUs, or all: one thread each"},
        {"--policy", ARGUMENT_POLICY, &sampler.policy, 0, 0, OPTIONAL, "other (default) or fifo:N"},
        {"--window-ms", ARGUMENT_INTEGER, &window_ms, 1, 1000, OPTIONAL, "length of a window (5)"},
        {"--max-samples", ARGUMENT_INTEGER, &sampler.max_samples, 1, 10000000, OPTIONAL,
         "memory for windows, per CPU (200000)"},
        {"--unsafe-full-duty", ARGUMENT_FLAG, &unsafe_full_duty, 0, 0, OPTIONAL,
         "allow --policy fifo, which never sleeps here"},
        {"--supervised", ARGUMENT_FLAG, &sampler.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    if (sampler.policy.fifo && !unsafe_full_duty) {
        complain("--policy: fifo would starve the CPU, because this benchmark never sleeps; use other, "
                 "or --unsafe-full-duty");
        return PINLOAD_USAGE;
    }
    settings.window_ns = window_ms * NS_PER_MS;
    return sampler_run(&sampler);
}

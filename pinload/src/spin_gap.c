/*
 * Spin-gap: reads the clock in a tight loop and records every gap above a floor.
 *
 * Whatever takes the CPU (a neighbour, the hypervisor, an interrupt, firmware)
 * shows as a gap between two readings. Like the kernel's hwlat tracer it spins
 * for half of the time only: a real-time thread that spins all the time is cut
 * by the scheduler's safety valve (RT throttling, fair server) for some 50 ms
 * each second and then measures that valve instead of the machine.
 * Time asleep between two spins is not observed; being late from it is the
 * wake-up benchmark's subject.
 *
 * When each gap began is told beside its length, so that it can be held against what is known
 * of that moment: nanoseconds after `start_ns`, a time of CLOCK_MONOTONIC. That clock is read
 * once for each stretch of spinning and the counter's rough rate does the rest, which is exact to
 * a microsecond in a stretch of 10 ms; at 100 % there is one stretch, and the error grows with it.
 */
#include "spin_gap.h"

#include <inttypes.h>
#include <sched.h>

#include "sampler.h"

struct spin_settings {
    uint64_t duty_percent;
    uint64_t period_ns;
    uint64_t floor_ns;
};

enum { COST_READINGS = 1001 };

/* Median distance of two readings: a floor near it would record the loop itself. */
static uint64_t reading_cost(bool hardware)
{
    static _Thread_local uint64_t cost[COST_READINGS];
    uint64_t last = read_ticks(hardware);
    for (size_t i = 0; i < COST_READINGS; i++) {
        const uint64_t now = read_ticks(hardware);
        cost[i] = now - last;
        last = now;
    }
    return median_of(cost, COST_READINGS);
}

static bool prepare(struct observation *o)
{
    const struct spin_settings *settings = o->sampler->settings;
    const struct tick_clock *clock = &o->sampler->clock;
    const uint64_t least = 4 * reading_cost(clock->hardware);
    o->floor_ns = settings->floor_ns;
    o->floor_ticks = rough_ticks(clock, o->floor_ns);
    if (o->floor_ticks < least) {
        o->floor_ticks = least;
        o->floor_ns = (uint64_t)((double)least / clock->rough_ticks_per_ns);
        o->floor_raised = true;
    }
    return true;
}

/* One stretch of spinning; returns the ticks it watched. */
static inline uint64_t spin(struct observation *o, bool hardware, uint64_t length)
{
    const uint64_t begin_ns = monotonic_ns() - o->start_ns;
    const uint64_t begin = read_ticks(hardware);
    const uint64_t floor = o->floor_ticks;
    uint64_t last = begin;
    do {
        const uint64_t now = read_ticks(hardware);
        const uint64_t gap = now - last;
        if (__builtin_expect(gap >= floor, 0)) {
            if (now < last) {
                o->backwards =
                    true; /* the counters of two CPUs differ: no gap, wait until it has caught up */
                continue;
            }
            const double before = (double)(last - begin) / o->sampler->clock.rough_ticks_per_ns;
            keep_gap(o, gap, begin_ns + (uint64_t)before);
        }
        last = now;
    } while (last - begin < length);
    return last - begin;
}

static uint64_t spin_for(struct observation *o, uint64_t ns)
{
    const struct tick_clock *clock = &o->sampler->clock;
    const uint64_t length = rough_ticks(clock, ns);
    return clock->hardware ? spin(o, true, length) : spin(o, false, length);
}

static void measure(struct observation *o)
{
    const struct spin_settings *settings = o->sampler->settings;
    const uint64_t period = settings->period_ns;
    const uint64_t end = o->start_ns + o->sampler->duration_ns;
    uint64_t next = o->start_ns;
    if (settings->duty_percent == 100) {
        o->observed = spin_for(o, o->sampler->duration_ns);
        return;
    }
    while (next < end) {
        const uint64_t rest = end - next;
        const uint64_t part = period * settings->duty_percent / 100;
        sleep_until(next);
        if (sched_getcpu() != o->ran_on)
            o->migrated = true;
        o->observed += spin_for(o, part < rest ? part : rest);
        const uint64_t now = monotonic_ns();
        next += period;
        if (next <= now) /* a gap swallowed whole periods */
            next += (now - next) / period * period + period;
    }
}

static void extra(FILE *out, const struct observation *o)
{
    const struct spin_settings *settings = o->sampler->settings;
    fprintf(out, "\"duty_percent\":%" PRIu64 ",\"period_ns\":%" PRIu64 ",", settings->duty_percent,
            settings->period_ns);
    fprintf(out, "\"start_ns\":%" PRIu64 ",\"begins_ns\":[", o->start_ns);
    for (size_t i = 0; i < o->count; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", o->begins[i]);
    fputs("],", out);
}

int spin_gap_main(int argc, char **argv)
{
    struct spin_settings settings = {.duty_percent = 50, .floor_ns = 1000};
    struct sampler sampler = {
        .probe = "spin-gap",
        .in_ticks = true,
        .keeps_begins = true,
        .max_samples = 200000,
        .prepare = prepare,
        .measure = measure,
        .extra = extra,
        .settings = &settings,
    };
    uint64_t period_us = 10000;
    bool unsafe_full_duty = false;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &sampler.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         REQUIRED, "how long to measure"},
        {"--cpus", ARGUMENT_CPUS, &sampler.cpus, 0, 0, REQUIRED, "CPUs, or all: one thread each"},
        {"--policy", ARGUMENT_POLICY, &sampler.policy, 0, 0, OPTIONAL, "other (default) or fifo:N"},
        {"--duty", ARGUMENT_INTEGER, &settings.duty_percent, 1, 100, OPTIONAL,
         "percent of each period spent spinning (50)"},
        {"--period-us", ARGUMENT_INTEGER, &period_us, 1000, 10000, OPTIONAL,
         "period of spinning and sleeping (10000)"},
        {"--floor-ns", ARGUMENT_INTEGER, &settings.floor_ns, 1, NS_PER_S, OPTIONAL,
         "gaps below this are not recorded (1000)"},
        {"--max-samples", ARGUMENT_INTEGER, &sampler.max_samples, 1, 10000000, OPTIONAL,
         "memory for gaps, per CPU (200000)"},
        {"--unsafe-full-duty", ARGUMENT_FLAG, &unsafe_full_duty, 0, 0, OPTIONAL,
         "allow --duty 100 under fifo"},
        {"--dma-latency", ARGUMENT_FLAG, &sampler.no_deep_sleep, 0, 0, OPTIONAL, DMA_LATENCY_HELP},
        {"--supervised", ARGUMENT_FLAG, &sampler.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    if (sampler.policy.fifo && settings.duty_percent == 100 && !unsafe_full_duty) {
        complain("--duty: 100 under --policy fifo would measure the scheduler's safety valve and "
                 "starve the CPU; use at most 99, or --unsafe-full-duty");
        return PINLOAD_USAGE;
    }
    settings.period_ns = period_us * NS_PER_US;
    return sampler_run(&sampler);
}

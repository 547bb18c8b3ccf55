/*
 * Scores of the integer kernel (intmix.h): rounds per second of each part and of all together,
 * and the same per MHz where the CPU's clock is known.
 *
 * The clock is what the kernel tells of the CPU's frequency right after the work (cpufreq), else
 * the rate of the time-stamp counter, which is the CPU's nominal frequency and not the one that
 * it ran at: the label `clock` says which. The counters of Arm and RISC-V tell nothing of the
 * CPU's clock, so that without cpufreq there are no scores per MHz. Every round's checksum
 * is verified.
 */
#include "intmix_score.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "worker_pool.h"
#include "figure.h"
#include "intmix.h"
#include "rt.h"
#include "supervise.h"
#include "laps.h"

static const char *const parts[INTMIX_PARTS] = {"list", "matrix", "states", "crc", "all"};

/* Of one CPU. */
struct scorer {
    struct laps windows[INTMIX_PARTS];
    double mhz[INTMIX_PARTS]; /* right after each part, as cpufreq tells; 0: it does not */
    bool not_pinned, wrong;
};

struct score {
    uint64_t duration_ns;
    uint64_t window_us;
    struct cpu_list cpus;
    bool supervised;
    struct gate *gate;
    struct scorer *scorers;
};

static bool measure_part(const struct score *score, struct laps *windows, struct intmix *work,
                         enum intmix_part part)
{
    const uint64_t window_ns = score->window_us * NS_PER_US;
    laps_begin(windows, true);
    while (laps_go_on(windows)) {
        uint64_t rounds = 0, elapsed;
        lap_begin(windows);
        do {
            for (int i = 0; i < 8; i++) /* reading the clock is to cost next to nothing */
                if (!intmix_part(work, part))
                    return false;
            rounds += 8;
            elapsed = lap_end(windows);
        } while (elapsed < window_ns);
        lap_keep(windows, (double)rounds * 1e9 / (double)elapsed);
    }
    return true;
}

static void work_along(void *shared, size_t index)
{
    const struct score *score = shared;
    struct scorer *scorer = &score->scorers[index];
    const int cpu = score->cpus.cpus[index];
    struct intmix work;
    intmix_init(&work);
    scorer->not_pinned = !thread_pin(cpu);
    for (size_t part = 0; part < INTMIX_PARTS; part++) {
        sleep_until(gate_pass(score->gate));
        if (scorer->not_pinned || scorer->wrong)
            continue; /* the others wait for this thread at the gate */
        scorer->wrong = !measure_part(score, &scorer->windows[part], &work, part);
        scorer->mhz[part] = cpufreq_mhz(cpu);
    }
}

/* The same windows, per MHz. */
static bool print_per_mhz(struct figure *figure, double mhz, const char *clock)
{
    double *samples = malloc(figure->count * sizeof *samples);
    if (!samples) {
        complain("out of memory");
        return false;
    }
    for (size_t i = 0; i < figure->count; i++)
        samples[i] = figure->samples[i] / mhz;
    figure->samples = samples;
    figure->unit = "per-second-per-mhz";
    figure_label(figure, "clock", "%s", clock);
    figure_flag(figure, "clock %.1f MHz", mhz);
    const bool good = figure_print(stdout, figure);
    free(samples);
    return good;
}

static bool print_part(const struct score *score, size_t index, size_t part, double tsc_mhz)
{
    struct scorer *scorer = &score->scorers[index];
    struct figure figure = {
        .probe = "intmix",
        .unit = "per-second",
        .family = FIGURE_CAPACITY,
        .cpu = score->cpus.cpus[index],
    };
    figure_label(&figure, "part", "%s", parts[part]);
    laps_figure(&scorer->windows[part], &figure);
    if (!figure_print(stdout, &figure))
        return false;
    if (scorer->mhz[part] > 0)
        return print_per_mhz(&figure, scorer->mhz[part], "cpufreq");
    return tsc_mhz <= 0 || print_per_mhz(&figure, tsc_mhz, "tsc");
}

static bool report(const struct score *score, double tsc_mhz)
{
    for (size_t i = 0; i < score->cpus.count; i++) {
        if (score->scorers[i].not_pinned || score->scorers[i].wrong) {
            complain("CPU %d: %s", score->cpus.cpus[i],
                     score->scorers[i].not_pinned ? "cannot pin the thread"
                                                  : "wrong checksum of the integer kernel");
            return false;
        }
        for (size_t part = 0; part < INTMIX_PARTS; part++)
            if (!print_part(score, i, part, tsc_mhz))
                return false;
    }
    return true;
}

static int run(struct score *score)
{
    struct tick_clock clock;
    const uint64_t window_ns = score->window_us * NS_PER_US;
    if (!supervise_measurement(measurement_limit_ns(INTMIX_PARTS * score->duration_ns),
                               score->supervised, 0))
        return PINLOAD_FAILED;
    score->gate = worker_pool_memory(sizeof *score->gate);
    score->scorers = worker_pool_memory(score->cpus.count * sizeof *score->scorers);
    if (!score->gate || !score->scorers)
        return PINLOAD_FAILED;
    for (size_t i = 0; i < score->cpus.count; i++)
        for (size_t part = 0; part < INTMIX_PARTS; part++)
            if (!laps_open(&score->scorers[i].windows[part], score->duration_ns, window_ns))
                return PINLOAD_FAILED;
    gate_prepare(score->gate, score->cpus.count);
    tick_clock_open(&clock);
    if (!worker_pool_run(WORKER_POOL_THREADS, score->cpus.count, work_along, score))
        return PINLOAD_FAILED;
    tick_clock_close(&clock);
    const bool good = report(score, strcmp(clock.name, "tsc") ? 0 : clock.ticks_per_ns * 1000);
    for (size_t i = 0; i < score->cpus.count; i++)
        for (size_t part = 0; part < INTMIX_PARTS; part++)
            laps_close(&score->scorers[i].windows[part]);
    free(score->cpus.cpus);
    return good ? output_end() : PINLOAD_FAILED;
}

int intmix_main(int argc, char **argv)
{
    struct score score = {.window_us = 2000};
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &score.duration_ns, 10 * NS_PER_MS, 3600 * NS_PER_S,
         REQUIRED, "how long to measure each part"},
        {"--cpus", ARGUMENT_CPUS, &score.cpus, 0, 0, REQUIRED,
         "CPUs, or all: one thread each, side by side"},
        {"--window-us", ARGUMENT_INTEGER, &score.window_us, 100, 1000000, OPTIONAL,
         "least length of a window (2000)"},
        {"--supervised", ARGUMENT_FLAG, &score.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    return run(&score);
}

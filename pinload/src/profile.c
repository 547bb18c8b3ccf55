/*
 * Profile of a machine: how much work of each kind it does in a second.
 *
 * The output is a file for `pinfold run --like`: one line about the machine, then a figure for
 * each kind. The kinds take turns, so that each sees the machine at several moments; a sample is
 * the work of one turn divided by all of its time. No turn is left out, because on a machine that
 * is itself slowed in turns, such as a virtual node, the stops are a part of its speed.
 *
 * All of it is on one CPU: where the kernel puts a process that another one starts differs from
 * turn to turn, and a node with one core has no second CPU.
 *
 * `processes` starts and ends processes; `cache-l1` to `cache-l3` and `memory-latency` follow a
 * random cycle (cycle.h) over half of a cache and over an area that no cache holds; `simd` and
 * `stream` are STREAM's triad in the first cache and in memory.
 */
#include "profile.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "cycle.h"
#include "figure.h"
#include "intmix.h"
#include "json.h"
#include "kernels.h"
#include "place.h"
#include "supervise.h"

enum { SETTLE_MS = 100, MOST_TURNS = 64, SIMD_COUNT = 512, LEVELS = 4, KINDS = 10, PAGE = 4096, STREAM_STEP = 8192, ARRAYS = 3 };

/* Without a known cache, and at most: larger areas take long to build on small machines. */
#define UNKNOWN_LAST (32ULL << 20)
#define MOST_BYTES (256ULL << 20)

struct profile {
    uint64_t turns, turn_ms;
    bool quick, supervised;
    int cores; /* on which it could run */
    struct place place;
    struct area area;
    uint64_t taken;     /* bytes of the area */
    uint64_t out_bytes; /* of what no cache holds */
    const struct kernels *kernels;
    struct stream_arrays small, large;
    uint64_t large_count, large_at;
    struct intmix mix;
    uint64_t random, odd;
    double real;
    struct line *at[LEVELS]; /* of the cycle in each cache; 0: in memory */
    bool here[KINDS];
    bool wrong;
};

/* One kind of work; `work` does a little of it and gives the number of its units. */
struct kind {
    const char *name;
    double (*work)(struct profile *profile, const struct kind *kind);
    bool (*prepare)(struct profile *profile, const struct kind *kind); /* false: not here */
    int level; /* of a chase: that of the cache, 0 for memory */
};

static double do_integer(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    for (int i = 0; i < 4; i++)
        profile->wrong |= !intmix_part(&profile->mix, INTMIX_ALL);
    return 4;
}

/* Half of the branches are taken, and nothing predicts which; the empty statements keep them. */
static double do_branches(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    uint64_t state = profile->random, odd = profile->odd;
    for (int i = 0; i < 4096; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if (state & 1U) {
            odd += state >> 60;
            __asm__ volatile("");
        } else if (state & 2U) {
            odd ^= state;
            __asm__ volatile("");
        } else {
            odd -= 3;
            __asm__ volatile("");
        }
    }
    profile->random = state;
    profile->odd = odd;
    return 4096;
}

/* Four chains of additions and products with a division and a root each 16 steps. */
static double do_floating_point(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    double a = 1.1, b = 1.2, c = 1.3, d = 1.4;
    for (int i = 0; i < 256; i++) {
        for (int k = 0; k < 16; k++) {
            a = a * 0.999 + 0.001;
            b = b * 0.998 + 0.002;
            c = c * 0.997 + 0.003;
            d = d * 0.996 + 0.004;
        }
        a = sqrt(a + 0.5) / b;
    }
    profile->real += a + b + c + d;
    profile->wrong |= !isfinite(profile->real);
    return 4096;
}

static double do_simd(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    for (int i = 0; i < 64; i++)
        profile->kernels->stream[STREAM_TRIAD](&profile->small, 0, SIMD_COUNT);
    profile->wrong |= profile->small.a[SIMD_COUNT - 1] != 2 + STREAM_FACTOR;
    return 64.0 * SIMD_COUNT;
}

static double do_stream(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    profile->kernels->stream[STREAM_TRIAD](&profile->large, profile->large_at, STREAM_STEP);
    profile->wrong |= profile->large.a[profile->large_at] != 2 + STREAM_FACTOR;
    profile->large_at = (profile->large_at + STREAM_STEP) % profile->large_count;
    return STREAM_STEP;
}

static double do_chase(struct profile *profile, const struct kind *kind)
{
    profile->at[kind->level] = cycle_follow(profile->at[kind->level], 64);
    return 64.0 * CYCLE_UNROLLED;
}

static double do_processes(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    const pid_t child = fork();
    int status = 1;
    if (child == 0)
        _exit(0);
    profile->wrong |= child < 0 || waitpid(child, &status, 0) != child || status != 0;
    return 1;
}

static void fill(struct stream_arrays *arrays, char *bytes, uint64_t count)
{
    arrays->a = (double *)(void *)bytes;
    arrays->b = arrays->a + count;
    arrays->c = arrays->b + count;
    for (uint64_t i = 0; i < count; i++) {
        arrays->a[i] = 0;
        arrays->b[i] = 2;
        arrays->c[i] = 1;
    }
}

/* A part of the area. */
static char *take(struct profile *profile, uint64_t bytes)
{
    char *const part = profile->area.bytes + profile->taken;
    profile->taken += (bytes + PAGE - 1) / PAGE * PAGE;
    return part;
}

static bool prepare_simd(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    fill(&profile->small, take(profile, ARRAYS * SIMD_COUNT * sizeof(double)), SIMD_COUNT);
    return true;
}

static bool prepare_stream(struct profile *profile, const struct kind *kind)
{
    (void)kind;
    profile->large_count = profile->out_bytes / ARRAYS / sizeof(double) / STREAM_STEP * STREAM_STEP;
    fill(&profile->large, take(profile, profile->out_bytes), profile->large_count);
    return true;
}

/* Half of a cache, so that the rest of the program has its place in it too; each line once. */
static bool prepare_chase(struct profile *profile, const struct kind *kind)
{
    const struct caches *caches = &profile->place.caches;
    uint64_t bytes = kind->level ? 0 : profile->out_bytes;
    for (size_t i = 0; i < caches->count; i++)
        if (caches->cache[i].level == kind->level)
            bytes = caches->cache[i].bytes / 2;
    if (bytes == 0 || bytes > profile->out_bytes)
        return false;
    const uint64_t lines = bytes / caches->line;
    char *const part = take(profile, bytes);
    cycle_link(part, lines, caches->line, true, 1);
    struct line *const begin = (struct line *)(void *)part, *at = begin;
    uint64_t steps = 0;
    do
        at = at->next;
    while (++steps < lines && at != begin);
    profile->wrong |= steps != lines || at != begin;
    profile->at[kind->level] = begin;
    return true;
}

static const struct kind kinds[KINDS] = {
    {"integer", do_integer, NULL, 0},
    {"branches", do_branches, NULL, 0},
    {"floating-point", do_floating_point, NULL, 0},
    {"simd", do_simd, prepare_simd, 0},
    {"processes", do_processes, NULL, 0},
    {"cache-l1", do_chase, prepare_chase, 1},
    {"cache-l2", do_chase, prepare_chase, 2},
    {"cache-l3", do_chase, prepare_chase, 3},
    {"memory-latency", do_chase, prepare_chase, 0},
    {"stream", do_stream, prepare_stream, 0},
};

/* Units per second in one turn. */
static double take_turn(struct profile *profile, const struct kind *kind, uint64_t ns)
{
    double units = 0;
    uint64_t now;
    kind->work(profile, kind); /* warms up */
    const uint64_t begin = raw_ns();
    do {
        units += kind->work(profile, kind);
        now = raw_ns();
    } while (now - begin < ns && !profile->wrong);
    return units * 1e9 / (double)(now - begin);
}

/* The first line of /proc/cpuinfo that names the processor, which differs by architecture. */
static void read_model(char *model, size_t size)
{
    static const char *const names[] = {"model name", "cpu model", "Model", "uarch", "CPU part"};
    char line[256];
    snprintf(model, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *const value = strchr(line, ':');
        for (size_t i = 0; value && !found && i < sizeof names / sizeof *names; i++)
            found = !strncmp(line, names[i], strlen(names[i]));
        if (found)
            snprintf(model, size, "%.*s", (int)strcspn(value + 1, "\n") - 1, value + 2);
    }
    if (file)
        fclose(file);
}

static int cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return (int)sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the set can hold */
}

/* Pins the thread to the CPU where it is after some work, which is a fast one if they differ. */
static bool stay(void)
{
    for (const uint64_t begin = raw_ns(); raw_ns() - begin < SETTLE_MS * NS_PER_MS;) {
    }
    const int cpu = sched_getcpu();
    if (cpu >= 0 && thread_pin(cpu))
        return true;
    complain_errno("cannot stay on CPU %d", cpu);
    return false;
}

static void print_machine(const struct profile *profile, size_t count, double tsc_mhz)
{
    char model[192], caches[FIGURE_TEXT];
    struct utsname names = {0};
    const double mhz = cpufreq_mhz(profile->place.cpu < 0 ? 0 : profile->place.cpu);
    uname(&names);
    read_model(model, sizeof model);
    caches_text(&profile->place.caches, caches, sizeof caches);
    printf("{\"format\":\"pinfold-profile/1\",\"pinload\":\"" PINLOAD_VERSION "\",\"compiler\":");
    json_text(stdout, __VERSION__);
    fputs(",\"architecture\":", stdout);
    json_text(stdout, names.machine);
    fputs(",\"cpu_model\":", stdout);
    json_text(stdout, model);
    printf(",\"cores\":%d,\"clock_mhz\":", profile->cores);
    json_rate(stdout, mhz > 0 ? mhz : tsc_mhz);
    printf(",\"clock_source\":\"%s\",\"caches\":", mhz > 0 ? "cpufreq" : tsc_mhz > 0 ? "tsc" : "unknown");
    json_text(stdout, caches);
    printf(",\"simd\":\"%s\",\"scores\":%zu}\n", profile->kernels->width, count);
}

static bool print_score(const struct profile *profile, const struct kind *kind,
                        const double *samples)
{
    struct figure figure = {
        .probe = "profile",
        .unit = "per-second",
        .family = FIGURE_CAPACITY,
        .cpu = profile->place.cpu,
        .duration_ns = profile->turns * profile->turn_ms * NS_PER_MS,
        .samples = samples,
        .count = (size_t)profile->turns,
    };
    figure_label(&figure, "kind", "%s", kind->name);
    return figure_print(stdout, &figure);
}

/* Room for two areas that no cache holds and three that are not larger; untouched memory is free. */
static bool open_area(struct profile *profile)
{
    const uint64_t last = caches_last(&profile->place.caches);
    const uint64_t most = memory_available(profile->place.wish.node) / 12;
    uint64_t bytes = 4 * (last ? last : UNKNOWN_LAST);
    bytes = bytes > MOST_BYTES ? MOST_BYTES : bytes;
    profile->out_bytes = bytes > most ? most : bytes;
    if (!area_open(&profile->area, "the profile", 6 * profile->out_bytes, &profile->place.wish))
        return false;
    madvise(profile->area.bytes, profile->area.size, MADV_DONTFORK); /* children are to be small */
    return true;
}

/* One turn of each kind that is here. */
static bool take_turns(struct profile *profile, size_t turn, double samples[][MOST_TURNS])
{
    for (size_t i = 0; i < KINDS; i++) {
        if (profile->here[i])
            samples[i][turn] = take_turn(profile, &kinds[i], profile->turn_ms * NS_PER_MS);
        if (profile->wrong) {
            complain("%s: wrong result", kinds[i].name);
            return false;
        }
    }
    return true;
}

static int run(struct profile *profile)
{
    static double samples[KINDS][MOST_TURNS];
    size_t count = 0;
    struct tick_clock clock;
    const uint64_t most_ns = KINDS * profile->turns * profile->turn_ms * NS_PER_MS + 120 * NS_PER_S;
    if (!supervise_measurement(measurement_limit_ns(most_ns), profile->supervised, 0) ||
        !open_area(profile))
        return PINLOAD_FAILED;
    tick_clock_open(&clock);
    for (size_t i = 0; i < KINDS; i++) {
        profile->here[i] = !kinds[i].prepare || kinds[i].prepare(profile, &kinds[i]);
        count += profile->here[i];
    }
    for (size_t turn = 0; turn < profile->turns; turn++)
        if (!take_turns(profile, turn, samples))
            return PINLOAD_FAILED;
    tick_clock_close(&clock);
    print_machine(profile, count, strcmp(clock.name, "tsc") ? 0 : clock.ticks_per_ns * 1000);
    for (size_t i = 0; i < KINDS; i++)
        if (profile->here[i] && !print_score(profile, &kinds[i], samples[i]))
            return PINLOAD_FAILED;
    place_close(&profile->place, &profile->area);
    return output_end();
}

int profile_main(int argc, char **argv)
{
    static struct profile profile = {.turns = 10, .turn_ms = 500, .random = 88172645463325252ULL};
    const struct argument table[] = {
        {"--quick", ARGUMENT_FLAG, &profile.quick, 0, 0, OPTIONAL,
         "5 turns of 20 ms for each kind (10 of 500 ms)"},
        PLACE_ARGUMENTS(profile.place),
        {"--supervised", ARGUMENT_FLAG, &profile.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    profile.kernels = kernels_widest();
    profile.cores = profile.place.cpus.given ? 1 : cores();
    if (!profile.place.cpus.given && !stay())
        return PINLOAD_FAILED;
    if (!place_settle(&profile.place))
        return PINLOAD_USAGE;
    if (profile.quick) {
        profile.turns = 5;
        profile.turn_ms = 20;
    }
    intmix_init(&profile.mix);
    return run(&profile);
}

/*
 * The 64 MB loop of Kuehn and Baum: the first 4-byte word of each of 16,384 pages of 4 KiB is
 * written, then the same words are read back; how long each pass took, over time.
 * The source does not say whether an access waits for the one before it. Independent accesses
 * overlap, so that a pass is short and shows how much of the bandwidth is left; a dependent chain,
 * in which each word holds the number of the next page (not in their order, so that none is
 * prefetched), shows the latency.
 *
 * All words lie at the same place of their page, so that they crowd into a 64th of the sets of each
 * cache. Where the last one is smaller than 64 MiB nearly each access goes to memory, and a pass
 * tells at once when others use it too. A larger one, such as have come since their paper, holds
 * all words: then the loop tells of that cache and of who shares it, and says so
 * (`fits-in-last-cache`). Its size stays, for that is what makes it theirs.
 * Their loop ran in the kernel with interrupts masked. That is not reproduced here: on request
 * it runs under SCHED_FIFO (for half of the time, because the scheduler stops a real-time thread
 * that never sleeps), and passes in which the thread was preempted or moved are listed in a
 * figure of their own. No pass is left out.
 *
 * With `--interferer` the passes alternate, a slice alone and a slice beside a thread that
 * reads, writes or copies on another CPU, and on a node of choice.
 */
#include "loop64.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "place.h"
#include "supervise.h"
#include "traffic.h"

enum { PAGES = 16384, PAGE = 4096, PASS_LIMIT = 1000000, LEAST_INTERFERER_MIB = 256 };

#define SLICE_NS (100 * NS_PER_MS)
/* Under FIFO: work, then sleep, for so long each. */
#define FIFO_PART_NS (5 * NS_PER_MS)

typedef uint32_t __attribute__((may_alias)) word32;

/* Passes under one condition. */
struct series {
    double *ns;
    double *disturbed; /* indexes of passes */
    size_t count, disturbed_count, stolen;
    uint64_t dropped, moved, beside_ns;
    uint64_t duration_ns;
};

struct loop {
    uint64_t duration_ns, passes, interferer_mib;
    const char *interferer, *interferer_node;
    struct cpu_list interferer_cpus;
    struct policy policy;
    const char *accesses;
    bool dependent, supervised, fifo_refused, unlocked;
    struct place place;
    struct area area;
    struct tick_clock clock;
    struct traffic traffic;
    struct series alone, beside;
};

static inline volatile word32 *word_of(volatile char *memory, size_t page)
{
    return (volatile word32 *)(volatile void *)(memory + page * PAGE);
}

/* One pass; the sum of what was read back. */
static inline uint64_t pass(volatile char *memory, uint32_t value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < PAGES; i++)
        *word_of(memory, i) = value + (uint32_t)i;
    for (size_t i = 0; i < PAGES; i++)
        sum += *word_of(memory, i);
    return sum;
}

/*
 * Each word is `value` of its pass plus the next page: those of pass 0. All pages are one cycle (a
 * linear congruential generator of full period), in an order that no prefetcher foresees.
 */
static void link_pages(volatile char *memory)
{
    for (uint32_t i = 0; i < PAGES; i++)
        *word_of(memory, i) = (i * 4549 + 2531) % PAGES;
}

/* The same with each address taken from the word before it. */
static inline uint64_t pass_dependent(volatile char *memory, uint32_t value)
{
    uint64_t sum = 0;
    uint32_t page = 0;
    for (size_t i = 0; i < PAGES; i++) {
        volatile word32 *word = word_of(memory, page);
        page = (*word - (value - 1)) % PAGES;
        *word = value + page;
    }
    for (size_t i = 0; i < PAGES; i++) {
        const uint32_t read = *word_of(memory, page);
        page = (read - value) % PAGES;
        sum += read;
    }
    return sum;
}

static uint64_t wanted_sum(uint32_t value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < PAGES; i++)
        sum += (uint32_t)(value + (uint32_t)i);
    return sum;
}

static bool open_series(struct loop *loop, struct series *series)
{
    const size_t bytes = (size_t)loop->passes * sizeof(double);
    series->ns = malloc(2 * bytes);
    if (!series->ns) {
        complain("--passes: no memory for %" PRIu64 " samples", loop->passes);
        return false;
    }
    memset(series->ns, 0xA5, 2 * bytes);
    series->disturbed = series->ns + loop->passes;
    loop->unlocked = mlock(series->ns, 2 * bytes) != 0 || loop->unlocked;
    return true;
}

/* One timed pass, kept while there is room; false after a complaint. */
static bool take(struct loop *loop, struct series *series, uint32_t value)
{
    struct quiet quiet = quiet_begin();
    const uint64_t begin = read_ticks(loop->clock.hardware);
    const uint64_t sum = loop->dependent ? pass_dependent(loop->area.bytes, value)
                                         : pass(loop->area.bytes, value);
    const uint64_t ticks = read_ticks(loop->clock.hardware) - begin;
    const bool disturbed = quiet_ended(&quiet);
    if (sum != wanted_sum(value)) {
        complain("self-check failed: the words read back give %" PRIu64 ", not %" PRIu64, sum,
                 wanted_sum(value));
        return false;
    }
    if (series->count == loop->passes) {
        series->dropped++;
        return true;
    }
    if (disturbed)
        series->disturbed[series->disturbed_count++] = (double)series->count;
    series->stolen += quiet.was_stolen;
    series->ns[series->count++] = (double)ticks;
    return true;
}

/* Passes for so long. */
static bool slice(struct loop *loop, struct series *series, uint32_t *value)
{
    const uint64_t begin = raw_ns(), moved = loop->interferer ? traffic_moved(&loop->traffic) : 0;
    uint64_t part = begin;
    for (uint64_t now = begin; now - begin < SLICE_NS; now = raw_ns()) {
        if (!take(loop, series, (*value)++))
            return false;
        if (loop->policy.fifo && !loop->fifo_refused && now - part >= FIFO_PART_NS) {
            sleep_until(monotonic_ns() + FIFO_PART_NS);
            part = raw_ns();
        }
    }
    const uint64_t lasted = raw_ns() - begin;
    series->duration_ns += lasted;
    series->beside_ns += lasted;
    if (loop->interferer)
        series->moved += traffic_moved(&loop->traffic) - moved;
    return true;
}

/* By turns, the first slices (which warm up) not counted. */
static bool measure(struct loop *loop)
{
    const uint64_t begin = raw_ns();
    uint32_t value = 1;
    if (!slice(loop, &loop->alone, &value))
        return false;
    loop->alone = (struct series){.ns = loop->alone.ns, .disturbed = loop->alone.disturbed};
    for (uint64_t now = begin; now - begin < loop->duration_ns || loop->alone.count == 0;
         now = raw_ns()) {
        if (!slice(loop, &loop->alone, &value))
            return false;
        if (!loop->interferer)
            continue;
        traffic_go(&loop->traffic, true);
        sleep_until(monotonic_ns() + 2 * NS_PER_MS); /* until it is under way */
        const bool good = slice(loop, &loop->beside, &value);
        traffic_go(&loop->traffic, false);
        sleep_until(monotonic_ns() + 2 * NS_PER_MS);
        if (!good)
            return false;
    }
    return true;
}

static void describe(const struct loop *loop, const struct series *series, const char *what,
                     struct figure *figure)
{
    const bool beside = series == &loop->beside;
    char policy[16];
    policy_text(&loop->policy, policy, sizeof policy);
    figure->duration_ns = series->duration_ns;
    figure_label(figure, "of", "%s", what);
    figure_label(figure, "accesses", "%s", loop->accesses);
    figure_label(figure, "interferer", "%s", beside ? loop->interferer : "none");
    if (beside) {
        figure_label(figure, "interferer_cpu", "%d", loop->traffic.threads[0].cpu);
        figure_label(figure, "interferer_node", "%d", loop->traffic.threads[0].area.node);
    }
    figure_label(figure, "policy", "%s%s", policy, loop->policy.fifo ? " half of the time" : "");
    place_describe(&loop->place, &loop->area, figure);
    figure_flag(figure, "interrupts-not-masked");
    const uint64_t last = caches_last(&loop->place.caches);
    if ((uint64_t)PAGES * PAGE <= last)
        figure_flag(figure, "fits-in-last-cache %d of %" PRIu64 " MiB", PAGES * (PAGE >> 10) >> 10,
                    last >> 20);
    if (beside)
        traffic_flag(&loop->traffic, &loop->place.caches, figure);
    if (loop->fifo_refused)
        figure_flag(figure, "fifo-refused");
    if (loop->unlocked)
        figure_flag(figure, "not-locked");
    if (loop->clock.drifted)
        figure_flag(figure, "clock-drifted");
    if (series->disturbed_count > 0)
        figure_flag(figure, "disturbed-passes %zu of %zu", series->disturbed_count, series->count);
    quiet_flag(figure, series->stolen);
}

/* Duration of each pass, which of them were disturbed, and what the interferer moved. */
static bool print(struct loop *loop, struct series *series)
{
    struct figure passes = {.probe = "loop64",
                            .unit = "ns",
                            .family = FIGURE_TAIL,
                            .samples = series->ns,
                            .count = series->count,
                            .dropped = series->dropped};
    struct figure disturbed = {.probe = "loop64",
                               .unit = "count",
                               .family = FIGURE_PLACE,
                               .samples = series->disturbed,
                               .count = series->disturbed_count};
    const double moved = (double)series->moved / ((double)series->beside_ns / 1e9);
    struct figure traffic = {.probe = "loop64",
                             .unit = "bytes-per-second",
                             .family = FIGURE_CAPACITY,
                             .samples = &moved,
                             .count = 1};
    for (size_t i = 0; i < series->count; i++)
        series->ns[i] /= loop->clock.ticks_per_ns;
    describe(loop, series, "pass", &passes);
    describe(loop, series, "index of disturbed pass", &disturbed);
    if (!figure_print(stdout, &passes) || !figure_print(stdout, &disturbed))
        return false;
    if (series == &loop->alone)
        return true;
    describe(loop, series, "interferer", &traffic);
    return figure_print(stdout, &traffic);
}

static bool open_interferer(struct loop *loop)
{
    if (!loop->interferer)
        return true;
    loop->traffic.cpus = loop->interferer_cpus;
    loop->traffic.count = 1;
    traffic_size(&loop->traffic, loop->interferer_mib, LEAST_INTERFERER_MIB, &loop->place.caches);
    return traffic_open(&loop->traffic);
}

static int run(struct loop *loop)
{
    if (!supervise_measurement(measurement_limit_ns(2 * loop->duration_ns), loop->supervised,
                               loop->policy.priority) ||
        !area_open(&loop->area, "the loop", (uint64_t)PAGES * PAGE, &loop->place.wish))
        return PINLOAD_FAILED;
    area_touch(&loop->area);
    if (loop->dependent)
        link_pages(loop->area.bytes);
    loop->unlocked = mlock(loop->area.bytes, loop->area.size) != 0;
    if (!open_series(loop, &loop->alone) || !open_series(loop, &loop->beside) ||
        !open_interferer(loop))
        return PINLOAD_FAILED;
    tick_clock_open(&loop->clock);
    if (!thread_enter_policy(&loop->policy))
        loop->fifo_refused = true; /* goes on at normal priority, and says so */
    const bool measured = measure(loop);
    const struct policy normal = {.fifo = false};
    if (!thread_enter_policy(&normal)) {
        complain_errno("cannot leave the real-time policy");
        return PINLOAD_FAILED;
    }
    tick_clock_close(&loop->clock);
    const bool good = measured && print(loop, &loop->alone) &&
                      (!loop->interferer || print(loop, &loop->beside));
    const int ended = output_end();
    if (!good)
        return PINLOAD_FAILED;
    if (loop->interferer)
        traffic_close(&loop->traffic);
    free(loop->alone.ns);
    free(loop->beside.ns);
    place_close(&loop->place, &loop->area);
    return ended;
}

static bool settle(struct loop *loop)
{
    loop->traffic.wish.node = -1;
    loop->dependent = !strcmp(loop->accesses, "dependent");
    if (!loop->dependent && strcmp(loop->accesses, "independent") != 0) {
        complain("--accesses: \"%s\" is not independent or dependent", loop->accesses);
        return false;
    }
    if (!loop->interferer && (loop->interferer_cpus.given || loop->interferer_node)) {
        complain("--interferer-cpu, --interferer-node: there is none without --interferer");
        return false;
    }
    if (loop->interferer &&
        (!traffic_kind_parse("--interferer", loop->interferer, &loop->traffic.kind) ||
         !traffic_cpus("--interferer-cpu", &loop->place.cpus, &loop->interferer_cpus)))
        return false;
    if (loop->interferer_node &&
        !node_parse("--interferer-node", loop->interferer_node, &loop->traffic.wish.node))
        return false;
    return place_settle(&loop->place);
}

int loop64_main(int argc, char **argv)
{
    struct loop loop = {.passes = 100000, .accesses = "independent"};
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &loop.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         REQUIRED, "how long to measure"},
        {"--passes", ARGUMENT_INTEGER, &loop.passes, 1, PASS_LIMIT, OPTIONAL,
         "memory for passes, alone and beside each (100000)"},
        {"--accesses", ARGUMENT_TEXT, &loop.accesses, 0, 0, OPTIONAL,
         "independent (default), or dependent: each waits for the one before it"},
        {"--policy", ARGUMENT_POLICY, &loop.policy, 0, 0, OPTIONAL,
         "other (default) or fifo:N, which works half of the time"},
        {"--interferer", ARGUMENT_TEXT, &loop.interferer, 0, 0, OPTIONAL,
         "read, write or copy: every other slice of 0.1 s beside such a thread"},
        {"--interferer-cpu", ARGUMENT_CPUS, &loop.interferer_cpus, 0, 0, OPTIONAL,
         "its CPU (one that is not --cpu)"},
        {"--interferer-node", ARGUMENT_TEXT, &loop.interferer_node, 0, 0, OPTIONAL,
         "node of its memory (near its CPU)"},
        {"--interferer-mib", ARGUMENT_INTEGER, &loop.interferer_mib, 1, 1 << 20, OPTIONAL,
         "its memory in MiB (twice the last cache, 256 at least)"},
        PLACE_ARGUMENTS(loop.place),
        {"--supervised", ARGUMENT_FLAG, &loop.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    if (!settle(&loop))
        return PINLOAD_USAGE;
    return run(&loop);
}

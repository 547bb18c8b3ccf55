/*
 * Pointer chase: how long one load takes that the next one waits for.
 *
 * Each cache line of an area holds the address of another; together they are one cycle. Linear:
 * the next line, which a prefetcher foresees. Random: one cycle of Sattolo's over all lines,
 * which nothing foresees. Before it is timed the cycle is walked and every line must be met once.
 *
 * `--loads` gives the latency while other threads copy: for each pause between their blocks
 * (`--delays-ns`, from an idle to a saturated memory) two figures with the same labels: the
 * latency, and the bandwidth that the copies had in the same windows.
 *
 * `--pause-us` lets the chase itself stand still in turns, as a CPU of half the speed does that is
 * held up in turns: what the caches lose meanwhile to others who share them shows as more than
 * twice the latency, with nothing but the pauses to blame.
 */
#include "chase.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cycle.h"
#include "page_sets.h"
#include "place.h"
#include "sizes.h"
#include "supervise.h"
#include "traffic.h"
#include "windows.h"

enum { DELAY_LIMIT = 16, UNITS_TO_A_LOOK = 8, LEAST_LOAD_MIB = 128 };

/* Less than this and a lap is over before it can be timed; more and it takes minutes to build. */
#define LEAST_BYTES 1024ULL
#define MOST_BYTES (1ULL << 40)

struct chase {
    const char *orders, *delays, *load_node;
    uint64_t from, to, steps, seed, loads, load_mib;
    uint64_t pause_us, pause_at_ns;
    struct cpu_list load_cpus;
    bool linear, random, supervised;
    uint64_t delay[DELAY_LIMIT];
    size_t delay_count;
    struct place place;
    struct windows windows;
    struct area whole;
    struct traffic traffic;
    const struct area *area; /* of the cycle */
    uint64_t lines;
    bool is_random;
    struct line *at;
};

/* Runs and stands still by turns, from the first call on. */
static void pause_in_turns(struct chase *chase)
{
    const uint64_t turn_ns = chase->pause_us * NS_PER_US, now = monotonic_ns();
    if (now < chase->pause_at_ns)
        return;
    while (chase->pause_at_ns && monotonic_ns() < now + turn_ns)
        ;
    chase->pause_at_ns = monotonic_ns() + turn_ns;
}

/* `units` times CYCLE_UNROLLED loads. */
static void run_units(void *own, uint64_t units)
{
    struct chase *chase = own;
    struct line *at = chase->at;
    for (; units > 0; units--) {
        if (chase->pause_us && units % UNITS_TO_A_LOOK == 0)
            pause_in_turns(chase);
        at = cycle_follow(at, 1);
    }
    chase->at = at;
}

static uint64_t moved(void *own)
{
    const struct chase *chase = own;
    return traffic_moved(&chase->traffic);
}

static struct line *line_at(const struct chase *chase, uint64_t index)
{
    return (struct line *)(void *)(chase->area->bytes + index * chase->place.caches.line);
}

static void build(void *own, const struct area *area)
{
    struct chase *chase = own;
    chase->area = area;
    cycle_link(area->bytes, chase->lines, chase->place.caches.line, chase->is_random, chase->seed);
    chase->at = line_at(chase, 0);
}

/* Every line once, and back at the first. */
static bool prove(const struct chase *chase)
{
    const uint64_t lines = chase->lines;
    unsigned char *met = calloc(lines / 8 + 1, 1);
    const struct line *at = line_at(chase, 0);
    uint64_t steps = 0;
    if (!met) {
        complain("out of memory for the self-check");
        return false;
    }
    for (;; steps++, at = at->next) {
        const uint64_t offset = (uint64_t)((const char *)at - chase->area->bytes);
        const uint64_t index = offset / chase->place.caches.line;
        if (index >= lines || met[index / 8] & 1U << index % 8)
            break;
        met[index / 8] |= (unsigned char)(1U << index % 8);
    }
    free(met);
    if (steps == lines && at == line_at(chase, 0))
        return true;
    complain("self-check failed: the chase came back after %" PRIu64 " of %" PRIu64 " lines", steps,
             lines);
    return false;
}

static void describe(const struct chase *chase, size_t delay, struct figure *figure)
{
    const uint64_t bytes = chase->lines * chase->place.caches.line;
    figure_label(figure, "order", "%s", chase->is_random ? "random" : "linear");
    figure_label(figure, "bytes", "%" PRIu64, bytes);
    figure_label(figure, "level", "%s", caches_level(&chase->place.caches, bytes));
    if (chase->loads > 0) {
        figure_label(figure, "loads", "%" PRIu64, chase->loads);
        figure_label(figure, "delay_ns", "%" PRIu64, chase->delay[delay]);
        traffic_flag(&chase->traffic, &chase->place.caches, figure);
    }
    if (chase->pause_us)
        figure_label(figure, "pause_us", "%" PRIu64, chase->pause_us);
    place_describe(&chase->place, chase->area, figure);
    page_sets_describe(&chase->place, figure);
    windows_describe(&chase->windows, figure);
}

static bool print(const struct chase *chase, size_t delay)
{
    struct figure latency = {
        .probe = "chase", .unit = "ns", .family = FIGURE_CAPACITY, .samples = chase->windows.rates};
    for (size_t i = 0; i < chase->windows.count; i++)
        chase->windows.rates[i] = 1e9 / (chase->windows.rates[i] * CYCLE_UNROLLED);
    describe(chase, delay, &latency);
    if (!figure_print(stdout, &latency))
        return false;
    if (chase->loads == 0)
        return true;
    struct figure bandwidth = {.probe = "chase-traffic",
                               .unit = "bytes-per-second",
                               .family = FIGURE_CAPACITY,
                               .samples = chase->windows.beside};
    describe(chase, delay, &bandwidth);
    return figure_print(stdout, &bandwidth);
}

/* Under each load. */
static bool measure_loaded(struct chase *chase, const struct window_work *work)
{
    bool good = true;
    for (size_t delay = 0; good && delay < (chase->loads ? chase->delay_count : 1); delay++) {
        if (chase->loads) {
            chase->traffic.delay_ns = chase->delay[delay];
            traffic_go(&chase->traffic, true);
        }
        good = windows_run(&chase->windows, work);
        if (chase->loads)
            traffic_go(&chase->traffic, false);
        good = good && print(chase, delay);
    }
    return good;
}

static bool measure(struct chase *chase, uint64_t bytes, bool random)
{
    const uint64_t lines = bytes / chase->place.caches.line;
    const struct window_work work = {
        .run = run_units,
        .beside = chase->loads ? moved : NULL,
        .own = chase,
        .lap = lines > CYCLE_UNROLLED ? lines / CYCLE_UNROLLED : 1,
        .warm = chase->loads ? 1 : 0, /* without, the proof has just walked the cycle */
    };
    struct page_sets sets = {.lay = build, .bytes = bytes};
    chase->lines = lines;
    chase->is_random = random;
    const bool good =
        page_sets_choose(&sets, &chase->place, &chase->whole, &chase->windows, &work) &&
        prove(chase) && measure_loaded(chase, &work);
    page_sets_close(&sets);
    return good;
}

static bool open_traffic(struct chase *chase)
{
    chase->traffic.kind = TRAFFIC_COPY;
    chase->traffic.cpus = chase->load_cpus;
    chase->traffic.count = (size_t)chase->loads;
    if (chase->loads == 0)
        return true;
    traffic_size(&chase->traffic, chase->load_mib, LEAST_LOAD_MIB, &chase->place.caches);
    return traffic_open(&chase->traffic);
}

static int run(struct chase *chase)
{
    uint64_t sizes[SIZE_LIMIT];
    const size_t count = sizes_list(chase->from, chase->to, chase->steps, chase->place.caches.line, sizes);
    const size_t figures = count * 2 * (chase->loads ? chase->delay_count : 1);
    if (count == 0) {
        complain("--to: %" PRIu64 " holds no cache line", chase->to);
        return PINLOAD_USAGE;
    }
    if (!supervise_measurement(windows_limit_ns(&chase->windows, figures), chase->supervised, 0) ||
        !area_open(&chase->whole, "--to", sizes[count - 1], &chase->place.wish))
        return PINLOAD_FAILED;
    area_touch(&chase->whole);
    bool good = open_traffic(chase) && windows_open(&chase->windows);
    for (size_t i = 0; good && i < count; i++)
        good = (!chase->linear || measure(chase, sizes[i], false)) &&
               (!chase->random || measure(chase, sizes[i], true));
    if (!good) {
        output_end(); /* the end of the process ends the traffic's threads too */
        return PINLOAD_FAILED;
    }
    if (chase->loads)
        traffic_close(&chase->traffic);
    windows_close(&chase->windows);
    place_close(&chase->place, &chase->whole);
    return output_end();
}

static bool read_orders(struct chase *chase)
{
    const char *const text = chase->orders;
    chase->linear = !strcmp(text, "linear") || !strcmp(text, "both");
    chase->random = !strcmp(text, "random") || !strcmp(text, "both");
    if (!chase->linear && !chase->random)
        complain("--order: \"%s\" is not random, linear or both", text);
    return chase->linear || chase->random;
}

static bool read_delays(struct chase *chase)
{
    for (const char *at = chase->delays;; at++) {
        char digits[16] = "";
        const size_t length = strcspn(at, ",");
        uint64_t value;
        if (length < sizeof digits)
            memcpy(digits, at, length);
        if (!parse_integer(digits, &value) || value > NS_PER_S ||
            chase->delay_count == DELAY_LIMIT) {
            complain("--delays-ns: \"%s\" is not a list of at most %d numbers up to 1000000000",
                     chase->delays, DELAY_LIMIT);
            return false;
        }
        for (size_t i = 0; i < chase->delay_count; i++) {
            if (chase->delay[i] == value) {
                complain("--delays-ns: %" PRIu64 " is listed twice", value);
                return false;
            }
        }
        chase->delay[chase->delay_count++] = value;
        at += length;
        if (!*at)
            return true;
    }
}

static bool settle(struct chase *chase)
{
    chase->traffic.wish.node = -1;
    if (!read_orders(chase) || !read_delays(chase))
        return false;
    if (chase->loads == 0 && (chase->load_cpus.given || chase->load_node)) {
        complain("--load-cpus, --load-node: there are no loads without --loads");
        return false;
    }
    if (chase->load_node && !node_parse("--load-node", chase->load_node, &chase->traffic.wish.node))
        return false;
    if (chase->loads > 0 &&
        !traffic_cpus("--load-cpus", &chase->place.cpus, &chase->load_cpus))
        return false;
    if (!place_settle(&chase->place))
        return false;
    if (chase->to == 0)
        chase->to = place_largest(&chase->place);
    if (chase->from > chase->to) {
        complain("--from: %" PRIu64 " is more than --to, %" PRIu64, chase->from, chase->to);
        return false;
    }
    return true;
}

int chase_main(int argc, char **argv)
{
    struct chase chase = {
        .orders = "random",
        .delays = "0",
        .from = 4096,
        .steps = 2,
        .seed = 1,
        .windows = {.window_ns = 4000, .wanted = 100},
    };
    const struct argument table[] = {
        {"--from", ARGUMENT_BYTES, &chase.from, LEAST_BYTES, MOST_BYTES, OPTIONAL,
         "smallest area (4K)"},
        {"--to", ARGUMENT_BYTES, &chase.to, LEAST_BYTES, MOST_BYTES, OPTIONAL,
         "largest area (1G, or what memory has room for)"},
        {"--steps", ARGUMENT_INTEGER, &chase.steps, 1, SIZE_STEPS_LIMIT, OPTIONAL,
         "sizes in each doubling (2: 16K, 24K, 32K)"},
        {"--order", ARGUMENT_TEXT, &chase.orders, 0, 0, OPTIONAL, "random (default), linear, both"},
        {"--seed", ARGUMENT_INTEGER, &chase.seed, 0, UINT64_MAX, OPTIONAL,
         "of the random cycle (1)"},
        {"--loads", ARGUMENT_INTEGER, &chase.loads, 1, TRAFFIC_LIMIT, OPTIONAL,
         "threads that copy meanwhile (none)"},
        {"--load-cpus", ARGUMENT_CPUS, &chase.load_cpus, 0, 0, OPTIONAL,
         "their CPUs (all but --cpu)"},
        {"--load-node", ARGUMENT_TEXT, &chase.load_node, 0, 0, OPTIONAL,
         "node of their memory (near their CPUs)"},
        {"--load-mib", ARGUMENT_INTEGER, &chase.load_mib, 1, 1 << 20, OPTIONAL,
         "memory of each in MiB (twice the last cache, 128 at least)"},
        {"--delays-ns", ARGUMENT_TEXT, &chase.delays, 0, 0, OPTIONAL,
         "pauses after each 64 KiB, a list (0): figures for each"},
        {"--pause-us", ARGUMENT_INTEGER, &chase.pause_us, 1, 1000000, OPTIONAL,
         "run and stand still in turns of so long (run only)"},
        PLACE_ARGUMENTS(chase.place),
        WINDOW_ARGUMENTS(chase.windows),
        {"--supervised", ARGUMENT_FLAG, &chase.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    if (!settle(&chase))
        return PINLOAD_USAGE;
    return run(&chase);
}

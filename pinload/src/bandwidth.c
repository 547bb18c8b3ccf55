/*
 * Bandwidth by block size: how fast one thread reads, writes and copies what fits into each
 * cache, and what does not.
 *
 * A block is all memory that an operation touches: a copy's source and target are half of it
 * each, so that the steps of all operations lie at the same cache sizes. Bytes are counted as
 * STREAM does: read plus written, without the lines that a cache reads to write them.
 * The partial operations touch one 32-bit word of each 16 (or 32) bytes and count the whole
 * block, as lmbench's bw_mem rd, wr, rdwr and cp, which Craciun 2016 used; `fill` is the C
 * library's memset, lmbench's bzero.
 * What is measured is proven: reads by their sum, all windows included; what writes by one more
 * pass whose every word is compared.
 */
#include "bandwidth.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels.h"
#include "page_sets.h"
#include "place.h"
#include "sizes.h"
#include "supervise.h"
#include "windows.h"

enum { OPERATION_LIMIT = 16 };

/* Between source and target of a copy beside their sizes: at a multiple of 4 KiB a CPU may take
 * a load to depend on the store before it, as it first compares the lowest 12 bits only. */
enum { APART = 17 * 64 };

/* Each 64-bit word holds its index, in both halves. */
#define PATTERN 0x100000001ULL

typedef uint64_t __attribute__((may_alias)) word64;

struct block;

struct operation {
    const char *name;
    bool two_sided, partial, non_temporal;
    void (*run)(struct block *block, char *to, const char *from, size_t bytes, uint64_t passes);
};

struct block {
    const struct operation *operation;
    const struct kernels *kernels;
    bool ahead; /* stores are asked for ahead of time */
    size_t stride;
    const struct area *area;
    char *target, *source; /* the same if there is one side only */
    size_t bytes;          /* of one side */
    uint64_t lap, position; /* in granules */
    uint64_t value;
    uint64_t sum, expected; /* of what was read */
};

struct sweep {
    const char *operations, *width;
    uint64_t from, to, steps, stride;
    bool supervised;
    struct place place;
    struct windows windows;
    struct area area;
};

static void run_read(struct block *b, char *to, const char *from, size_t bytes, uint64_t passes)
{
    (void)to;
    b->sum += b->kernels->read(from, bytes, passes);
}

static void run_write(struct block *b, char *to, const char *from, size_t bytes, uint64_t passes)
{
    (void)from;
    (b->ahead ? b->kernels->write_ahead : b->kernels->write)(to, bytes, b->value, passes);
}

static void run_copy(struct block *b, char *to, const char *from, size_t bytes, uint64_t passes)
{
    (b->ahead ? b->kernels->copy_ahead : b->kernels->copy)(to, from, bytes, passes);
}

static void run_write_nt(struct block *b, char *to, const char *from, size_t bytes, uint64_t passes)
{
    (void)from;
    b->kernels->write_nt(to, bytes, b->value, passes);
}

static void run_copy_nt(struct block *b, char *to, const char *from, size_t bytes, uint64_t passes)
{
    b->kernels->copy_nt(to, from, bytes, passes);
}

static void run_fill(struct block *b, char *to, const char *from, size_t bytes, uint64_t passes)
{
    (void)from;
    for (; passes > 0; passes--) {
        memset(to, (int)(b->value & 0xFF), bytes);
        __asm__ volatile("" : : "r"(to) : "memory"); /* each pass counts */
    }
}

static void run_read_partial(struct block *b, char *to, const char *from, size_t bytes,
                             uint64_t passes)
{
    (void)to;
    b->sum += partial_read(from, bytes, b->stride, passes);
}

static void run_write_partial(struct block *b, char *to, const char *from, size_t bytes,
                              uint64_t passes)
{
    (void)from;
    partial_write(to, bytes, b->stride, (uint32_t)b->value, passes);
}

static void run_modify_partial(struct block *b, char *to, const char *from, size_t bytes,
                               uint64_t passes)
{
    (void)from;
    b->sum += partial_modify(to, bytes, b->stride, (uint32_t)b->value, passes);
}

static void run_copy_partial(struct block *b, char *to, const char *from, size_t bytes,
                             uint64_t passes)
{
    partial_copy(to, from, bytes, b->stride, passes);
}

static const struct operation operations[] = {
    {"read", false, false, false, run_read},
    {"write", false, false, false, run_write},
    {"copy", true, false, false, run_copy},
    {"write-nt", false, false, true, run_write_nt},
    {"copy-nt", true, false, true, run_copy_nt},
    {"read-partial", false, true, false, run_read_partial},
    {"write-partial", false, true, false, run_write_partial},
    {"modify-partial", false, true, false, run_modify_partial},
    {"copy-partial", true, true, false, run_copy_partial},
    {"fill", false, false, false, run_fill},
};

/* 0 + 1 + ... + (count - 1), without a product that overflows before it is halved. */
static uint64_t sum_below(uint64_t count)
{
    return count % 2 ? count * ((count - 1) / 2) : count / 2 * (count - 1);
}

/* Sum of what a partial read finds in the words [0, end): the lower halves of their indexes. */
static uint64_t halves_below(uint64_t end, uint64_t apart)
{
    const uint64_t round = (1ULL << 32) / apart, touched = end / apart;
    return apart * (touched / round * sum_below(round) + sum_below(touched % round));
}

/* Sum of the words [first, end) of the pattern; for a partial read, of those it touches. */
static uint64_t pattern_sum(const struct block *b, uint64_t first, uint64_t end)
{
    const uint64_t apart = b->stride / 8;
    if (b->operation->partial)
        return halves_below(end, apart) - halves_below(first, apart);
    return (sum_below(end) - sum_below(first)) * PATTERN;
}

static void run_piece(struct block *b, uint64_t at, uint64_t granules, uint64_t passes)
{
    const size_t offset = (size_t)at * KERNEL_GRANULE, bytes = (size_t)granules * KERNEL_GRANULE;
    b->expected += passes * pattern_sum(b, offset / 8, (offset + bytes) / 8);
    b->operation->run(b, b->target + offset, b->source + offset, bytes, passes);
}

/* Goes on where it stopped; whole laps in one call. */
static void run_units(void *own, uint64_t units)
{
    struct block *b = own;
    while (units > 0) {
        const uint64_t rest = b->lap - b->position;
        const uint64_t piece = units < rest ? units : rest;
        if (b->position == 0 && units >= b->lap) {
            run_piece(b, 0, b->lap, units / b->lap);
            units %= b->lap;
        } else {
            run_piece(b, b->position, piece, 1);
            b->position = (b->position + piece) % b->lap;
            units -= piece;
        }
    }
}

static void fill_pattern(struct block *b)
{
    word64 *const source = (word64 *)(void *)b->source;
    for (size_t i = 0; i < b->bytes / 8; i++)
        source[i] = i * PATTERN;
    if (b->target != b->source)
        memset(b->target, 0xEE, b->bytes);
    b->sum = b->expected = 0;
    b->position = 0;
}

static void lay(void *own, const struct area *area)
{
    struct block *b = own;
    b->area = area;
    b->source = area->bytes;
    b->target = b->operation->two_sided ? b->source + b->bytes + APART : b->source;
    fill_pattern(b);
}

/* What the word `i` of the target must hold after one pass over the pattern. */
static uint64_t wanted_word(const struct block *b, size_t i)
{
    const struct operation *o = b->operation;
    const uint64_t before = o->two_sided ? 0xEEEEEEEEEEEEEEEEULL : i * PATTERN;
    const uint64_t half = o->two_sided ? (uint32_t)i : (uint32_t)b->value;
    if (o->run == run_read || o->run == run_read_partial)
        return before;
    if (o->partial && i % (b->stride / 8) != 0)
        return before;
    if (o->partial) {
        uint64_t word = before;
        const uint32_t first = (uint32_t)half;
        memcpy(&word, &first, sizeof first);
        return word;
    }
    if (o->run == run_fill)
        return (b->value & 0xFF) * 0x0101010101010101ULL;
    return o->two_sided ? i * PATTERN : b->value;
}

/* One more pass over fresh data, and every word of it compared. */
static bool prove(struct block *b)
{
    const bool modify = b->operation->run == run_modify_partial;
    if (!modify && b->operation->run != run_read && b->operation->run != run_read_partial)
        b->sum = b->expected; /* it reads no sum */
    if (!modify && b->sum != b->expected) {
        complain("self-check failed: %s of %zu bytes read the sum %" PRIx64 ", not %" PRIx64,
                 b->operation->name, b->bytes, b->sum, b->expected);
        return false;
    }
    fill_pattern(b);
    b->value = 0x5DEECE66DULL ^ b->bytes;
    run_units(b, b->lap);
    if (modify && b->sum != b->expected) {
        complain("self-check failed: %s of %zu bytes read the sum %" PRIx64 ", not %" PRIx64,
                 b->operation->name, b->bytes, b->sum, b->expected);
        return false;
    }
    const word64 *const target = (const word64 *)(const void *)b->target;
    for (size_t i = 0; i < b->bytes / 8; i++) {
        if (target[i] != wanted_word(b, i)) {
            complain("self-check failed: %s of %zu bytes left %" PRIx64 " in word %zu, not %" PRIx64,
                     b->operation->name, b->bytes, target[i], i, wanted_word(b, i));
            return false;
        }
    }
    return true;
}

static void describe(const struct sweep *sweep, const struct block *b, uint64_t bytes,
                     struct figure *figure)
{
    const struct operation *o = b->operation;
    figure_label(figure, "operation", "%s", o->name);
    figure_label(figure, "bytes", "%" PRIu64, bytes);
    figure_label(figure, "level", "%s", caches_level(&sweep->place.caches, bytes));
    figure_label(figure, "width", "%s",
                 o->run == run_fill ? "libc"
                 : o->partial       ? "scalar"
                                    : b->kernels->width);
    if (o->partial)
        figure_label(figure, "counted", "block; 4 of each %zu bytes touched (as lmbench)",
                     b->stride);
    else
        figure_label(figure, "counted", "%s",
                     o->two_sided ? "read plus written (as STREAM)" : "block");
    place_describe(&sweep->place, b->area, figure);
    page_sets_describe(&sweep->place, figure);
    windows_describe(&sweep->windows, figure);
}

static bool measure(struct sweep *sweep, const struct operation *operation,
                    const struct kernels *kernels, uint64_t bytes)
{
    struct block block = {
        .operation = operation,
        .kernels = kernels,
        .ahead = kernels->copy_ahead && bytes > caches_first(&sweep->place.caches),
        .stride = (size_t)sweep->stride,
        .bytes = (size_t)(operation->two_sided ? bytes / 2 : bytes),
        .value = 0xA5A5A5A5A5A5A5A5ULL,
    };
    block.lap = block.bytes / KERNEL_GRANULE;
    const struct window_work work = {.run = run_units, .own = &block, .lap = block.lap, .warm = 2};
    struct page_sets sets = {.lay = lay, .bytes = bytes, .apart = APART};
    bool good = page_sets_choose(&sets, &sweep->place, &sweep->area, &sweep->windows, &work) &&
                windows_run(&sweep->windows, &work) && prove(&block);
    const double unit = KERNEL_GRANULE * (operation->two_sided ? 2.0 : 1.0);
    for (size_t i = 0; i < sweep->windows.count; i++)
        sweep->windows.rates[i] *= unit;
    struct figure figure = {
        .probe = "bandwidth",
        .unit = "bytes-per-second",
        .family = FIGURE_CAPACITY,
        .samples = sweep->windows.rates,
    };
    describe(sweep, &block, bytes, &figure);
    good = good && figure_print(stdout, &figure);
    page_sets_close(&sets);
    return good;
}

static const struct operation *operation_named(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strlen(operations[i].name) == length && !strncmp(operations[i].name, name, length))
            return &operations[i];
    complain("--operations: \"%.*s\" is not read, write, copy, write-nt, copy-nt, read-partial, "
             "write-partial, modify-partial, copy-partial or fill",
             (int)length, name);
    return NULL;
}

/* "read,copy" into a list that ends with NULL; false after a complaint. */
static bool read_operations(const struct sweep *sweep, const struct kernels *kernels,
                            const struct operation *chosen[OPERATION_LIMIT])
{
    size_t count = 0;
    for (const char *at = sweep->operations;; at++) {
        const size_t length = strcspn(at, ",");
        const struct operation *operation = operation_named(at, length);
        if (!operation)
            return false;
        for (size_t i = 0; i < count; i++) {
            if (chosen[i] == operation) {
                complain("--operations: %s is listed twice", operation->name);
                return false;
            }
        }
        if (operation->non_temporal && !kernels->write_nt) {
            complain("--operations: %s: there are no non-temporal stores of the width %s",
                     operation->name, kernels->width);
            return false;
        }
        chosen[count++] = operation;
        at += length;
        if (!*at)
            break;
    }
    chosen[count] = NULL;
    return true;
}

static int run(struct sweep *sweep, const struct kernels *kernels,
               const struct operation *const *chosen)
{
    uint64_t sizes[SIZE_LIMIT];
    const size_t count = sizes_list(sweep->from, sweep->to, sweep->steps, 2 * KERNEL_GRANULE, sizes);
    if (!supervise_measurement(windows_limit_ns(&sweep->windows, count * OPERATION_LIMIT),
                               sweep->supervised, 0) ||
        !area_open(&sweep->area, "--to", sizes[count - 1] + APART, &sweep->place.wish))
        return PINLOAD_FAILED;
    area_touch(&sweep->area);
    bool good = windows_open(&sweep->windows);
    for (size_t i = 0; good && i < count; i++)
        for (size_t k = 0; good && chosen[k]; k++)
            good = measure(sweep, chosen[k], kernels, sizes[i]);
    windows_close(&sweep->windows);
    place_close(&sweep->place, &sweep->area);
    const int ended = output_end();
    return good ? ended : PINLOAD_FAILED;
}

int bandwidth_main(int argc, char **argv)
{
    struct sweep sweep = {
        .operations = "read,write,copy",
        .width = "auto",
        .from = 4096,
        .steps = 2,
        .stride = 16,
        .windows = {.window_ns = 2000, .wanted = 200},
    };
    const struct argument table[] = {
        {"--from", ARGUMENT_BYTES, &sweep.from, 4096, 1ULL << 42, OPTIONAL, "smallest block (4K)"},
        {"--to", ARGUMENT_BYTES, &sweep.to, 4096, 1ULL << 42, OPTIONAL,
         "largest block (1G, or what memory has room for)"},
        {"--steps", ARGUMENT_INTEGER, &sweep.steps, 1, SIZE_STEPS_LIMIT, OPTIONAL,
         "sizes in each doubling (2: 16K, 24K, 32K)"},
        {"--operations", ARGUMENT_TEXT, &sweep.operations, 0, 0, OPTIONAL,
         "list: read,write,copy (default), write-nt, copy-nt, read-partial, write-partial, "
         "modify-partial, copy-partial, fill"},
        {"--width", ARGUMENT_TEXT, &sweep.width, 0, 0, OPTIONAL,
         "auto (default: the widest), scalar, 128, avx2, avx512, neon, rvv"},
        {"--stride", ARGUMENT_INTEGER, &sweep.stride, 16, 32, OPTIONAL,
         "partial: one 32-bit word of each 16 (default) or 32 bytes"},
        PLACE_ARGUMENTS(sweep.place),
        WINDOW_ARGUMENTS(sweep.windows),
        {"--supervised", ARGUMENT_FLAG, &sweep.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    const struct operation *chosen[OPERATION_LIMIT];
    const struct kernels *kernels = kernels_choose("--width", sweep.width);
    if (!kernels || !read_operations(&sweep, kernels, chosen) || !place_settle(&sweep.place))
        return PINLOAD_USAGE;
    if (sweep.to == 0)
        sweep.to = place_largest(&sweep.place);
    if (sweep.from > sweep.to) {
        complain("--from: %" PRIu64 " is more than --to, %" PRIu64, sweep.from, sweep.to);
        return PINLOAD_USAGE;
    }
    if (sweep.stride != 16 && sweep.stride != 32) {
        complain("--stride: %" PRIu64 " is not 16 or 32", sweep.stride);
        return PINLOAD_USAGE;
    }
    return run(&sweep, kernels, chosen);
}

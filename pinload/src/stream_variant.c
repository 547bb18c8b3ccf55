/*
 * The four loops of STREAM over arrays that no cache holds: a variant of STREAM.
 *
 * What is taken from John McCalpin's benchmark are the loops, the rule that each array is at
 * least four times the last cache, and the count of bytes: 16 for each element of copy and
 * scale, 24 of add and triad. What differs: one thread, vectors of a chosen width instead of
 * what a compiler makes of the loops, windows of milliseconds that go round the arrays instead
 * of whole passes, and non-temporal stores as kernels of their own.
 */
#include "stream_variant.h"

#include <inttypes.h>
#include <stdio.h>

#include "kernels.h"
#include "place.h"
#include "supervise.h"
#include "windows.h"

/* Elements of a unit; arrays are multiples of it. */
enum { UNIT = 64, MIB_LIMIT = 1 << 20, ARRAYS = 3, CACHES = 4 };

/* Without a known cache: more than any has today. */
#define UNKNOWN_CACHE (64ULL << 20)

/* Arrays begin at different places of a page, for the reason that bandwidth.c gives for copies. */
enum { APART = 17 * 64 };

struct variant {
    uint64_t array_mib; /* 0: by the last cache */
    const char *width;
    bool supervised;
    struct place place;
    struct windows windows;
    struct area area;
    const struct kernels *kernels;
    struct stream_arrays arrays;
    uint64_t elements; /* of one array */
    bool capped;
    /* Of the loop that is measured. */
    void (*loop)(const struct stream_arrays *, size_t, size_t);
    uint64_t position; /* in units */
};

static const struct {
    const char *name;
    uint64_t bytes; /* counted for each element */
} loops[STREAM_OPERATIONS] = {
    [STREAM_COPY] = {"copy", 16},
    [STREAM_SCALE] = {"scale", 16},
    [STREAM_ADD] = {"add", 24},
    [STREAM_TRIAD] = {"triad", 24},
};

static void run_units(void *own, uint64_t units)
{
    struct variant *v = own;
    const uint64_t lap = v->elements / UNIT;
    while (units > 0) {
        const uint64_t rest = lap - v->position;
        const uint64_t piece = units < rest ? units : rest;
        v->loop(&v->arrays, (size_t)v->position * UNIT, (size_t)piece * UNIT);
        v->position = (v->position + piece) % lap;
        units -= piece;
    }
}

/* Small integers: each result is exact, whichever way it is computed. */
static void fill(struct variant *v)
{
    for (uint64_t i = 0; i < v->elements; i++) {
        v->arrays.a[i] = (double)(i % 1021);
        v->arrays.b[i] = (double)(i % 509 + 1);
        v->arrays.c[i] = (double)(i % 257 + 2);
    }
}

static double wanted(const struct variant *v, enum stream_operation operation, uint64_t i)
{
    switch (operation) {
    case STREAM_COPY:
        return v->arrays.a[i];
    case STREAM_SCALE:
        return STREAM_FACTOR * v->arrays.c[i];
    case STREAM_ADD:
        return v->arrays.a[i] + v->arrays.b[i];
    case STREAM_TRIAD:
        return v->arrays.b[i] + STREAM_FACTOR * v->arrays.c[i];
    case STREAM_OPERATIONS:
        break;
    }
    return -1;
}

static bool prove(struct variant *v, enum stream_operation operation)
{
    const double *const results[STREAM_OPERATIONS] = {v->arrays.c, v->arrays.b, v->arrays.c,
                                                      v->arrays.a};
    fill(v);
    run_units(v, v->elements / UNIT);
    for (uint64_t i = 0; i < v->elements; i++) {
        const double found = results[operation][i], right = wanted(v, operation, i);
        if (found < right || found > right) {
            complain("self-check failed: %s left %g in element %" PRIu64 ", not %g",
                     loops[operation].name, found, i, right);
            return false;
        }
    }
    return true;
}

static bool measure(struct variant *v, enum stream_operation operation, bool non_temporal)
{
    v->loop = (non_temporal ? v->kernels->stream_nt : v->kernels->stream)[operation];
    if (!v->loop)
        return true; /* the flag of the normal loop tells */
    v->position = 0;
    const struct window_work work = {
        .run = run_units, .own = v, .lap = v->elements / UNIT, .warm = 1};
    if (!windows_run(&v->windows, &work) || !prove(v, operation))
        return false;
    for (size_t i = 0; i < v->windows.count; i++)
        v->windows.rates[i] *= (double)(UNIT * loops[operation].bytes);
    struct figure figure = {
        .probe = "stream-variant",
        .unit = "bytes-per-second",
        .family = FIGURE_CAPACITY,
        .samples = v->windows.rates,
    };
    figure_label(&figure, "loop", "%s", loops[operation].name);
    figure_label(&figure, "stores", "%s", non_temporal ? "non-temporal" : "normal");
    figure_label(&figure, "width", "%s", v->kernels->width);
    figure_label(&figure, "array_bytes", "%" PRIu64, v->elements * sizeof(double));
    figure_label(&figure, "kind", "variant of STREAM");
    place_describe(&v->place, &v->area, &figure);
    windows_describe(&v->windows, &figure);
    if (!v->kernels->stream_nt[operation])
        figure_flag(&figure, "no-non-temporal-stores-of-this-width");
    const uint64_t last = caches_last(&v->place.caches);
    if (last > 0 && v->elements * sizeof(double) < CACHES * last)
        figure_flag(&figure, "array-is-%.1f-last-caches%s",
                    (double)(v->elements * sizeof(double)) / (double)last,
                    v->capped ? ", memory is short" : "");
    return figure_print(stdout, &figure);
}

/* Four times the last cache, less if the memory is short. */
static void choose_size(struct variant *v)
{
    const uint64_t last = caches_last(&v->place.caches);
    uint64_t bytes = v->array_mib << 20;
    if (bytes == 0) {
        const uint64_t most = memory_available(v->place.wish.node) / 2 / ARRAYS;
        bytes = CACHES * (last ? last : UNKNOWN_CACHE);
        v->capped = bytes > most;
        bytes = v->capped ? most : bytes;
    }
    v->elements = bytes / sizeof(double) / UNIT * UNIT;
}

static int run(struct variant *v)
{
    choose_size(v);
    const uint64_t bytes = v->elements * sizeof(double);
    if (v->elements < UNIT) {
        complain("there is no memory for the arrays");
        return PINLOAD_FAILED;
    }
    if (!supervise_measurement(windows_limit_ns(&v->windows, 2 * STREAM_OPERATIONS), v->supervised,
                               0) ||
        !area_open(&v->area, "--array-mib", ARRAYS * (bytes + APART), &v->place.wish))
        return PINLOAD_FAILED;
    v->arrays.a = (double *)(void *)v->area.bytes;
    v->arrays.b = (double *)(void *)(v->area.bytes + bytes + APART);
    v->arrays.c = (double *)(void *)(v->area.bytes + 2 * (bytes + APART));
    area_touch(&v->area);
    fill(v);
    bool good = windows_open(&v->windows);
    for (int nt = 0; nt < 2; nt++)
        for (int i = 0; good && i < STREAM_OPERATIONS; i++)
            good = measure(v, (enum stream_operation)i, nt == 1);
    windows_close(&v->windows);
    place_close(&v->place, &v->area);
    const int ended = output_end();
    return good ? ended : PINLOAD_FAILED;
}

int stream_variant_main(int argc, char **argv)
{
    struct variant v = {.width = "auto", .windows = {.window_ns = 2000, .wanted = 300}};
    const struct argument table[] = {
        {"--array-mib", ARGUMENT_INTEGER, &v.array_mib, 1, MIB_LIMIT, OPTIONAL,
         "MiB of each of the three arrays (four times the last cache)"},
        {"--width", ARGUMENT_TEXT, &v.width, 0, 0, OPTIONAL,
         "auto (default: the widest), scalar, 128, avx2, avx512, neon, rvv"},
        PLACE_ARGUMENTS(v.place),
        WINDOW_ARGUMENTS(v.windows),
        {"--supervised", ARGUMENT_FLAG, &v.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    v.kernels = kernels_choose("--width", v.width);
    if (!v.kernels || !place_settle(&v.place))
        return PINLOAD_USAGE;
    return run(&v);
}

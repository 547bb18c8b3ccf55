/*
 * Plain rivals of the memory benchmarks, compiled by the benchmark with gcc -O3.
 *
 *   stream ELEMENTS PASSES  copy, scale, add, triad as STREAM's loops are written: the best of
 *                           all passes but the first, bytes per second, a line each
 *   chase BYTES SAMPLES     a random cycle through all cache lines, mean of samples of half a
 *                           second as multichase takes them: the best, ns per load
 *   linear BYTES SAMPLES    the same, from each cache line to the next
 *   tsc                     ticks of the time stamp counter per second
 */
#define _GNU_SOURCE

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOPS = 4, LINE = 64, PAGE = 4096 };

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC_RAW, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

#define APART __attribute__((noinline, noclone))

APART static void copy(double *restrict c, const double *restrict a, size_t n)
{
    for (size_t j = 0; j < n; j++)
        c[j] = a[j];
}

APART static void scale(double *restrict b, const double *restrict c, size_t n)
{
    for (size_t j = 0; j < n; j++)
        b[j] = 3.0 * c[j];
}

APART static void add(double *restrict c, const double *restrict a, const double *restrict b,
                      size_t n)
{
    for (size_t j = 0; j < n; j++)
        c[j] = a[j] + b[j];
}

APART static void triad(double *restrict a, const double *restrict b, const double *restrict c,
                        size_t n)
{
    for (size_t j = 0; j < n; j++)
        a[j] = b[j] + 3.0 * c[j];
}

static int stream(size_t n, long passes)
{
    const double bytes[LOOPS] = {16, 16, 24, 24};
    double best[LOOPS] = {1e9, 1e9, 1e9, 1e9};
    double *const a = aligned_alloc(PAGE, n * sizeof *a);
    double *const b = aligned_alloc(PAGE, n * sizeof *b);
    double *const c = aligned_alloc(PAGE, n * sizeof *c);
    if (!a || !b || !c)
        return 1;
    for (size_t j = 0; j < n; j++) {
        a[j] = 1;
        b[j] = 2;
        c[j] = 0;
    }
    for (long pass = 0; pass < passes; pass++) {
        double at[LOOPS + 1];
        at[0] = now();
        copy(c, a, n);
        at[1] = now();
        scale(b, c, n);
        at[2] = now();
        add(c, a, b, n);
        at[3] = now();
        triad(a, b, c, n);
        at[4] = now();
        for (int i = 0; i < LOOPS && pass > 0; i++)
            best[i] = at[i + 1] - at[i] < best[i] ? at[i + 1] - at[i] : best[i];
    }
    for (size_t j = 1; j < n; j++)
        if (a[j] != a[0] || b[j] != b[0] || c[j] != c[0])
            return 1;
    for (int i = 0; i < LOOPS; i++)
        printf("%.0f\n", bytes[i] * (double)n / best[i]);
    return 0;
}

static int chase(size_t bytes, long samples, int is_random)
{
    const size_t lines = bytes / LINE;
    char *const memory = aligned_alloc(PAGE, bytes);
    size_t *const order = malloc(lines * sizeof *order);
    if (!memory || !order || lines < 2)
        return 1;
    for (size_t i = 0; i < lines; i++)
        order[i] = i;
    srandom(7);
    for (size_t i = lines - 1; is_random && i > 0; i--) { /* Fisher and Yates */
        const size_t other = ((size_t)random() << 31 | (size_t)random()) % (i + 1);
        const size_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (size_t i = 0; i < lines; i++)
        *(void **)(void *)(memory + order[i] * LINE) = memory + order[(i + 1) % lines] * LINE;
    /* From the line that was written first: the last ones may still lie in a cache. */
    void **at = (void **)(void *)(memory + order[0] * LINE);
    free(order);
    double best = 1e9;
    for (long sample = 0; sample <= samples; sample++) { /* the first warms up */
        const double begin = now();
        double end;
        uint64_t loads = 0;
        do {
            for (int i = 0; i < 200; i++) {
                at = *at, at = *at, at = *at, at = *at, at = *at;
                at = *at, at = *at, at = *at, at = *at, at = *at;
            }
            loads += 2000;
            end = now();
        } while (end - begin < 0.5);
        if (sample > 0 && (end - begin) / (double)loads < best)
            best = (end - begin) / (double)loads;
    }
    if (!at)
        return 1;
    printf("%.4f\n", best * 1e9);
    return 0;
}

static int tsc(void)
{
    struct {
        double at;
        uint64_t ticks;
    } point[2];
    for (int i = 0; i < 2; i++) {
        uint64_t tightest = UINT64_MAX;
        for (int k = 0; k < 2000; k++) {
            const uint64_t before = __builtin_ia32_rdtsc();
            const double at = now();
            const uint64_t after = __builtin_ia32_rdtsc();
            if (after - before < tightest) {
                tightest = after - before;
                point[i].at = at;
                point[i].ticks = before + tightest / 2;
            }
        }
        const struct timespec rest = {0, 200000000};
        if (i == 0)
            nanosleep(&rest, NULL);
    }
    printf("%.0f\n", (double)(point[1].ticks - point[0].ticks) / (point[1].at - point[0].at));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "stream"))
        return stream(strtoull(argv[2], NULL, 10), strtol(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "chase"))
        return chase(strtoull(argv[2], NULL, 10), strtol(argv[3], NULL, 10), 1);
    if (argc == 4 && !strcmp(argv[1], "linear"))
        return chase(strtoull(argv[2], NULL, 10), strtol(argv[3], NULL, 10), 0);
    if (argc == 2 && !strcmp(argv[1], "tsc"))
        return tsc();
    return 2;
}

/*
 * fft: complex one-dimensional Fourier transform in six steps.
 *
 * Bailey, "FFTs in external or hierarchical memory" (1990): the points are a square matrix;
 * transpose, transform the rows, multiply by roots of unity, transpose, transform the
 * rows, transpose. Each thread has as many rows as any other; in a transposition it reads a
 * square patch from every thread, its neighbour's first. Hence the power of two.
 * Unlike SPLASH's program of the name: transforms are unitary and follow each other, rows
 * are transformed by an iterative radix-2 algorithm, and the roots of unity of the middle step
 * are products of two tables instead of a third matrix.
 */
#include "parallel.h"

#include <math.h>

static const struct {
    size_t root, transforms; /* 4 k + 1, so that the last one is of the input or of its mirror */
} shapes[SIZES] = {{1024, 1}, {1024, 21}, {2048, 53}};

struct complex {
    double re, im;
};

struct fft {
    uint64_t seed;
    size_t root, transforms; /* points: root x root */
    struct complex *data, *other;
    struct complex *coarse, *fine; /* e^(-2 pi i k / root) and e^(-2 pi i k / root^2) */
};

static struct complex times(struct complex a, struct complex b)
{
    return (struct complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static struct complex turn(double share)
{
    double sine, cosine;
    portable_sincos(-6.283185307179586 * share, &sine, &cosine);
    return (struct complex){cosine, sine};
}

static struct complex input(const struct fft *fft, size_t index)
{
    struct random random = random_stream(fft->seed, index);
    const double re = random_uniform(&random) - 0.5;
    return (struct complex){re, random_uniform(&random) - 0.5};
}

static void *prepare(const struct setting *setting)
{
    struct fft *fft = memory_take(1, sizeof *fft);
    fft->seed = setting->seed;
    fft->root = shapes[setting->size].root;
    fft->transforms = shapes[setting->size].transforms;
    const size_t points = fft->root * fft->root;
    fft->data = memory_take(points, sizeof *fft->data);
    fft->other = memory_take(points, sizeof *fft->other);
    fft->coarse = memory_take(fft->root, sizeof *fft->coarse);
    fft->fine = memory_take(fft->root, sizeof *fft->fine);
    for (size_t i = 0; i < fft->root; i++) {
        fft->coarse[i] = turn((double)i / (double)fft->root);
        fft->fine[i] = turn((double)i / (double)points);
    }
    for (size_t i = 0; i < points; i++)
        fft->data[i] = input(fft, i);
    return fft;
}

/* Own rows of `to` from the columns of `from`: one patch of each thread's rows after another. */
static void transpose(const struct fft *fft, struct team *team, size_t thread,
                      const struct complex *from, struct complex *to)
{
    enum { TILE = 8 };
    const size_t rows = fft->root / team->threads;
    const size_t tile = rows < TILE ? rows : TILE;
    for (size_t turn = 1; turn <= team->threads; turn++) {
        const size_t first = (thread + turn) % team->threads * rows;
        for (size_t r = 0; r < rows; r += tile)
            for (size_t c = 0; c < rows; c += tile)
                for (size_t i = thread * rows + r; i < thread * rows + r + tile; i++)
                    for (size_t j = first + c; j < first + c + tile; j++)
                        to[i * fft->root + j] = from[j * fft->root + i];
    }
}

static void transform_row(const struct fft *fft, struct complex *row)
{
    for (size_t i = 1, j = 0; i < fft->root; i++) { /* order of reversed bits */
        size_t bit = fft->root >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            const struct complex swapped = row[i];
            row[i] = row[j];
            row[j] = swapped;
        }
    }
    for (size_t half = 1; half < fft->root; half *= 2) {
        const size_t stride = fft->root / (2 * half);
        for (size_t start = 0; start < fft->root; start += 2 * half) {
            for (size_t k = 0; k < half; k++) {
                struct complex *low = &row[start + k], *high = low + half;
                const struct complex turned = times(*high, fft->coarse[k * stride]);
                *high = (struct complex){low->re - turned.re, low->im - turned.im};
                *low = (struct complex){low->re + turned.re, low->im + turned.im};
            }
        }
    }
}

/* Multiplies by e^(-2 pi i row column / points), and by what makes the whole unitary. */
static void twiddle_row(const struct fft *fft, struct complex *row, size_t index)
{
    const double scale = 1 / (double)fft->root;
    for (size_t column = 0; column < fft->root; column++) {
        const size_t power = index * column;
        const struct complex factor = times(fft->coarse[power / fft->root],
                                            fft->fine[power % fft->root]);
        const struct complex turned = times(row[column], factor);
        row[column] = (struct complex){turned.re * scale, turned.im * scale};
    }
}

static void work(void *state, struct team *team, size_t thread)
{
    struct fft *fft = state;
    const struct range own = range_part(fft->root, team->threads, thread);
    for (size_t number = 0; number < fft->transforms; number++) {
        transpose(fft, team, thread, fft->data, fft->other);
        for (size_t row = own.begin; row < own.end; row++) {
            transform_row(fft, &fft->other[row * fft->root]);
            twiddle_row(fft, &fft->other[row * fft->root], row);
        }
        team_wait(team);
        transpose(fft, team, thread, fft->other, fft->data);
        for (size_t row = own.begin; row < own.end; row++)
            transform_row(fft, &fft->data[row * fft->root]);
        team_wait(team);
        transpose(fft, team, thread, fft->data, fft->other);
        team_wait(team);
        if (thread == 0) {
            struct complex *swapped = fft->data;
            fft->data = fft->other;
            fft->other = swapped;
        }
        team_wait(team);
    }
}

/* Proof: three coefficients computed one by one. After 4 k + 1 transforms they are as after one. */
static bool finish(void *state, uint64_t *checksum)
{
    const struct fft *fft = state;
    const size_t points = fft->root * fft->root;
    const size_t tried[] = {0, 1 + fft->root / 3, points - 5};
    struct complex sums[3] = {{0, 0}, {0, 0}, {0, 0}};
    for (size_t i = 0; i < points; i++) {
        const struct complex point = input(fft, i);
        for (int k = 0; k < 3; k++) {
            const size_t power = tried[k] * i % points;
            const struct complex part =
                times(point, times(fft->coarse[power / fft->root], fft->fine[power % fft->root]));
            sums[k].re += part.re;
            sums[k].im += part.im;
        }
        *checksum += checksum_double(2 * i, fft->data[i].re);
        *checksum += checksum_double(2 * i + 1, fft->data[i].im);
    }
    for (int k = 0; k < 3; k++) {
        const struct complex found = fft->data[tried[k]];
        const double wrong = fabs(found.re - sums[k].re / (double)fft->root) +
                             fabs(found.im - sums[k].im / (double)fft->root);
        if (!(wrong < 1e-9)) {
            complain("fft: coefficient %zu is wrong by %g", tried[k], wrong);
            return false;
        }
    }
    return true;
}

const struct program program_fft = {
    .name = "fft",
    .about = "six-step Fourier transform: all-to-all transpositions between barriers",
    .rule = THREADS_POWER_OF_TWO,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"1,048,576 points, 1 transform", "1,048,576 points, 21 transforms",
              "4,194,304 points, 53 transforms"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};

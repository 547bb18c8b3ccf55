/*
 * lu-contiguous, lu-non-contiguous: dense LU factorisation by blocks, without pivoting.
 *
 * Golub and Van Loan, "Matrix Computations", right-looking by blocks, with blocks given to
 * threads in a two-dimensional cycle as in Woo et al., "The SPLASH-2 programs" (1995).
 * Step k: the owner factors the diagonal block; barrier; owners solve for the blocks of its
 * column and row; barrier; owners update what lies right and below.
 * The two programs do the same arithmetic and have the same checksum. In one a block's elements lie
 * side by side, in the other a row of the whole matrix does, so that the rows of different
 * threads' blocks share pages, and cache lines of one step lie far apart.
 * Unlike SPLASH's programs the main thread takes all memory, so that blocks are not first
 * touched by their owners.
 */
#include "parallel.h"

#include <math.h>

enum { BLOCK = 16 };

static const size_t orders[SIZES] = {880, 1920, 4096};

struct lu {
    uint64_t seed;
    size_t order, blocks; /* per side */
    size_t stride;        /* from row to row within a block */
    double *elements;
};

/* The first element of a block. */
static double *block_at(const struct lu *lu, size_t row, size_t column)
{
    if (lu->stride == BLOCK)
        return lu->elements + (row * lu->blocks + column) * BLOCK * BLOCK;
    return lu->elements + row * BLOCK * lu->order + column * BLOCK;
}

static double *element_at(const struct lu *lu, size_t row, size_t column)
{
    return block_at(lu, row / BLOCK, column / BLOCK) + row % BLOCK * lu->stride + column % BLOCK;
}

/* Large on the diagonal, so that no pivoting is needed. */
static double input(const struct lu *lu, size_t row, size_t column)
{
    struct random random = random_stream(lu->seed, row * lu->order + column);
    return random_uniform(&random) - 0.5 + (row == column ? (double)lu->order : 0);
}

static struct lu *prepare(const struct setting *setting, bool contiguous)
{
    struct lu *lu = memory_take(1, sizeof *lu);
    lu->seed = setting->seed;
    lu->order = orders[setting->size];
    lu->blocks = lu->order / BLOCK;
    lu->stride = contiguous ? BLOCK : lu->order;
    lu->elements = memory_take(lu->order * lu->order, sizeof *lu->elements);
    for (size_t row = 0; row < lu->order; row++)
        for (size_t column = 0; column < lu->order; column++)
            *element_at(lu, row, column) = input(lu, row, column);
    return lu;
}

static void *prepare_contiguous(const struct setting *setting)
{
    return prepare(setting, true);
}

static void *prepare_non_contiguous(const struct setting *setting)
{
    return prepare(setting, false);
}

static void factor(double *block, size_t stride)
{
    for (size_t k = 0; k < BLOCK; k++) {
        for (size_t i = k + 1; i < BLOCK; i++) {
            const double scale = block[i * stride + k] /= block[k * stride + k];
            for (size_t j = k + 1; j < BLOCK; j++)
                block[i * stride + j] -= scale * block[k * stride + j];
        }
    }
}

/* block := block U^-1, for the blocks below the diagonal. */
static void solve_column(double *block, const double *diagonal, size_t stride)
{
    for (size_t i = 0; i < BLOCK; i++) {
        double *row = block + i * stride;
        for (size_t k = 0; k < BLOCK; k++) {
            const double scale = row[k] /= diagonal[k * stride + k];
            for (size_t j = k + 1; j < BLOCK; j++)
                row[j] -= scale * diagonal[k * stride + j];
        }
    }
}

/* block := L^-1 block, for the blocks right of the diagonal. */
static void solve_row(double *block, const double *diagonal, size_t stride)
{
    for (size_t k = 0; k < BLOCK; k++)
        for (size_t i = k + 1; i < BLOCK; i++)
            for (size_t j = 0; j < BLOCK; j++)
                block[i * stride + j] -= diagonal[i * stride + k] * block[k * stride + j];
}

static void update(double *restrict block, const double *restrict left,
                   const double *restrict above, size_t stride)
{
    for (size_t i = 0; i < BLOCK; i++)
        for (size_t k = 0; k < BLOCK; k++) {
            const double scale = left[i * stride + k];
            for (size_t j = 0; j < BLOCK; j++)
                block[i * stride + j] -= scale * above[k * stride + j];
        }
}

/* The first of the indexes that are `own` modulo `count`, from `from` on. */
static size_t first_own(size_t from, size_t count, size_t own)
{
    return from + (own + count - from % count) % count;
}

static void work(void *state, struct team *team, size_t thread)
{
    const struct lu *lu = state;
    const struct thread_grid grid = thread_grid(team->threads);
    const size_t own_row = thread / grid.columns, own_column = thread % grid.columns;
    for (size_t k = 0; k < lu->blocks; k++) {
        const size_t row = first_own(k + 1, grid.rows, own_row);
        const size_t column = first_own(k + 1, grid.columns, own_column);
        double *diagonal = block_at(lu, k, k);
        if (k % grid.rows == own_row && k % grid.columns == own_column)
            factor(diagonal, lu->stride);
        team_wait(team);
        if (k % grid.columns == own_column)
            for (size_t i = row; i < lu->blocks; i += grid.rows)
                solve_column(block_at(lu, i, k), diagonal, lu->stride);
        if (k % grid.rows == own_row)
            for (size_t j = column; j < lu->blocks; j += grid.columns)
                solve_row(block_at(lu, k, j), diagonal, lu->stride);
        team_wait(team);
        for (size_t i = row; i < lu->blocks; i += grid.rows)
            for (size_t j = column; j < lu->blocks; j += grid.columns)
                update(block_at(lu, i, j), block_at(lu, i, k), block_at(lu, k, j), lu->stride);
    }
}

/* Proof: the factors, applied to a vector, do what the matrix does. */
static bool finish(void *state, uint64_t *checksum)
{
    const struct lu *lu = state;
    const size_t order = lu->order;
    double *upper = memory_take(order, sizeof *upper);
    for (size_t i = 0; i < order; i++)
        for (size_t j = i; j < order; j++)
            upper[i] += *element_at(lu, i, j) * (1 + (double)(j % 7));
    for (size_t i = 0; i < order; i++) {
        double found = upper[i], wanted = 0;
        for (size_t j = 0; j < order; j++) {
            const double element = *element_at(lu, i, j);
            if (j < i)
                found += element * upper[j];
            wanted += input(lu, i, j) * (1 + (double)(j % 7));
            *checksum += checksum_double(i * order + j, element);
        }
        if (!(fabs(found - wanted) < 1e-9 * (double)order)) {
            complain("lu: row %zu of the product is wrong by %g", i, found - wanted);
            return false;
        }
    }
    return true;
}

#define LU_SIZES                                                                                   \
    {                                                                                              \
        "880 x 880, blocks of 16 x 16", "1,920 x 1,920, blocks of 16 x 16",                        \
            "4,096 x 4,096, blocks of 16 x 16"                                                     \
    }

const struct program program_lu_contiguous = {
    .name = "lu-contiguous",
    .about = "blocked dense LU, each block's elements side by side; barriers",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = LU_SIZES,
    .prepare = prepare_contiguous,
    .work = work,
    .finish = finish,
};

const struct program program_lu_non_contiguous = {
    .name = "lu-non-contiguous",
    .about = "blocked dense LU, each row of the matrix side by side; barriers",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = LU_SIZES,
    .prepare = prepare_non_contiguous,
    .work = work,
    .finish = finish,
};

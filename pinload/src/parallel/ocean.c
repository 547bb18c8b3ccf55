/*
 * ocean: a wind-driven basin, whose stream function is found by multigrid in each time step.
 *
 * The barotropic vorticity equation with Arakawa's Jacobian ("Computational design for
 * long-term numerical integration of the equations of fluid motion", 1966); the Poisson
 * equation by V-cycles with red-black Gauss-Seidel sweeps (Brandt 1977; Briggs, "A Multigrid
 * Tutorial"), until the residual is small. Each thread has one rectangle of every grid, and all
 * meet at a barrier after each colour: on the coarse grids most have nothing to do.
 * Unlike SPLASH's program of the name: one layer of water instead of two, grids of 2^k - 1
 * inner points per side, rectangles instead of squares (any number of threads).
 */
#include "parallel.h"

#include <math.h>

enum { LEVELS_MOST = 12, CYCLES_MOST = 40, SWEEPS_BEFORE = 2, SWEEPS_AFTER = 1 };

static const struct {
    size_t inner, steps;
} shapes[SIZES] = {{511, 6}, {1023, 16}, {2047, 20}};

static const double beta = 100, wind = 10, friction = 5, viscosity = 0.0005, tolerance = 1e-6;

struct level {
    size_t inner; /* points per side; a border of zeros surrounds them */
    double square; /* of the mesh width */
    double *value, *source, *residual;
};

struct ocean {
    size_t steps, levels;
    struct level level[LEVELS_MOST];
    double *vorticity[2];
    double residual, scale; /* at the end of the last step */
};

/* What one thread knows: its rectangle of a grid follows from its place among the threads. */
struct sailor {
    struct ocean *ocean;
    struct team *team;
    size_t thread;
    struct thread_grid grid;
};

static void *prepare(const struct setting *setting)
{
    struct ocean *ocean = memory_take(1, sizeof *ocean);
    struct random random = random_stream(setting->seed, 0);
    ocean->steps = shapes[setting->size].steps;
    for (size_t inner = shapes[setting->size].inner; inner > 0; inner /= 2) {
        struct level *level = &ocean->level[ocean->levels++];
        const size_t points = (inner + 2) * (inner + 2);
        level->inner = inner;
        level->square = 1 / ((double)(inner + 1) * (double)(inner + 1));
        level->value = memory_take(points, sizeof *level->value);
        level->source = memory_take(points, sizeof *level->source);
        level->residual = memory_take(points, sizeof *level->residual);
    }
    const size_t inner = ocean->level[0].inner, width = inner + 2;
    for (int i = 0; i < 2; i++)
        ocean->vorticity[i] = memory_take(width * width, sizeof *ocean->vorticity[i]);
    for (size_t row = 1; row <= inner; row++)
        for (size_t column = 1; column <= inner; column++)
            ocean->vorticity[0][row * width + column] = random_uniform(&random) - 0.5;
    return ocean;
}

/* The thread's rectangle: inner points, counted from 1. */
static void own_part(const struct sailor *sailor, size_t inner, struct range *rows,
                     struct range *columns)
{
    *rows = range_part(inner, sailor->grid.rows, sailor->thread / sailor->grid.columns);
    *columns = range_part(inner, sailor->grid.columns, sailor->thread % sailor->grid.columns);
    rows->begin++, rows->end++, columns->begin++, columns->end++;
}

static void sweep(const struct sailor *sailor, const struct level *level)
{
    const size_t width = level->inner + 2;
    struct range rows, columns;
    own_part(sailor, level->inner, &rows, &columns);
    for (size_t colour = 0; colour < 2; colour++) {
        for (size_t row = rows.begin; row < rows.end; row++) {
            double *value = level->value + row * width;
            const double *source = level->source + row * width;
            for (size_t c = columns.begin + (row + columns.begin + colour) % 2; c < columns.end;
                 c += 2)
                value[c] = 0.25 * (value[c - 1] + value[c + 1] + value[c - width] +
                                   value[c + width] - level->square * source[c]);
        }
        team_wait(sailor->team);
    }
}

/* Leaves source - laplacian(value); returns the largest. */
static double find_residual(const struct sailor *sailor, const struct level *level)
{
    const size_t width = level->inner + 2;
    const double per_square = 1 / level->square;
    struct range rows, columns;
    double most = 0;
    own_part(sailor, level->inner, &rows, &columns);
    for (size_t row = rows.begin; row < rows.end; row++) {
        const double *value = level->value + row * width;
        for (size_t c = columns.begin; c < columns.end; c++) {
            const double laplacian = (value[c - 1] + value[c + 1] + value[c - width] +
                                      value[c + width] - 4 * value[c]) *
                                     per_square;
            const double residual = level->source[row * width + c] - laplacian;
            level->residual[row * width + c] = residual;
            if (fabs(residual) > most)
                most = fabs(residual);
        }
    }
    return most;
}

/* Full weighting of the finer grid's residual is the coarser grid's source. */
static void restrict_residual(const struct sailor *sailor, const struct level *fine,
                              const struct level *coarse)
{
    const size_t width = coarse->inner + 2, stride = fine->inner + 2;
    struct range rows, columns;
    own_part(sailor, coarse->inner, &rows, &columns);
    for (size_t row = rows.begin; row < rows.end; row++) {
        for (size_t c = columns.begin; c < columns.end; c++) {
            const double *r = fine->residual + 2 * row * stride + 2 * c;
            const double corners = (r - stride)[-1] + (r - stride)[1] + r[stride - 1] +
                                   r[stride + 1];
            const double sides = r[-1] + r[1] + *(r - stride) + r[stride];
            coarse->source[row * width + c] = (4 * r[0] + 2 * sides + corners) / 16;
            coarse->value[row * width + c] = 0;
        }
    }
}

/* Adds the coarser grid's values, interpolated. */
static void prolong(const struct sailor *sailor, const struct level *coarse,
                    const struct level *fine)
{
    const size_t width = fine->inner + 2, stride = coarse->inner + 2;
    struct range rows, columns;
    own_part(sailor, fine->inner, &rows, &columns);
    for (size_t row = rows.begin; row < rows.end; row++) {
        for (size_t c = columns.begin; c < columns.end; c++) {
            const double *low = coarse->value + row / 2 * stride + c / 2;
            const double *next = low + c % 2, *high = low + row % 2 * stride;
            fine->value[row * width + c] += 0.25 * (*low + *next + *high + high[c % 2]);
        }
    }
}

static void cycle(const struct sailor *sailor)
{
    const struct ocean *ocean = sailor->ocean;
    for (size_t l = 0; l + 1 < ocean->levels; l++) {
        for (int i = 0; i < SWEEPS_BEFORE; i++)
            sweep(sailor, &ocean->level[l]);
        find_residual(sailor, &ocean->level[l]);
        team_wait(sailor->team);
        restrict_residual(sailor, &ocean->level[l], &ocean->level[l + 1]);
        team_wait(sailor->team);
    }
    sweep(sailor, &ocean->level[ocean->levels - 1]); /* a single point: solved */
    for (size_t l = ocean->levels - 1; l-- > 0;) {
        prolong(sailor, &ocean->level[l + 1], &ocean->level[l]);
        team_wait(sailor->team);
        for (int i = 0; i < SWEEPS_AFTER; i++)
            sweep(sailor, &ocean->level[l]);
    }
}

/* Arakawa's Jacobian of stream function and vorticity, times 12 squares of the mesh width. */
static double jacobian(const double *p, const double *z, size_t w)
{
    const double *north = z + w, *south = z - w, *up = p + w, *down = p - w;
    return (p[1] - p[-1]) * (*north - *south) - (*up - *down) * (z[1] - z[-1]) +
           p[1] * (north[1] - south[1]) - p[-1] * (north[-1] - south[-1]) -
           *up * (north[1] - north[-1]) + *down * (south[1] - south[-1]) +
           *north * (up[1] - up[-1]) - *south * (down[1] - down[-1]) - z[1] * (up[1] - down[1]) +
           z[-1] * (up[-1] - down[-1]);
}

/* One explicit step of the vorticity; leaves it as the source too and returns the largest. */
static double advance(const struct sailor *sailor, const double *from, double *to)
{
    const struct level *level = &sailor->ocean->level[0];
    const size_t width = level->inner + 2;
    const double per_square = 1 / level->square, mesh = sqrt(level->square), step = 0.128 * mesh;
    struct range rows, columns;
    double most = 0;
    own_part(sailor, level->inner, &rows, &columns);
    for (size_t row = rows.begin; row < rows.end; row++) {
        double sine, cosine;
        portable_sincos(3.141592653589793 * (double)row * mesh, &sine, &cosine);
        for (size_t c = columns.begin; c < columns.end; c++) {
            const double *p = level->value + row * width + c, *z = from + row * width + c;
            const double laplacian = (z[1] + z[-1] + z[width] + *(z - width) - 4 * z[0]) *
                                     per_square;
            const double change = -jacobian(p, z, width) * per_square / 12 -
                                  beta * (p[1] - p[-1]) / (2 * mesh) - wind * sine -
                                  friction * z[0] + viscosity * laplacian;
            const double value = z[0] + step * change;
            to[row * width + c] = level->source[row * width + c] = value;
            if (fabs(value) > most)
                most = fabs(value);
        }
    }
    return most;
}

static void work(void *state, struct team *team, size_t thread)
{
    struct ocean *ocean = state;
    const struct sailor sailor = {ocean, team, thread, thread_grid(team->threads)};
    for (size_t step = 0; step < ocean->steps; step++) {
        const double most = advance(&sailor, ocean->vorticity[step & 1],
                                    ocean->vorticity[~step & 1]);
        const double scale = team_max(team, thread, most);
        double residual = scale;
        for (int cycles = 0; cycles < CYCLES_MOST && residual > tolerance * scale; cycles++) {
            cycle(&sailor);
            residual = team_max(team, thread, find_residual(&sailor, &ocean->level[0]));
        }
        if (thread == 0) {
            ocean->residual = residual;
            ocean->scale = scale;
        }
    }
}

/* Proof: the last stream function solves its equation, recomputed here. */
static bool finish(void *state, uint64_t *checksum)
{
    struct ocean *ocean = state;
    struct team alone = {.threads = 1};
    const struct sailor sailor = {ocean, &alone, 0, {1, 1}};
    const struct level *level = &ocean->level[0];
    const size_t points = (level->inner + 2) * (level->inner + 2);
    const double residual = find_residual(&sailor, level);
    if (residual != ocean->residual || !(residual <= tolerance * ocean->scale)) {
        complain("ocean: the stream function is wrong by %g of %g", residual, ocean->scale);
        return false;
    }
    for (size_t i = 0; i < points; i++) {
        *checksum += checksum_double(2 * i, level->value[i]);
        *checksum += checksum_double(2 * i + 1, ocean->vorticity[ocean->steps & 1][i]);
    }
    return true;
}

const struct program program_ocean = {
    .name = "ocean",
    .about = "ocean currents by red-black multigrid: stencils, a barrier after each colour",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"513 x 513 points, 6 time steps", "1,025 x 1,025 points, 16 time steps",
              "2,049 x 2,049 points, 20 time steps"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};

/*
 * fluidanimate: a breaking dam of smoothed particles.
 *
 * Mueller, Charypar, Gross, "Particle-based fluid simulation for interactive applications"
 * (2003). Space is cut into cells as wide as a particle's reach, and into as many blocks of
 * cell columns as there are threads, halved in turn in x and z: hence the power of two. In
 * each frame particles move to their new cells, then densities and then forces are
 * gathered pair by pair, each pair once. A cell with a neighbour in another block has its lock
 * taken for every particle that comes or is added to.
 * Unlike PARSEC's program of the name: particles are listed in cells rather than copied,
 * sums are integers (so that their order does not matter), walls reflect. Unlike the paper:
 * no surface tension, and velocity and place are moved on by Euler's half-implicit step.
 */
#include "parallel.h"

#include <math.h>

enum { NEIGHBOURS = 13 };

static const struct {
    size_t x, y, z, frames;
} shapes[SIZES] = {{32, 16, 32, 2}, {32, 16, 32, 24}, {64, 32, 64, 25}};

/* Length: a particle's reach; mass: of a particle at rest density 1; 8 particles in a cell. */
static const double mass = 0.125, stiffness = 40, thickness = 0.4, gravity = 9.8, time_step = 0.01,
                    pi = 3.141592653589793;

struct particle {
    double at[3], velocity[3], density;
    double by_walls[3]; /* what the walls made of the velocity, all frames together */
    uint64_t density_sum, force_sum[3];
    uint32_t cell;
};

struct cell {
    pthread_mutex_t lock;
    bool border; /* has a neighbour in another thread's block */
    uint32_t head[2]; /* of the frame and of the one before; particle + 1 */
};

struct fluid {
    size_t size[3], frames, count;
    struct cell *cells;
    struct particle *particles;
    uint32_t *next[2];
    struct thread_grid grid; /* rows in z, columns in x */
};

/* What one thread works on: its columns of cells. */
struct block {
    struct fluid *fluid;
    struct range x, z;
    int list; /* that is being read; the other one is the frame before */
};

static size_t cell_index(const struct fluid *fluid, size_t x, size_t y, size_t z)
{
    return (z * fluid->size[1] + y) * fluid->size[0] + x;
}

static size_t cell_of(const struct fluid *fluid, const double at[3])
{
    size_t index[3];
    for (int k = 0; k < 3; k++) {
        index[k] = (size_t)at[k];
        if (index[k] >= fluid->size[k])
            index[k] = fluid->size[k] - 1;
    }
    return cell_index(fluid, index[0], index[1], index[2]);
}

static struct block block_of(struct fluid *fluid, size_t thread)
{
    return (struct block){
        fluid,
        range_part(fluid->size[0], fluid->grid.columns, thread % fluid->grid.columns),
        range_part(fluid->size[2], fluid->grid.rows, thread / fluid->grid.columns),
        0,
    };
}

static void mark_borders(const struct block *block)
{
    const struct fluid *fluid = block->fluid;
    for (size_t z = block->z.begin; z < block->z.end; z++)
        for (size_t y = 0; y < fluid->size[1]; y++)
            for (size_t x = block->x.begin; x < block->x.end; x++)
                fluid->cells[cell_index(fluid, x, y, z)].border =
                    (x == block->x.begin && x > 0) || (z == block->z.begin && z > 0) ||
                    (x + 1 == block->x.end && x + 1 < fluid->size[0]) ||
                    (z + 1 == block->z.end && z + 1 < fluid->size[2]);
}

static void list_particle(struct fluid *fluid, uint32_t index, int list)
{
    struct cell *cell = &fluid->cells[fluid->particles[index].cell];
    if (cell->border)
        pthread_mutex_lock(&cell->lock);
    fluid->next[list][index] = cell->head[list];
    cell->head[list] = index + 1;
    if (cell->border)
        pthread_mutex_unlock(&cell->lock);
}

/* The dam fills half the basin in x, three quarters in y, all of it in z. */
static void fill(struct fluid *fluid, uint64_t seed)
{
    const size_t side[3] = {fluid->size[0], fluid->size[1] * 3 / 2, fluid->size[2] * 2};
    struct random random = random_stream(seed, 0);
    for (size_t i = 0; i < fluid->count; i++) {
        const size_t place[3] = {i % side[0], i / side[0] % side[1], i / side[0] / side[1]};
        struct particle *particle = &fluid->particles[i];
        for (int k = 0; k < 3; k++)
            particle->at[k] = 0.5 * (double)place[k] + 0.25 + 0.05 * random_uniform(&random);
        particle->cell = (uint32_t)cell_of(fluid, particle->at);
        list_particle(fluid, (uint32_t)i, 1);
    }
}

static void *prepare(const struct setting *setting)
{
    struct fluid *fluid = memory_take(1, sizeof *fluid);
    fluid->size[0] = shapes[setting->size].x;
    fluid->size[1] = shapes[setting->size].y;
    fluid->size[2] = shapes[setting->size].z;
    fluid->frames = shapes[setting->size].frames;
    fluid->grid = thread_grid(setting->threads);
    const size_t cells = fluid->size[0] * fluid->size[1] * fluid->size[2];
    fluid->count = cells * 3; /* 8 in each of 3/8 of the cells */
    fluid->cells = memory_take(cells, sizeof *fluid->cells);
    fluid->particles = memory_take(fluid->count, sizeof *fluid->particles);
    for (int i = 0; i < 2; i++)
        fluid->next[i] = memory_take(fluid->count, sizeof *fluid->next[i]);
    for (size_t i = 0; i < cells; i++)
        pthread_mutex_init(&fluid->cells[i].lock, NULL);
    for (size_t thread = 0; thread < setting->threads; thread++) {
        const struct block block = block_of(fluid, thread);
        mark_borders(&block);
    }
    fill(fluid, setting->seed);
    return fluid;
}

/* What gravity gives to each velocity in each frame. */
static double fall(int k)
{
    return k == 1 ? -gravity * time_step : 0;
}

/* By the other particles. The sum is a force, and no density of one: it is divided by the mass. */
static double acceleration(const struct particle *particle, int k)
{
    return fixed_value(particle->force_sum[k]) / mass;
}

/*
 * Moves a particle, back from the walls, and forgets its sums. By at most half a cell, so that
 * one reflection is enough; what that takes from the momentum is missed by the proof.
 */
static void move(const struct fluid *fluid, struct particle *particle)
{
    for (int k = 0; k < 3; k++) {
        const double wall = (double)fluid->size[k], limit = 0.5 / time_step;
        double velocity =
            particle->velocity[k] + time_step * acceleration(particle, k) + fall(k);
        velocity = velocity > limit ? limit : velocity > -limit ? velocity : -limit;
        double at = particle->at[k] + time_step * velocity;
        if (at < 0 || at > wall) {
            at = at < 0 ? -at : 2 * wall - at;
            particle->by_walls[k] -= 1.5 * velocity;
            velocity *= -0.5;
        }
        particle->at[k] = at;
        particle->velocity[k] = velocity;
        particle->force_sum[k] = 0;
    }
    particle->density_sum = 0;
    particle->cell = (uint32_t)cell_of(fluid, particle->at);
}

/* Calls `visit` for each own cell. */
static void for_cells(const struct block *block,
                      void (*visit)(const struct block *, const size_t at[3], struct cell *))
{
    const struct fluid *fluid = block->fluid;
    for (size_t z = block->z.begin; z < block->z.end; z++)
        for (size_t y = 0; y < fluid->size[1]; y++)
            for (size_t x = block->x.begin; x < block->x.end; x++)
                visit(block, (const size_t[3]){x, y, z}, &fluid->cells[cell_index(fluid, x, y, z)]);
}

static void clear_cell(const struct block *block, const size_t at[3], struct cell *cell)
{
    (void)at;
    cell->head[block->list] = 0;
}

static void move_cell(const struct block *block, const size_t at[3], struct cell *cell)
{
    struct fluid *fluid = block->fluid;
    (void)at;
    for (uint32_t i = cell->head[!block->list]; i; i = fluid->next[!block->list][i - 1]) {
        move(fluid, &fluid->particles[i - 1]);
        list_particle(fluid, i - 1, block->list);
    }
}

/* The cells after this one in one direction: each pair of neighbours is met once. */
static size_t later_neighbours(const struct fluid *fluid, const size_t at[3],
                               struct cell *found[NEIGHBOURS])
{
    size_t count = 0;
    for (int number = 14; number < 27; number++) {
        const size_t x = at[0] + (size_t)(number % 3) - 1, y = at[1] + (size_t)(number / 3 % 3) - 1;
        const size_t z = at[2] + (size_t)(number / 9) - 1; /* -1 wraps and is out of bounds */
        if (x < fluid->size[0] && y < fluid->size[1] && z < fluid->size[2])
            found[count++] = &fluid->cells[cell_index(fluid, x, y, z)];
    }
    return count;
}

/* Adds to the sums of a particle in a cell that others may be adding to. */
static void add(struct fluid *fluid, struct cell *cell, uint32_t index, const uint64_t terms[4])
{
    struct particle *particle = &fluid->particles[index];
    if (cell->border)
        pthread_mutex_lock(&cell->lock);
    particle->density_sum += terms[3];
    for (int k = 0; k < 3; k++)
        particle->force_sum[k] += terms[k];
    if (cell->border)
        pthread_mutex_unlock(&cell->lock);
}

static double square_distance(const struct particle *a, const struct particle *b)
{
    const double x = a->at[0] - b->at[0], y = a->at[1] - b->at[1], z = a->at[2] - b->at[2];
    return x * x + y * y + z * z;
}

/* What a pair adds to the densities: the fourth term. */
static void density_terms(const struct particle *a, const struct particle *b, double square,
                          uint64_t terms[4])
{
    const double rest = 1 - square;
    (void)a, (void)b;
    terms[3] = fixed(mass * 315 / (64 * pi) * rest * rest * rest);
}

/* The force on the first of a pair; on the second it is the opposite, to the last bit. */
static void force_terms(const struct particle *a, const struct particle *b, double square,
                        uint64_t terms[4])
{
    const double distance = sqrt(square) + 1e-9, rest = 1 - distance;
    const double scale = mass * mass / (a->density * b->density) * 45 / pi * rest;
    const double pressure = 0.5 * stiffness * ((a->density - 1) + (b->density - 1));
    for (int k = 0; k < 3; k++) {
        const double direction = (a->at[k] - b->at[k]) / distance;
        const double drag = thickness * (b->velocity[k] - a->velocity[k]);
        terms[k] = fixed(scale * (pressure * rest * direction + drag));
    }
}

typedef void pair_terms(const struct particle *a, const struct particle *b, double square,
                        uint64_t terms[4]);

/* A particle with those that follow it in a list. */
static inline void gather(const struct block *block, uint32_t index, uint32_t other,
                          struct cell *cell, uint64_t own[4], pair_terms *terms_of)
{
    struct fluid *fluid = block->fluid;
    const struct particle *particle = &fluid->particles[index];
    for (; other; other = fluid->next[block->list][other - 1]) {
        uint64_t terms[4] = {0}, opposite[4];
        const double square = square_distance(particle, &fluid->particles[other - 1]);
        if (square >= 1)
            continue;
        terms_of(particle, &fluid->particles[other - 1], square, terms);
        for (int k = 0; k < 4; k++) {
            own[k] += terms[k];
            opposite[k] = k < 3 ? 0 - terms[k] : terms[k];
        }
        add(fluid, cell, other - 1, opposite);
    }
}

static inline void gather_cell(const struct block *block, const size_t at[3], struct cell *cell,
                               pair_terms *terms_of)
{
    struct fluid *fluid = block->fluid;
    struct cell *neighbours[NEIGHBOURS];
    const size_t count = later_neighbours(fluid, at, neighbours);
    for (uint32_t i = cell->head[block->list]; i; i = fluid->next[block->list][i - 1]) {
        uint64_t own[4] = {0};
        gather(block, i - 1, fluid->next[block->list][i - 1], cell, own, terms_of);
        for (size_t k = 0; k < count; k++)
            gather(block, i - 1, neighbours[k]->head[block->list], neighbours[k], own, terms_of);
        add(fluid, cell, i - 1, own);
    }
}

static void gather_densities(const struct block *block, const size_t at[3], struct cell *cell)
{
    gather_cell(block, at, cell, density_terms);
}

static void gather_forces(const struct block *block, const size_t at[3], struct cell *cell)
{
    gather_cell(block, at, cell, force_terms);
}

static void settle_densities(const struct block *block, const size_t at[3], struct cell *cell)
{
    struct fluid *fluid = block->fluid;
    (void)at;
    for (uint32_t i = cell->head[block->list]; i; i = fluid->next[block->list][i - 1]) {
        struct particle *particle = &fluid->particles[i - 1];
        particle->density = fixed_value(particle->density_sum) + mass * 315 / (64 * pi);
    }
}

static void work(void *state, struct team *team, size_t thread)
{
    struct fluid *fluid = state;
    struct block block = block_of(fluid, thread);
    for (size_t frame = 0; frame < fluid->frames; frame++) {
        block.list = (int)(frame & 1);
        for_cells(&block, clear_cell);
        team_wait(team);
        for_cells(&block, move_cell);
        team_wait(team);
        for_cells(&block, gather_densities);
        team_wait(team);
        for_cells(&block, settle_densities);
        team_wait(team);
        for_cells(&block, gather_forces);
        team_wait(team);
    }
}

/* The density at a particle, and the acceleration by the others, as the paper writes them. */
static void by_all(const struct fluid *fluid, const struct particle *one, double *density,
                   double of_others[3])
{
    *density = 0;
    for (int k = 0; k < 3; k++)
        of_others[k] = 0;
    for (size_t i = 0; i < fluid->count; i++) {
        const struct particle *other = &fluid->particles[i];
        const double square = square_distance(one, other), r = sqrt(square);
        if (square >= 1)
            continue;
        *density += mass * 315 / (64 * pi) * (1 - square) * (1 - square) * (1 - square);
        for (int k = 0; k < 3 && other != one; k++) {
            const double slope = -45 / pi * (1 - r) * (1 - r) * (one->at[k] - other->at[k]) / r;
            const double pressures = stiffness * (one->density - 1 + other->density - 1);
            const double drag = thickness * (other->velocity[k] - one->velocity[k]);
            of_others[k] -= mass * pressures / (2 * other->density) * slope / one->density;
            of_others[k] += mass * drag / other->density * 45 / pi * (1 - r) / one->density;
        }
    }
}

/* Some particles have the densities and accelerations that all particles together make. */
static bool equations_hold(const struct fluid *fluid)
{
    for (size_t i = 0; i < fluid->count; i += fluid->count / 16) {
        const struct particle *particle = &fluid->particles[i];
        double density, wanted[3];
        by_all(fluid, particle, &density, wanted);
        if (!(fabs(density - particle->density) < 1e-6)) {
            complain("fluidanimate: the density of particle %zu is %g instead of %g", i,
                     particle->density, density);
            return false;
        }
        for (int k = 0; k < 3; k++) {
            if (!(fabs(wanted[k] - acceleration(particle, k)) < 1e-5)) {
                complain("fluidanimate: the acceleration of particle %zu is %g instead of %g", i,
                         acceleration(particle, k), wanted[k]);
                return false;
            }
        }
    }
    return true;
}

/* Particles move each other without a change of the momentum of all: what changed it is told. */
static bool momentum_is_kept(const struct fluid *fluid)
{
    for (int k = 0; k < 3; k++) {
        const double count = (double)fluid->count;
        double momentum = 0, wanted = mass * count * (double)fluid->frames * fall(k);
        for (size_t i = 0; i < fluid->count; i++) {
            momentum += mass * fluid->particles[i].velocity[k];
            wanted += mass * fluid->particles[i].by_walls[k];
        }
        if (!(fabs(momentum - wanted) < 1e-12 * mass * count * (double)fluid->frames)) {
            complain("fluidanimate: the momentum is %.17g, but gravity and walls gave %.17g",
                     momentum, wanted);
            return false;
        }
    }
    return true;
}

/* Proof: the equations and their momentum hold, and no particle is lost. */
static bool finish(void *state, uint64_t *checksum)
{
    const struct fluid *fluid = state;
    size_t listed = 0;
    for (size_t i = 0; i < fluid->size[0] * fluid->size[1] * fluid->size[2]; i++) {
        const int list = (int)(~fluid->frames & 1);
        for (uint32_t j = fluid->cells[i].head[list]; j; j = fluid->next[list][j - 1])
            listed++;
        pthread_mutex_destroy(&fluid->cells[i].lock);
    }
    for (size_t i = 0; i < fluid->count; i++)
        for (int k = 0; k < 3; k++)
            *checksum += checksum_double(3 * i + (size_t)k, fluid->particles[i].at[k]);
    if (listed == fluid->count)
        return equations_hold(fluid) && momentum_is_kept(fluid);
    complain("fluidanimate: %zu particles of %zu are in cells", listed, fluid->count);
    return false;
}

const struct program program_fluidanimate = {
    .name = "fluidanimate",
    .about = "smoothed particle hydrodynamics: cell grid, locks at the borders, barriers",
    .rule = THREADS_POWER_OF_TWO,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"49,152 particles, 2 frames", "49,152 particles, 24 frames",
              "393,216 particles, 25 frames"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};

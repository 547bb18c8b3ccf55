/*
 * barnes: gravitation of many bodies by an octree.
 *
 * Barnes and Hut, "A hierarchical O(N log N) force-calculation algorithm" (1986), on Plummer's
 * model (Aarseth, Henon, Wielen 1974). In each step threads insert their bodies into one
 * tree, under the locks of its cells; sum up masses and costs of subtrees; take the bodies of
 * their zone, a stretch of the tree with an equal share of the last step's interactions
 * (costzones: Singh et al. 1995), and find the forces on them.
 * Unlike SPLASH's program of the name: cells of one body, monopoles only, and a body's way in
 * the tree follows from its integer coordinates, so that the tree does not depend on the order
 * of insertion.
 */
#include "parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 21, LOCKS = 2048, TOP_CELLS = 512 };

static const struct {
    size_t bodies, steps;
} shapes[SIZES] = {{4096, 5}, {16384, 8}, {65536, 14}};

static const double softening = 0.05, time_step = 0.01;
/*
 * Edge over distance from which a cell is opened. A body is at most sqrt(3) edges away from the
 * middle of the mass of the cell that it lies in: below 1 / sqrt(3) = 0.577 it always opens that
 * one, and is never pulled by itself.
 */
static const double opening = 0.57;

struct body {
    double at[3], velocity[3], pull[3];
    uint64_t key; /* three bits for each level of the tree, the root's first */
    uint32_t next; /* body + 1 at the same place, to the last bit of the key */
    uint32_t cost, new_cost;
};

/* A child is 0 or 2 * cell or 2 * body + 1. Cell 1 is the root. */
struct cell {
    atomic_uint child[8];
    double at[3], mass;
    uint64_t cost;
};

struct galaxy {
    size_t count, steps, cells_most;
    struct body *bodies;
    struct cell *cells;
    atomic_uint cells_used;
    atomic_size_t ticket;
    double half; /* of the cube's edge */
    pthread_mutex_t locks[LOCKS];
};

/* A point at this distance, anywhere around. */
static void throw_point(struct random *random, double distance, double at[3])
{
    double sine, cosine;
    const double height = 2 * random_uniform(random) - 1, flat = sqrt(1 - height * height);
    portable_sincos(6.283185307179586 * random_uniform(random), &sine, &cosine);
    at[0] = distance * flat * cosine;
    at[1] = distance * flat * sine;
    at[2] = distance * height;
}

static void *prepare(const struct setting *setting)
{
    struct galaxy *galaxy = memory_take(1, sizeof *galaxy);
    struct random random = random_stream(setting->seed, 0);
    galaxy->count = shapes[setting->size].bodies;
    galaxy->steps = shapes[setting->size].steps;
    galaxy->cells_most = 4 * galaxy->count;
    galaxy->bodies = memory_take(galaxy->count, sizeof *galaxy->bodies);
    galaxy->cells = memory_take(galaxy->cells_most, sizeof *galaxy->cells);
    for (size_t i = 0; i < LOCKS; i++)
        pthread_mutex_init(&galaxy->locks[i], NULL);
    for (size_t i = 0; i < galaxy->count; i++) {
        struct body *body = &galaxy->bodies[i];
        const double share = 0.99 * random_uniform(&random);
        const double radius = 1 / sqrt(portable_exp(-2.0 / 3 * portable_log(share)) - 1);
        double speed, rest;
        do { /* von Neumann's rejection */
            speed = random_uniform(&random);
            rest = 1 - speed * speed;
        } while (0.1 * random_uniform(&random) > speed * speed * rest * rest * rest * sqrt(rest));
        throw_point(&random, radius, body->at);
        throw_point(&random, speed * sqrt(2 / sqrt(1 + radius * radius)), body->velocity);
        body->cost = 1;
    }
    return galaxy;
}

/* Moves own bodies; the edge of the cube that holds them all. */
static double move(struct galaxy *galaxy, struct range own)
{
    double most = 0;
    for (size_t i = own.begin; i < own.end; i++)
        for (int k = 0; k < 3; k++) {
            double *at = &galaxy->bodies[i].at[k];
            *at += time_step * galaxy->bodies[i].velocity[k];
            if (fabs(*at) > most)
                most = fabs(*at);
        }
    return most;
}

static uint64_t key_of(const struct body *body, double half)
{
    uint64_t place[3], key = 0;
    for (int k = 0; k < 3; k++)
        place[k] = (uint64_t)((body->at[k] + half) / (2 * half) * 0x1p21);
    for (int level = DEPTH - 1; level >= 0; level--)
        for (int k = 0; k < 3; k++)
            key = key << 1 | (place[k] >> level & 1);
    return key;
}

static unsigned octant_of(const struct body *body, unsigned depth)
{
    return (unsigned)(body->key >> 3 * (DEPTH - 1 - depth)) & 7;
}

static unsigned new_cell(struct galaxy *galaxy)
{
    const unsigned cell = atomic_fetch_add(&galaxy->cells_used, 1);
    if (cell >= galaxy->cells_most) {
        complain("barnes: the tree has more than %zu cells", galaxy->cells_most);
        _Exit(PINLOAD_FAILED);
    }
    for (int i = 0; i < 8; i++)
        atomic_init(&galaxy->cells[cell].child[i], 0);
    return cell;
}

/* Bodies at one place hang in a chain, in the order of their indexes. */
static unsigned chain_in(struct galaxy *galaxy, unsigned first, unsigned body)
{
    uint32_t *link = &first;
    first++, body++;
    while (*link && *link < body)
        link = &galaxy->bodies[*link - 1].next;
    galaxy->bodies[body - 1].next = *link;
    *link = body;
    return first - 1;
}

static void insert(struct galaxy *galaxy, unsigned index)
{
    struct body *body = &galaxy->bodies[index];
    unsigned cell = 1, depth = 0;
    for (;;) {
        atomic_uint *slot = &galaxy->cells[cell].child[octant_of(body, depth)];
        unsigned child = atomic_load_explicit(slot, memory_order_acquire);
        if (child == 0 || (child & 1)) {
            pthread_mutex_t *lock = &galaxy->locks[cell % LOCKS];
            pthread_mutex_lock(lock);
            child = atomic_load_explicit(slot, memory_order_acquire);
            unsigned now = child;
            if (child == 0)
                now = 2 * index + 1;
            else if ((child & 1) && depth == DEPTH - 1)
                now = 2 * chain_in(galaxy, child / 2, index) + 1;
            else if (child & 1) { /* both go one level down */
                const unsigned inner = new_cell(galaxy);
                atomic_init(&galaxy->cells[inner].child[octant_of(&galaxy->bodies[child / 2],
                                                                  depth + 1)],
                            child);
                now = 2 * inner;
            }
            atomic_store_explicit(slot, now, memory_order_release);
            pthread_mutex_unlock(lock);
            if (now & 1)
                return;
            child = now;
        }
        cell = child / 2;
        depth++;
    }
}

static void add_mass(struct cell *cell, const double at[3], double mass, uint64_t cost)
{
    for (int k = 0; k < 3; k++)
        cell->at[k] += mass * at[k];
    cell->mass += mass;
    cell->cost += cost;
}

/* Masses and costs of a cell from its children, whose own are found first for `levels` levels. */
static void sum_up(struct galaxy *galaxy, unsigned index, unsigned levels)
{
    struct cell *cell = &galaxy->cells[index];
    cell->at[0] = cell->at[1] = cell->at[2] = cell->mass = 0;
    cell->cost = 0;
    for (int i = 0; i < 8; i++) {
        const unsigned child = atomic_load_explicit(&cell->child[i], memory_order_relaxed);
        if (child & 1) {
            for (uint32_t body = child / 2 + 1; body; body = galaxy->bodies[body - 1].next)
                add_mass(cell, galaxy->bodies[body - 1].at, 1 / (double)galaxy->count,
                         galaxy->bodies[body - 1].cost);
        } else if (child) {
            if (levels > 0)
                sum_up(galaxy, child / 2, levels - 1);
            const struct cell *inner = &galaxy->cells[child / 2];
            add_mass(cell, inner->at, inner->mass, inner->cost);
        }
    }
    for (int k = 0; k < 3; k++)
        cell->at[k] /= cell->mass;
}

/* The cells three levels below the root are summed up by whoever comes first. */
static void sum_up_top_cells(struct galaxy *galaxy)
{
    size_t top;
    while ((top = ticket_take(&galaxy->ticket)) < TOP_CELLS) {
        unsigned code = 2;
        for (int level = 0; level < 3 && code && !(code & 1); level++)
            code = atomic_load_explicit(&galaxy->cells[code / 2].child[top >> 3 * level & 7],
                                        memory_order_relaxed);
        if (code && !(code & 1))
            sum_up(galaxy, code / 2, DEPTH);
    }
}

static void attract(const struct body *body, const double at[3], double mass, double square,
                    double pull[3])
{
    const double soft = square + softening * softening, scale = mass / (soft * sqrt(soft));
    for (int k = 0; k < 3; k++)
        pull[k] += scale * (at[k] - body->at[k]);
}

static double square_distance(const double a[3], const double b[3])
{
    const double x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    return x * x + y * y + z * z;
}

/* The pull on a body; counts interactions. */
static void find_pull(struct galaxy *galaxy, uint32_t index)
{
    struct {
        unsigned cell;
        double square; /* of the edge over the opening angle */
    } stack[8 * DEPTH];
    struct body *body = &galaxy->bodies[index];
    const double edge = 2 * galaxy->half / opening, mass = 1 / (double)galaxy->count;
    double pull[3] = {0, 0, 0};
    uint32_t cost = 0;
    size_t depth = 0;
    stack[depth].cell = 1;
    stack[depth++].square = edge * edge;
    while (depth > 0) {
        const struct cell *cell = &galaxy->cells[stack[--depth].cell];
        const double limit = stack[depth].square;
        const double square = square_distance(cell->at, body->at);
        if (square > limit) {
            attract(body, cell->at, cell->mass, square, pull);
            cost++;
            continue;
        }
        for (int i = 7; i >= 0; i--) {
            const unsigned child = atomic_load_explicit(&cell->child[i], memory_order_relaxed);
            if (child && !(child & 1)) {
                stack[depth].cell = child / 2;
                stack[depth++].square = limit / 4;
            }
            for (uint32_t j = child & 1 ? child / 2 + 1 : 0; j; j = galaxy->bodies[j - 1].next) {
                const double *at = galaxy->bodies[j - 1].at;
                if (j - 1 != index)
                    attract(body, at, mass, square_distance(at, body->at), pull);
                cost++;
            }
        }
    }
    memcpy(body->pull, pull, sizeof pull);
    body->new_cost = cost;
}

/* Finds the pull on those bodies of a subtree that lie in the zone; `before`: costs left of it. */
static void pull_zone(struct galaxy *galaxy, unsigned index, uint64_t before,
                      const uint64_t zone[2])
{
    const struct cell *cell = &galaxy->cells[index];
    for (int i = 0; i < 8 && before < zone[1]; i++) {
        const unsigned child = atomic_load_explicit(&cell->child[i], memory_order_relaxed);
        if (child && !(child & 1)) {
            const uint64_t cost = galaxy->cells[child / 2].cost;
            if (before + cost > zone[0])
                pull_zone(galaxy, child / 2, before, zone);
            before += cost;
        }
        for (uint32_t j = child & 1 ? child / 2 + 1 : 0; j; j = galaxy->bodies[j - 1].next) {
            if (before >= zone[0] && before < zone[1])
                find_pull(galaxy, j - 1);
            before += galaxy->bodies[j - 1].cost;
        }
    }
}

static void build(struct galaxy *galaxy, struct team *team, size_t thread)
{
    const struct range own = range_part(galaxy->count, team->threads, thread);
    const double edge = team_max(team, thread, move(galaxy, own));
    if (thread == 0) {
        atomic_store(&galaxy->cells_used, 1);
        new_cell(galaxy);
        atomic_store(&galaxy->ticket, 0);
        galaxy->half = 1.001 * edge;
    }
    team_wait(team);
    for (size_t i = own.begin; i < own.end; i++) {
        galaxy->bodies[i].next = 0;
        galaxy->bodies[i].key = key_of(&galaxy->bodies[i], galaxy->half);
    }
    team_wait(team);
    for (size_t i = own.begin; i < own.end; i++)
        insert(galaxy, (unsigned)i);
    team_wait(team);
    sum_up_top_cells(galaxy);
    team_wait(team);
    if (thread == 0)
        sum_up(galaxy, 1, 2);
    team_wait(team);
}

static void work(void *state, struct team *team, size_t thread)
{
    struct galaxy *galaxy = state;
    const struct range own = range_part(galaxy->count, team->threads, thread);
    for (size_t step = 0; step < galaxy->steps; step++) {
        build(galaxy, team, thread);
        const struct range zone = range_part((size_t)galaxy->cells[1].cost, team->threads, thread);
        pull_zone(galaxy, 1, 0, (const uint64_t[2]){zone.begin, zone.end});
        team_wait(team);
        for (size_t i = own.begin; i < own.end; i++) {
            struct body *body = &galaxy->bodies[i];
            body->cost = body->new_cost;
            for (int k = 0; k < 3; k++)
                body->velocity[k] += time_step * body->pull[k];
        }
    }
}

/* Proof: the pull on some bodies is nearly the one that all others have together. */
static bool finish(void *state, uint64_t *checksum)
{
    struct galaxy *galaxy = state;
    for (size_t i = 0; i < galaxy->count; i += galaxy->count / 16) {
        const struct body *body = &galaxy->bodies[i];
        const double origin[3] = {0, 0, 0}, mass = 1 / (double)galaxy->count;
        double pull[3] = {0, 0, 0};
        for (size_t j = 0; j < galaxy->count; j++)
            if (j != i)
                attract(body, galaxy->bodies[j].at, mass,
                        square_distance(galaxy->bodies[j].at, body->at), pull);
        const double wrong = sqrt(square_distance(pull, body->pull) /
                                  square_distance(pull, origin));
        if (!(wrong < 0.05)) {
            complain("barnes: the pull on body %zu is wrong by a share of %g", i, wrong);
            return false;
        }
    }
    for (size_t i = 0; i < LOCKS; i++)
        pthread_mutex_destroy(&galaxy->locks[i]);
    for (size_t i = 0; i < galaxy->count; i++)
        for (size_t k = 0; k < 3; k++) {
            *checksum += checksum_double(6 * i + k, galaxy->bodies[i].at[k]);
            *checksum += checksum_double(6 * i + 3 + k, galaxy->bodies[i].velocity[k]);
        }
    return true;
}

const struct program program_barnes = {
    .name = "barnes",
    .about = "Barnes-Hut gravitation: one octree built under locks, zones of equal cost, barriers",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"4,096 bodies, 5 steps", "16,384 bodies, 8 steps", "65,536 bodies, 14 steps"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};

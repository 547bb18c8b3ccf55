/*
 * water-spatial: molecular dynamics of water, every molecule with those in cells near by.
 *
 * The cell lists of Quentrec and Brot (1973); a thread has as many cells as any other, moves
 * their molecules, lists them in their new cells (under the cell's lock, for others may
 * come there too), and meets each pair of cells in reach once. Physics: water.h; at equal
 * sizes the result is that of water-nsquared, to the last bit.
 * Unlike SPLASH's program of the name: cells hold about one molecule and are smaller than
 * the reach, so that there are enough of them for 1,024 threads.
 */
#include "water.h"

static const struct {
    size_t side, steps;
} shapes[SIZES] = {{12, 6}, {16, 36}, {24, 105}};

struct cell {
    pthread_mutex_t lock;
    uint32_t head[2]; /* of this step and of the one before; molecule + 1 */
};

struct spatial {
    struct water water; /* first: water_finish takes it */
    size_t side, reach; /* in cells */
    struct cell *cells;
    uint32_t *next[2];
};

static size_t cell_of(const struct spatial *spatial, size_t molecule)
{
    size_t index = 0;
    for (int k = 2; k >= 0; k--) {
        const double at = spatial->water.molecules[molecule].at[0][k];
        size_t place = at > 0 ? (size_t)(at / spatial->water.box * (double)spatial->side) : 0;
        if (place >= spatial->side)
            place = spatial->side - 1;
        index = index * spatial->side + place;
    }
    return index;
}

static void list_molecule(struct spatial *spatial, uint32_t molecule, size_t list)
{
    struct cell *cell = &spatial->cells[cell_of(spatial, molecule)];
    pthread_mutex_lock(&cell->lock);
    spatial->next[list][molecule] = cell->head[list];
    cell->head[list] = molecule + 1;
    pthread_mutex_unlock(&cell->lock);
}

static void *prepare(const struct setting *setting)
{
    struct spatial *spatial = memory_take(1, sizeof *spatial);
    struct water *water = &spatial->water;
    water_prepare(water, setting, shapes[setting->size].side, shapes[setting->size].steps);
    spatial->side = shapes[setting->size].side;
    spatial->reach = (size_t)(WATER_REACH / water->box * (double)spatial->side) + 1;
    spatial->cells = memory_take(water->count, sizeof *spatial->cells);
    for (int i = 0; i < 2; i++)
        spatial->next[i] = memory_take(water->count, sizeof *spatial->next[i]);
    for (size_t i = 0; i < water->count; i++)
        pthread_mutex_init(&spatial->cells[i].lock, NULL);
    for (size_t i = 0; i < water->count; i++)
        list_molecule(spatial, (uint32_t)i, 1);
    return spatial;
}

/* All molecules of a cell with those of another one, or with each other. */
static uint64_t interact(const struct spatial *spatial, size_t one, size_t other, size_t list)
{
    uint64_t potential = 0;
    for (uint32_t i = spatial->cells[one].head[list]; i; i = spatial->next[list][i - 1]) {
        uint32_t j = one == other ? spatial->next[list][i - 1] : spatial->cells[other].head[list];
        for (; j; j = spatial->next[list][j - 1])
            potential += water_pair(&spatial->water, i - 1, j - 1);
    }
    return potential;
}

/* A cell with itself and with those in reach that come later, round the box. */
static uint64_t interact_cell(const struct spatial *spatial, size_t cell, size_t list)
{
    const size_t side = spatial->side, width = 2 * spatial->reach + 1;
    const size_t x = cell % side, y = cell / side % side, z = cell / side / side;
    const size_t back = side - spatial->reach;
    uint64_t potential = interact(spatial, cell, cell, list);
    for (size_t number = width * width * width / 2 + 1; number < width * width * width; number++) {
        const size_t to_x = (x + back + number % width) % side;
        const size_t to_y = (y + back + number / width % width) % side;
        const size_t to_z = (z + back + number / width / width) % side;
        potential += interact(spatial, cell, (to_z * side + to_y) * side + to_x, list);
    }
    return potential;
}

static void work(void *state, struct team *team, size_t thread)
{
    struct spatial *spatial = state;
    struct water *water = &spatial->water;
    const struct range own = range_part(water->count, team->threads, thread);
    for (size_t step = 0; step < water->steps; step++) {
        const size_t list = step & 1;
        uint64_t potential = 0, kinetic = 0;
        for (size_t cell = own.begin; cell < own.end; cell++)
            spatial->cells[cell].head[list] = 0;
        team_wait(team);
        for (size_t cell = own.begin; cell < own.end; cell++)
            for (uint32_t i = spatial->cells[cell].head[!list]; i;
                 i = spatial->next[!list][i - 1]) {
                water_predict(water, i - 1);
                list_molecule(spatial, i - 1, list);
            }
        team_wait(team);
        for (size_t cell = own.begin; cell < own.end; cell++)
            potential += interact_cell(spatial, cell, list);
        team_wait(team);
        for (size_t cell = own.begin; cell < own.end; cell++)
            for (uint32_t i = spatial->cells[cell].head[list]; i; i = spatial->next[list][i - 1])
                water_correct(water, i - 1, &potential, &kinetic);
        water_account(water, team, thread, step, potential, kinetic);
    }
}

static bool finish(void *state, uint64_t *checksum)
{
    struct spatial *spatial = state;
    for (size_t i = 0; i < spatial->water.count; i++)
        pthread_mutex_destroy(&spatial->cells[i].lock);
    return water_finish(&spatial->water, checksum);
}

const struct program program_water_spatial = {
    .name = "water-spatial",
    .about = "molecular dynamics of water, cell lists: locks per cell and molecule, barriers",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"1,728 molecules, 6 steps", "4,096 molecules, 36 steps",
              "13,824 molecules, 105 steps"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};

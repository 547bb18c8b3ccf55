/*
 * water-nsquared: molecular dynamics of water, every molecule with every other one.
 *
 * The half-shell method of Woo et al., "The SPLASH-2 programs" (1995): molecule i meets the
 * n/2 that follow it, round the end; a thread has as many molecules as any other. Those out of
 * reach are found by looking at all of them: O(n^2). The force on both is added under each
 * one's lock. Physics: water.h.
 * Unlike SPLASH's program of the name: velocity Verlet instead of a predictor and corrector of
 * sixth order, and no private copies of the forces of all molecules.
 */
#include "water.h"

static const struct {
    size_t side, steps;
} shapes[SIZES] = {{12, 6}, {14, 18}, {18, 65}};

static void *prepare(const struct setting *setting)
{
    struct water *water = memory_take(1, sizeof *water);
    water_prepare(water, setting, shapes[setting->size].side, shapes[setting->size].steps);
    return water;
}

static uint64_t interact(const struct water *water, size_t one)
{
    /* With an even number the one right across is met from one side only. */
    const size_t half = water->count / 2;
    const size_t partners = water->count % 2 || one < half ? half : half - 1;
    uint64_t potential = 0;
    for (size_t distance = 1; distance <= partners; distance++)
        potential += water_pair(water, one, (one + distance) % water->count);
    return potential;
}

static void work(void *state, struct team *team, size_t thread)
{
    struct water *water = state;
    const struct range own = range_part(water->count, team->threads, thread);
    for (size_t step = 0; step < water->steps; step++) {
        uint64_t potential = 0, kinetic = 0;
        for (size_t i = own.begin; i < own.end; i++)
            water_predict(water, i);
        team_wait(team);
        for (size_t i = own.begin; i < own.end; i++)
            potential += interact(water, i);
        team_wait(team);
        for (size_t i = own.begin; i < own.end; i++)
            water_correct(water, i, &potential, &kinetic);
        water_account(water, team, thread, step, potential, kinetic);
    }
}

const struct program program_water_nsquared = {
    .name = "water-nsquared",
    .about = "molecular dynamics of water, all pairs: locks per molecule, barriers",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"1,728 molecules, 6 steps", "2,744 molecules, 18 steps", "5,832 molecules, 65 steps"},
    .prepare = prepare,
    .work = work,
    .finish = water_finish,
};

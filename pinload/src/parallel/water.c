/*
 * Molecular dynamics of flexible water. See water.h.
 */
#include "water.h"

#include <math.h>

static const double time_step = 0.0002; /* ps */
static const double masses[SITES] = {15.9994, 1.008, 1.008};
static const double charges[SITES] = {-0.82, 0.41, 0.41};
static const double coulomb = 138.935458, sigma = 0.31655, epsilon = 0.6503;
static const double site_reach = 0.58; /* with the arms of both molecules less than WATER_REACH */
static const double arm = 0.1012, span = 0.1690, arm_stiffness = 443153, span_stiffness = 80000;

static void place(struct molecule *molecule, const double at[3], struct random *random)
{
    double frame[2][3], length = 0, along = 0;
    for (int k = 0; k < 3; k++) {
        frame[0][k] = random_normal(random);
        frame[1][k] = random_normal(random);
        length += frame[0][k] * frame[0][k];
    }
    for (int k = 0; k < 3; k++) {
        frame[0][k] /= sqrt(length);
        along += frame[0][k] * frame[1][k];
    }
    length = 0;
    for (int k = 0; k < 3; k++) {
        frame[1][k] -= along * frame[0][k];
        length += frame[1][k] * frame[1][k];
    }
    const double half = span / 2, height = sqrt(arm * arm - half * half);
    for (int k = 0; k < 3; k++) {
        frame[1][k] /= sqrt(length);
        molecule->at[0][k] = at[k];
        molecule->at[1][k] = at[k] + height * frame[0][k] + half * frame[1][k];
        molecule->at[2][k] = at[k] + height * frame[0][k] - half * frame[1][k];
    }
}

/* Velocities at 300 K, without any of the whole. */
static void warm(struct water *water, struct random *random)
{
    double momentum[3] = {0, 0, 0}, mass = 0;
    for (size_t i = 0; i < water->count; i++)
        for (int site = 0; site < SITES; site++) {
            mass += masses[site];
            for (int k = 0; k < 3; k++) {
                const double velocity = sqrt(2.494 / masses[site]) * random_normal(random);
                water->molecules[i].velocity[site][k] = velocity;
                momentum[k] += masses[site] * velocity;
            }
        }
    for (size_t i = 0; i < water->count; i++)
        for (int site = 0; site < SITES; site++)
            for (int k = 0; k < 3; k++)
                water->molecules[i].velocity[site][k] -= momentum[k] / mass;
}

void water_prepare(struct water *water, const struct setting *setting, size_t side, size_t steps)
{
    struct random random = random_stream(setting->seed, 0);
    const double spacing = 0.3105; /* 33.4 molecules in a cubic nanometre */
    water->count = side * side * side;
    water->steps = steps;
    water->box = spacing * (double)side;
    water->molecules = memory_take(water->count, sizeof *water->molecules);
    for (size_t i = 0; i < water->count; i++) {
        const double at[3] = {spacing * ((double)(i % side) + 0.5),
                              spacing * ((double)(i / side % side) + 0.5),
                              spacing * ((double)(i / side / side) + 0.5)};
        pthread_mutex_init(&water->molecules[i].lock, NULL);
        place(&water->molecules[i], at, &random);
    }
    warm(water, &random);
}

void water_predict(const struct water *water, size_t index)
{
    struct molecule *molecule = &water->molecules[index];
    for (int k = 0; k < 3; k++) {
        for (int site = 0; site < SITES; site++) {
            molecule->velocity[site][k] +=
                0.5 * time_step / masses[site] * fixed_value(molecule->force[site][k]);
            molecule->at[site][k] += time_step * molecule->velocity[site][k];
            molecule->force[site][k] = 0;
        }
        const double oxygen = molecule->at[0][k];
        const double shift = oxygen < 0 ? water->box : oxygen >= water->box ? -water->box : 0;
        for (int site = 0; site < SITES; site++)
            molecule->at[site][k] += shift;
    }
}

/* Force along the line between two sites over their distance; adds the energy. */
static double site_force(int one, int other, double square, double *energy)
{
    const double distance = sqrt(square), rest = distance - site_reach;
    const double charge = coulomb * charges[one] * charges[other];
    const double end = 1 / (site_reach * site_reach);
    double force = charge * (1 / square - end);
    *energy += charge * (1 / distance - 1 / site_reach + end * rest);
    if (one == 0 && other == 0) {
        const double ratio = sigma * sigma / square, six = ratio * ratio * ratio;
        const double last = sigma * sigma * end, last_six = last * last * last;
        const double slope = 24 * epsilon * (2 * last_six - 1) * last_six / site_reach;
        force += 24 * epsilon * (2 * six - 1) * six / distance - slope;
        *energy += 4 * epsilon * ((six - 1) * six - (last_six - 1) * last_six) + slope * rest;
    }
    return force / distance;
}

static void add(struct molecule *molecule, uint64_t force[SITES][3], bool opposite)
{
    pthread_mutex_lock(&molecule->lock);
    for (int site = 0; site < SITES; site++)
        for (int k = 0; k < 3; k++)
            molecule->force[site][k] += opposite ? 0 - force[site][k] : force[site][k];
    pthread_mutex_unlock(&molecule->lock);
}

uint64_t water_pair(const struct water *water, size_t one, size_t other)
{
    struct molecule *a = &water->molecules[one < other ? one : other];
    struct molecule *b = &water->molecules[one < other ? other : one];
    double shift[3], square = 0, energy = 0;
    for (int k = 0; k < 3; k++) {
        const double apart = a->at[0][k] - b->at[0][k], half = water->box / 2;
        shift[k] = apart > half ? -water->box : apart < -half ? water->box : 0;
        square += (apart + shift[k]) * (apart + shift[k]);
    }
    if (square >= WATER_REACH * WATER_REACH)
        return 0;
    uint64_t on_a[SITES][3] = {{0}}, on_b[SITES][3] = {{0}};
    for (int i = 0; i < SITES; i++)
        for (int j = 0; j < SITES; j++) {
            double apart[3], distance = 0;
            for (int k = 0; k < 3; k++) {
                apart[k] = a->at[i][k] + shift[k] - b->at[j][k];
                distance += apart[k] * apart[k];
            }
            if (distance >= site_reach * site_reach)
                continue;
            const double force = site_force(i, j, distance, &energy);
            for (int k = 0; k < 3; k++) {
                const uint64_t term = fixed(force * apart[k]);
                on_a[i][k] += term;
                on_b[j][k] += term;
            }
        }
    add(a, on_a, false);
    add(b, on_b, true);
    return fixed(energy);
}

/* A spring between two sites of a molecule. */
static uint64_t spring(struct molecule *molecule, int one, int other, double length,
                       double stiffness)
{
    double apart[3], square = 0;
    for (int k = 0; k < 3; k++) {
        apart[k] = molecule->at[one][k] - molecule->at[other][k];
        square += apart[k] * apart[k];
    }
    const double distance = sqrt(square), stretch = distance - length;
    for (int k = 0; k < 3; k++) {
        const uint64_t term = fixed(-stiffness * stretch * apart[k] / distance);
        molecule->force[one][k] += term;
        molecule->force[other][k] -= term;
    }
    return fixed(0.5 * stiffness * stretch * stretch);
}

void water_correct(const struct water *water, size_t index, uint64_t *potential,
                   uint64_t *kinetic)
{
    struct molecule *molecule = &water->molecules[index];
    *potential += spring(molecule, 0, 1, arm, arm_stiffness);
    *potential += spring(molecule, 0, 2, arm, arm_stiffness);
    *potential += spring(molecule, 1, 2, span, span_stiffness);
    for (int site = 0; site < SITES; site++)
        for (int k = 0; k < 3; k++) {
            double *velocity = &molecule->velocity[site][k];
            *velocity += 0.5 * time_step / masses[site] * fixed_value(molecule->force[site][k]);
            *kinetic += fixed(0.5 * masses[site] * *velocity * *velocity);
        }
}

void water_account(struct water *water, struct team *team, size_t thread, size_t step,
                   uint64_t potential, uint64_t kinetic)
{
    const double all_potential = fixed_value(team_sum(team, thread, potential));
    const double all_kinetic = fixed_value(team_sum(team, thread, kinetic));
    if (thread != 0)
        return;
    water->last.potential = all_potential;
    water->last.kinetic = all_kinetic;
    if (step == 0)
        water->first = water->last;
}

bool water_finish(void *state, uint64_t *checksum)
{
    struct water *water = state;
    double momentum = 0;
    for (size_t i = 0; i < water->count; i++) {
        struct molecule *molecule = &water->molecules[i];
        pthread_mutex_destroy(&molecule->lock);
        for (size_t site = 0; site < SITES; site++)
            for (size_t k = 0; k < 3; k++) {
                momentum += masses[site] * molecule->velocity[site][k];
                *checksum += checksum_double((i * SITES + site) * 3 + k, molecule->at[site][k]);
            }
    }
    const double drift = water->last.potential + water->last.kinetic - water->first.potential -
                         water->first.kinetic;
    if (fabs(drift) < 0.01 * water->first.kinetic && fabs(momentum) < 1e-3)
        return true;
    complain("water: the energy drifts by %g of %g kJ/mol, the momentum by %g", drift,
             water->first.kinetic, momentum);
    return false;
}

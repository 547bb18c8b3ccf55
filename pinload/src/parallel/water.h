/*
 * Molecular dynamics of flexible water: what water-nsquared and water-spatial share.
 *
 * Three sites as in SPC/Fw (Wu, Tepper, Voth 2006), springs in place of the angle, forces
 * cut off by the shifted-force method (Allen and Tildesley, "Computer Simulation of
 * Liquids"), velocity Verlet (Swope et al. 1982) in a periodic box. Forces are integers (see
 * `fixed`), so that the order in which they are added does not matter.
 * Units: nm, ps, atomic mass units, kJ/mol.
 */
#ifndef PINLOAD_WATER_H
#define PINLOAD_WATER_H

#include "parallel.h"

/* Molecules whose oxygens are farther apart do not act on each other (nm). */
#define WATER_REACH 0.8

enum { SITES = 3 }; /* oxygen, hydrogen, hydrogen */

struct molecule {
    pthread_mutex_t lock; /* of the sums, while pairs are added */
    double at[SITES][3], velocity[SITES][3];
    uint64_t force[SITES][3];
};

struct water {
    size_t count, steps;
    double box; /* edge (nm) */
    struct molecule *molecules;
    struct {
        double potential, kinetic;
    } first, last; /* energies after the first and the last step */
};

/* Molecules on a lattice, side x side x side of them, at the density of water. */
void water_prepare(struct water *water, const struct setting *setting, size_t side, size_t steps);

/* First half of a step of one molecule: moves it (back into the box) and clears its forces. */
void water_predict(const struct water *water, size_t index);

/* Adds the forces of a pair to both, if they reach each other; returns the energy. Any order. */
uint64_t water_pair(const struct water *water, size_t one, size_t other);

/* Second half: forces within the molecule, velocity. Adds to the energies. */
void water_correct(const struct water *water, size_t index, uint64_t *potential,
                   uint64_t *kinetic);

/* Notes the energies of a step; called by each thread with its part of them. */
void water_account(struct water *water, struct team *team, size_t thread, size_t step,
                   uint64_t potential, uint64_t kinetic);

/* Proof: energy and momentum are conserved. */
bool water_finish(void *state, uint64_t *checksum);

#endif

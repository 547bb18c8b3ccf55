/*
 * Parallel programs: fifteen clean-room kernels with T_full and T_roi.
 *
 * Each program is written after the published description of its algorithm, not after
 * anyone's source. It makes its input from a seed, has one parallel phase, and proves its
 * result after it. Its checksum is a function of size and seed alone: not of the number of
 * threads, the machine or the architecture.
 */
#ifndef PINLOAD_PARALLEL_H
#define PINLOAD_PARALLEL_H

#include "numbers.h"
#include "team.h"

enum size { SIZE_SMALL, SIZE_MEDIUM, SIZE_LARGE, SIZES };

enum thread_rule { THREADS_ANY, THREADS_POWER_OF_TWO };

struct setting {
    enum size size;
    size_t threads;
    uint64_t seed;
};

struct program {
    const char *name;
    const char *about;
    enum thread_rule rule;
    size_t most_threads[SIZES];
    const char *sizes[SIZES]; /* what each one is */

    /* Makes the input; the state is in memory_take's memory. */
    void *(*prepare)(const struct setting *setting);
    /* The parallel phase, in each thread. */
    void (*work)(void *state, struct team *team, size_t thread);
    /* Proves the result and gives its checksum; false after a complaint. */
    bool (*finish)(void *state, uint64_t *checksum);
};

extern const struct program program_barnes, program_blackscholes, program_bodytrack,
    program_cholesky, program_ferret, program_fft, program_fluidanimate, program_freqmine,
    program_lu_contiguous, program_lu_non_contiguous, program_ocean, program_radix,
    program_swaptions, program_water_nsquared, program_water_spatial;

/* pinload parallel PROGRAM: see `pinload parallel --help`. */
int parallel_main(int argc, char **argv);

#endif

/*
 * Start and proof of the unit of work. See work.h.
 */
#include "work.h"

static const uint64_t SEED = 20110901;

void work_begin(struct work *work)
{
    *work = (struct work){.value = SEED};
}

/*
 * The step x -> f x + a, done n times, is again such a step: its factor and addend are
 * put together from those of 1, 2, 4, ... steps, by the binary digits of n.
 */
bool work_is_proven(const struct work *work)
{
    uint64_t factor = WORK_FACTOR, addend = WORK_ADDEND, value = SEED;
    for (uint64_t steps = work->units * WORK_STEPS; steps > 0; steps >>= 1) {
        if (steps & 1)
            value = value * factor + addend;
        addend = addend * factor + addend;
        factor *= factor;
    }
    return value == work->value;
}

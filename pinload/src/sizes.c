/*
 * Sizes of a sweep. See sizes.h.
 */
#include "sizes.h"

size_t sizes_list(uint64_t from, uint64_t to, uint64_t steps, uint64_t multiple,
                  uint64_t sizes[SIZE_LIMIT])
{
    size_t count = 0;
    for (uint64_t octave = from; octave <= to; octave *= 2) {
        for (uint64_t step = 0; step < steps && count < SIZE_LIMIT; step++) {
            const uint64_t size = octave + octave / steps * step;
            const uint64_t rounded = size - size % multiple;
            if (rounded > 0 && rounded <= to && (count == 0 || rounded > sizes[count - 1]))
                sizes[count++] = rounded;
        }
    }
    return count;
}

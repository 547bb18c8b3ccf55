/* Sizes of a sweep: some in each doubling. */
#ifndef PINLOAD_SIZES_H
#define PINLOAD_SIZES_H

#include "base.h"

enum { SIZE_LIMIT = 512, SIZE_STEPS_LIMIT = 8 };

/*
 * `from`, then `steps` sizes in each doubling (2: 16K, 24K, 32K) up to `to`, rounded down to
 * multiples of `multiple` and none twice; returns how many.
 */
size_t sizes_list(uint64_t from, uint64_t to, uint64_t steps, uint64_t multiple,
                  uint64_t sizes[SIZE_LIMIT]);

#endif

/*
 * The best of several sets of pages for a block that a physically indexed cache holds.
 *
 * Which lines compete for the same places of such a cache depends on where the kernel happened to
 * take the block's small pages from. It stays so for a whole run: by bad luck a block of half of
 * the second cache is read at five sixths of the speed. That is the pages' speed, not the cache's.
 */
#ifndef PINLOAD_PAGE_SETS_H
#define PINLOAD_PAGE_SETS_H

#include "base.h"

#include "place.h"
#include "windows.h"

struct page_sets {
    void (*lay)(void *own, const struct area *area); /* makes the block of a work lie there */
    uint64_t bytes;   /* of the block, all sides */
    uint64_t apart;   /* bytes between its sides */
    struct area area; /* the best; its `bytes` are NULL where the whole area was taken */
};

/*
 * Lays the block on the best of some sets if it fits into the second cache and has small pages,
 * else on `whole`. The work is tried for some windows on each. False after a complaint.
 */
bool page_sets_choose(struct page_sets *sets, const struct place *place, const struct area *whole,
                      struct windows *windows, const struct window_work *work);

/* Labels how many sets there are to choose from, up to which block. */
void page_sets_describe(const struct place *place, struct figure *figure);

/* Gives the best set back. */
void page_sets_close(struct page_sets *sets);

#endif

/*
 * The best of several sets of pages. See page_sets.h.
 */
#include "page_sets.h"

#include <inttypes.h>

enum { SETS = 4, TRIAL_WINDOWS = 15 };

/* Largest block that several sets are tried for: what the second cache holds; 0: none. */
static uint64_t limit(const struct place *place)
{
    const struct caches *const caches = &place->caches;
    if (place->wish.pages != PAGES_SMALL || caches->count == 0)
        return 0;
    return caches->cache[caches->count > 1 ? 1 : 0].bytes;
}

/* Median rate of some windows on these pages; 0 after a complaint. */
static double trial(const struct page_sets *sets, struct area *area, struct windows *windows,
                    const struct window_work *work)
{
    const uint64_t wanted = windows->wanted;
    area_touch(area);
    sets->lay(work->own, area);
    windows->wanted = TRIAL_WINDOWS;
    const bool good = windows_run(windows, work);
    windows->wanted = wanted;
    return good ? samples_median(windows->rates, windows->count) : 0;
}

bool page_sets_choose(struct page_sets *sets, const struct place *place, const struct area *whole,
                      struct windows *windows, const struct window_work *work)
{
    struct area area[SETS] = {0};
    double best = 0;
    bool good = true;
    sets->area.bytes = NULL;
    const size_t count = sets->bytes <= limit(place) ? SETS : 0;
    /* All are kept until one is chosen: pages that are given back would be the next set's. */
    for (size_t i = 0; good && i < count; i++) {
        good = area_open(&area[i], "the block", sets->bytes + sets->apart, &place->wish);
        const double rate = good ? trial(sets, &area[i], windows, work) : 0;
        good = rate > 0;
        if (rate > best) {
            best = rate;
            sets->area = area[i];
        }
    }
    for (size_t i = 0; i < count; i++)
        if (area[i].bytes && area[i].bytes != sets->area.bytes)
            area_close(&area[i]);
    sets->lay(work->own, sets->area.bytes ? &sets->area : whole);
    return good;
}

void page_sets_describe(const struct place *place, struct figure *figure)
{
    if (limit(place) > 0)
        figure_label(figure, "page_sets", "best of %d up to %" PRIu64 "K", SETS, limit(place) / 1024);
}

void page_sets_close(struct page_sets *sets)
{
    if (sets->area.bytes)
        area_close(&sets->area);
}

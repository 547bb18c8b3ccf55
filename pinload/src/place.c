/*
 * The place of a memory instrument. See place.h.
 */
#include "place.h"

#include <sched.h>
#include <stdlib.h>

bool place_settle(struct place *place)
{
    place->cpu = -1;
    place->wish = (struct area_wish){.pages = PAGES_SMALL, .node = -1};
    if (place->pages && !page_mode_parse("--pages", place->pages, &place->wish.pages))
        return false;
    if (place->node && !node_parse("--node", place->node, &place->wish.node))
        return false;
    if (place->cpus.given) {
        if (place->cpus.count != 1) {
            complain("--cpu: one CPU is wanted, not %zu", place->cpus.count);
            return false;
        }
        place->cpu = place->cpus.cpus[0];
        if (!thread_pin(place->cpu)) {
            complain_errno("--cpu: cannot run on CPU %d", place->cpu);
            return false;
        }
    }
    caches_read(&place->caches, sched_getcpu());
    place->node_of_cpu = own_node();
    return true;
}

uint64_t place_largest(const struct place *place)
{
    const uint64_t room = memory_available(place->wish.node) / 4 * 3;
    uint64_t bytes = 1ULL << 30;
    while (bytes > room && bytes > 1ULL << 20)
        bytes /= 2;
    return bytes;
}

void place_describe(const struct place *place, const struct area *area, struct figure *figure)
{
    char text[FIGURE_TEXT];
    figure->cpu = place->cpu;
    area_describe(area, place->node_of_cpu, figure);
    caches_text(&place->caches, text, sizeof text);
    figure_label(figure, "caches", "%s", text);
    if (place->caches.count == 0)
        figure_flag(figure, "cache-sizes-unknown");
}

void place_close(struct place *place, struct area *area)
{
    free(place->cpus.cpus);
    area_close(area);
}

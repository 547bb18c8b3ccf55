/* A cycle of addresses through the cache lines of an area: what a pointer chase follows. */
#ifndef PINLOAD_CYCLE_H
#define PINLOAD_CYCLE_H

#include "base.h"

struct line {
    struct line *next;
};

enum { CYCLE_UNROLLED = 16 };

/*
 * Links `lines` lines of `size` bytes each: in their order, or as one cycle of Sattolo's over all
 * of them. Seeds give the same cycle everywhere.
 */
void cycle_link(char *bytes, uint64_t lines, uint64_t size, bool random, uint64_t seed);

/* Follows the cycle: `units` times CYCLE_UNROLLED loads. Where it has come to. */
static inline struct line *cycle_follow(struct line *at, uint64_t units)
{
    for (; units > 0; units--)
        for (int i = 0; i < CYCLE_UNROLLED; i++)
            at = *(struct line *volatile *)&at->next;
    return at;
}

#endif

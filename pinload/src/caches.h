/* The data caches of a CPU, as sysfs tells them: what a block of memory fits into. */
#ifndef PINLOAD_CACHES_H
#define PINLOAD_CACHES_H

#include "base.h"

enum { CACHES_LIMIT = 5 };

struct caches {
    size_t count; /* 0: sysfs tells nothing */
    struct {
        int level;
        uint64_t bytes;
    } cache[CACHES_LIMIT]; /* smallest first */
    uint64_t line;         /* bytes; 64 where sysfs is silent */
};

/* Reads the data and unified caches of this CPU. */
void caches_read(struct caches *caches, int cpu);

/* "L1d", "L2", "L3", "L4" for the smallest cache that holds so much, else "memory"; "unknown". */
const char *caches_level(const struct caches *caches, uint64_t bytes);

/* Size of the first data cache; 0 if none is known. */
uint64_t caches_first(const struct caches *caches);

/* Size of the last cache; 0 if none is known. */
uint64_t caches_last(const struct caches *caches);

/* "L1d 32K, L2 1024K, L3 32768K", or "unknown". */
void caches_text(const struct caches *caches, char *text, size_t size);

#endif

/* Where a memory instrument runs and where its memory lies: the arguments that they share. */
#ifndef PINLOAD_PLACE_H
#define PINLOAD_PLACE_H

#include "base.h"

#include "area.h"
#include "args.h"
#include "caches.h"
#include "rt.h"

struct place {
    struct cpu_list cpus; /* --cpu: one, or not given */
    const char *pages;
    const char *node;
    struct area_wish wish;
    int cpu;  /* pinned to; -1: nowhere */
    int node_of_cpu;
    struct caches caches;
};

#define PLACE_ARGUMENTS(place)                                                                     \
    {"--cpu", ARGUMENT_CPUS, &(place).cpus, 0, 0, OPTIONAL, "CPU to run on (wherever it may)"},    \
        {"--pages", ARGUMENT_TEXT, &(place).pages, 0, 0, OPTIONAL, "4k (default) or huge"},        \
    {                                                                                              \
        "--node", ARGUMENT_TEXT, &(place).node, 0, 0, OPTIONAL,                                    \
            "node of the memory (near the CPU)"                                                    \
    }

/* Reads the texts, pins this thread and reads the caches; false after a complaint. */
bool place_settle(struct place *place);

/* Largest block of a sweep without --to: 1 GiB, or a power of two that memory has room for. */
uint64_t place_largest(const struct place *place);

/* Sets the CPU and labels pages, node, placement and caches. */
void place_describe(const struct place *place, const struct area *area, struct figure *figure);

/* Gives the area back, and the list of CPUs. */
void place_close(struct place *place, struct area *area);

#endif

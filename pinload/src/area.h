/*
 * Memory to be measured: how much, on which node, in pages of which size, and whether it is so.
 */
#ifndef PINLOAD_AREA_H
#define PINLOAD_AREA_H

#include "base.h"

#include "figure.h"

enum page_mode { PAGES_SMALL, PAGES_HUGE };

/* Where and in what pages; the arguments --node and --pages. */
struct area_wish {
    enum page_mode pages;
    int node; /* -1: where the kernel puts it, which is near the thread that touches it first */
};

struct area {
    char *bytes;
    size_t size;
    struct area_wish wish;
    size_t page;          /* bytes of a small page */
    uint64_t huge;        /* bytes that lie in huge pages, after area_touch; UINT64_MAX: untold */
    int node;             /* that all pages looked at lie on; -1: several, -2: the kernel tells not */
    size_t looked, elsewhere; /* pages looked at; those of them off the wished node */
};

/* "4k" or "huge". */
bool page_mode_parse(const char *argument, const char *text, enum page_mode *mode);

/* A node that has memory, by its number; complains, with those that there are, if there is none. */
bool node_parse(const char *argument, const char *text, int *node);

/* Bytes that may still be taken without swapping, of the machine or of the node. */
uint64_t memory_available(int node);

/*
 * Takes `size` bytes, aligned to 2 MiB; not touched yet. Complains with what is free if that is
 * too little.
 */
bool area_open(struct area *area, const char *what, uint64_t size, const struct area_wish *wish);

/* Touches each page from this thread, then asks the kernel what they became. */
void area_touch(struct area *area);

void area_close(struct area *area);

/* Labels pages, node and placement (local or remote to `cpu_node`), and flags of what is not as wished. */
void area_describe(const struct area *area, int cpu_node, struct figure *figure);

/* The node of the CPU that this thread is on; -1 if the kernel does not say. */
int own_node(void);

#endif

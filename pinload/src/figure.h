/*
 * A figure: raw samples of one quantity under one set of labels, as one JSON line.
 *
 * Everything that is not a benchmark per CPU (sampler.h) gives figures: one line for each block
 * size, number of processes or program, with every sample. Its reader is
 * `pinfold_probe::figures`.
 */
#ifndef PINLOAD_FIGURE_H
#define PINLOAD_FIGURE_H

#include "base.h"

#include <stdio.h>
#include <sys/resource.h>

/* How samples are to be summarised; the reader decides nothing by a probe's name. */
enum figure_family {
    FIGURE_CAPACITY, /* noise is one-sided: best, tenth percentile, median; windows may be left out */
    FIGURE_TAIL,     /* every sample counts, none may be left out */
    FIGURE_COUNT,    /* exact numbers */
    FIGURE_PLACE,    /* places of samples in another figure: told, never summed up */
};

enum { FIGURE_LABELS = 11, FIGURE_FLAGS = 14, FIGURE_TEXT = 64 };

struct figure {
    const char *probe;
    const char *unit; /* ns, per-second, per-second-per-mhz, bytes-per-second, bytes, count, share */
    enum figure_family family;
    int cpu; /* -1: not on one CPU */
    uint64_t duration_ns;
    const double *samples;
    size_t count;
    uint64_t dropped;   /* samples that did not fit */
    uint64_t disturbed; /* windows left out because the thread lost its CPU; see struct quiet */
    struct {
        const char *name;
        char text[FIGURE_TEXT];
    } labels[FIGURE_LABELS];
    size_t label_count;
    char flags[FIGURE_FLAGS][FIGURE_TEXT];
    size_t flag_count;
};

/* Adds a label; names are constants, at most FIGURE_LABELS of them. */
void figure_label(struct figure *figure, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds what disturbed or limits the figure, such as "not-locked" or "preempted 3". */
void figure_flag(struct figure *figure, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints the line; false after a complaint if a sample is not a finite number. */
bool figure_print(FILE *out, const struct figure *figure);

/* The middle of the samples, which keep their order; the first if there is no memory to sort in. */
double samples_median(const double *samples, size_t count);

/*
 * Whether this thread lost its CPU between two moments: it was preempted, moved, or the hypervisor
 * took the CPU away for a tick.
 */
struct quiet {
    long involuntary;
    int cpu;
    uint64_t stolen; /* ticks since the machine started */
    bool was_stolen; /* set by quiet_ended */
};

struct quiet quiet_begin(void);
bool quiet_ended(struct quiet *quiet);

/* Flags how many windows a stolen tick spoiled, or that the kernel does not tell. */
void quiet_flag(struct figure *figure, uint64_t stolen_windows);

#endif

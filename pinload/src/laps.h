/*
 * Laps: some work and the time it took, again and again for a given time.
 *
 * For work whose amount is given, such as a turn of a ring or a batch of system calls; work that
 * is to fill a window of given length is in windows.h. A lap in which the thread lost its CPU
 * (struct quiet) can be left out, and is counted then. If all would be, none is, and the figure says so.
 */
#ifndef PINLOAD_LAPS_H
#define PINLOAD_LAPS_H

#include "base.h"

#include "clock.h"
#include "figure.h"

struct laps {
    double *samples; /* the quiet ones from the front, the others from the back */
    size_t quiet, disturbed, limit;
    size_t stolen; /* disturbed ones, by the hypervisor below */
    uint64_t dropped;
    bool quiet_only; /* leave out laps in which the thread lost its CPU */
    uint64_t duration_ns;
    uint64_t begin_ns;  /* of all */
    uint64_t lap_ns;    /* begin of the current one */
    uint64_t end_ns;    /* of the last one */
    struct quiet before;
};

/* Takes and touches the memory for laps of at least `least_ns`; false after a complaint. */
bool laps_open(struct laps *laps, uint64_t duration_ns, uint64_t least_ns);

/* Forgets what was measured and starts the time. */
void laps_begin(struct laps *laps, bool quiet_only);

/* Whether another lap is due. */
bool laps_go_on(const struct laps *laps);

/* Starts a lap. */
void lap_begin(struct laps *laps);

/* Ends it; its time in nanoseconds, at least 1. */
uint64_t lap_end(struct laps *laps);

/* What the lap that was ended gives. */
void lap_keep(struct laps *laps, double sample);

/* Puts samples and counts into a figure; once, and before the next begin. */
void laps_figure(struct laps *laps, struct figure *figure);

void laps_close(struct laps *laps);

#endif

/*
 * Windows: an amount of work and the time it took, again and again for a given time.
 *
 * Windows are a few milliseconds, because on a shared machine the best short windows repeat
 * where an average over a second does not. One in which the thread was preempted or moved can
 * be left out, and is counted then. If all would be, none is, and the figure says so.
 */
#ifndef PINLOAD_WINDOW_H
#define PINLOAD_WINDOW_H

#include "base.h"

#include "clock.h"
#include "figure.h"

struct windows {
    double *samples; /* the quiet ones from the front, the others from the back */
    size_t quiet, disturbed, limit;
    uint64_t dropped;
    bool quiet_only; /* leave out windows in which the thread was preempted or moved */
    uint64_t duration_ns;
    uint64_t begin_ns;  /* of all */
    uint64_t window_ns; /* begin of the current one */
    uint64_t end_ns;    /* of the last one */
    struct quiet before;
};

/* Takes and touches the memory for windows of at least `least_ns`; false after a complaint. */
bool windows_open(struct windows *windows, uint64_t duration_ns, uint64_t least_ns);

/* Forgets what was measured and starts the time. */
void windows_begin(struct windows *windows, bool quiet_only);

/* Whether another window is due. */
bool windows_go_on(const struct windows *windows);

/* Starts a window. */
void window_begin(struct windows *windows);

/* Ends it; its time in nanoseconds, at least 1. */
uint64_t window_end(struct windows *windows);

/* What the window that was ended gives. */
void window_keep(struct windows *windows, double sample);

/* Puts samples and counts into a figure; once, and before the next begin. */
void windows_figure(struct windows *windows, struct figure *figure);

void windows_close(struct windows *windows);

#endif

/*
 * Many short windows of one kind of work, for what is a capacity: bandwidth, latency of a load.
 *
 * Noise has one side: a window that nobody disturbed is right, and short windows are rarely
 * disturbed. The first is dropped; one in which the thread lost its CPU (struct quiet) is left out
 * and counted; when eight in a row were, windows become half as long, down to a sixteenth: a
 * crowded CPU leaves some of these alone. Windows end when enough were kept, or when four times
 * as many have passed.
 */
#ifndef PINLOAD_WINDOWS_H
#define PINLOAD_WINDOWS_H

#include "base.h"

#include "args.h"
#include "clock.h"
#include "figure.h"

enum { WINDOWS_LEAST = 30 };

struct windows {
    uint64_t window_ns;
    uint64_t wanted;
    struct tick_clock clock;
    double *rates;  /* units per second of each kept window */
    double *beside; /* what went on beside it, per second */
    size_t count;
    uint64_t disturbed;
    uint64_t stolen;    /* of these by the hypervisor below */
    unsigned shortened; /* how many times shorter they became on a crowded CPU */
    uint64_t duration_ns;
};

struct window_work {
    void (*run)(void *own, uint64_t units);
    uint64_t (*beside)(void *own); /* a counter of what others do meanwhile; may be NULL */
    void *own;
    uint64_t lap;  /* units after which the work is at its start again */
    unsigned warm; /* laps before the first window */
};

/* The two arguments that all instruments of this kind take. */
#define WINDOW_ARGUMENTS(windows)                                                                  \
    {"--windows", ARGUMENT_INTEGER, &(windows).wanted, WINDOWS_LEAST, 100000, OPTIONAL,            \
     "windows to keep for each figure"},                                                           \
    {                                                                                              \
        "--window-us", ARGUMENT_INTEGER, &(windows).window_ns, 100, 5000, OPTIONAL,                \
            "length of a window, from 100 to 5000"                                                 \
    }

/* Takes memory and chooses the clock; `window_ns` holds microseconds before. */
bool windows_open(struct windows *windows);

/* Works through the laps that warm up, then window by window; false after a complaint. */
bool windows_run(struct windows *windows, const struct window_work *work);

/* Sets the samples' count, the duration, what was left out, and flags. */
void windows_describe(const struct windows *windows, struct figure *figure);

/* Longest time that so many figures can take. */
uint64_t windows_limit_ns(const struct windows *windows, uint64_t figures);

void windows_close(struct windows *windows);

#endif

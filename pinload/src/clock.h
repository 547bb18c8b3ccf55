/*
 * The benchmarks' clock: the CPU's own counter where it can be trusted, else the kernel's.
 *
 * The rate of the counter is not looked up but measured against
 * CLOCK_MONOTONIC_RAW over the whole run: `tick_clock_open` takes the first
 * point and a rough rate for the loops' deadlines, `tick_clock_close` takes the
 * last one, and only then are ticks turned into nanoseconds.
 */
#ifndef PINLOAD_CLOCK_H
#define PINLOAD_CLOCK_H

#include "base.h"

#include <time.h>

struct clock_point {
    uint64_t ticks;
    uint64_t raw_ns;
};

struct tick_clock {
    bool hardware;    /* counter register; else CLOCK_MONOTONIC_RAW, one tick per ns */
    const char *name; /* tsc, cntvct, time, monotonic-raw */
    struct clock_point first;
    double rough_ticks_per_ns;
    double ticks_per_ns;
    bool drifted; /* the rate changed between the rough and the final measurement */
};

/* Chooses the counter and measures its rough rate; takes about 20 ms. */
void tick_clock_open(struct tick_clock *clock);

/* Measures the final rate. */
void tick_clock_close(struct tick_clock *clock);

/* What the kernel tells of the CPU's frequency (cpufreq); 0 if nothing. */
double cpufreq_mhz(int cpu);

static inline uint64_t raw_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* The counter itself. Not ordered against other instructions: benchmarks compare neighbours only. */
static inline uint64_t counter_ticks(void)
{
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#elif defined(__riscv) && __riscv_xlen == 64
    uint64_t value;
    __asm__ volatile("rdtime %0" : "=r"(value));
    return value;
#else
    return raw_ns();
#endif
}

/* Ticks of the clock that was chosen. `hardware` is a constant where a loop must be tight. */
static inline uint64_t read_ticks(bool hardware)
{
    return hardware ? counter_ticks() : raw_ns();
}

/* By the rough rate: for deadlines, before the final rate is known. */
static inline uint64_t rough_ticks(const struct tick_clock *clock, uint64_t ns)
{
    return (uint64_t)((double)ns * clock->rough_ticks_per_ns);
}

#endif

/*
 * Short windows of work. See windows.h.
 */
#include "windows.h"

#include <inttypes.h>
#include <stdlib.h>

#include "supervise.h"

enum { TRIES = 4, CROWDED = 8, SHORTENED_LIMIT = 16 };

bool windows_open(struct windows *windows)
{
    windows->window_ns *= NS_PER_US;
    windows->rates = calloc(windows->wanted, sizeof *windows->rates);
    windows->beside = calloc(windows->wanted, sizeof *windows->beside);
    if (!windows->rates || !windows->beside) {
        complain("out of memory for %" PRIu64 " windows", windows->wanted);
        return false;
    }
    tick_clock_open(&windows->clock);
    return true;
}

void windows_close(struct windows *windows)
{
    free(windows->rates);
    free(windows->beside);
}

/* Reading the counter must not overtake the work, nor the work the counter. */
static inline void fence(void)
{
#if defined(__x86_64__)
    __asm__ volatile("mfence\n\tlfence" : : : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("dsb ish\n\tisb" : : : "memory");
#elif defined(__riscv)
    __asm__ volatile("fence" : : : "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static uint64_t timed(const struct windows *windows, const struct window_work *work, uint64_t units)
{
    fence();
    const uint64_t begin = read_ticks(windows->clock.hardware);
    work->run(work->own, units);
    fence();
    const uint64_t ticks = read_ticks(windows->clock.hardware) - begin;
    return ticks ? ticks : 1;
}

/* Units that last a window: whole laps if a lap is shorter. */
static uint64_t calibrate(const struct windows *windows, const struct window_work *work)
{
    const uint64_t window = rough_ticks(&windows->clock, windows->window_ns);
    uint64_t units = 1, ticks;
    while ((ticks = timed(windows, work, units)) < window / 8 && units < UINT64_MAX / 4)
        units *= 2;
    for (int i = 0; i < 2; i++) {
        const uint64_t again = timed(windows, work, units);
        ticks = again < ticks ? again : ticks;
    }
    const double wanted = (double)units * (double)window / (double)ticks;
    units = wanted >= 1 ? (uint64_t)wanted : 1;
    return units > work->lap ? units - units % work->lap : units;
}

/* Half of the units, whole laps if it can be. */
static uint64_t half(uint64_t units, const struct window_work *work)
{
    const uint64_t less = units / 2 ? units / 2 : 1;
    return less > work->lap ? less - less % work->lap : less;
}

/* One window, kept unless something came between; false if it was disturbed. */
static bool take(struct windows *windows, const struct window_work *work, uint64_t units)
{
    struct quiet quiet = quiet_begin();
    const uint64_t beside = work->beside ? work->beside(work->own) : 0;
    const uint64_t ticks = timed(windows, work, units);
    const uint64_t done = work->beside ? work->beside(work->own) - beside : 0;
    if (quiet_ended(&quiet)) {
        windows->disturbed++;
        windows->stolen += quiet.was_stolen;
        return false;
    }
    windows->rates[windows->count] = (double)units / (double)ticks;
    windows->beside[windows->count++] = (double)done / (double)ticks;
    return true;
}

static void finish(struct windows *windows)
{
    tick_clock_close(&windows->clock);
    for (size_t i = 0; i < windows->count; i++) {
        windows->rates[i] *= windows->clock.ticks_per_ns * 1e9;
        windows->beside[i] *= windows->clock.ticks_per_ns * 1e9;
    }
}

bool windows_run(struct windows *windows, const struct window_work *work)
{
    const uint64_t began = raw_ns();
    for (unsigned lap = 0; lap < work->warm; lap++)
        work->run(work->own, work->lap);
    uint64_t units = calibrate(windows, work);
    windows->count = 0;
    windows->shortened = 1;
    timed(windows, work, units); /* the first is dropped */
    windows->disturbed = windows->stolen = 0;
    unsigned in_a_row = 0;
    for (uint64_t i = 0; i < TRIES * windows->wanted && windows->count < windows->wanted; i++) {
        in_a_row = take(windows, work, units) ? 0 : in_a_row + 1;
        if (in_a_row == CROWDED && windows->shortened < SHORTENED_LIMIT) {
            units = half(units, work);
            windows->shortened *= 2;
            in_a_row = 0;
        }
    }
    finish(windows);
    windows->duration_ns = raw_ns() - began;
    if (windows->count == 0)
        complain("all %" PRIu64 " windows were disturbed: this CPU is too busy to measure",
                 windows->disturbed);
    return windows->count > 0;
}

void windows_describe(const struct windows *windows, struct figure *figure)
{
    figure->count = windows->count;
    figure->disturbed = windows->disturbed;
    figure->duration_ns = windows->duration_ns;
    if (windows->count < WINDOWS_LEAST)
        figure_flag(figure, "few-windows %zu", windows->count);
    if (windows->shortened > 1)
        figure_flag(figure, "windows-shortened by %u", windows->shortened);
    if (windows->clock.drifted)
        figure_flag(figure, "clock-drifted");
    quiet_flag(figure, windows->stolen);
}

uint64_t windows_limit_ns(const struct windows *windows, uint64_t figures)
{
    const uint64_t one = TRIES * windows->wanted * windows->window_ns * 2 + 20 * NS_PER_S;
    return measurement_limit_ns(figures * one);
}

/*
 * Windows of work. See window.h.
 */
#include "window.h"

#include <stdlib.h>
#include <string.h>

bool windows_open(struct windows *windows, uint64_t duration_ns, uint64_t least_ns)
{
    *windows = (struct windows){
        .duration_ns = duration_ns,
        .limit = (size_t)(duration_ns / least_ns) + 16,
    };
    windows->samples = malloc(windows->limit * sizeof *windows->samples);
    if (!windows->samples) {
        complain("no memory for %zu windows", windows->limit);
        return false;
    }
    memset(windows->samples, 0xA5, windows->limit * sizeof *windows->samples);
    return true;
}

void windows_begin(struct windows *windows, bool quiet_only)
{
    windows->quiet = windows->disturbed = 0;
    windows->dropped = 0;
    windows->quiet_only = quiet_only;
    windows->begin_ns = windows->end_ns = raw_ns();
}

bool windows_go_on(const struct windows *windows)
{
    return windows->end_ns - windows->begin_ns < windows->duration_ns;
}

void window_begin(struct windows *windows)
{
    if (windows->quiet_only)
        windows->before = quiet_begin();
    windows->window_ns = raw_ns();
}

uint64_t window_end(struct windows *windows)
{
    windows->end_ns = raw_ns();
    const uint64_t elapsed = windows->end_ns - windows->window_ns;
    return elapsed ? elapsed : 1;
}

void window_keep(struct windows *windows, double sample)
{
    if (windows->quiet + windows->disturbed == windows->limit)
        windows->dropped++;
    else if (windows->quiet_only && quiet_ended(&windows->before))
        windows->samples[windows->limit - ++windows->disturbed] = sample;
    else
        windows->samples[windows->quiet++] = sample;
}

/* The disturbed ones lie backwards: in the order in which they were taken. */
static double *disturbed_in_order(struct windows *windows)
{
    double *samples = windows->samples + windows->limit - windows->disturbed;
    for (size_t i = 0; i < windows->disturbed / 2; i++) {
        const double sample = samples[i];
        samples[i] = samples[windows->disturbed - 1 - i];
        samples[windows->disturbed - 1 - i] = sample;
    }
    return samples;
}

void windows_figure(struct windows *windows, struct figure *figure)
{
    figure->duration_ns = windows->end_ns - windows->begin_ns;
    figure->samples = windows->samples;
    figure->count = windows->quiet;
    figure->dropped = windows->dropped;
    figure->disturbed = windows->disturbed;
    if (windows->quiet == 0) {
        figure->samples = disturbed_in_order(windows);
        figure->count = windows->disturbed;
        figure->disturbed = 0;
        figure_flag(figure, "every-window-disturbed");
    }
}

void windows_close(struct windows *windows)
{
    free(windows->samples);
    windows->samples = NULL;
}

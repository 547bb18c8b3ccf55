/*
 * Laps of work. See laps.h.
 */
#include "laps.h"

#include <stdlib.h>
#include <string.h>

bool laps_open(struct laps *laps, uint64_t duration_ns, uint64_t least_ns)
{
    *laps = (struct laps){
        .duration_ns = duration_ns,
        .limit = (size_t)(duration_ns / least_ns) + 16,
    };
    laps->samples = malloc(laps->limit * sizeof *laps->samples);
    if (!laps->samples) {
        complain("no memory for %zu laps", laps->limit);
        return false;
    }
    memset(laps->samples, 0xA5, laps->limit * sizeof *laps->samples);
    return true;
}

void laps_begin(struct laps *laps, bool quiet_only)
{
    laps->quiet = laps->disturbed = laps->stolen = 0;
    laps->dropped = 0;
    laps->quiet_only = quiet_only;
    laps->begin_ns = laps->end_ns = raw_ns();
}

bool laps_go_on(const struct laps *laps)
{
    return laps->end_ns - laps->begin_ns < laps->duration_ns;
}

void lap_begin(struct laps *laps)
{
    if (laps->quiet_only)
        laps->before = quiet_begin();
    laps->lap_ns = raw_ns();
}

uint64_t lap_end(struct laps *laps)
{
    laps->end_ns = raw_ns();
    const uint64_t elapsed = laps->end_ns - laps->lap_ns;
    return elapsed ? elapsed : 1;
}

void lap_keep(struct laps *laps, double sample)
{
    if (laps->quiet + laps->disturbed == laps->limit)
        laps->dropped++;
    else if (laps->quiet_only && quiet_ended(&laps->before)) {
        laps->samples[laps->limit - ++laps->disturbed] = sample;
        laps->stolen += laps->before.was_stolen;
    } else
        laps->samples[laps->quiet++] = sample;
}

/* The disturbed ones lie backwards: in the order in which they were taken. */
static double *disturbed_in_order(struct laps *laps)
{
    double *samples = laps->samples + laps->limit - laps->disturbed;
    for (size_t i = 0; i < laps->disturbed / 2; i++) {
        const double sample = samples[i];
        samples[i] = samples[laps->disturbed - 1 - i];
        samples[laps->disturbed - 1 - i] = sample;
    }
    return samples;
}

void laps_figure(struct laps *laps, struct figure *figure)
{
    figure->duration_ns = laps->end_ns - laps->begin_ns;
    figure->samples = laps->samples;
    figure->count = laps->quiet;
    figure->dropped = laps->dropped;
    figure->disturbed = laps->disturbed;
    if (laps->quiet == 0) {
        figure->samples = disturbed_in_order(laps);
        figure->count = laps->disturbed;
        figure->disturbed = 0;
        figure_flag(figure, "every-window-disturbed");
    }
    if (laps->quiet_only)
        quiet_flag(figure, laps->stolen);
}

void laps_close(struct laps *laps)
{
    free(laps->samples);
    laps->samples = NULL;
}

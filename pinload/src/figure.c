/*
 * Figures as JSON lines. See figure.h.
 */
#include "figure.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "json.h"
#include "steal.h"

static const char *const families[] = {
    [FIGURE_CAPACITY] = "capacity",
    [FIGURE_TAIL] = "tail",
    [FIGURE_COUNT] = "count",
    [FIGURE_PLACE] = "place",
};

/* Only a mistake in this program makes a text or table too long: it must not go unseen. */
static void figure_text(char text[FIGURE_TEXT], const char *format, va_list arguments)
{
    if (vsnprintf(text, FIGURE_TEXT, format, arguments) >= FIGURE_TEXT)
        abort();
}

void figure_label(struct figure *figure, const char *name, const char *format, ...)
{
    va_list arguments;
    if (figure->label_count == FIGURE_LABELS)
        abort();
    figure->labels[figure->label_count].name = name;
    va_start(arguments, format);
    figure_text(figure->labels[figure->label_count++].text, format, arguments);
    va_end(arguments);
}

void figure_flag(struct figure *figure, const char *format, ...)
{
    va_list arguments;
    if (figure->flag_count == FIGURE_FLAGS)
        abort();
    va_start(arguments, format);
    figure_text(figure->flags[figure->flag_count++], format, arguments);
    va_end(arguments);
}

bool figure_print(FILE *out, const struct figure *figure)
{
    fputs("{\"probe\":", out);
    json_text(out, figure->probe);
    fprintf(out, ",\"unit\":\"%s\",\"family\":\"%s\"", figure->unit, families[figure->family]);
    if (figure->cpu >= 0)
        fprintf(out, ",\"cpu\":%d", figure->cpu);
    fprintf(out, ",\"duration_ns\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"disturbed\":%" PRIu64,
            figure->duration_ns, figure->dropped, figure->disturbed);
    fputs(",\"labels\":{", out);
    for (size_t i = 0; i < figure->label_count; i++) {
        fprintf(out, "%s\"%s\":", i ? "," : "", figure->labels[i].name);
        json_text(out, figure->labels[i].text);
    }
    fputs("},\"flags\":[", out);
    for (size_t i = 0; i < figure->flag_count; i++) {
        fputs(i ? "," : "", out);
        json_text(out, figure->flags[i]);
    }
    fputs("],\"samples\":[", out);
    bool finite = true;
    for (size_t i = 0; i < figure->count; i++) {
        const double sample = figure->samples[i];
        finite = finite && isfinite(sample);
        fprintf(out, "%s%.9g", i ? "," : "", isfinite(sample) ? sample : 0.0);
    }
    fputs("]}\n", out);
    if (!finite)
        complain("%s: a sample is not a number", figure->probe);
    return finite;
}

/* A loss that lasts reaches over several windows: what was read at the end of the last holds. */
static _Thread_local struct {
    uint64_t at_ns;
    uint64_t stolen;
    int cpu;
} last = {.cpu = -1};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_median(const double *samples, size_t count)
{
    double *sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return samples[0];
    memcpy(sorted, samples, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, ascending);
    const double middle = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    free(sorted);
    return middle;
}

struct quiet quiet_begin(void)
{
    struct rusage usage;
    const int cpu = sched_getcpu();
    const bool is_fresh = last.cpu == cpu && raw_ns() - last.at_ns < NS_PER_MS;
    const uint64_t stolen = is_fresh ? last.stolen : stolen_ticks(cpu);
    getrusage(RUSAGE_THREAD, &usage);
    return (struct quiet){.involuntary = usage.ru_nivcsw, .cpu = cpu, .stolen = stolen};
}

bool quiet_ended(struct quiet *quiet)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    last.cpu = sched_getcpu();
    last.stolen = stolen_ticks(last.cpu);
    last.at_ns = raw_ns();
    const bool is_moved = last.cpu != quiet->cpu;
    quiet->was_stolen = !is_moved && stolen_between(quiet->stolen, last.stolen) > 0;
    return usage.ru_nivcsw != quiet->involuntary || is_moved || quiet->was_stolen;
}

void quiet_flag(struct figure *figure, uint64_t stolen_windows)
{
    if (stolen_windows > 0)
        figure_flag(figure, "stolen-windows %" PRIu64, stolen_windows);
    if (stolen_ticks(sched_getcpu()) == STEAL_UNKNOWN)
        figure_flag(figure, "steal-unknown");
}

/*
 * The kernel's hwlat tracer in a measurement guest: gaps that its thread sees with interrupts off.
 *
 * The tracer spins for half of each window (hwlat_detector/width of hwlat_detector/window), on one
 * CPU after the other, and writes a line for each window with a gap above tracing_thresh:
 *
 *   <...>-93 [001] dn... 3.21: #2     inner/outer(us):   14/25    ts:1700000000.1 count:6
 *
 * A sample is the larger of the two: the longest gap of its window. The tracer belongs to the whole
 * machine and keeps interrupts off for half of the time, so it is only started where pinload is the
 * init. Where it is not available the output is {"probe":"hwlat","absent":"why"}.
 * https://docs.kernel.org/trace/hwlat_detector.html
 */
#include "hwlat.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "args.h"
#include "json.h"

#define TRACING "/sys/kernel/tracing"
/* The list of modules of a measurement guest. */
#define OWN_GUEST "/pinload/modules.list"
#define VALUES "inner/outer(us):"
#define COUNT "count:"

struct hwlat {
    uint64_t max_samples;
    uint64_t *samples;
    uint64_t count;
    uint64_t dropped;
    uint64_t gaps; /* all above the threshold, where the kernel counts them (since 5.9) */
};

static bool write_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, TRACING "/%s", name);
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) {
        complain_errno("cannot open %s", path);
        return false;
    }
    const size_t length = strlen(text);
    const bool good = write(file, text, length) == (ssize_t)length;
    if (!good)
        complain_errno("cannot write %s to %s", text, path);
    close(file);
    return good;
}

static bool write_number(const char *name, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return write_text(name, text);
}

/* Why the tracer is not available; NULL if it is. */
static const char *absent(void)
{
    if (access(OWN_GUEST, F_OK) != 0)
        return "the hwlat tracer stops the whole machine: it is only started in a measurement guest";
    if (access(TRACING "/available_tracers", F_OK) != 0 &&
        mount("tracefs", TRACING, "tracefs", MS_NOSUID, NULL) != 0 && errno != EBUSY)
        return "this guest's kernel has no tracefs (CONFIG_TRACING)";
    char names[1024] = "";
    FILE *file = fopen(TRACING "/available_tracers", "re");
    if (file) {
        if (!fgets(names, sizeof names, file))
            names[0] = 0;
        fclose(file);
    }
    char *rest = names;
    for (const char *name; (name = strsep(&rest, " \n"));)
        if (!strcmp(name, "hwlat"))
            return NULL;
    return "this guest's kernel has no hwlat tracer (CONFIG_HWLAT_TRACER)";
}

static void take_line(struct hwlat *all, const char *line)
{
    const char *values = strstr(line, VALUES);
    if (!values)
        return;
    char *end;
    const uint64_t inner = strtoull(values + strlen(VALUES), &end, 10);
    const uint64_t outer = *end == '/' ? strtoull(end + 1, NULL, 10) : 0;
    const char *count = strstr(end, COUNT);
    all->gaps += count ? strtoull(count + strlen(COUNT), NULL, 10) : 1;
    if (all->count < all->max_samples)
        all->samples[all->count++] = (inner > outer ? inner : outer) * NS_PER_US;
    else
        all->dropped++;
}

/* Takes the lines of the tracer until `end`; an incomplete last one stays in the buffer. */
static bool collect(struct hwlat *all, int pipe, uint64_t end)
{
    static char buffer[65536];
    size_t held = 0;
    for (uint64_t now = monotonic_ns(); now < end; now = monotonic_ns()) {
        struct pollfd event = {.fd = pipe, .events = POLLIN};
        const uint64_t rest_ms = (end - now) / NS_PER_MS + 1;
        if (poll(&event, 1, rest_ms > 100 ? 100 : (int)rest_ms) < 0 && errno != EINTR)
            return false;
        const ssize_t got = read(pipe, buffer + held, sizeof buffer - 1 - held);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        held += got > 0 ? (size_t)got : 0;
        buffer[held] = 0;
        char *line = buffer;
        for (char *stop; (stop = strchr(line, '\n')); line = stop + 1) {
            *stop = 0;
            take_line(all, line);
        }
        held = strlen(line);
        memmove(buffer, line, held + 1);
        if (held == sizeof buffer - 1) /* no line of the tracer */
            held = 0;
    }
    return true;
}

/* The window must never be shorter than the width. */
static bool set_up(uint64_t window_us, uint64_t threshold_us)
{
    return write_text("current_tracer", "nop") && write_text("trace", "\n") &&
           write_text("tracing_on", "1") && write_number("tracing_thresh", threshold_us) &&
           write_number("hwlat_detector/width", 1) &&
           write_number("hwlat_detector/window", window_us) &&
           write_number("hwlat_detector/width", window_us / 2);
}

/* The kernel changes the tracer only while trace_pipe is not open. */
static bool run(struct hwlat *all, uint64_t duration_ns)
{
    if (!write_text("current_tracer", "hwlat"))
        return false;
    const int pipe = open(TRACING "/trace_pipe", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool good = pipe >= 0 && collect(all, pipe, monotonic_ns() + duration_ns);
    /* Lines that were written meanwhile. */
    good = good && write_text("tracing_on", "0") &&
           collect(all, pipe, monotonic_ns() + 20 * NS_PER_MS);
    if (!good)
        complain_errno("cannot read %s", TRACING "/trace_pipe");
    if (pipe >= 0)
        close(pipe);
    return write_text("current_tracer", "nop") && good;
}

int hwlat_main(int argc, char **argv)
{
    struct hwlat all = {.max_samples = 100000};
    uint64_t duration_ns = 0, threshold_us = 10, window_ms = 1000;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S, REQUIRED,
         "how long to measure"},
        {"--threshold-us", ARGUMENT_INTEGER, &threshold_us, 1, 1000000, OPTIONAL,
         "gaps below this are not recorded (10)"},
        {"--window-ms", ARGUMENT_INTEGER, &window_ms, 2, 10000, OPTIONAL,
         "the tracer spins for half of this, with interrupts off (1000)"},
        {"--max-samples", ARGUMENT_INTEGER, &all.max_samples, 1, 10000000, OPTIONAL,
         "memory for samples (100000)"},
    };
    const enum parse_result parsed =
        arguments_parse(argc, argv, table, sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    const char *why = absent();
    if (why) {
        fputs("{\"probe\":\"hwlat\",\"absent\":", stdout);
        json_text(stdout, why);
        fputs("}\n", stdout);
        return output_end();
    }
    all.samples = calloc(all.max_samples, sizeof *all.samples);
    if (!all.samples || !set_up(window_ms * 1000, threshold_us) || !run(&all, duration_ns)) {
        free(all.samples);
        return PINLOAD_FAILED;
    }
    printf("{\"probe\":\"hwlat\",\"unit\":\"ns\",\"observed_ns\":%" PRIu64
           ",\"window_ns\":%" PRIu64 ",\"threshold_ns\":%" PRIu64 ",\"gaps\":%" PRIu64
           ",\"dropped\":%" PRIu64 ",\"samples\":[",
           duration_ns, (uint64_t)(window_ms * NS_PER_MS), (uint64_t)(threshold_us * NS_PER_US),
           all.gaps, all.dropped);
    for (uint64_t i = 0; i < all.count; i++)
        printf("%s%" PRIu64, i ? "," : "", all.samples[i]);
    puts("]}");
    free(all.samples);
    return output_end();
}

/*
 * I/O latency: random reads of one block, one at a time, each one's duration raw.
 *
 * The loop is closed (the next read starts when the last has ended), so a stall
 * is one long sample; the observation time tells how much room it took.
 */
#include "io_latency.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "disk.h"
#include "json.h"
#include "sampler.h"

struct io_settings {
    const char *path;
    uint64_t block;
    uint64_t seed;
    bool direct;
};

static bool prepare(struct observation *o)
{
    const struct io_settings *settings = o->sampler->settings;
    struct disk *disk = malloc(sizeof *disk);
    if (!disk) {
        observation_broke(o, "taking memory", ENOMEM);
        return false;
    }
    o->own = disk;
    const int error = disk_open(disk, settings->path, settings->block, settings->direct,
                                settings->seed);
    if (error) {
        observation_broke(o,
                          error == ENOSPC ? "the device or file is smaller than one block"
                                          : "opening the device or file",
                          error);
        return false;
    }
    o->buffered = !disk->direct;
    return true;
}

static void measure(struct observation *o)
{
    struct disk *disk = o->own;
    const struct tick_clock *clock = &o->sampler->clock;
    const uint64_t length = rough_ticks(clock, o->sampler->duration_ns);
    const uint64_t begin = read_ticks(clock->hardware);
    uint64_t before = begin;
    while (before - begin < length) {
        const int error = disk_read(disk);
        const uint64_t now = read_ticks(clock->hardware);
        if (error) {
            observation_broke(o, "reading a block", error);
            break;
        }
        if (now < before)
            o->backwards = true; /* the thread is on a CPU whose counter is behind: no duration */
        else
            keep_sample(o, (union sample){.ticks = now - before});
        o->rounds++;
        before = read_ticks(clock->hardware);
    }
    o->observed = before - begin;
    disk_close(disk);
}

static void extra(FILE *out, const struct observation *o)
{
    const struct io_settings *settings = o->sampler->settings;
    fputs("\"path\":", out);
    json_text(out, settings->path);
    fprintf(out, ",\"block\":%" PRIu64 ",\"reads\":%" PRIu64 ",\"seed\":%" PRIu64 ",",
            settings->block, o->rounds, settings->seed);
}

static bool settings_fit(struct io_settings *settings, const char *device, const char *file,
                         const struct sampler *sampler)
{
    if (!device == !file) {
        complain("--device, --file: exactly one of them is required");
        return false;
    }
    settings->path = device ? device : file;
    if (settings->block % 512 != 0) {
        complain("--block: %" PRIu64 " is not a multiple of 512", settings->block);
        return false;
    }
    if (sampler->cpus.count > 1) {
        complain("--cpus: reads come from one thread, name one CPU");
        return false;
    }
    return true;
}

int io_latency_main(int argc, char **argv)
{
    struct io_settings settings = {.block = 4096, .seed = 1};
    struct sampler sampler = {
        .probe = "io-latency",
        .in_ticks = true,
        .max_samples = 200000,
        .prepare = prepare,
        .measure = measure,
        .extra = extra,
        .settings = &settings,
    };
    const char *device = NULL, *file = NULL;
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &sampler.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         REQUIRED, "how long to measure"},
        {"--device", ARGUMENT_TEXT, &device, 0, 0, OPTIONAL, "block device to read"},
        {"--file", ARGUMENT_TEXT, &file, 0, 0, OPTIONAL, "file to read instead"},
        {"--block", ARGUMENT_INTEGER, &settings.block, 512, 1 << 20, OPTIONAL,
         "bytes per read (4096)"},
        {"--direct", ARGUMENT_FLAG, &settings.direct, 0, 0, OPTIONAL,
         "go past the page cache where that is possible"},
        {"--seed", ARGUMENT_INTEGER, &settings.seed, 0, UINT64_MAX, OPTIONAL,
         "of the sequence of places (1)"},
        {"--cpus", ARGUMENT_CPUS, &sampler.cpus, 0, 0, OPTIONAL, "CPU to read from (any)"},
        {"--policy", ARGUMENT_POLICY, &sampler.policy, 0, 0, OPTIONAL, "other (default) or fifo:N"},
        {"--max-samples", ARGUMENT_INTEGER, &sampler.max_samples, 1, 10000000, OPTIONAL,
         "memory for samples (200000)"},
        {"--supervised", ARGUMENT_FLAG, &sampler.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    if (!settings_fit(&settings, device, file, &sampler))
        return PINLOAD_USAGE;
    return sampler_run(&sampler);
}

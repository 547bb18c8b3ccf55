/*
 * The common course of all benchmarks. See sampler.h.
 */
#include "sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "json.h"
#include "steal.h"
#include "supervise.h"

static pthread_barrier_t ready, gate, end;
static uint64_t start_ns; /* written between `ready` and `gate` */

/* Keeps a sample; false if it is the one that is lost, else its index in `place`. */
static bool place_sample(struct observation *o, union sample sample, size_t *place)
{
    const bool is_worst = !o->sampler->is_rate &&
                          (o->count == 0 || sample.ns > o->samples[o->worst].ns);
    if (o->count < o->sampler->max_samples) {
        *place = o->count++;
        if (is_worst)
            o->worst = *place;
    } else {
        o->dropped++;
        if (!is_worst)
            return false;
        *place = o->worst; /* the smaller of the two is the one that is lost */
    }
    o->samples[*place] = sample;
    return true;
}

void keep_sample(struct observation *o, union sample sample)
{
    size_t place;
    place_sample(o, sample, &place);
}

void keep_gap(struct observation *o, uint64_t ticks, uint64_t begin_ns)
{
    size_t place;
    if (place_sample(o, (union sample){.ticks = ticks}, &place))
        o->begins[place] = begin_ns;
}

void keep_window(struct observation *o, double rate, struct quiet *quiet)
{
    const size_t place = o->count;
    const bool is_disturbed = quiet_ended(quiet);
    keep_sample(o, (union sample){.rate = rate});
    if (o->count == place || !is_disturbed)
        return;
    o->disturbed[place] = 1;
    o->stolen_windows += quiet->was_stolen;
}

void observation_broke(struct observation *o, const char *at, int error)
{
    o->broken = true;
    o->broken_at = at;
    o->error = error;
}

static bool take_memory(struct observation *o)
{
    const size_t bytes = (size_t)o->sampler->max_samples * sizeof *o->samples;
    o->samples = malloc(bytes);
    if (!o->samples) {
        observation_broke(o, "taking the memory for samples", ENOMEM);
        return false;
    }
    memset(o->samples, 0xA5, bytes); /* first touch on this thread's CPU */
    o->unlocked = mlock(o->samples, bytes) != 0;
    if (o->sampler->keeps_begins) {
        const size_t of_begins = (size_t)o->sampler->max_samples * sizeof *o->begins;
        o->begins = malloc(of_begins);
        if (!o->begins) {
            observation_broke(o, "taking the memory for begins", ENOMEM);
            return false;
        }
        memset(o->begins, 0xA5, of_begins);
        o->unlocked |= mlock(o->begins, of_begins) != 0;
    }
    if (!o->sampler->is_rate)
        return true;
    o->disturbed = malloc((size_t)o->sampler->max_samples);
    if (!o->disturbed) {
        observation_broke(o, "taking the memory for marks", ENOMEM);
        return false;
    }
    memset(o->disturbed, 0, (size_t)o->sampler->max_samples);
    return true;
}

static void settle(struct observation *o)
{
    if (o->cpu >= 0 && !thread_pin(o->cpu)) {
        observation_broke(o, "pinning the thread", errno);
        return;
    }
    if (!take_memory(o))
        return;
    if (o->sampler->prepare && !o->sampler->prepare(o))
        return;
    if (!thread_enter_policy(&o->sampler->policy))
        o->fifo_refused = true; /* goes on at normal priority, and says so */
    o->ran_on = sched_getcpu();
}

static void observe(struct observation *o)
{
    struct rusage before, after;
    const struct policy normal = {.fifo = false, .priority = 0};
    o->start_ns = start_ns;
    sleep_until(start_ns);
    const uint64_t stolen = o->cpu >= 0 ? stolen_ticks(o->cpu) : STEAL_UNKNOWN;
    getrusage(RUSAGE_THREAD, &before);
    o->started_raw_ns = raw_ns();
    o->sampler->measure(o);
    o->ended_raw_ns = raw_ns();
    getrusage(RUSAGE_THREAD, &after);
    if (o->cpu >= 0) {
        o->stolen = stolen_between(stolen, stolen_ticks(o->cpu));
        o->steal_unknown = stolen == STEAL_UNKNOWN;
    }
    o->voluntary = after.ru_nvcsw - before.ru_nvcsw;
    o->involuntary = after.ru_nivcsw - before.ru_nivcsw;
    if (sched_getcpu() != o->ran_on)
        o->migrated = true;
    if (o->sampler->policy.fifo && !o->fifo_refused && !thread_enter_policy(&normal))
        observation_broke(o, "leaving the real-time policy", errno);
}

static void *sampler_thread(void *argument)
{
    struct observation *o = argument;
    settle(o);
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&gate);
    if (!o->broken)
        observe(o);
    pthread_barrier_wait(&end);
    return NULL;
}

static void finish_rates(struct observation *o, double ticks_per_ns)
{
    for (size_t i = 0; i < o->count; i++)
        o->samples[i].rate *= ticks_per_ns * 1e9;
}

/* Rounds gaps down and observed time up, so that the sum of gaps stays below it. */
static void finish_durations(struct observation *o, double ticks_per_ns)
{
    size_t kept = 0;
    for (size_t i = 0; i < o->count; i++) {
        const uint64_t ns = (uint64_t)((double)o->samples[i].ticks / ticks_per_ns);
        if (ns < o->floor_ns) /* the rough rate let it pass, and the final one does not */
            continue;
        if (o->begins)
            o->begins[kept] = o->begins[i];
        o->samples[kept++].ns = ns;
    }
    o->count = kept;
}

/* Turns ticks into nanoseconds, now that the rate of the clock is known. */
static void finish(struct observation *o)
{
    const double ticks_per_ns = o->sampler->clock.ticks_per_ns;
    if (!o->sampler->in_ticks)
        return;
    o->observed = (uint64_t)((double)o->observed / ticks_per_ns) + 1;
    if (o->sampler->is_rate)
        finish_rates(o, ticks_per_ns);
    else
        finish_durations(o, ticks_per_ns);
}

static void print_flags(FILE *out, const struct observation *o)
{
    const struct {
        bool set;
        const char *name;
    } flags[] = {
        {o->fifo_refused, "fifo-refused"}, {o->migrated, "migrated"},
        {o->unlocked, "not-locked"},       {o->floor_raised, "floor-raised"},
        {o->backwards, "clock-backwards"}, {o->sampler->clock.drifted, "clock-drifted"},
        {o->buffered, "buffered"},         {o->sampler->kept_awake, "dma-latency-0"},
        {o->sampler->no_deep_sleep && !o->sampler->kept_awake, "dma-latency-refused"},
        {o->steal_unknown, "steal-unknown"},
    };
    const char *separator = "";
    fputs("\"flags\":[", out);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (flags[i].set) {
            fprintf(out, "%s\"%s\"", separator, flags[i].name);
            separator = ",";
        }
    }
    const struct {
        uint64_t number;
        const char *name;
    } counts[] = {
        {(uint64_t)o->involuntary, "preempted"},
        {o->stolen, "stolen"},
        {o->stolen_windows, "stolen-windows"},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].number > 0) {
            fprintf(out, "%s\"%s %" PRIu64 "\"", separator, counts[i].name, counts[i].number);
            separator = ",";
        }
    }
    fputs("]", out);
}

/* Indexes of the windows in which the thread lost its CPU. */
static void print_disturbed(FILE *out, const struct observation *o)
{
    const char *separator = "";
    fputs("\"disturbed\":[", out);
    for (size_t i = 0; i < o->count; i++) {
        if (o->disturbed[i]) {
            fprintf(out, "%s%zu", separator, i);
            separator = ",";
        }
    }
    fputs("],", out);
}

static bool print_samples(FILE *out, const struct observation *o)
{
    bool finite = true;
    fputs("\"samples\":[", out);
    for (size_t i = 0; i < o->count; i++) {
        if (i > 0)
            fputc(',', out);
        if (o->sampler->is_rate)
            finite = json_rate(out, o->samples[i].rate) && finite;
        else
            fprintf(out, "%" PRIu64, o->samples[i].ns);
    }
    fputs("]", out);
    return finite;
}

static bool print_observation(FILE *out, const struct observation *o)
{
    const struct sampler *sampler = o->sampler;
    const uint64_t duration = o->ended_raw_ns - o->started_raw_ns;
    char policy[16];
    policy_text(&sampler->policy, policy, sizeof policy);
    fputs("{\"probe\":", out);
    json_text(out, sampler->probe);
    fprintf(out, ",\"cpu\":%d,\"duration_ns\":%" PRIu64 ",\"observed_ns\":%" PRIu64,
            o->cpu >= 0 ? o->cpu : o->ran_on, duration > o->observed ? duration : o->observed,
            o->observed);
    fprintf(out, ",\"unit\":\"%s\",\"floor_ns\":%" PRIu64 ",\"dropped\":%" PRIu64,
            sampler->is_rate ? "per-second" : "ns", o->floor_ns, o->dropped);
    fprintf(out, ",\"clock\":\"%s\",\"policy\":\"%s\"",
            sampler->in_ticks ? sampler->clock.name : "monotonic", policy);
    fprintf(out, ",\"voluntary_switches\":%ld,\"involuntary_switches\":%ld,", o->voluntary,
            o->involuntary);
    if (sampler->extra)
        sampler->extra(out, o);
    if (o->disturbed)
        print_disturbed(out, o);
    print_flags(out, o);
    fputc(',', out);
    const bool finite = print_samples(out, o);
    fputs("}\n", out);
    return finite;
}

static bool report(const struct observation *observations, size_t count)
{
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        const struct observation *o = &observations[i];
        if (o->broken) {
            complain("CPU %d: %s: %s", o->cpu, o->broken_at,
                     o->error ? strerror(o->error) : "wrong result");
            good = false;
        } else if (!print_observation(stdout, o)) {
            complain("CPU %d: a sample is not a finite number", o->cpu);
            good = false;
        }
    }
    if (fflush(stdout) != 0) {
        complain_errno("cannot write the samples");
        good = false;
    }
    return good;
}

static bool start_threads(struct sampler *sampler, struct observation *observations, size_t count)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    for (size_t i = 0; i < count; i++) {
        struct observation *o = &observations[i];
        o->sampler = sampler;
        o->cpu = sampler->cpus.count ? sampler->cpus.cpus[i] : -1;
        const int error = pthread_create(&o->thread, &attributes, sampler_thread, o);
        if (error) {
            complain("cannot start a thread: %s", strerror(error));
            return false; /* the caller exits, which ends the threads at the gate */
        }
    }
    pthread_attr_destroy(&attributes);
    return true;
}

static void lock_program(struct observation *observations, size_t count)
{
    if (mlockall(MCL_CURRENT) == 0)
        return;
    for (size_t i = 0; i < count; i++)
        observations[i].unlocked = true;
}

static bool guard_run(const struct sampler *sampler)
{
    return supervise_measurement(measurement_limit_ns(sampler->duration_ns), sampler->supervised,
                                 sampler->policy.priority);
}

/* The request holds while the file is open; -1 where the kernel takes none. */
static int stay_awake(struct sampler *sampler)
{
    const int32_t none = 0; /* microseconds */
    const int file = sampler->no_deep_sleep ? open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC) : -1;
    sampler->kept_awake = file >= 0 && write(file, &none, sizeof none) == (ssize_t)sizeof none;
    return file;
}

int sampler_run(struct sampler *sampler)
{
    const size_t count = sampler->cpus.count ? sampler->cpus.count : 1;
    struct observation *observations = calloc(count, sizeof *observations);
    if (!observations || !guard_run(sampler)) {
        free(observations);
        return PINLOAD_FAILED;
    }
    pthread_barrier_init(&ready, NULL, (unsigned)count + 1);
    pthread_barrier_init(&gate, NULL, (unsigned)count + 1);
    pthread_barrier_init(&end, NULL, (unsigned)count + 1);
    const int awake = stay_awake(sampler);
    tick_clock_open(&sampler->clock);
    if (!start_threads(sampler, observations, count))
        exit(PINLOAD_FAILED);
    pthread_barrier_wait(&ready);
    lock_program(observations, count);
    start_ns = monotonic_ns() + 2 * NS_PER_MS;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&end);
    tick_clock_close(&sampler->clock);
    if (awake >= 0)
        close(awake);
    for (size_t i = 0; i < count; i++) {
        pthread_join(observations[i].thread, NULL);
        finish(&observations[i]);
    }
    const bool good = report(observations, count);
    for (size_t i = 0; i < count; i++) {
        free(observations[i].samples);
        free(observations[i].begins);
        free(observations[i].disturbed);
        free(observations[i].own);
    }
    free(observations);
    free(sampler->cpus.cpus);
    return good ? PINLOAD_OK : PINLOAD_FAILED;
}

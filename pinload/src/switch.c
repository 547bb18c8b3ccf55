/*
 * Context switch: N processes in a ring of pipes hand a token on; each sums its own K KiB
 * before it does.
 *
 * A step of the ring is a write, a switch, a read and the refill of the caches that the other
 * processes have emptied. What of it is not the switch is measured by itself: one process sends
 * the token through the same pipes and sums its K KiB, which stay in its caches. Three figures
 * per ring tell them apart by their label `part`: raw, overhead, and net = raw less the median
 * overhead; a fourth, `hop`, is every single step. Net can come out below zero, where the
 * switch is less than the noise of the overhead: that is said and not hidden.
 *
 * The token carries the time at which it was sent, so that one reading of the clock per step
 * gives all of it. No window is left out: a wake-up may preempt the writer, which is part
 * of what is measured. Under FIFO the ring rests for a quarter of the time, else the
 * scheduler's safety valve would be measured.
 */
#include "switch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "args.h"
#include "clock.h"
#include "worker_pool.h"
#include "figure.h"
#include "memory.h"
#include "rt.h"
#include "supervise.h"

enum { PROCESS_LIMIT = 512 };

enum placement { ONE_PU, UNIQUE, BALANCED, PLACEMENTS };

static const char *const placements[PLACEMENTS] = {"one-pu", "unique", "balanced"};

struct settings {
    struct integer_list processes, kib;
    const char *placement_text;
    size_t placement;
    struct cpu_list cpus;
    struct policy policy;
    uint64_t duration_ns;
    uint64_t window_us;
    uint64_t max_samples; /* steps kept, of all processes of a ring */
    bool supervised;
    struct tick_clock clock;
};

struct token {
    uint64_t sent; /* ticks */
    uint64_t last; /* not zero: nobody waits for another */
};

/* What one process of the ring leaves behind. */
struct member {
    uint64_t count, dropped, backwards, worst;
    bool fifo_refused;
    bool wrong_sum;
    int error; /* errno */
    const char *error_at;
};

/* One ring, in memory that all see. */
struct ring {
    const struct settings *settings;
    size_t processes;
    uint64_t kib;
    size_t hop_limit; /* of each member */
    size_t window_limit;
    int (*pipes)[2]; /* [i]: from i to its right neighbour */
    struct gate gate;
    uint64_t windows, dropped_windows;
    uint64_t elapsed; /* ticks */
    struct member *members;
    uint64_t *hops;  /* [process][hop_limit] */
    double *samples; /* ticks per step, of windows */
};

/* Own memory of a process: K KiB whose sum is known. */
struct block {
    uint64_t *words;
    size_t count;
};

static bool block_open(struct block *block, uint64_t kib)
{
    *block = (struct block){.count = (size_t)kib * 1024 / sizeof *block->words};
    if (block->count == 0)
        return true;
    void *memory = mmap(NULL, (size_t)kib * 1024, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    block->words = memory;
    for (size_t i = 0; i < block->count; i++)
        block->words[i] = i;
    return true;
}

/* Whether the sum is right. */
static bool block_sum(const struct block *block)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < block->count; i++) {
        sum += block->words[i];
        __asm__ volatile("" : "+r"(sum)); /* each word is read, each time */
    }
    return block->count == 0 || sum == (uint64_t)block->count * (block->count - 1) / 2;
}

static int own_cpu(const struct settings *settings, size_t index)
{
    return settings->placement == ONE_PU
               ? settings->cpus.cpus[0]
               : settings->cpus.cpus[index % settings->cpus.count];
}

static bool receive(int from, struct token *token)
{
    ssize_t length;
    do
        length = read(from, token, sizeof *token);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof *token;
}

static bool hand_on(int to, const struct token *token)
{
    ssize_t length;
    do
        length = write(to, token, sizeof *token);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof *token;
}

/* Keeps a step; the worst is kept even when the memory is full. */
static void keep_hop(struct member *member, uint64_t *hops, size_t limit, uint64_t hop)
{
    if (member->count < limit) {
        if (member->count == 0 || hop > hops[member->worst])
            member->worst = member->count;
        hops[member->count++] = hop;
        return;
    }
    member->dropped++;
    if (hop > hops[member->worst])
        hops[member->worst] = hop;
}

/* Stamps the token, and keeps the step that this ends. */
static void step(const struct ring *ring, size_t index, struct token *token)
{
    struct member *member = &ring->members[index];
    const uint64_t now = read_ticks(ring->settings->clock.hardware);
    if (now >= token->sent)
        keep_hop(member, ring->hops + index * ring->hop_limit, ring->hop_limit, now - token->sent);
    else
        member->backwards++; /* the counters of two CPUs differ */
    token->sent = now;
}

static bool lost(struct member *member, const char *at)
{
    member->error = errno;
    member->error_at = at;
    return false;
}

static bool settle(struct ring *ring, size_t index, struct block *block)
{
    struct member *member = &ring->members[index];
    if (!thread_pin(own_cpu(ring->settings, index)))
        return lost(member, "pinning");
    if (!block_open(block, ring->kib))
        return lost(member, "taking its memory");
    memset(ring->hops + index * ring->hop_limit, 0xA5, ring->hop_limit * sizeof *ring->hops);
    if (!thread_enter_policy(&ring->settings->policy))
        member->fifo_refused = true; /* goes on at normal priority, and says so */
    return true;
}

/* How the first process cuts time into windows. */
struct course {
    uint64_t begin, window_begin, rounds;
};

static struct course course_begin(struct token *token, bool hardware)
{
    token->sent = read_ticks(hardware);
    return (struct course){.begin = token->sent, .window_begin = token->sent};
}

/* Counts a round that ended when the token was stamped; whether another is due. */
static bool course_goes_on(struct ring *ring, struct course *course, struct token *token)
{
    const struct settings *settings = ring->settings;
    const struct tick_clock *clock = &settings->clock;
    const uint64_t elapsed = token->sent - course->window_begin;
    course->rounds++;
    if (elapsed < rough_ticks(clock, settings->window_us * NS_PER_US))
        return true;
    if (ring->windows < ring->window_limit)
        ring->samples[ring->windows++] =
            (double)elapsed / ((double)course->rounds * (double)ring->processes);
    else
        ring->dropped_windows++;
    ring->elapsed = token->sent - course->begin;
    if (settings->policy.fifo) {
        sleep_until(monotonic_ns() + settings->window_us * NS_PER_US / 3);
        token->sent = read_ticks(clock->hardware);
    }
    course->window_begin = token->sent;
    course->rounds = 0;
    return ring->elapsed < rough_ticks(clock, settings->duration_ns);
}

/* The first process: sends the token round. */
static bool lead(struct ring *ring, const struct block *block, int from, int to)
{
    struct token token = {0};
    struct course course = course_begin(&token, ring->settings->clock.hardware);
    bool good = true;
    do {
        if (!hand_on(to, &token) || !receive(from, &token))
            return lost(&ring->members[0], "handing on the token");
        good = block_sum(block) && good;
        step(ring, 0, &token);
    } while (course_goes_on(ring, &course, &token));
    ring->members[0].wrong_sum = !good;
    token.last = 1;
    return (hand_on(to, &token) && receive(from, &token)) ||
           lost(&ring->members[0], "ending the ring");
}

static bool follow(struct ring *ring, size_t index, const struct block *block, int from, int to)
{
    struct token token;
    bool good = true;
    do {
        if (!receive(from, &token))
            return lost(&ring->members[index], "waiting for the token");
        if (!token.last) {
            good = block_sum(block) && good;
            step(ring, index, &token);
        }
        if (!hand_on(to, &token))
            return lost(&ring->members[index], "handing on the token");
    } while (!token.last);
    ring->members[index].wrong_sum = !good;
    return true;
}

/* One process of the ring. A process that fails must not leave the others waiting. */
static void live(void *shared, size_t index)
{
    struct ring *ring = shared;
    struct block block;
    const int from = ring->pipes[(index + ring->processes - 1) % ring->processes][0];
    const int to = ring->pipes[index][1];
    const bool settled = settle(ring, index, &block);
    if (!settled)
        _exit(PINLOAD_FAILED);
    sleep_until(gate_pass(&ring->gate));
    const bool good = index == 0 ? lead(ring, &block, from, to)
                                 : follow(ring, index, &block, from, to);
    if (!good)
        _exit(PINLOAD_FAILED);
}

/* One process alone: every pipe of the ring in turn, and its memory stays in the caches. */
static void live_alone(void *shared, size_t index)
{
    struct ring *ring = shared;
    const bool hardware = ring->settings->clock.hardware;
    struct block block;
    struct token token = {0};
    if (!settle(ring, index, &block))
        _exit(PINLOAD_FAILED);
    struct course course = course_begin(&token, hardware);
    bool good = true;
    do {
        for (size_t i = 0; i < ring->processes; i++) {
            if (!hand_on(ring->pipes[i][1], &token) || !receive(ring->pipes[i][0], &token)) {
                lost(&ring->members[index], "handing on the token");
                _exit(PINLOAD_FAILED);
            }
            good = block_sum(&block) && good;
            token.sent = read_ticks(hardware);
        }
    } while (course_goes_on(ring, &course, &token));
    ring->members[index].wrong_sum = !good;
}

static void close_pipes(struct ring *ring, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        close(ring->pipes[i][0]);
        close(ring->pipes[i][1]);
    }
}

static bool open_pipes(struct ring *ring)
{
    for (size_t i = 0; i < ring->processes; i++) {
        if (pipe2(ring->pipes[i], O_CLOEXEC) != 0) {
            complain_errno("--processes: cannot make pipe %zu of %zu (the limit of open files is "
                           "ulimit -n)",
                           i + 1, ring->processes);
            close_pipes(ring, i);
            return false;
        }
    }
    return true;
}

/* Why a member failed; the pool has said only that it did. */
static bool members_are_good(const struct ring *ring)
{
    bool good = true;
    for (size_t i = 0; i < ring->processes; i++) {
        const struct member *member = &ring->members[i];
        if (member->error_at) {
            complain("process %zu: %s: %s", i, member->error_at, strerror(member->error));
            good = false;
        } else if (member->wrong_sum) {
            complain("process %zu: wrong sum of its memory", i);
            good = false;
        }
    }
    return good;
}

static void describe(const struct ring *ring, struct figure *figure, const char *part)
{
    const struct settings *settings = ring->settings;
    char policy[16];
    size_t refused = 0;
    uint64_t backwards = 0;
    policy_text(&settings->policy, policy, sizeof policy);
    figure_label(figure, "processes", "%zu", ring->processes);
    figure_label(figure, "kib", "%" PRIu64, ring->kib);
    figure_label(figure, "part", "%s", part);
    figure_label(figure, "placement", "%s", placements[settings->placement]);
    figure_label(figure, "policy", "%s", policy);
    for (size_t i = 0; i < ring->processes; i++) {
        refused += ring->members[i].fifo_refused;
        backwards += ring->members[i].backwards;
    }
    if (refused)
        figure_flag(figure, "fifo-refused");
    if (backwards)
        figure_flag(figure, "clock-backwards %" PRIu64, backwards);
    if (settings->clock.drifted)
        figure_flag(figure, "clock-drifted");
}

static struct figure of_windows(const struct ring *ring, const char *part, double *ns)
{
    const double ticks_per_ns = ring->settings->clock.ticks_per_ns;
    struct figure figure = {
        .probe = "context-switch",
        .unit = "ns",
        .family = FIGURE_CAPACITY,
        .cpu = ring->settings->placement == ONE_PU ? ring->settings->cpus.cpus[0] : -1,
        .duration_ns = (uint64_t)((double)ring->elapsed / ticks_per_ns),
        .samples = ns,
        .count = ring->windows,
        .dropped = ring->dropped_windows,
    };
    for (size_t i = 0; i < ring->windows; i++)
        ns[i] = ring->samples[i] / ticks_per_ns;
    describe(ring, &figure, part);
    return figure;
}

static bool print_hops(const struct ring *ring, double *ns)
{
    const double ticks_per_ns = ring->settings->clock.ticks_per_ns;
    struct figure figure = {
        .probe = "context-switch",
        .unit = "ns",
        .family = FIGURE_TAIL,
        .cpu = ring->settings->placement == ONE_PU ? ring->settings->cpus.cpus[0] : -1,
        .duration_ns = (uint64_t)((double)ring->elapsed / ticks_per_ns),
        .samples = ns,
    };
    for (size_t i = 0; i < ring->processes; i++) {
        const struct member *member = &ring->members[i];
        for (size_t hop = 0; hop < member->count; hop++)
            ns[figure.count++] = (double)ring->hops[i * ring->hop_limit + hop] / ticks_per_ns;
        figure.dropped += member->dropped + member->backwards;
    }
    describe(ring, &figure, "hop");
    return figure_print(stdout, &figure);
}

/* All that a ring has in memory that its processes share, in one piece. */
static bool ring_memory(struct ring **ring, const struct settings *settings, size_t processes,
                        uint64_t kib)
{
    const size_t hop_limit = settings->max_samples / processes + 1;
    const size_t window_limit =
        (size_t)(settings->duration_ns / (settings->window_us * NS_PER_US)) + 16;
    const size_t members = sizeof **ring, pipes = members + processes * sizeof *(*ring)->members,
                 hops = pipes + processes * sizeof *(*ring)->pipes,
                 samples = hops + processes * hop_limit * sizeof *(*ring)->hops,
                 all = samples + window_limit * sizeof *(*ring)->samples;
    char *memory = worker_pool_memory(all);
    if (!memory)
        return false;
    *ring = (struct ring *)(void *)memory;
    **ring = (struct ring){
        .settings = settings,
        .processes = processes,
        .kib = kib,
        .hop_limit = hop_limit,
        .window_limit = window_limit,
        .members = (void *)(memory + members),
        .pipes = (void *)(memory + pipes),
        .hops = (void *)(memory + hops),
        .samples = (void *)(memory + samples),
    };
    return true;
}

static size_t ring_bytes(const struct ring *ring)
{
    return (size_t)((char *)(ring->samples + ring->window_limit) - (const char *)ring);
}

/* Runs the ring, or one process alone through its pipes. */
static bool turn(struct ring *ring, bool alone)
{
    ring->windows = ring->dropped_windows = 0;
    memset(ring->members, 0, ring->processes * sizeof *ring->members);
    gate_prepare(&ring->gate, ring->processes);
    if (!open_pipes(ring))
        return false;
    const bool good = worker_pool_run(WORKER_POOL_PROCESSES, alone ? 1 : ring->processes,
                               alone ? live_alone : live, ring);
    close_pipes(ring, ring->processes);
    return members_are_good(ring) && good;
}

static bool print_windows(struct ring *alone, struct ring *ring)
{
    double *overhead = malloc((alone->windows + 2 * ring->windows + 1) * sizeof *overhead);
    if (!overhead) {
        complain("out of memory");
        return false;
    }
    double *raw = overhead + alone->windows, *net = raw + ring->windows;
    const struct figure overhead_figure = of_windows(alone, "overhead", overhead);
    const struct figure raw_figure = of_windows(ring, "raw", raw);
    struct figure net_figure = of_windows(ring, "net", net);
    const double middle = samples_median(overhead, alone->windows);
    size_t negative = 0;
    for (size_t i = 0; i < ring->windows; i++) {
        net[i] = raw[i] - middle;
        negative += net[i] < 0;
    }
    if (negative)
        figure_flag(&net_figure, "negative %zu", negative);
    const bool good = figure_print(stdout, &raw_figure) && figure_print(stdout, &overhead_figure) &&
                      figure_print(stdout, &net_figure);
    free(overhead);
    return good;
}

static bool measure(struct settings *settings, size_t processes, uint64_t kib)
{
    struct ring *alone, *ring;
    if (!ring_memory(&alone, settings, processes, kib) ||
        !ring_memory(&ring, settings, processes, kib))
        return false;
    tick_clock_open(&settings->clock);
    if (!turn(ring, false) || !turn(alone, true))
        return false;
    tick_clock_close(&settings->clock);
    double *hops = malloc((processes * ring->hop_limit + 1) * sizeof *hops);
    const bool good = hops && print_windows(alone, ring) && print_hops(ring, hops);
    if (!hops)
        complain("out of memory");
    free(hops);
    munmap(alone, ring_bytes(alone));
    munmap(ring, ring_bytes(ring));
    return good;
}

/* Whether the largest ring fits. */
static bool there_is_room(const struct settings *settings)
{
    uint64_t processes = 0, kib = 0;
    for (size_t i = 0; i < settings->processes.count; i++)
        processes = settings->processes.values[i] > processes ? settings->processes.values[i]
                                                              : processes;
    for (size_t i = 0; i < settings->kib.count; i++)
        kib = settings->kib.values[i] > kib ? settings->kib.values[i] : kib;
    const uint64_t available_kib = memory_available_kib();
    if (processes * kib <= available_kib)
        return true;
    complain("--kib: %" PRIu64 " processes of %" PRIu64 " KiB need %" PRIu64
             " MiB, and %" PRIu64 " MiB are available; use fewer or less",
             processes, kib, processes * kib / 1024, available_kib / 1024);
    return false;
}

/* Pipes need two descriptors for each process; as many as the system lets us have. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit); /* if not, a pipe that cannot be made says so */
    }
}

static int run(struct settings *settings)
{
    const uint64_t rings = settings->processes.count * settings->kib.count;
    if (!there_is_room(settings) ||
        !supervise_measurement(measurement_limit_ns(2 * rings * settings->duration_ns),
                               settings->supervised, settings->policy.priority))
        return PINLOAD_FAILED;
    raise_file_limit();
    for (size_t k = 0; k < settings->kib.count; k++)
        for (size_t n = 0; n < settings->processes.count; n++)
            if (!measure(settings, (size_t)settings->processes.values[n], settings->kib.values[k]))
                return PINLOAD_FAILED;
    free(settings->cpus.cpus);
    return output_end();
}

static bool check(struct settings *settings)
{
    if (!choose_word("--placement", settings->placement_text, placements, PLACEMENTS,
                     &settings->placement))
        return false;
    for (size_t n = 0; settings->placement == UNIQUE && n < settings->processes.count; n++) {
        if (settings->processes.values[n] > settings->cpus.count) {
            complain("--placement: unique needs a CPU for each of %" PRIu64
                     " processes, and --cpus has %zu; use balanced",
                     settings->processes.values[n], settings->cpus.count);
            return false;
        }
    }
    if (settings->window_us * NS_PER_US > settings->duration_ns) {
        complain("--window-us: the window is longer than --seconds");
        return false;
    }
    return true;
}

int switch_main(int argc, char **argv)
{
    struct settings settings = {
        .processes = {.count = 1, .values = {2}},
        .kib = {.count = 1, .values = {0}},
        .placement_text = "one-pu",
        .window_us = 2000,
        .max_samples = 200000,
    };
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &settings.duration_ns, 10 * NS_PER_MS, 3600 * NS_PER_S,
         REQUIRED, "how long to measure each ring, and again each overhead"},
        {"--cpus", ARGUMENT_CPUS, &settings.cpus, 0, 0, REQUIRED, "CPUs, or all"},
        {"--processes", ARGUMENT_LIST, &settings.processes, 2, PROCESS_LIMIT, OPTIONAL,
         "processes of a ring, such as 2,8,96 (2)"},
        {"--kib", ARGUMENT_LIST, &settings.kib, 0, 1048576, OPTIONAL,
         "KiB that each process sums, such as 0,4,16 (0)"},
        {"--placement", ARGUMENT_TEXT, &settings.placement_text, 0, 0, OPTIONAL,
         "one-pu (default): all on the first CPU; unique: one each; balanced: dealt out in turn"},
        {"--policy", ARGUMENT_POLICY, &settings.policy, 0, 0, OPTIONAL,
         "other (default) or fifo:N"},
        {"--window-us", ARGUMENT_INTEGER, &settings.window_us, 100, 1000000, OPTIONAL,
         "least length of a window (2000)"},
        {"--max-samples", ARGUMENT_INTEGER, &settings.max_samples, 1, 10000000, OPTIONAL,
         "memory for single steps, per ring (200000)"},
        {"--supervised", ARGUMENT_FLAG, &settings.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    return check(&settings) ? run(&settings) : PINLOAD_USAGE;
}

/*
 * Bytes per second through what the kernel offers between processes and to files that lie in
 * the page cache.
 *
 *   pipe, unix   another process writes, this one reads; nobody looks at the bytes
 *   file         read(2) of a file from begin to end, again and again, each word added up
 *   file-open    the same, and each pass opens and closes the file
 *   mmap         the file mapped once, each word added up
 *   mmap-open    each pass opens, maps, adds up, unmaps and closes: page faults are in it
 *
 * The sum of the words is known and is checked in each pass. Windows of the last four are left
 * out if the thread was preempted or moved; of the first two none is, because to be preempted
 * by the other process is part of it. A file of 8 MiB takes a millisecond: one larger than
 * the caches asks for longer windows, which are quiet less often. With --from and --to the last
 * four run for each size of a sweep, as lmbench's bw_file_rd and bw_mmap_rd do.
 */
#include "ipc_bandwidth.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "figure.h"
#include "rt.h"
#include "scratch.h"
#include "sizes.h"
#include "supervise.h"
#include "laps.h"

static const char file_name[] = "data";

enum { LEAST_BYTES = 4096, USUAL_BYTES = 8 << 20 };

struct bandwidth {
    uint64_t duration_ns;
    uint64_t window_us;
    uint64_t chunk_kib;
    uint64_t from, to, steps; /* of the file: bytes, sizes in each doubling */
    uint64_t sizes[SIZE_LIMIT];
    size_t count;
    const char *directory;
    const char *transports_text;
    uint64_t transports; /* bits */
    struct cpu_list cpus;
    bool supervised;
    struct scratch scratch;
    struct laps windows;
    uint64_t *chunk;
    size_t chunk_bytes;
    uint64_t file_bytes;
    uint64_t file_sum;
};

static uint64_t sum_words(const uint64_t *words, size_t count)
{
    uint64_t sum[4] = {0};
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (size_t j = 0; j < 4; j++)
            sum[j] += words[i + j];
    for (; i < count; i++)
        sum[0] += words[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static bool wrong_sum(const char *transport)
{
    complain("%s: wrong sum of the file's words", transport);
    return false;
}

/* Writes until nobody reads. */
static _Noreturn void pour(const struct bandwidth *bandwidth, int to)
{
    const struct cpu_list *cpus = &bandwidth->cpus;
    if (cpus->count && !thread_pin(cpus->cpus[0]))
        _exit(PINLOAD_FAILED);
    signal(SIGPIPE, SIG_IGN);
    for (;;)
        if (write(to, bandwidth->chunk, bandwidth->chunk_bytes) < 0 && errno != EINTR)
            _exit(errno == EPIPE || errno == ECONNRESET ? PINLOAD_OK : PINLOAD_FAILED);
}

static bool drain(struct bandwidth *bandwidth, int from)
{
    struct laps *windows = &bandwidth->windows;
    const uint64_t window_ns = bandwidth->window_us * NS_PER_US;
    laps_begin(windows, false);
    while (laps_go_on(windows)) {
        uint64_t bytes = 0, elapsed = 0;
        lap_begin(windows);
        do {
            const ssize_t length = read(from, bandwidth->chunk, bandwidth->chunk_bytes);
            if (length < 0 && errno == EINTR)
                continue;
            if (length <= 0) {
                complain("the writing process is gone");
                return false;
            }
            bytes += (uint64_t)length;
            elapsed = lap_end(windows);
        } while (elapsed < window_ns);
        lap_keep(windows, (double)bytes * 1e9 / (double)elapsed);
    }
    return true;
}

static bool between_processes(struct bandwidth *bandwidth, const int ends[2])
{
    const struct cpu_list *cpus = &bandwidth->cpus;
    const pid_t parent = getpid(), writer = fork();
    if (writer == 0) {
        die_with_this_parent(parent);
        close(ends[0]);
        pour(bandwidth, ends[1]);
    }
    close(ends[1]);
    if (writer < 0) {
        complain_errno("cannot start the writing process");
        close(ends[0]);
        return false;
    }
    bool good = cpus->count == 0 || thread_pin(cpus->cpus[cpus->count - 1]);
    if (!good)
        complain_errno("--cpus: cannot pin");
    good = good && drain(bandwidth, ends[0]);
    close(ends[0]);
    int status = 0;
    while (waitpid(writer, &status, 0) < 0 && errno == EINTR)
        ;
    if (good && (!WIFEXITED(status) || WEXITSTATUS(status) != PINLOAD_OK)) {
        complain("the writing process failed");
        return false;
    }
    return good;
}

static bool measure_pipe(struct bandwidth *bandwidth)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) == 0)
        return between_processes(bandwidth, ends);
    complain_errno("cannot make a pipe");
    return false;
}

static bool measure_unix(struct bandwidth *bandwidth)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0)
        return between_processes(bandwidth, ends);
    complain_errno("cannot make a pair of Unix sockets");
    return false;
}

/* Part of a pass: reads a chunk and adds it up; the bytes, 0 at the end, -1 on an error. */
static ssize_t read_chunk(struct bandwidth *bandwidth, int file, uint64_t *sum)
{
    ssize_t length;
    do
        length = read(file, bandwidth->chunk, bandwidth->chunk_bytes);
    while (length < 0 && errno == EINTR);
    if (length < 0)
        complain_errno("cannot read the file");
    else
        *sum += sum_words(bandwidth->chunk, (size_t)length / sizeof *bandwidth->chunk);
    return length;
}

/* Windows of chunks; a pass may span several. */
static bool read_on(struct bandwidth *bandwidth, int file)
{
    struct laps *windows = &bandwidth->windows;
    const uint64_t window_ns = bandwidth->window_us * NS_PER_US;
    uint64_t sum = 0;
    laps_begin(windows, true);
    while (laps_go_on(windows)) {
        uint64_t bytes = 0, elapsed;
        lap_begin(windows);
        do {
            const ssize_t length = read_chunk(bandwidth, file, &sum);
            if (length < 0)
                return false;
            if (length == 0) {
                if (sum != bandwidth->file_sum)
                    return wrong_sum("file");
                sum = 0;
                lseek(file, 0, SEEK_SET);
            }
            bytes += (uint64_t)length;
            elapsed = lap_end(windows);
        } while (elapsed < window_ns || bytes == 0);
        lap_keep(windows, (double)bytes * 1e9 / (double)elapsed);
    }
    return true;
}

static int open_file(const struct bandwidth *bandwidth)
{
    const int file = openat(bandwidth->scratch.directory, file_name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        complain_errno("cannot open %s/%s", bandwidth->scratch.path, file_name);
    return file;
}

static bool measure_file(struct bandwidth *bandwidth)
{
    const int file = open_file(bandwidth);
    const bool good = file >= 0 && read_on(bandwidth, file);
    if (file >= 0)
        close(file);
    return good;
}

static const uint64_t *map_file(const struct bandwidth *bandwidth, int file)
{
    void *words = mmap(NULL, (size_t)bandwidth->file_bytes, PROT_READ, MAP_SHARED, file, 0);
    if (words != MAP_FAILED)
        return words;
    complain_errno("cannot map %" PRIu64 " bytes", bandwidth->file_bytes);
    return NULL;
}

static void unmap_file(const struct bandwidth *bandwidth, const uint64_t *words)
{
    munmap((void *)(uintptr_t)words, (size_t)bandwidth->file_bytes);
}

/* Windows of whole passes. */
static bool passes(struct bandwidth *bandwidth, const char *transport,
                   bool (*pass)(struct bandwidth *bandwidth, uint64_t *sum))
{
    struct laps *windows = &bandwidth->windows;
    const uint64_t window_ns = bandwidth->window_us * NS_PER_US;
    laps_begin(windows, true);
    while (laps_go_on(windows)) {
        uint64_t bytes = 0, elapsed;
        lap_begin(windows);
        do {
            uint64_t sum = 0;
            if (!pass(bandwidth, &sum))
                return false;
            if (sum != bandwidth->file_sum)
                return wrong_sum(transport);
            bytes += bandwidth->file_bytes;
            elapsed = lap_end(windows);
        } while (elapsed < window_ns);
        lap_keep(windows, (double)bytes * 1e9 / (double)elapsed);
    }
    return true;
}

static bool read_pass(struct bandwidth *bandwidth, uint64_t *sum)
{
    const int file = open_file(bandwidth);
    ssize_t length = file < 0 ? -1 : 1;
    while (length > 0)
        length = read_chunk(bandwidth, file, sum);
    if (file >= 0)
        close(file);
    return length == 0;
}

static bool measure_file_open(struct bandwidth *bandwidth)
{
    return passes(bandwidth, "file-open", read_pass);
}

static bool mapped_pass(struct bandwidth *bandwidth, uint64_t *sum)
{
    const int file = open_file(bandwidth);
    const uint64_t *words = file < 0 ? NULL : map_file(bandwidth, file);
    if (words) {
        *sum = sum_words(words, (size_t)bandwidth->file_bytes / sizeof *words);
        unmap_file(bandwidth, words);
    }
    if (file >= 0)
        close(file);
    return words != NULL;
}

static bool measure_mmap_open(struct bandwidth *bandwidth)
{
    return passes(bandwidth, "mmap-open", mapped_pass);
}

static bool add_on(struct bandwidth *bandwidth, const uint64_t *words)
{
    struct laps *windows = &bandwidth->windows;
    const uint64_t window_ns = bandwidth->window_us * NS_PER_US;
    const size_t all = (size_t)bandwidth->file_bytes / sizeof *words,
                 chunk = bandwidth->chunk_bytes / sizeof *words;
    uint64_t sum = sum_words(words, all); /* maps every page */
    if (sum != bandwidth->file_sum)
        return wrong_sum("mmap");
    size_t place = 0;
    sum = 0;
    laps_begin(windows, true);
    while (laps_go_on(windows)) {
        uint64_t bytes = 0, elapsed;
        lap_begin(windows);
        do {
            /* The clock is read once for each chunk, not for each pass of a small file. */
            for (size_t done = 0; done < chunk;) {
                const size_t rest = chunk - done, count = all - place < rest ? all - place : rest;
                sum += sum_words(words + place, count);
                place += count;
                done += count;
                if (place == all) {
                    if (sum != bandwidth->file_sum)
                        return wrong_sum("mmap");
                    place = 0;
                    sum = 0;
                }
            }
            bytes += chunk * sizeof *words;
            elapsed = lap_end(windows);
        } while (elapsed < window_ns);
        lap_keep(windows, (double)bytes * 1e9 / (double)elapsed);
    }
    return true;
}

static bool measure_mmap(struct bandwidth *bandwidth)
{
    const int file = open_file(bandwidth);
    const uint64_t *words = file < 0 ? NULL : map_file(bandwidth, file);
    const bool good = words && add_on(bandwidth, words);
    if (words)
        unmap_file(bandwidth, words);
    if (file >= 0)
        close(file);
    return good;
}

enum { TRANSPORTS = 6, FIRST_WITH_FILE = 2 };

static const char *const names[TRANSPORTS] = {"pipe",      "unix", "file",
                                              "file-open", "mmap", "mmap-open"};

static bool (*const measures[TRANSPORTS])(struct bandwidth *) = {
    measure_pipe, measure_unix, measure_file, measure_file_open, measure_mmap, measure_mmap_open,
};

static bool print(struct bandwidth *bandwidth, size_t transport)
{
    const struct cpu_list *cpus = &bandwidth->cpus;
    const bool with_file = transport >= FIRST_WITH_FILE;
    struct figure figure = {
        .probe = "ipc-bandwidth",
        .unit = "bytes-per-second",
        .family = FIGURE_CAPACITY,
        .cpu = cpus->count == 1 || (with_file && cpus->count) ? cpus->cpus[0] : -1,
    };
    figure_label(&figure, "transport", "%s", names[transport]);
    figure_label(&figure, "chunk-kib", "%" PRIu64, bandwidth->chunk_kib);
    if (with_file) {
        figure_label(&figure, "bytes", "%" PRIu64, bandwidth->file_bytes);
        figure_label(&figure, "filesystem", "%s", bandwidth->scratch.filesystem);
    } else {
        figure_label(&figure, "placement", "%s",
                     cpus->count == 0   ? "free"
                     : cpus->count == 1 ? "one-pu"
                                        : "unique");
    }
    laps_figure(&bandwidth->windows, &figure);
    return figure_print(stdout, &figure);
}

/* The transports from `first` to before `end`. */
static bool run_some(struct bandwidth *bandwidth, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        if (!(bandwidth->transports >> i & 1))
            continue;
        if (bandwidth->cpus.count && !thread_pin(bandwidth->cpus.cpus[0])) {
            complain_errno("--cpus: cannot pin");
            return false;
        }
        if (!measures[i](bandwidth) || !print(bandwidth, i))
            return false;
    }
    return true;
}

static bool make_file(struct bandwidth *bandwidth, uint64_t bytes)
{
    const uint64_t words = bytes / sizeof(uint64_t);
    bandwidth->file_bytes = bytes;
    bandwidth->file_sum = words * (words - 1) / 2;
    if (unlinkat(bandwidth->scratch.directory, file_name, 0) != 0 && errno != ENOENT) {
        complain_errno("cannot remove %s/%s", bandwidth->scratch.path, file_name);
        return false;
    }
    const int file = scratch_file(&bandwidth->scratch, file_name, bytes);
    if (file >= 0)
        close(file);
    return file >= 0;
}

static bool with_files(struct bandwidth *bandwidth)
{
    if (!scratch_open(&bandwidth->scratch, bandwidth->directory))
        return false;
    bool good = true;
    for (size_t i = 0; good && i < bandwidth->count; i++)
        good = make_file(bandwidth, bandwidth->sizes[i]) &&
               run_some(bandwidth, FIRST_WITH_FILE, TRANSPORTS);
    scratch_close(&bandwidth->scratch);
    return good;
}

static int run(struct bandwidth *bandwidth)
{
    const bool with_file = bandwidth->transports >> FIRST_WITH_FILE != 0;
    const uint64_t most = 2 * TRANSPORTS * bandwidth->count * bandwidth->duration_ns;
    if (!supervise_measurement(measurement_limit_ns(most),
                               bandwidth->supervised, 0))
        return PINLOAD_FAILED;
    bandwidth->chunk_bytes = (size_t)bandwidth->chunk_kib * 1024;
    bandwidth->chunk = malloc(bandwidth->chunk_bytes);
    if (!bandwidth->chunk) {
        complain("--chunk-kib: no memory for %" PRIu64 " KiB", bandwidth->chunk_kib);
        return PINLOAD_FAILED;
    }
    memset(bandwidth->chunk, 0x5A, bandwidth->chunk_bytes);
    if (!laps_open(&bandwidth->windows, bandwidth->duration_ns,
                      bandwidth->window_us * NS_PER_US))
        return PINLOAD_FAILED;
    const bool good =
        run_some(bandwidth, 0, FIRST_WITH_FILE) && (!with_file || with_files(bandwidth));
    laps_close(&bandwidth->windows);
    free(bandwidth->chunk);
    free(bandwidth->cpus.cpus);
    return good ? output_end() : PINLOAD_FAILED;
}

static bool check(struct bandwidth *bandwidth)
{
    bandwidth->transports = (1U << TRANSPORTS) - 1;
    if (bandwidth->transports_text &&
        !choose_words("--transports", bandwidth->transports_text, names, TRANSPORTS,
                      &bandwidth->transports))
        return false;
    if (bandwidth->cpus.count > 2) {
        complain("--cpus: %zu CPUs; the writer takes the first and the reader the second",
                 bandwidth->cpus.count);
        return false;
    }
    if (bandwidth->from > bandwidth->to) {
        complain("--from: %" PRIu64 " is more than --to, %" PRIu64, bandwidth->from,
                 bandwidth->to);
        return false;
    }
    bandwidth->count = sizes_list(bandwidth->from, bandwidth->to, bandwidth->steps, LEAST_BYTES,
                                  bandwidth->sizes);
    if (bandwidth->window_us * NS_PER_US > bandwidth->duration_ns) {
        complain("--window-us: the window is longer than --seconds");
        return false;
    }
    return true;
}

int ipc_bandwidth_main(int argc, char **argv)
{
    struct bandwidth bandwidth = {.window_us = 5000,
                                  .chunk_kib = 64,
                                  .from = USUAL_BYTES,
                                  .to = USUAL_BYTES,
                                  .steps = 1};
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &bandwidth.duration_ns, 10 * NS_PER_MS, 3600 * NS_PER_S,
         REQUIRED, "how long to measure each transport, and size of the file"},
        {"--transports", ARGUMENT_TEXT, &bandwidth.transports_text, 0, 0, OPTIONAL,
         "some of pipe,unix,file,file-open,mmap,mmap-open (all)"},
        {"--cpus", ARGUMENT_CPUS, &bandwidth.cpus, 0, 0, OPTIONAL,
         "one CPU, or two: of the writer and of the reader"},
        {"--chunk-kib", ARGUMENT_INTEGER, &bandwidth.chunk_kib, 1, 1048576, OPTIONAL,
         "KiB of each read and write (64)"},
        {"--from", ARGUMENT_BYTES, &bandwidth.from, LEAST_BYTES, 1ULL << 36, OPTIONAL,
         "smallest file (8M)"},
        {"--to", ARGUMENT_BYTES, &bandwidth.to, LEAST_BYTES, 1ULL << 36, OPTIONAL,
         "largest file (8M)"},
        {"--steps", ARGUMENT_INTEGER, &bandwidth.steps, 1, SIZE_STEPS_LIMIT, OPTIONAL,
         "sizes of the file in each doubling (1)"},
        {"--directory", ARGUMENT_TEXT, &bandwidth.directory, 0, 0, OPTIONAL,
         "where the file is made ($TMPDIR or /tmp)"},
        {"--window-us", ARGUMENT_INTEGER, &bandwidth.window_us, 100, 1000000, OPTIONAL,
         "least length of a window (5000)"},
        {"--supervised", ARGUMENT_FLAG, &bandwidth.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    return check(&bandwidth) ? run(&bandwidth) : PINLOAD_USAGE;
}

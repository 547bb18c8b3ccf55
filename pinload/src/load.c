/*
 * Background loads that can be paused and that always end.
 *
 * `cpu` computes, `memory` streams through arrays larger than the caches, `io`
 * reads a device or file, or writes and syncs a nameless file in a directory.
 * Threads run at normal priority. Between two small pieces of work each looks
 * whether it should pause or stop. Under `--supervised` the main thread listens
 * for heartbeats: silence pauses the load until the next byte, end of file ends it. One that
 * is supervised needs no other end: without `--seconds` it works until its supervisor is gone.
 */
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "disk.h"
#include "intmix.h"
#include "json.h"
#include "rt.h"
#include "stream.h"
#include "supervise.h"

enum { WRITE_BLOCK = 4096, WRITE_FILE_BLOCKS = 4096 };

enum state { RUNNING, PAUSED, STOPPED };

struct load {
    const char *kind;
    const char *path;
    uint64_t threads;
    uint64_t duration_ns; /* 0: until its supervisor is gone */
    uint64_t silence_ns;
    uint64_t memory_mib;
    struct cpu_list cpus;
    bool supervised;
    void *(*work)(void *);
};

struct worker {
    const struct load *load;
    pthread_t thread;
    uint64_t index;
    uint64_t rounds;
    int error;
    const char *failed_at;
};

static _Atomic int state = RUNNING;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t state_changed = PTHREAD_COND_INITIALIZER;

static void set_state(enum state next)
{
    pthread_mutex_lock(&state_lock);
    atomic_store(&state, next);
    pthread_cond_broadcast(&state_changed);
    pthread_mutex_unlock(&state_lock);
}

/* True to go on; sleeps while the load is paused. */
static bool go_on(void)
{
    if (atomic_load_explicit(&state, memory_order_relaxed) == RUNNING)
        return true;
    pthread_mutex_lock(&state_lock);
    while (atomic_load(&state) == PAUSED)
        pthread_cond_wait(&state_changed, &state_lock);
    const bool running = atomic_load(&state) == RUNNING;
    pthread_mutex_unlock(&state_lock);
    return running;
}

static void *worker_failed(struct worker *worker, const char *at, int error)
{
    worker->failed_at = at;
    worker->error = error;
    return NULL;
}

static void *compute(void *argument)
{
    struct worker *worker = argument;
    struct intmix work;
    intmix_init(&work);
    for (; go_on(); worker->rounds++)
        if (intmix_round(&work) != INTMIX_CHECKSUM)
            return worker_failed(worker, "the integer kernel gave a wrong checksum", 0);
    return NULL;
}

/* Looks at the state between two small blocks, so that a pause is noticed soon. */
static void *stream(void *argument)
{
    struct worker *worker = argument;
    struct stream stream;
    if (!stream_open(&stream, worker->load->memory_mib))
        return worker_failed(worker, "taking the memory", ENOMEM);
    while (go_on() && stream_touch(&stream))
        ;
    for (; go_on(); worker->rounds++)
        stream_block(&stream);
    stream_close(&stream);
    return NULL;
}

static void *read_blocks(struct worker *worker)
{
    struct disk disk;
    int error = disk_open(&disk, worker->load->path, WRITE_BLOCK, true, worker->index + 1);
    if (error)
        return worker_failed(worker, worker->load->path, error);
    for (; !error && go_on(); worker->rounds++)
        error = disk_read(&disk);
    disk_close(&disk);
    return error ? worker_failed(worker, worker->load->path, error) : NULL;
}

static void *write_blocks(struct worker *worker)
{
    struct disk places = {.random = worker->index + 1};
    char block[WRITE_BLOCK];
    const int file = open(worker->load->path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return worker_failed(worker, worker->load->path, errno);
    memset(block, 0x5A, sizeof block);
    for (; go_on(); worker->rounds++) {
        const off_t offset = (off_t)(disk_random(&places) % WRITE_FILE_BLOCKS * WRITE_BLOCK);
        errno = EIO; /* the answer to a short write */
        if (pwrite(file, block, sizeof block, offset) != (ssize_t)sizeof block ||
            fdatasync(file) != 0) {
            worker_failed(worker, worker->load->path, errno);
            break;
        }
    }
    close(file);
    return NULL;
}

static void *disk_work(void *argument)
{
    struct worker *worker = argument;
    struct stat status;
    if (stat(worker->load->path, &status) != 0)
        return worker_failed(worker, worker->load->path, errno);
    return S_ISDIR(status.st_mode) ? write_blocks(worker) : read_blocks(worker);
}

struct pauses {
    uint64_t count;
    uint64_t longest_gap_ns; /* from the last beat to the pause */
};

/* Sleeps until the deadline or the end of the supervisor; tells the pauses. */
static struct pauses supervise(const struct load *load)
{
    uint64_t beat = monotonic_ns();
    const uint64_t end = load->duration_ns ? beat + load->duration_ns : UINT64_MAX;
    struct pauses pauses = {0};
    for (uint64_t now = monotonic_ns(); now < end; now = monotonic_ns()) {
        if (!load->supervised) {
            sleep_until(end);
            continue;
        }
        const bool paused = atomic_load(&state) == PAUSED;
        const uint64_t rest = end - now;
        const uint64_t limit = paused || rest < load->silence_ns ? rest : load->silence_ns;
        const enum heartbeat answer = heartbeat_wait(limit < 3600 * NS_PER_S ? limit
                                                                             : 3600 * NS_PER_S);
        if (answer == HEARTBEAT_ENDED)
            break;
        if (answer == HEARTBEAT_CAME)
            beat = monotonic_ns();
        if (answer == HEARTBEAT_CAME && paused) {
            set_state(RUNNING);
        } else if (answer == HEARTBEAT_MISSED && !paused && limit == load->silence_ns) {
            set_state(PAUSED);
            pauses.count++;
            const uint64_t gap = monotonic_ns() - beat;
            if (gap > pauses.longest_gap_ns)
                pauses.longest_gap_ns = gap;
        }
    }
    return pauses;
}

static int report(const struct load *load, const struct worker *workers, struct pauses pauses)
{
    uint64_t rounds = 0;
    int code = PINLOAD_OK;
    for (uint64_t i = 0; i < load->threads; i++) {
        rounds += workers[i].rounds;
        if (workers[i].failed_at) {
            complain("%s: %s", workers[i].failed_at,
                     workers[i].error ? strerror(workers[i].error) : "failed");
            code = PINLOAD_FAILED;
        }
    }
    printf("{\"load\":\"%s\",\"threads\":%" PRIu64 ",\"rounds\":%" PRIu64 ",\"pauses\":%" PRIu64
           ",\"longest_gap_ns\":%" PRIu64 "}\n",
           load->kind, load->threads, rounds, pauses.count, pauses.longest_gap_ns);
    return fflush(stdout) == 0 ? code : PINLOAD_FAILED;
}

static int run(struct load *load)
{
    struct worker *workers = calloc(load->threads, sizeof *workers);
    if (!workers) {
        complain("out of memory");
        return PINLOAD_FAILED;
    }
    die_with_parent();
    if (load->duration_ns)
        die_after(load->duration_ns + 30 * NS_PER_S);
    signal(SIGPIPE, SIG_IGN);
    if (load->cpus.given && !thread_confine(&load->cpus)) {
        complain_errno("--cpus: cannot set the affinity");
        free(workers);
        return PINLOAD_FAILED;
    }
    for (uint64_t i = 0; i < load->threads; i++) {
        workers[i] = (struct worker){.load = load, .index = i};
        const int error = pthread_create(&workers[i].thread, NULL, load->work, &workers[i]);
        if (error) {
            complain("--threads: cannot start thread %" PRIu64 ": %s", i, strerror(error));
            exit(PINLOAD_FAILED);
        }
    }
    const struct pauses pauses = supervise(load);
    set_state(STOPPED);
    for (uint64_t i = 0; i < load->threads; i++)
        pthread_join(workers[i].thread, NULL);
    const int code = report(load, workers, pauses);
    free(workers);
    free(load->cpus.cpus);
    return code;
}

static const char *const kinds[] = {"cpu", "memory", "io"};
static void *(*const works[])(void *) = {compute, stream, disk_work};

int load_main(int argc, char **argv)
{
    struct load load = {.threads = 1, .silence_ns = HEARTBEAT_LIMIT_NS, .memory_mib = 64};
    const struct argument table[] = {
        {"--threads", ARGUMENT_INTEGER, &load.threads, 1, 4096, REQUIRED, "number of threads"},
        {"--seconds", ARGUMENT_SECONDS, &load.duration_ns, 10 * NS_PER_MS, 86400 * NS_PER_S,
         OPTIONAL, "longest time to run; --supervised needs none"},
        {"--cpus", ARGUMENT_CPUS, &load.cpus, 0, 0, OPTIONAL, "CPUs that the threads may use"},
        {"--memory-mib", ARGUMENT_INTEGER, &load.memory_mib, 1, 65536, OPTIONAL,
         "memory: MiB per thread (64)"},
        {"--path", ARGUMENT_TEXT, &load.path, 0, 0, OPTIONAL,
         "io: device or file to read, or directory to write in"},
        {"--supervised", ARGUMENT_FLAG, &load.supervised, 0, 0, OPTIONAL,
         "pause unless stdin carries heartbeats"},
        {"--silence", ARGUMENT_SECONDS, &load.silence_ns, 10 * NS_PER_MS, 60 * NS_PER_S, OPTIONAL,
         "pause after so long without a heartbeat (1.5)"},
    };
    size_t kind = 0;
    enum parse_result parsed = arguments_word(&argc, &argv, "kind of load", kinds,
                                              sizeof kinds / sizeof *kinds, &kind);
    if (parsed == PARSE_DONE)
        parsed = arguments_parse(argc, argv, table, sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    load.kind = kinds[kind];
    load.work = works[kind];
    if (!load.duration_ns && !load.supervised) {
        complain("--seconds: required of a load that is not --supervised");
        return PINLOAD_USAGE;
    }
    if ((load.work == disk_work) != (load.path != NULL)) {
        complain("--path: %s",
                 load.path ? "only the io load takes a path" : "the io load requires a path");
        return PINLOAD_USAGE;
    }
    return run(&load);
}

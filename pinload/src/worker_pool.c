/*
 * Threads or processes that work side by side. See worker_pool.h.
 */
#include "worker_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"

/* From the last of several workers at the gate to the common start: all must have woken up by then. */
#define GATE_AHEAD_NS (20 * NS_PER_MS)

struct worker {
    pthread_t thread;
    void (*work)(void *, size_t);
    void *shared;
    size_t index;
};

const char *worker_pool_kind_name(enum worker_pool_kind kind)
{
    return kind == WORKER_POOL_THREADS ? "threads" : "processes";
}

void *worker_pool_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        complain_errno("cannot take %zu bytes of memory", bytes);
        return NULL;
    }
    return memory;
}

static void *worker_thread(void *argument)
{
    const struct worker *worker = argument;
    worker->work(worker->shared, worker->index);
    return NULL;
}

static bool run_threads(struct worker *workers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int error = pthread_create(&workers[i].thread, NULL, worker_thread, &workers[i]);
        if (error) {
            complain("cannot start thread %zu: %s", i, strerror(error));
            return false;
        }
    }
    for (size_t i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    return true;
}

static bool start_process(const struct worker *worker)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        die_with_this_parent(parent);
        worker->work(worker->shared, worker->index);
        _exit(PINLOAD_OK);
    }
    if (pid < 0)
        complain_errno("cannot start process %zu", worker->index);
    return pid > 0;
}

/* Waits for any child: one that was killed must be noticed while others wait for it at a gate. */
static bool reap_one(void)
{
    int status;
    pid_t pid;
    do
        pid = wait(&status);
    while (pid < 0 && errno == EINTR);
    if (pid < 0) {
        complain_errno("cannot wait for a worker");
        return false;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == PINLOAD_OK)
        return true;
    complain("worker process %d ended by %s %d", (int)pid, WIFEXITED(status) ? "exit" : "signal",
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return false;
}

static bool run_processes(const struct worker *workers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!start_process(&workers[i]))
            return false;
    for (size_t i = 0; i < count; i++)
        if (!reap_one())
            return false;
    return true;
}

bool worker_pool_run(enum worker_pool_kind kind, size_t count, void (*work)(void *, size_t), void *shared)
{
    struct worker *workers = calloc(count, sizeof *workers);
    if (!workers) {
        complain("out of memory");
        return false;
    }
    for (size_t i = 0; i < count; i++)
        workers[i] = (struct worker){.work = work, .shared = shared, .index = i};
    const bool good = kind == WORKER_POOL_THREADS ? run_threads(workers, count)
                                           : run_processes(workers, count);
    if (good) /* else threads may still be using it, until the caller exits */
        free(workers);
    return good;
}

void gate_prepare(struct gate *gate, size_t count)
{
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&gate->ready, &shared, (unsigned)count);
    pthread_barrier_init(&gate->open, &shared, (unsigned)count);
    pthread_barrierattr_destroy(&shared);
    gate->ahead_ns = count > 1 ? GATE_AHEAD_NS : 0;
}

uint64_t gate_pass(struct gate *gate)
{
    if (pthread_barrier_wait(&gate->ready) == PTHREAD_BARRIER_SERIAL_THREAD)
        gate->start_ns = monotonic_ns() + gate->ahead_ns;
    pthread_barrier_wait(&gate->open);
    return gate->start_ns;
}

/*
 * Memory traffic beside a measurement. See traffic.h.
 *
 * Threads run at normal priority and wait in small sleeps, not by spinning: a paused one must
 * not take the CPU from what is measured, should both share it.
 */
#include "traffic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "kernels.h"

enum { WAITING, WORKING, ENDED };

enum { BLOCK = 64 * 1024 };

static const char *const names[] = {
    [TRAFFIC_READ] = "read", [TRAFFIC_WRITE] = "write", [TRAFFIC_COPY] = "copy"};

bool traffic_kind_parse(const char *argument, const char *text, enum traffic_kind *kind)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(text, names[i])) {
            *kind = (enum traffic_kind)i;
            return true;
        }
    }
    complain("%s: \"%s\" is not read, write or copy", argument, text);
    return false;
}

const char *traffic_kind_name(enum traffic_kind kind)
{
    return names[kind];
}

bool traffic_cpus(const char *argument, const struct cpu_list *measured, struct cpu_list *cpus)
{
    if (cpus->given)
        return true;
    if (!cpu_list_parse(argument, "all", cpus))
        return false;
    size_t kept = 0;
    for (size_t i = 0; i < cpus->count; i++)
        if (measured->count != 1 || cpus->cpus[i] != measured->cpus[0])
            cpus->cpus[kept++] = cpus->cpus[i];
    cpus->count = kept;
    if (kept == 0)
        complain("%s: there is no CPU beside the one that is measured; name one to share it",
                 argument);
    return kept > 0;
}

static void block(const struct traffic *traffic, const struct kernels *kernels, char *at,
                  size_t half)
{
    switch (traffic->kind) {
    case TRAFFIC_READ:
        kernels->read(at, BLOCK, 1);
        break;
    case TRAFFIC_WRITE:
        kernels->write(at, BLOCK, 1, 1);
        break;
    case TRAFFIC_COPY:
        kernels->copy(at + half, at, BLOCK, 1);
        break;
    }
}

static void pause_ns(uint64_t ns)
{
    if (ns == 0)
        return;
    const uint64_t end = raw_ns() + ns;
    while (raw_ns() < end)
        ;
}

static void work(struct traffic_thread *self)
{
    struct traffic *traffic = self->traffic;
    const struct kernels *kernels = kernels_widest();
    const bool copy = traffic->kind == TRAFFIC_COPY;
    const size_t side = self->area.size / (copy ? 2 : 1) / BLOCK * BLOCK;
    size_t at = 0;
    for (int state; (state = atomic_load_explicit(&traffic->state, memory_order_relaxed)) != ENDED;) {
        if (state == WAITING) {
            sleep_until(monotonic_ns() + NS_PER_MS / 2);
            continue;
        }
        block(traffic, kernels, self->area.bytes + at, side);
        at = (at + BLOCK) % side;
        atomic_store_explicit(&self->moved,
                              atomic_load_explicit(&self->moved, memory_order_relaxed) +
                                  (copy ? 2 : 1) * BLOCK,
                              memory_order_relaxed);
        pause_ns(atomic_load_explicit(&traffic->delay_ns, memory_order_relaxed));
    }
}

static void *traffic_thread(void *argument)
{
    struct traffic_thread *self = argument;
    const struct policy normal = {.fifo = false};
    self->ready = thread_enter_policy(&normal);
    if (self->ready && !thread_pin(self->cpu)) {
        complain_errno("cannot run a thread of traffic on CPU %d", self->cpu);
        self->ready = false;
    }
    if (self->ready)
        area_touch(&self->area); /* by this thread: the memory is near it unless a node was named */
    pthread_barrier_wait(&self->traffic->touched);
    if (self->ready)
        work(self);
    return NULL;
}

void traffic_size(struct traffic *traffic, uint64_t mib, uint64_t least_mib,
                  const struct caches *caches)
{
    const uint64_t least = least_mib << 20, wanted = 2 * caches_last(caches);
    const uint64_t most = memory_available(traffic->wish.node) / 8 / traffic->count;
    const uint64_t chosen = wanted < most ? wanted : most;
    traffic->bytes = mib ? mib << 20 : chosen > least ? chosen : least;
}

void traffic_flag(const struct traffic *traffic, const struct caches *caches,
                  struct figure *figure)
{
    const uint64_t all = traffic->bytes * traffic->count;
    if (all <= caches_last(caches))
        figure_flag(figure, "traffic-fits-in-last-cache %" PRIu64 " of %" PRIu64 " MiB", all >> 20,
                    caches_last(caches) >> 20);
}

bool traffic_open(struct traffic *traffic)
{
    bool good = true;
    traffic->threads = aligned_alloc(64, traffic->count * sizeof *traffic->threads);
    if (!traffic->threads) {
        complain("out of memory");
        return false;
    }
    memset(traffic->threads, 0, traffic->count * sizeof *traffic->threads);
    pthread_barrier_init(&traffic->touched, NULL, (unsigned)traffic->count + 1);
    for (size_t i = 0; i < traffic->count; i++)
        if (!area_open(&traffic->threads[i].area, "the memory of the traffic", traffic->bytes,
                       &traffic->wish))
            return false;
    for (size_t i = 0; i < traffic->count; i++) {
        struct traffic_thread *self = &traffic->threads[i];
        self->traffic = traffic;
        self->cpu = traffic->cpus.cpus[i % traffic->cpus.count];
        const int error = pthread_create(&self->thread, NULL, traffic_thread, self);
        if (error) {
            complain("cannot start a thread of traffic: %s", strerror(error));
            exit(PINLOAD_FAILED);
        }
    }
    pthread_barrier_wait(&traffic->touched);
    for (size_t i = 0; i < traffic->count; i++)
        good = good && traffic->threads[i].ready;
    return good;
}

void traffic_go(struct traffic *traffic, bool go)
{
    atomic_store(&traffic->state, go ? WORKING : WAITING);
}

uint64_t traffic_moved(const struct traffic *traffic)
{
    uint64_t moved = 0;
    for (size_t i = 0; i < traffic->count; i++)
        moved += atomic_load_explicit(&traffic->threads[i].moved, memory_order_relaxed);
    return moved;
}

void traffic_close(struct traffic *traffic)
{
    atomic_store(&traffic->state, ENDED);
    for (size_t i = 0; i < traffic->count; i++) {
        pthread_join(traffic->threads[i].thread, NULL);
        area_close(&traffic->threads[i].area);
    }
    free(traffic->threads);
    free(traffic->cpus.cpus);
}

/*
 * Threads, barrier, reductions, memory. See team.h.
 */
#include "team.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../clock.h"
#include "numbers.h"

static void *member_main(void *argument)
{
    struct member *member = argument;
    struct team *team = member->team;
    if (team_wait(team)) { /* all stand ready: the phase begins */
        if (team->is_marked)
            fputs("roi begins\n", stderr);
        team->begin_ns = raw_ns();
    }
    team_wait(team);
    team->work(team->state, team, member->index);
    member->ended_ns = raw_ns();
    return NULL;
}

/* The attributes of thread `index`: its stack and, from its first instruction on, its PU. */
static int start_member(struct member *member, const struct cpu_list *affinity, cpu_set_t *set)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    error = pthread_attr_setstacksize(&attributes, TEAM_STACK_BYTES);
    if (!error && affinity->given) {
        const size_t bytes = CPU_ALLOC_SIZE(CPU_LIMIT);
        CPU_ZERO_S(bytes, set);
        CPU_SET_S((size_t)affinity->cpus[member->index % affinity->count], bytes, set);
        error = pthread_attr_setaffinity_np(&attributes, bytes, set);
    }
    if (!error)
        error = pthread_create(&member->thread, &attributes, member_main, member);
    pthread_attr_destroy(&attributes);
    return error;
}

bool team_run(struct team *team, const struct cpu_list *affinity)
{
    cpu_set_t *set = CPU_ALLOC(CPU_LIMIT);
    team->members = memory_take(team->threads, sizeof *team->members);
    if (!set || pthread_barrier_init(&team->barrier, NULL, (unsigned)team->threads) != 0) {
        complain("cannot make a barrier for %zu threads", team->threads);
        return false;
    }
    for (size_t i = 0; i < team->threads; i++) {
        team->members[i].team = team;
        team->members[i].index = i;
        const int error = start_member(&team->members[i], affinity, set);
        if (error) {
            complain("cannot start thread %zu of %zu: %s", i, team->threads, strerror(error));
            return false;
        }
    }
    CPU_FREE(set);
    uint64_t last = 0;
    for (size_t i = 0; i < team->threads; i++) {
        pthread_join(team->members[i].thread, NULL);
        if (team->members[i].ended_ns > last)
            last = team->members[i].ended_ns;
    }
    if (team->is_marked)
        fputs("roi ends\n", stderr);
    pthread_barrier_destroy(&team->barrier);
    team->roi_ns = last - team->begin_ns;
    return true;
}

bool team_wait(struct team *team)
{
    return pthread_barrier_wait(&team->barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
}

uint64_t team_sum(struct team *team, size_t thread, uint64_t value)
{
    team->members[thread].value = value;
    if (team_wait(team)) {
        uint64_t sum = 0;
        for (size_t i = 0; i < team->threads; i++)
            sum += team->members[i].value;
        team->reduced = sum;
    }
    team_wait(team);
    return team->reduced;
}

double team_max(struct team *team, size_t thread, double value)
{
    team->members[thread].value = double_bits(value);
    if (team_wait(team)) {
        uint64_t most = 0; /* numbers at or above zero are ordered as their bits are */
        for (size_t i = 0; i < team->threads; i++)
            if (team->members[i].value > most)
                most = team->members[i].value;
        team->reduced = most;
    }
    team_wait(team);
    double result;
    memcpy(&result, &team->reduced, sizeof result);
    return result;
}

struct thread_grid thread_grid(size_t threads)
{
    size_t rows = 1;
    for (size_t divisor = 1; divisor * divisor <= threads; divisor++)
        if (threads % divisor == 0)
            rows = divisor;
    return (struct thread_grid){rows, threads / rows};
}

/* All memory that was taken, as a list. */
struct block {
    struct block *next;
};

static struct block *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

void *memory_take(size_t count, size_t size)
{
    const size_t bytes = count * size;
    struct block *block = NULL;
    if (bytes / size == count && bytes < SIZE_MAX - 2 * CACHE_LINE)
        block = aligned_alloc(CACHE_LINE,
                              CACHE_LINE + (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (!block) {
        complain("no memory for %zu x %zu bytes", count, size);
        _Exit(PINLOAD_FAILED);
    }
    pthread_mutex_lock(&blocks_lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&blocks_lock);
    return memset((char *)block + CACHE_LINE, 0, bytes);
}

void memory_release(void)
{
    while (blocks) {
        struct block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

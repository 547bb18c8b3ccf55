/*
 * Affinity and scheduling policy of threads. See rt.h.
 *
 * The policy is set with SCHED_RESET_ON_FORK: nothing that a real-time thread
 * starts may be real-time by inheritance.
 */
#include "rt.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"

static size_t set_bytes(void)
{
    return CPU_ALLOC_SIZE(CPU_LIMIT);
}

static cpu_set_t *new_set(void)
{
    cpu_set_t *set = CPU_ALLOC(CPU_LIMIT);
    if (!set) {
        complain("out of memory");
        exit(PINLOAD_FAILED);
    }
    CPU_ZERO_S(set_bytes(), set);
    return set;
}

/* Reads "3" or "3-5" and moves the text behind it. */
static bool read_range(const char **text, uint64_t *first, uint64_t *last)
{
    char number[2][8] = {"", ""};
    int part = 0;
    size_t length = 0;
    for (; **text && **text != ','; (*text)++) {
        if (**text == '-' && part == 0) {
            part = 1;
            length = 0;
        } else if (length + 1 < sizeof number[0]) {
            number[part][length++] = **text;
            number[part][length] = 0;
        } else {
            return false;
        }
    }
    return parse_integer(number[0], first) &&
           (part ? parse_integer(number[1], last) : (*last = *first, true)) && *first <= *last &&
           *last < CPU_LIMIT;
}

static bool read_list(const char *argument, const char *text, cpu_set_t *set)
{
    const char *rest = text;
    for (;;) {
        uint64_t first, last;
        if (!read_range(&rest, &first, &last)) {
            complain("%s: \"%s\" is not \"all\" or a list of CPUs such as 0,2-3", argument, text);
            return false;
        }
        for (uint64_t cpu = first; cpu <= last; cpu++) {
            if (CPU_ISSET_S(cpu, set_bytes(), set)) {
                complain("%s: CPU %d is listed twice", argument, (int)cpu);
                return false;
            }
            CPU_SET_S(cpu, set_bytes(), set);
        }
        if (!*rest)
            return true;
        rest++;
    }
}

/* Whether this process may run there: asks the kernel, and goes back. */
static bool usable(int cpu, const cpu_set_t *allowed)
{
    const bool answer = thread_pin(cpu);
    const int error = errno;
    if (answer && sched_setaffinity(0, set_bytes(), allowed) != 0)
        return false;
    errno = error;
    return answer;
}

static bool collect(const char *argument, const cpu_set_t *set, const cpu_set_t *allowed,
                    struct cpu_list *list)
{
    list->given = true;
    list->count = 0;
    list->cpus = calloc((size_t)CPU_COUNT_S(set_bytes(), set), sizeof *list->cpus);
    if (!list->cpus) {
        complain("%s: out of memory", argument);
        return false;
    }
    for (int cpu = 0; cpu < CPU_LIMIT; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, set_bytes(), set))
            continue;
        if (!usable(cpu, allowed)) {
            complain("%s: CPU %d is offline or not ours: %s", argument, cpu, strerror(errno));
            return false;
        }
        list->cpus[list->count++] = cpu;
    }
    return true;
}

bool cpu_list_parse(const char *argument, const char *text, struct cpu_list *list)
{
    cpu_set_t *allowed = new_set();
    cpu_set_t *wanted = new_set();
    bool good = true;
    if (sched_getaffinity(0, set_bytes(), allowed) != 0) {
        complain_errno("%s: cannot read the own affinity", argument);
        good = false;
    } else if (!strcmp(text, "all")) {
        memcpy(wanted, allowed, set_bytes());
    } else {
        good = read_list(argument, text, wanted);
    }
    good = good && collect(argument, wanted, allowed, list);
    CPU_FREE(allowed);
    CPU_FREE(wanted);
    return good;
}

bool cpu_order_parse(const char *argument, const char *text, struct cpu_list *list)
{
    struct cpu_list set;
    uint64_t first = 0, last = 0;
    size_t count = 0;
    if (!cpu_list_parse(argument, text, &set))
        return false;
    *list = set;
    if (!strcmp(text, "all"))
        return true;
    for (const char *rest = text; count < set.count; rest++) { /* past the comma */
        if (!read_range(&rest, &first, &last))
            return false;
        for (uint64_t cpu = first; cpu <= last; cpu++)
            list->cpus[count++] = (int)cpu;
    }
    return true;
}

bool policy_parse(const char *argument, const char *text, struct policy *policy)
{
    uint64_t priority = 0;
    if (!strcmp(text, "other")) {
        *policy = (struct policy){.fifo = false, .priority = 0};
        return true;
    }
    if (!strncmp(text, "fifo:", 5) && parse_integer(text + 5, &priority) && priority >= 1 &&
        priority <= 99) {
        *policy = (struct policy){.fifo = true, .priority = (int)priority};
        return true;
    }
    complain("%s: \"%s\" is not \"other\" or \"fifo:N\" with N from 1 to 99", argument, text);
    return false;
}

void policy_text(const struct policy *policy, char *text, size_t size)
{
    if (policy->fifo)
        snprintf(text, size, "fifo:%d", policy->priority);
    else
        snprintf(text, size, "other");
}

bool thread_pin(int cpu)
{
    cpu_set_t *set = new_set();
    CPU_SET_S((size_t)cpu, set_bytes(), set);
    const bool done = sched_setaffinity(0, set_bytes(), set) == 0;
    const int error = errno;
    CPU_FREE(set);
    errno = error;
    return done;
}

bool thread_confine(const struct cpu_list *list)
{
    cpu_set_t *set = new_set();
    for (size_t i = 0; i < list->count; i++)
        CPU_SET_S((size_t)list->cpus[i], set_bytes(), set);
    const bool done = sched_setaffinity(0, set_bytes(), set) == 0;
    const int error = errno;
    CPU_FREE(set);
    errno = error;
    return done;
}

bool thread_enter_policy(const struct policy *policy)
{
    const struct sched_param parameters = {.sched_priority = policy->fifo ? policy->priority : 0};
    const int kind = (policy->fifo ? SCHED_FIFO : SCHED_OTHER) | SCHED_RESET_ON_FORK;
    return sched_setscheduler(0, kind, &parameters) == 0;
}

/*
 * Stolen time. See steal.h.
 *
 * Reading /proc/stat takes the kernel longer the more CPUs and interrupts there are, so it is left
 * alone where there is nothing to find: on a bare machine. The lines of the CPUs come first:
 *
 *     cpu  4705 150 1120 16250856 520 0 17 9 0 0
 *     cpu0 2300 70 560 8125428 260 0 9 4 0 0
 */
#include "steal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { STEAL_FIELD = 8, TEXT_BYTES = 4096, ALL_CPUS = -1 };

/* The eighth number behind the name; false where a kernel before 2.6.11 has none. */
static bool parse(const char *line, uint64_t *ticks)
{
    return sscanf(line, "%*s %*u %*u %*u %*u %*u %*u %*u %" SCNu64, ticks) == 1;
}

static bool is_of(const char *line, const char *name)
{
    const size_t length = strlen(name);
    return strncmp(line, name, length) == 0 && line[length] == ' ';
}

/* Looks for the line piece by piece; what follows the CPUs is not read. */
static bool find(int file, const char *name, uint64_t *ticks)
{
    char text[TEXT_BYTES + 1];
    size_t held = 0;
    for (;;) {
        const ssize_t got = read(file, text + held, TEXT_BYTES - held);
        if (got <= 0)
            return false;
        held += (size_t)got;
        text[held] = '\0';
        char *line = text;
        for (char *end; (end = strchr(line, '\n')); line = end + 1) {
            *end = '\0';
            if (is_of(line, name))
                return parse(line, ticks);
            if (strncmp(line, "cpu", 3) != 0)
                return false;
        }
        held -= (size_t)(line - text);
        memmove(text, line, held);
    }
}

static uint64_t read_ticks_of(int cpu)
{
    char name[16];
    uint64_t ticks = STEAL_UNKNOWN;
    snprintf(name, sizeof name, cpu == ALL_CPUS ? "cpu" : "cpu%d", cpu);
    const int file = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return STEAL_UNKNOWN;
    if (!find(file, name, &ticks))
        ticks = STEAL_UNKNOWN;
    close(file);
    return ticks;
}

/* Whether there may be a hypervisor: only an x86-64 CPU tells that there is none. */
static bool may_be_a_guest(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    const unsigned hypervisor_bit = 1U << 31;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & hypervisor_bit);
#else
    return true;
#endif
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_bare;

static void look(void)
{
    is_bare = !may_be_a_guest() && read_ticks_of(ALL_CPUS) == 0;
}

uint64_t stolen_ticks(int cpu)
{
    pthread_once(&once, look);
    return is_bare ? 0 : read_ticks_of(cpu);
}

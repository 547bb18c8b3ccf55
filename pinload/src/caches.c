/*
 * Cache sizes from /sys/devices/system/cpu/cpuN/cache. See caches.h.
 *
 * https://docs.kernel.org/admin-guide/cputopology.html and ABI/testing/sysfs-devices-system-cpu.
 * A guest shows what its hypervisor made up; that is said by the level, not corrected.
 */
#include "caches.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "args.h"

enum { INDEX_LIMIT = 16 };

/* First word of a file of one cache; false if there is none. */
static bool read_word(int cpu, int index, const char *name, char word[32])
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool found = fscanf(file, "%31s", word) == 1;
    fclose(file);
    return found;
}

/* "32K" */
static bool read_size(int cpu, int index, uint64_t *bytes)
{
    char word[32];
    uint64_t kib;
    if (!read_word(cpu, index, "size", word))
        return false;
    const size_t length = strlen(word);
    if (length < 2 || word[length - 1] != 'K')
        return false;
    word[length - 1] = 0;
    if (!parse_integer(word, &kib))
        return false;
    *bytes = kib * 1024;
    return true;
}

static void insert(struct caches *caches, int level, uint64_t bytes)
{
    size_t at = caches->count++;
    for (; at > 0 && caches->cache[at - 1].bytes > bytes; at--)
        caches->cache[at] = caches->cache[at - 1];
    caches->cache[at].level = level;
    caches->cache[at].bytes = bytes;
}

void caches_read(struct caches *caches, int cpu)
{
    *caches = (struct caches){.line = 64};
    for (int index = 0; index < INDEX_LIMIT && caches->count < CACHES_LIMIT; index++) {
        char type[32], level[32], line[32];
        uint64_t number, bytes;
        if (!read_word(cpu, index, "type", type) || !strcmp(type, "Instruction"))
            continue;
        if (!read_word(cpu, index, "level", level) || !parse_integer(level, &number) ||
            number < 1 || number > 9 || !read_size(cpu, index, &bytes) || bytes == 0)
            continue;
        insert(caches, (int)number, bytes);
        if (read_word(cpu, index, "coherency_line_size", line) && parse_integer(line, &number) &&
            number >= 16 && number <= 4096 && (number & (number - 1)) == 0)
            caches->line = number;
    }
}

const char *caches_level(const struct caches *caches, uint64_t bytes)
{
    static const char *const names[] = {"L0", "L1d", "L2", "L3", "L4", "L5",
                                        "L6", "L7",  "L8", "L9"};
    for (size_t i = 0; i < caches->count; i++)
        if (bytes <= caches->cache[i].bytes)
            return names[caches->cache[i].level];
    return caches->count ? "memory" : "unknown";
}

uint64_t caches_first(const struct caches *caches)
{
    return caches->count ? caches->cache[0].bytes : 0;
}

uint64_t caches_last(const struct caches *caches)
{
    return caches->count ? caches->cache[caches->count - 1].bytes : 0;
}

void caches_text(const struct caches *caches, char *text, size_t size)
{
    size_t length = 0;
    snprintf(text, size, "unknown");
    for (size_t i = 0; i < caches->count && length < size; i++) {
        const int level = caches->cache[i].level;
        length += (size_t)snprintf(text + length, size - length, "%sL%d%s %" PRIu64 "K",
                                   i ? ", " : "", level, level == 1 ? "d" : "",
                                   caches->cache[i].bytes / 1024);
    }
}

/*
 * Memory that is there and memory that is used, from /proc. See memory.h.
 */
#include "memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t kib_of(const char *path, const char *name)
{
    char line[128];
    uint64_t kib = UINT64_MAX;
    const size_t length = strlen(name);
    FILE *file = fopen(path, "re");
    while (file && kib == UINT64_MAX && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && sscanf(line + length, "%" SCNu64, &kib) != 1)
            break;
    if (file)
        fclose(file);
    return kib;
}

uint64_t memory_available_kib(void)
{
    return kib_of("/proc/meminfo", "MemAvailable:");
}

uint64_t memory_resident_kib(void)
{
    const uint64_t kib = kib_of("/proc/self/status", "VmRSS:");
    return kib == UINT64_MAX ? 0 : kib;
}

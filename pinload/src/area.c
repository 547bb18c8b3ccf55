/*
 * Memory on a node, in pages of a size. See area.h.
 *
 * mbind(2), move_pages(2) and madvise(2) are called directly: libnuma is no part of the C
 * library. What the kernel really did is read back: the nodes of up to 64 pages from
 * move_pages, the huge pages from AnonHugePages in /proc/self/smaps.
 * https://docs.kernel.org/admin-guide/mm/transhuge.html, numa_memory_policy.html
 */
#include "area.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "args.h"

enum { HUGE_BYTES = 2 << 20, BIND = 2, NODE_LIMIT = 1024, LOOKS = 64 };

bool page_mode_parse(const char *argument, const char *text, enum page_mode *mode)
{
    if (!strcmp(text, "4k") || !strcmp(text, "huge")) {
        *mode = *text == '4' ? PAGES_SMALL : PAGES_HUGE;
        return true;
    }
    complain("%s: \"%s\" is not 4k or huge", argument, text);
    return false;
}

/* Kilobytes behind a name, as in "MemAvailable:  1234 kB", as bytes. */
static bool read_kilobytes(const char *path, const char *name, uint64_t *bytes)
{
    char line[256];
    FILE *file = fopen(path, "re");
    bool found = false;
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, name);
        if (at && sscanf(at + strlen(name), ": %" SCNu64, bytes) == 1) {
            *bytes *= 1024;
            found = true;
        }
    }
    fclose(file);
    return found;
}

static void node_file(int node, char path[96])
{
    snprintf(path, 96, "/sys/devices/system/node/node%d/meminfo", node);
}

bool node_parse(const char *argument, const char *text, int *node)
{
    uint64_t number, bytes;
    char path[96], known[128] = "none: this kernel has no NUMA";
    if (parse_integer(text, &number) && number < NODE_LIMIT) {
        node_file((int)number, path);
        if (read_kilobytes(path, "MemTotal", &bytes) && bytes > 0) {
            *node = (int)number;
            return true;
        }
    }
    FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
    if (file) {
        if (fscanf(file, "%127s", known) != 1)
            strcpy(known, "none");
        fclose(file);
    }
    complain("%s: \"%s\" is not a node that has memory; nodes here: %s", argument, text, known);
    return false;
}

/* What the control group still allows; UINT64_MAX where there is no limit. */
static uint64_t group_available(void)
{
    char line[512], path[640];
    uint64_t least = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return least;
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        found = !strncmp(line, "0::", 3);
    fclose(file);
    if (!found)
        return least;
    line[strcspn(line, "\n")] = 0;
    for (char *end; (end = strrchr(line + 3, '/')) != NULL; *end = 0) {
        uint64_t limit, used;
        bool both = true;
        for (int i = 0; i < 2 && both; i++) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.%s", line + 3, i ? "current" : "max");
            file = fopen(path, "re");
            both = file && fscanf(file, "%" SCNu64, i ? &used : &limit) == 1;
            if (file)
                fclose(file);
        }
        if (both && (limit > used ? limit - used : 0) < least)
            least = limit > used ? limit - used : 0;
    }
    return least;
}

uint64_t memory_available(int node)
{
    uint64_t machine = UINT64_MAX, here = UINT64_MAX;
    char path[96];
    read_kilobytes("/proc/meminfo", "MemAvailable", &machine);
    if (node >= 0) {
        node_file(node, path);
        read_kilobytes(path, "MemFree", &here);
    }
    const uint64_t group = group_available();
    const uint64_t least = machine < here ? machine : here;
    return least < group ? least : group;
}

static bool bind(const struct area *area)
{
    unsigned long mask[NODE_LIMIT / (8 * sizeof(long))] = {0};
    const size_t bits = 8 * sizeof *mask;
    mask[(size_t)area->wish.node / bits] = 1UL << ((size_t)area->wish.node % bits);
    return syscall(SYS_mbind, area->bytes, area->size, BIND, mask, (long)NODE_LIMIT + 1, 0) == 0;
}

bool area_open(struct area *area, const char *what, uint64_t size, const struct area_wish *wish)
{
    const uint64_t rounded = (size + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    const uint64_t available = memory_available(wish->node);
    const uint64_t mib = 1 << 20;
    /* A sixteenth is left to everything else. */
    if (rounded > available - available / 16) {
        complain("%s: %" PRIu64 " MiB are wanted, %" PRIu64
                 " MiB are free%s; ask for less or free some",
                 what, rounded / mib, available / mib, wish->node < 0 ? "" : " on that node");
        return false;
    }
    *area = (struct area){.size = (size_t)rounded, .wish = *wish, .node = -2, .huge = UINT64_MAX};
    area->page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, area->size + HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        complain_errno("%s: cannot take %" PRIu64 " MiB", what, rounded / mib);
        return false;
    }
    const size_t skip = (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;
    area->bytes = memory + skip;
    if (skip > 0)
        munmap(memory, skip);
    munmap(area->bytes + area->size, HUGE_BYTES - skip);
    /* Refused where the kernel has no transparent huge pages: area_touch sees what came of it. */
    madvise(area->bytes, area->size, wish->pages == PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (wish->node >= 0 && !bind(area)) {
        complain_errno("--node: cannot bind memory to node %d", wish->node);
        area_close(area);
        return false;
    }
    return true;
}

/* Huge pages of the mappings that lie in the area. */
static uint64_t read_huge(const struct area *area)
{
    char line[512];
    uint64_t huge = 0;
    bool inside = false, told = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file)
        return UINT64_MAX;
    while (fgets(line, sizeof line, file)) {
        uint64_t first, end, kilobytes;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &first, &end) == 2) {
            const uint64_t own = (uintptr_t)area->bytes;
            inside = first < own + area->size && end > own;
        } else if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kilobytes) == 1) {
            huge += kilobytes * 1024;
            told = true;
        }
    }
    fclose(file);
    return told ? huge : UINT64_MAX;
}

static void read_nodes(struct area *area)
{
    void *pages[LOOKS];
    int nodes[LOOKS];
    const size_t all = area->size / area->page;
    const size_t count = all < LOOKS ? all : LOOKS;
    for (size_t i = 0; i < count; i++)
        pages[i] = area->bytes + i * all / count * area->page;
    if (syscall(SYS_move_pages, 0, (unsigned long)count, pages, NULL, nodes, 0) != 0 || nodes[0] < 0)
        return;
    area->looked = count;
    area->node = nodes[0];
    for (size_t i = 0; i < count; i++) {
        if (nodes[i] != nodes[0])
            area->node = -1;
        if (nodes[i] != area->wish.node)
            area->elsewhere++;
    }
}

void area_touch(struct area *area)
{
    for (size_t i = 0; i < area->size; i += area->page)
        *(volatile char *)(area->bytes + i) = 1;
    area->huge = read_huge(area);
    read_nodes(area);
}

void area_close(struct area *area)
{
    munmap(area->bytes, area->size);
    area->bytes = NULL;
}

int own_node(void)
{
    unsigned cpu, node;
    return syscall(SYS_getcpu, &cpu, &node, NULL) == 0 ? (int)node : -1;
}

static void describe_pages(const struct area *area, struct figure *figure)
{
    const bool wished = area->wish.pages == PAGES_HUGE;
    if (area->huge == UINT64_MAX) {
        figure_label(figure, "pages", "%s", wished ? "huge" : "4k");
        figure_flag(figure, "pages-not-checked");
    } else if (area->huge >= area->size) {
        figure_label(figure, "pages", "huge");
    } else if (area->huge == 0) {
        figure_label(figure, "pages", "%zuk", area->page / 1024);
    } else {
        figure_label(figure, "pages", "mixed");
    }
    if (area->huge != UINT64_MAX && (wished ? area->huge < area->size : area->huge > 0))
        figure_flag(figure, "huge-pages %" PRIu64 " of %zu MiB", area->huge >> 20, area->size >> 20);
}

void area_describe(const struct area *area, int cpu_node, struct figure *figure)
{
    describe_pages(area, figure);
    if (area->node >= 0)
        figure_label(figure, "node", "%d", area->node);
    else
        figure_label(figure, "node", "%s", area->node == -1 ? "several" : "unknown");
    figure_label(figure, "placement", "%s",
                 area->node < 0 || cpu_node < 0 ? "unknown"
                 : area->node == cpu_node       ? "local"
                                                : "remote");
    if (area->wish.node >= 0 && area->elsewhere > 0)
        figure_flag(figure, "pages-elsewhere %zu of %zu", area->elsewhere, area->looked);
}

/*
 * Page faults. See os_latency.h.
 *
 *   page-fault-anonymous  first write to a page of new memory: found, cleared and mapped
 *   page-fault-file       first read in a mapped file that lies in the page cache
 *
 * The kernel maps 64 KiB of a file around each fault, so one page in each 64 KiB is touched;
 * huge pages are refused for the memory. The faults are counted: where the kernel did it
 * otherwise, the figure says how many there were.
 */
#include "os_latency.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TOUCHES = 1024, AROUND_BYTES = 65536 };

static long minor_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
}

static bool mapped(struct os *os, void *memory)
{
    os->pages = memory;
    os->faults = os->touches = 0;
    if (memory != MAP_FAILED)
        return true;
    complain_errno("cannot map memory for page faults");
    return false;
}

static bool open_anonymous(struct os *os)
{
    const size_t bytes = TOUCHES * os->page;
    if (!mapped(os, mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
        return false;
    madvise(os->pages, bytes, MADV_NOHUGEPAGE); /* a kernel without them refuses */
    return true;
}

static bool open_mapped_file(struct os *os)
{
    const uint64_t bytes = (uint64_t)TOUCHES * AROUND_BYTES;
    const int file = scratch_file(&os->scratch, "mapped", bytes);
    if (file < 0)
        return false;
    const bool good = mapped(os, mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, file, 0));
    close(file);
    return good;
}

static bool prepare(struct os *os, uint64_t n)
{
    (void)n;
    os->faults_before = minor_faults();
    return true;
}

static bool touch_anonymous(struct os *os, uint64_t n)
{
    volatile unsigned char *pages = os->pages;
    for (uint64_t i = 0; i < n; i++)
        pages[i * os->page] = 1;
    return true;
}

static bool touch_file(struct os *os, uint64_t n)
{
    const volatile unsigned char *pages = os->pages;
    unsigned sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += pages[i * AROUND_BYTES];
    __asm__ volatile("" : : "r"(sum));
    return true;
}

/* Counts the faults and gives the pages back. */
static bool forget(struct os *os, uint64_t n, size_t bytes)
{
    os->faults += (uint64_t)(minor_faults() - os->faults_before);
    os->touches += n;
    if (madvise(os->pages, bytes, MADV_DONTNEED) == 0)
        return true;
    complain_errno("cannot give pages back");
    return false;
}

static bool forget_anonymous(struct os *os, uint64_t n)
{
    return forget(os, n, TOUCHES * os->page);
}

static bool forget_file(struct os *os, uint64_t n)
{
    return forget(os, n, (size_t)TOUCHES * AROUND_BYTES);
}

static void close_anonymous(struct os *os)
{
    munmap(os->pages, TOUCHES * os->page);
}

static void close_mapped_file(struct os *os)
{
    munmap(os->pages, (size_t)TOUCHES * AROUND_BYTES);
    unlinkat(os->scratch.directory, "mapped", 0);
}

const struct operation os_memory[] = {
    {.name = "page-fault-anonymous",
     .open = open_anonymous,
     .prepare = prepare,
     .run = touch_anonymous,
     .tidy = forget_anonymous,
     .close = close_anonymous,
     .most = TOUCHES,
     .quiet_only = true},
    {.name = "page-fault-file",
     .open = open_mapped_file,
     .prepare = prepare,
     .run = touch_file,
     .tidy = forget_file,
     .close = close_mapped_file,
     .most = TOUCHES,
     .quiet_only = true,
     .files = true},
    {.name = NULL},
};

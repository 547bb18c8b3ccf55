/*
 * System calls, signals, and waiting for descriptors. See os_latency.h.
 *
 *   null            getppid, which does nothing
 *   signal-install  sigaction
 *   signal-catch    a signal of the thread to itself, until its handler has returned
 *   protection-fault a write to a page that cannot be written, until the handler has jumped back
 *   select, poll    for N descriptors, none of them ready, without waiting
 */
#include "os_latency.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile sig_atomic_t caught;

static void count_signal(int number)
{
    (void)number;
    caught++;
}

static bool handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, NULL) == 0)
        return true;
    complain_errno("cannot install a signal handler");
    return false;
}

static bool run_null(struct os *os, uint64_t n)
{
    (void)os;
    for (uint64_t i = 0; i < n; i++)
        if (syscall(SYS_getppid) < 0)
            return false;
    return true;
}

static bool run_install(struct os *os, uint64_t n)
{
    (void)os;
    for (uint64_t i = 0; i < n; i++)
        if (!handle(SIGUSR1, count_signal, 0))
            return false;
    return true;
}

static bool open_catch(struct os *os)
{
    (void)os;
    return handle(SIGUSR1, count_signal, 0);
}

static bool run_catch(struct os *os, uint64_t n)
{
    (void)os;
    const pid_t process = getpid();
    const long thread = syscall(SYS_gettid);
    caught = 0;
    for (uint64_t i = 0; i < n; i++)
        syscall(SYS_tgkill, process, thread, SIGUSR1);
    if ((uint64_t)caught == n)
        return true;
    complain("signal-catch: %d signals of %" PRIu64 " came", (int)caught, n);
    return false;
}

static sigjmp_buf behind_the_fault;

static void jump_back(int number)
{
    (void)number;
    siglongjmp(behind_the_fault, 1);
}

static bool open_protection(struct os *os)
{
    os->pages = mmap(NULL, os->page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (os->pages != MAP_FAILED)
        return handle(SIGSEGV, jump_back, SA_NODEFER);
    complain_errno("cannot map a page");
    return false;
}

static bool run_protection(struct os *os, uint64_t n)
{
    volatile unsigned char *page = os->pages;
    volatile uint64_t faults = 0;
    for (volatile uint64_t i = 0; i < n; i++) {
        if (sigsetjmp(behind_the_fault, 0) == 0)
            *page = 1;
        else
            faults++;
    }
    if (faults == n)
        return true;
    complain("protection-fault: %" PRIu64 " faults of %" PRIu64 " came", (uint64_t)faults, n);
    return false;
}

static void close_protection(struct os *os)
{
    signal(SIGSEGV, SIG_DFL);
    munmap(os->pages, os->page);
}

/* Descriptors of the reading end of a pipe in which there is nothing. */
static bool open_descriptors(struct os *os)
{
    int ends[2];
    uint64_t made = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        complain_errno("cannot make a pipe");
        return false;
    }
    while (made < os->descriptors && (os->files[made] = dup(ends[0])) >= 0 &&
           os->files[made] < FD_SETSIZE)
        made++;
    close(ends[0]);
    if (made < os->descriptors) {
        complain_errno("--descriptors: cannot make %" PRIu64 " of them (the limit is ulimit -n, "
                       "and of select %d)",
                       os->descriptors, FD_SETSIZE);
        return false;
    }
    os->writing_end = ends[1]; /* were it closed, all would be ready */
    return true;
}

static bool ready(const char *name)
{
    complain("%s: a descriptor was ready, or the call failed", name);
    return false;
}

static bool run_select(struct os *os, uint64_t n)
{
    fd_set wanted;
    FD_ZERO(&wanted);
    for (uint64_t i = 0; i < os->descriptors; i++)
        FD_SET(os->files[i], &wanted);
    for (uint64_t i = 0; i < n; i++) {
        fd_set set = wanted;
        struct timeval none = {0, 0};
        if (select(os->files[os->descriptors - 1] + 1, &set, NULL, NULL, &none) != 0)
            return ready("select");
    }
    return true;
}

static bool run_poll(struct os *os, uint64_t n)
{
    static struct pollfd all[OS_DESCRIPTORS];
    for (uint64_t i = 0; i < os->descriptors; i++)
        all[i] = (struct pollfd){.fd = os->files[i], .events = POLLIN};
    for (uint64_t i = 0; i < n; i++)
        if (poll(all, (nfds_t)os->descriptors, 0) != 0)
            return ready("poll");
    return true;
}

static void close_descriptors(struct os *os)
{
    for (uint64_t i = 0; i < os->descriptors; i++)
        close(os->files[i]);
    close(os->writing_end);
}

const struct operation os_calls[] = {
    {.name = "null", .run = run_null, .most = UINT64_MAX, .quiet_only = true},
    {.name = "signal-install", .run = run_install, .most = UINT64_MAX, .quiet_only = true},
    {.name = "signal-catch",
     .open = open_catch,
     .run = run_catch,
     .most = INT32_MAX,
     .quiet_only = true},
    {.name = "protection-fault",
     .open = open_protection,
     .run = run_protection,
     .close = close_protection,
     .most = UINT64_MAX,
     .quiet_only = true},
    {.name = "select",
     .open = open_descriptors,
     .run = run_select,
     .close = close_descriptors,
     .most = UINT64_MAX,
     .quiet_only = true,
     .descriptors = true},
    {.name = "poll",
     .open = open_descriptors,
     .run = run_poll,
     .close = close_descriptors,
     .most = UINT64_MAX,
     .quiet_only = true,
     .descriptors = true},
    {.name = NULL},
};

/*
 * Processes: made, replaced and waited for. See os_latency.h.
 *
 *   fork-exit   fork, a child that exits at once, and waiting for it
 *   fork-exec   the same, and the child becomes a small program that ends at once
 *   vfork-exec  the same with vfork
 *   spawn       the same with posix_spawn
 *
 * The small program is this one (`os-latency child`). A fork copies the page tables of its
 * parent: what it costs depends on how much the parent has resident, which the figures tell.
 */
#include "os_latency.h"

#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[] = "/proc/self/exe", name[] = "pinload", command[] = "os-latency",
            child[] = "child";
static char *const arguments[] = {name, command, child, NULL};
static char *const no_environment[] = {NULL};

enum { CHILD_NOT_STARTED = 127 }; /* as posix_spawn has it */

/* Waits for the only child. */
static bool reap(pid_t pid)
{
    int status;
    pid_t ended;
    if (pid < 0) {
        complain_errno("cannot start a process");
        return false;
    }
    do
        ended = waitpid(pid, &status, 0);
    while (ended < 0 && errno == EINTR);
    if (ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == PINLOAD_OK)
        return true;
    if (ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == CHILD_NOT_STARTED)
        complain("a child cannot become %s: /proc is not mounted, or a user-mode emulator runs "
                 "this; choose --operations without exec and spawn",
                 program);
    else
        complain("a child did not end as it should");
    return false;
}

static bool run_fork(struct os *os, uint64_t n)
{
    (void)os;
    for (uint64_t i = 0; i < n; i++) {
        const pid_t pid = fork();
        if (pid == 0)
            _exit(PINLOAD_OK);
        if (!reap(pid))
            return false;
    }
    return true;
}

static bool run_fork_exec(struct os *os, uint64_t n)
{
    (void)os;
    for (uint64_t i = 0; i < n; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            execve(program, arguments, no_environment);
            _exit(CHILD_NOT_STARTED);
        }
        if (!reap(pid))
            return false;
    }
    return true;
}

/* By itself, because the child shares the stack. */
static __attribute__((noinline)) pid_t vfork_and_exec(void)
{
    const pid_t pid = vfork();
    if (pid == 0) {
        execve(program, arguments, no_environment);
        _exit(CHILD_NOT_STARTED);
    }
    return pid;
}

static bool run_vfork_exec(struct os *os, uint64_t n)
{
    (void)os;
    for (uint64_t i = 0; i < n; i++)
        if (!reap(vfork_and_exec()))
            return false;
    return true;
}

static bool run_spawn(struct os *os, uint64_t n)
{
    (void)os;
    for (uint64_t i = 0; i < n; i++) {
        pid_t pid = -1;
        const int error = posix_spawn(&pid, program, NULL, NULL, arguments, no_environment);
        errno = error;
        if (!reap(error ? -1 : pid))
            return false;
    }
    return true;
}

const struct operation os_processes[] = {
    {.name = "fork-exit", .run = run_fork, .most = UINT64_MAX},
    {.name = "fork-exec", .run = run_fork_exec, .most = UINT64_MAX},
    {.name = "vfork-exec", .run = run_vfork_exec, .most = UINT64_MAX},
    {.name = "spawn", .run = run_spawn, .most = UINT64_MAX},
    {.name = NULL},
};

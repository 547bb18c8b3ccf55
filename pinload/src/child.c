/*
 * Starting and ending programs on channels. See child.h.
 *
 * The child dies with the agent (PDEATHSIG). Whether exec worked is told by a
 * pipe that closes on exec, so that "no such program" is an answer to the
 * request and not a line on somebody's stderr.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"

struct pipes {
    int in[2], out[2], err[2], told[2];
};

static void close_file(int *file)
{
    if (*file >= 0)
        close(*file);
    *file = -1;
}

static void close_pipes(struct pipes *pipes)
{
    int *const ends[] = {pipes->in, pipes->out, pipes->err, pipes->told};
    for (size_t i = 0; i < 4; i++) {
        close_file(&ends[i][0]);
        close_file(&ends[i][1]);
    }
}

static bool open_pipes(struct pipes *pipes)
{
    *pipes = (struct pipes){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (pipe2(pipes->in, O_CLOEXEC) == 0 && pipe2(pipes->out, O_CLOEXEC) == 0 &&
        pipe2(pipes->err, O_CLOEXEC) == 0 && pipe2(pipes->told, O_CLOEXEC) == 0)
        return true;
    const int error = errno;
    close_pipes(pipes);
    errno = error;
    return false;
}

static _Noreturn void become(char **argv, const struct pipes *pipes, pid_t agent)
{
    sigset_t none;
    die_with_this_parent(agent);
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    int error = 0;
    if (dup2(pipes->in[0], 0) < 0 || dup2(pipes->out[1], 1) < 0 || dup2(pipes->err[1], 2) < 0)
        error = errno;
    if (!error) {
        execv(strchr(argv[0], '/') ? argv[0] : "/proc/self/exe", argv);
        error = errno;
    }
    const ssize_t written = write(pipes->told[1], &error, sizeof error);
    _exit(written == (ssize_t)sizeof error ? 127 : 126);
}

/* The errno of a failed exec, 0 if it worked. */
static int hear(int told)
{
    int error = 0;
    ssize_t length;
    do
        length = read(told, &error, sizeof error);
    while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof error ? error : 0;
}

static bool is_supervised(char **argv)
{
    if (strchr(argv[0], '/'))
        return false;
    for (size_t i = 1; argv[i]; i++)
        if (!strcmp(argv[i], "--supervised"))
            return true;
    return false;
}

/* The argv of the program itself: before a subcommand and its arguments comes "pinload". */
static char **full_argv(char **argv)
{
    size_t count = 0;
    while (argv[count])
        count++;
    char **full = calloc(count + 2, sizeof *full);
    if (!full)
        return NULL;
    const size_t shift = strchr(argv[0], '/') ? 0 : 1;
    static char program[] = "pinload";
    full[0] = program;
    memcpy(full + shift, argv, count * sizeof *full);
    return full;
}

static void not_blocking(int file)
{
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
}

int child_start(struct child *child, uint32_t channel, char **argv)
{
    struct pipes pipes;
    const pid_t agent = getpid();
    char **full = full_argv(argv);
    if (!full)
        return ENOMEM;
    if (!open_pipes(&pipes)) {
        free(full);
        return errno;
    }
    const pid_t pid = fork();
    if (pid == 0)
        become(full, &pipes, agent);
    int error = pid < 0 ? errno : 0;
    free(full);
    close_file(&pipes.told[1]);
    if (!error && (error = hear(pipes.told[0])) != 0)
        waitpid(pid, NULL, 0);
    if (error) {
        close_pipes(&pipes);
        return error;
    }
    *child = (struct child){.channel = channel,
                            .pid = pid,
                            .supervised = is_supervised(argv),
                            .in = pipes.in[1],
                            .out = pipes.out[0],
                            .err = pipes.err[0]};
    pipes.in[1] = pipes.out[0] = pipes.err[0] = -1;
    close_pipes(&pipes);
    not_blocking(child->in);
    not_blocking(child->out);
    not_blocking(child->err);
    return 0;
}

void child_feed(struct child *child)
{
    enum transfer moved = TRANSFER_SOME;
    while (child->in >= 0 && moved == TRANSFER_SOME)
        moved = bytes_write(&child->waiting, child->in);
    if (moved == TRANSFER_ENDED || (child->close_in && bytes_length(&child->waiting) == 0)) {
        close_file(&child->in); /* it no longer reads, or has all that there was */
        bytes_clear(&child->waiting);
    }
}

void child_beat(struct child *child)
{
    if (child->supervised && child->in >= 0 && bytes_length(&child->waiting) == 0 &&
        bytes_append(&child->waiting, "\n", 1))
        child_feed(child);
}

int child_signal(const struct child *child, int signal)
{
    if (child->ended)
        return 0;
    return kill(-child->pid, signal) == 0 || kill(child->pid, signal) == 0 ? 0 : errno;
}

void child_free(struct child *child)
{
    close_file(&child->in);
    close_file(&child->out);
    close_file(&child->err);
    bytes_clear(&child->waiting);
    *child = (struct child){.in = -1, .out = -1, .err = -1};
}

void child_discard(struct child *child)
{
    if (!child->ended) {
        child_signal(child, SIGKILL);
        while (waitpid(child->pid, &child->status, 0) < 0 && errno == EINTR)
            ;
    }
    child_free(child);
}

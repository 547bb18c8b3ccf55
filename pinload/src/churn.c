/*
 * Churn: short-lived and alternating processes, each of which does a small fixed amount of work.
 *
 *   fork   a child at a time works and ends (a shell's pipeline, a build)
 *   spawn  the same, and each child first becomes a new program
 *   pipe   two processes hand a byte to and fro, and each works in its turn
 *
 * A method that finds its tasks late, or meters each by itself, loses those that live for
 * less than a millisecond. One process at a time works, so the result compares with that of one
 * spinning thread; work outweighs the kernel's part, so it compares closely.
 * Only the work of children that ended as they should is counted.
 */
#include "churn.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "supervise.h"
#include "work.h"

/* Exit codes of children, told apart from a program's own. */
enum { CHILD_WRONG = 100, CHILD_NOT_STARTED = 101 };

struct churn {
    const char *name;
    bool (*run)(struct churn *churn);
    uint64_t units; /* of each child or turn */
    uint64_t duration_ns;
    bool supervised;
    uint64_t done; /* units of all processes */
    uint64_t rounds;
    uint64_t children;
    uint64_t begin_ns;
};

static bool work_proven(uint64_t units)
{
    struct work work;
    work_begin(&work);
    while (work.units < units)
        work_one(&work);
    return work_is_proven(&work);
}

static bool time_is_up(const struct churn *churn)
{
    return monotonic_ns() - churn->begin_ns >= churn->duration_ns;
}

/* Waits for the only child. */
static bool reap(struct churn *churn, pid_t child)
{
    int status;
    pid_t pid;
    do
        pid = waitpid(child, &status, 0);
    while (pid < 0 && errno == EINTR);
    if (pid < 0) {
        complain_errno("cannot wait for a child");
        return false;
    }
    churn->children++;
    if (WIFSIGNALED(status))
        complain("a child was ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == CHILD_NOT_STARTED)
        complain("a child cannot become /proc/self/exe; is /proc mounted?");
    else if (WEXITSTATUS(status) != PINLOAD_OK)
        complain("a child ended with %d: wrong result of the work", WEXITSTATUS(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == PINLOAD_OK;
}

/* One child after the other; `live` is what a child does, and its exit code. */
static bool run_children(struct churn *churn, int (*live)(const struct churn *churn))
{
    const pid_t parent = getpid();
    do {
        const pid_t pid = fork();
        if (pid == 0) {
            die_with_this_parent(parent);
            _exit(live(churn));
        }
        if (pid < 0) {
            complain_errno("cannot start a child");
            return false;
        }
        if (!reap(churn, pid))
            return false;
        churn->rounds++;
        churn->done += churn->units;
    } while (!time_is_up(churn));
    return true;
}

static int live_here(const struct churn *churn)
{
    return work_proven(churn->units) ? PINLOAD_OK : CHILD_WRONG;
}

static bool run_fork(struct churn *churn)
{
    return run_children(churn, live_here);
}

static int live_as_a_new_program(const struct churn *churn)
{
    char units[24];
    snprintf(units, sizeof units, "%" PRIu64, churn->units);
    execl("/proc/self/exe", "pinload", "churn", "child", "--units", units, (char *)NULL);
    return CHILD_NOT_STARTED;
}

static bool run_spawn(struct churn *churn)
{
    return run_children(churn, live_as_a_new_program);
}

/* Waits for the other's byte; false at the end of the pipe. */
static bool take_turn(int from)
{
    char byte;
    ssize_t length;
    do
        length = read(from, &byte, 1);
    while (length < 0 && errno == EINTR);
    return length == 1;
}

static bool give_turn(int to)
{
    ssize_t length;
    do
        length = write(to, "\n", 1);
    while (length < 0 && errno == EINTR);
    return length == 1;
}

/* The other process: works in its turns until there are no more. */
static int alternate(const struct churn *churn, int from, int to)
{
    struct work work;
    work_begin(&work);
    while (take_turn(from)) {
        for (uint64_t i = 0; i < churn->units; i++)
            work_one(&work);
        if (!give_turn(to))
            break;
    }
    return work_is_proven(&work) ? PINLOAD_OK : CHILD_WRONG;
}

static bool play(struct churn *churn, int from, int to)
{
    struct work work;
    work_begin(&work);
    do {
        for (uint64_t i = 0; i < churn->units; i++)
            work_one(&work);
        if (!give_turn(to) || !take_turn(from)) {
            complain("the other process is gone");
            return false;
        }
        churn->rounds++;
        churn->done += 2 * churn->units;
    } while (!time_is_up(churn));
    if (!work_is_proven(&work))
        complain("wrong result of the work");
    return work_is_proven(&work);
}

static bool run_pipe(struct churn *churn)
{
    int there[2], back[2];
    const pid_t parent = getpid();
    if (pipe(there) != 0 || pipe(back) != 0) {
        complain_errno("cannot make a pipe");
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        die_with_this_parent(parent);
        close(there[1]);
        close(back[0]);
        _exit(alternate(churn, there[0], back[1]));
    }
    close(there[0]);
    close(back[1]);
    if (pid < 0)
        complain_errno("cannot start a child");
    const bool played = pid > 0 && play(churn, back[0], there[1]);
    close(there[1]); /* the child sees the end of its pipe, and ends */
    close(back[0]);
    return pid > 0 && reap(churn, pid) && played;
}

static int run(struct churn *churn)
{
    if (!supervise_measurement(measurement_limit_ns(churn->duration_ns) + WORK_LIMIT_NS,
                               churn->supervised, 0))
        return PINLOAD_FAILED;
    signal(SIGPIPE, SIG_IGN);
    const uint64_t cpu_ns = used_cpu_ns();
    churn->begin_ns = monotonic_ns();
    if (!churn->run(churn))
        return PINLOAD_FAILED;
    const uint64_t elapsed_ns = monotonic_ns() - churn->begin_ns;
    printf("{\"probe\":\"churn-%s\",\"units\":%" PRIu64 ",\"elapsed_ns\":%" PRIu64
           ",\"cpu_ns\":%" PRIu64 ",\"rounds\":%" PRIu64 ",\"children\":%" PRIu64 "}\n",
           churn->name, churn->done, elapsed_ns, used_cpu_ns() - cpu_ns, churn->rounds,
           churn->children);
    return output_end();
}

/* The program that `spawn` starts. */
static int child_main(int argc, char **argv)
{
    uint64_t units = 0;
    const struct argument table[] = {
        {"--units", ARGUMENT_INTEGER, &units, 1, WORK_LIMIT_UNITS, REQUIRED, "units of work"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    return work_proven(units) ? PINLOAD_OK : CHILD_WRONG;
}

static const char *const kinds[] = {"fork", "pipe", "spawn"};
static bool (*const runs[])(struct churn *) = {run_fork, run_pipe, run_spawn};

int churn_main(int argc, char **argv)
{
    struct churn churn = {.units = 1500};
    const struct argument table[] = {
        {"--seconds", ARGUMENT_SECONDS, &churn.duration_ns, 10 * NS_PER_MS, 3600 * NS_PER_S,
         REQUIRED, "how long to measure; the last child or turn is ended"},
        {"--units", ARGUMENT_INTEGER, &churn.units, 1, WORK_LIMIT_UNITS, OPTIONAL,
         "units of work of each child or turn (1500)"},
        {"--supervised", ARGUMENT_FLAG, &churn.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    if (argc > 0 && !strcmp(argv[0], "child"))
        return child_main(argc - 1, argv + 1);
    size_t kind = 0;
    enum parse_result parsed = arguments_word(&argc, &argv, "kind of churn", kinds,
                                              sizeof kinds / sizeof *kinds, &kind);
    if (parsed == PARSE_DONE)
        parsed = arguments_parse(argc, argv, table, sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    churn.name = kinds[kind];
    churn.run = runs[kind];
    return run(&churn);
}

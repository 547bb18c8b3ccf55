/*
 * The agent: one loop over the connection, its children's pipes and SIGCHLD.
 *
 * Everything is non-blocking. What the host does not read waits in a queue; while
 * that is long, the children's output and further requests are left unread, so
 * that neither side can make the other grow without bound. When a connection
 * ends, its children end with it; in a guest the agent then waits for the next.
 * The protocol is described in frame.h.
 */
#include "agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "guest.h"
#include "json.h"
#include "session.h"

enum { QUEUE_LIMIT = 4 << 20, POLL_LIMIT = 3 + 3 * CHILD_LIMIT };

struct agent {
    int in;
    int out;
    int signals;
    bool is_init;
    bool connected; /* somebody has been on the other side */
    bool ending;
    const char *failures; /* of its modules, as JSON */
    char *hello;
    struct session session;
};

static void end_connection(struct agent *agent)
{
    agent->connected = false;
    if (agent->is_init)
        session_begin(&agent->session, agent->hello);
    else
        agent->ending = true;
}

static void reap(struct agent *agent)
{
    struct signalfd_siginfo note;
    int status;
    while (read(agent->signals, &note, sizeof note) == (ssize_t)sizeof note)
        ;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG))
        session_reaped(&agent->session, pid, status);
}

static size_t poll_set(struct agent *agent, struct pollfd *set)
{
    const bool room = bytes_length(&agent->session.output) < QUEUE_LIMIT;
    const bool waiting = bytes_length(&agent->session.output) > 0;
    size_t count = 3;
    set[0] = (struct pollfd){.fd = agent->in, .events = room ? POLLIN : 0};
    set[1] = (struct pollfd){.fd = waiting ? agent->out : -1, .events = POLLOUT};
    set[2] = (struct pollfd){.fd = agent->signals, .events = POLLIN};
    for (size_t i = 0; i < CHILD_LIMIT; i++) {
        const struct child *child = &agent->session.children[i];
        if (!child->channel)
            continue;
        set[count++] = (struct pollfd){.fd = room ? child->out : -1, .events = POLLIN};
        set[count++] = (struct pollfd){.fd = room ? child->err : -1, .events = POLLIN};
        set[count++] = (struct pollfd){.fd = bytes_length(&child->waiting) > 0 ? child->in : -1,
                                       .events = POLLOUT};
    }
    return count;
}

static void serve_children(struct agent *agent, const struct pollfd *set)
{
    size_t next = 3;
    for (size_t i = 0; i < CHILD_LIMIT; i++) {
        struct child *child = &agent->session.children[i];
        if (!child->channel)
            continue;
        if (set[next].revents)
            session_pass_on(&agent->session, child->channel, &child->out, FRAME_OUT);
        if (set[next + 1].revents)
            session_pass_on(&agent->session, child->channel, &child->err, FRAME_ERR);
        if (set[next + 2].revents)
            child_feed(child);
        next += 3;
    }
}

/* A virtio port says POLLHUP as long as nobody is on the host's side. */
static bool nobody_there(struct agent *agent, short events)
{
    if (!agent->is_init || !(events & POLLHUP)) {
        agent->connected = true;
        return false;
    }
    if (agent->connected)
        end_connection(agent);
    while (bytes_read(&agent->session.input, agent->in) == TRANSFER_SOME)
        bytes_drop(&agent->session.input,
                   bytes_length(&agent->session.input)); /* from the last connection */
    sleep_until(monotonic_ns() + 20 * NS_PER_MS);
    return true;
}

static void read_input(struct agent *agent)
{
    const enum transfer moved = bytes_read(&agent->session.input, agent->in);
    session_take_input(&agent->session);
    if (moved == TRANSFER_ENDED)
        end_connection(agent);
}

/* What is still queued (an ERROR, the last EXIT) gets a second to leave. */
static void flush(struct agent *agent)
{
    const uint64_t end = monotonic_ns() + NS_PER_S;
    while (bytes_length(&agent->session.output) > 0 && monotonic_ns() < end) {
        struct pollfd leaving = {.fd = agent->out, .events = POLLOUT};
        if (poll(&leaving, 1, 100) > 0 &&
            bytes_write(&agent->session.output, agent->out) == TRANSFER_ENDED)
            break;
    }
}

static void write_online(FILE *out)
{
    char text[1024] = "";
    FILE *file = fopen("/sys/devices/system/cpu/online", "re");
    if (file) {
        if (!fgets(text, sizeof text, file))
            *text = 0;
        fclose(file);
    }
    text[strcspn(text, "\n")] = 0;
    if (!*text)
        snprintf(text, sizeof text, "0-%ld", sysconf(_SC_NPROCESSORS_ONLN) - 1);
    json_text(out, text);
}

static char *make_hello(const char *failures)
{
    char *text = NULL;
    size_t length = 0;
    struct utsname system;
    FILE *out = open_memstream(&text, &length);
    if (!out || uname(&system) != 0)
        return NULL;
    fprintf(out, "{\"protocol\":%d,\"pinload\":\"%s\",\"kernel\":", FRAME_PROTOCOL,
            PINLOAD_VERSION);
    json_text(out, system.release);
    fputs(",\"machine\":", out);
    json_text(out, system.machine);
    fprintf(out, ",\"init\":%s,\"cpus_online\":", getpid() == 1 ? "true" : "false");
    write_online(out);
    const int levels = guest_page_table_levels();
    if (levels)
        fprintf(out, ",\"page_table_levels\":%d", levels);
    fprintf(out, ",\"module_failures\":[%s]}", failures);
    return fclose(out) == 0 ? text : NULL;
}

/* What is asked after the guest has started, because it takes long where many vCPUs share few PUs. */
static void bring_online(struct agent *agent)
{
    if (agent->is_init)
        guest_bring_cpus_online();
    char *hello = make_hello(agent->failures);
    if (!hello) { /* the host must not take the old one for the answer */
        complain_errno("cannot say which CPUs are online");
        agent->session.ending = agent->session.failed = true;
        return;
    }
    free(agent->hello);
    agent->hello = hello;
    session_greet(&agent->session, hello);
}

static void serve(struct agent *agent)
{
    static struct pollfd set[POLL_LIMIT];
    session_begin(&agent->session, agent->hello);
    while (!agent->ending && !agent->session.ending) {
        const size_t count = poll_set(agent, set);
        if (poll(set, count, -1) < 0)
            continue; /* interrupted */
        if (nobody_there(agent, set[0].revents))
            continue;
        serve_children(agent, set); /* first: the set describes the children as they were */
        if (set[2].revents)
            reap(agent);
        if (set[1].revents && bytes_write(&agent->session.output, agent->out) == TRANSFER_ENDED)
            end_connection(agent);
        else if (set[0].revents & (POLLIN | POLLHUP | POLLERR))
            read_input(agent);
        if (agent->session.onlining)
            bring_online(agent);
        if (agent->session.refusing && !agent->is_init)
            agent->ending = true;
    }
    flush(agent);
    session_end(&agent->session);
}

static int open_signals(void)
{
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &children, NULL);
    return signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* Serves one connection (or, as init, one after the other) to its end. */
static int serve_on(int in, int out, bool is_init, const char *failures)
{
    static struct agent agent;
    agent = (struct agent){.in = in,
                           .out = out,
                           .signals = open_signals(),
                           .is_init = is_init,
                           .failures = failures,
                           .hello = make_hello(failures)};
    if (!agent.hello || agent.signals < 0) {
        complain_errno("cannot start");
        return PINLOAD_FAILED;
    }
    session_init(&agent.session);
    serve(&agent);
    close(agent.signals);
    free(agent.hello);
    return agent.session.failed     ? PINLOAD_FAILED
           : agent.session.refusing ? PINLOAD_ABANDONED
                                    : PINLOAD_OK;
}

static bool prepare_file(int file)
{
    const int flags = fcntl(file, F_GETFL);
    if (flags >= 0 && fcntl(file, F_SETFL, flags | O_NONBLOCK) == 0 &&
        (file <= 2 || fcntl(file, F_SETFD, FD_CLOEXEC) == 0))
        return true;
    complain_errno("descriptor %d", file);
    return false;
}

int agent_main(int argc, char **argv)
{
    bool stdio = false;
    uint64_t socket_file = 0;
    const struct argument table[] = {
        {"--stdio", ARGUMENT_FLAG, &stdio, 0, 0, OPTIONAL, "serve on stdin and stdout"},
        {"--socket-fd", ARGUMENT_INTEGER, &socket_file, 3, 1 << 20, OPTIONAL,
         "serve on this open descriptor"},
    };
    const enum parse_result parsed = arguments_parse(argc, argv, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    if (stdio == (socket_file != 0)) {
        complain("--stdio, --socket-fd: exactly one of them is required");
        return PINLOAD_USAGE;
    }
    const int in = stdio ? STDIN_FILENO : (int)socket_file;
    const int out = stdio ? STDOUT_FILENO : (int)socket_file;
    if (!prepare_file(in) || !prepare_file(out))
        return PINLOAD_FAILED;
    return serve_on(in, out, false, "");
}

int agent_init(void)
{
    char *failures = NULL;
    size_t length = 0;
    guest_mount();
    guest_raise_loopback();
    FILE *report = open_memstream(&failures, &length);
    if (report) {
        guest_insert_modules(report);
        fclose(report);
    }
    const int port = guest_open_port(60 * NS_PER_S);
    if (port < 0)
        complain("no virtio-serial port is named " GUEST_PORT "; powering off");
    else
        serve_on(port, port, true, failures ? failures : "");
    guest_power_off();
}

/*
 * Parent, deadline and heartbeat. See supervise.h.
 *
 * PDEATHSIG follows the parent *thread*, and says nothing if the parent ended
 * before it was set: hence the second look at getppid.
 */
#include "supervise.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <unistd.h>

#include "rt.h"

void die_with_this_parent(int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(PINLOAD_ABANDONED);
}

void die_with_parent(void)
{
    die_with_this_parent(getppid());
}

void die_after(uint64_t after_ns)
{
    const struct itimerval timer = {
        .it_value = {.tv_sec = (time_t)(after_ns / NS_PER_S),
                     .tv_usec = (suseconds_t)(after_ns % NS_PER_S / 1000) + 1},
    };
    signal(SIGALRM, SIG_DFL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

enum heartbeat heartbeat_wait(uint64_t limit_ns)
{
    const uint64_t end = monotonic_ns() + limit_ns;
    for (;;) {
        const uint64_t now = monotonic_ns();
        const uint64_t rest_ms = now < end ? (end - now + NS_PER_MS - 1) / NS_PER_MS : 0;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        const int ready = poll(&input, 1, (int)rest_ms);
        if (ready == 0)
            return HEARTBEAT_MISSED;
        if (ready < 0) {
            if (errno == EINTR)
                continue;
            return HEARTBEAT_ENDED;
        }
        char bytes[256];
        const ssize_t length = read(STDIN_FILENO, bytes, sizeof bytes);
        if (length > 0)
            return HEARTBEAT_CAME;
        if (length == 0 || (errno != EINTR && errno != EAGAIN))
            return HEARTBEAT_ENDED;
    }
}

static void *guard(void *argument)
{
    const int *priority = argument;
    if (*priority > 0) {
        const struct policy above = {.fifo = true, .priority = *priority < 99 ? *priority + 1 : 99};
        if (!thread_enter_policy(&above))
            complain_errno("the guard stays at normal priority");
    }
    enum heartbeat answer;
    do
        answer = heartbeat_wait(HEARTBEAT_LIMIT_NS);
    while (answer == HEARTBEAT_CAME);
    complain(answer == HEARTBEAT_MISSED ? "no heartbeat for 1.5 s, the measurement ends"
                                        : "the supervisor is gone, the measurement ends");
    _exit(PINLOAD_ABANDONED);
}

bool heartbeat_guard(int policy_priority)
{
    static int priority; /* outlives this call; there is one guard per process */
    pthread_t thread;
    priority = policy_priority;
    if (pthread_create(&thread, NULL, guard, &priority) != 0) {
        complain("cannot start the guard's thread");
        return false;
    }
    pthread_detach(thread);
    return true;
}

bool supervise_measurement(uint64_t limit_ns, bool supervised, int policy_priority)
{
    die_with_parent();
    die_after(limit_ns);
    return !supervised || heartbeat_guard(policy_priority);
}

/*
 * Gaps with a known cause, compiled by the benchmark `gaps` with gcc -O2.
 *
 *   culprits KIND CPU ELSEWHERE OVER_NS ACTS [DIRECTORY]
 *
 * The subject, a thread of this process, spins on CPU and records each time for which it did not
 * run (at least OVER_NS / 2): this is the reference. A culprit makes ACTS gaps and records when it
 * was at work. Prints "subject TID" and "culprit TID" (and "process PID" of a machine), waits for a
 * line on standard input, then prints "gap FROM UNTIL", "act FROM UNTIL" (CLOCK_MONOTONIC, ns) and
 * "end". DIRECTORY is that of a new cgroup, or of a firmware that never returns.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 65536
#define MS 1000000ULL
#define PAUSE (20 * MS)

struct span {
    uint64_t from, until;
};

/* Shared with the process of the culprit. */
static struct shared {
    volatile uint32_t gaps, acts, ready, go, stop, blocks, tid, helper;
    struct span gap[MOST], act[MOST];
} *shared;

static const char *kind;
static int cpu, elsewhere, wanted;
static uint64_t over;

static void fail(const char *what)
{
    printf("error %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void pause_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000ULL), (long)(ns % 1000000000ULL)};
    while (nanosleep(&t, &t) && errno == EINTR)
        ;
}

static void pin(int to)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(to, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
}

static void fifo(pid_t tid, int priority)
{
    struct sched_param p = {.sched_priority = priority};
    if (sched_setscheduler(tid, priority ? SCHED_FIFO : SCHED_OTHER, &p))
        fail("sched_setscheduler");
}

static void put(const char *path, const char *format, ...)
{
    char text[64];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    int file = open(path, O_WRONLY);
    if (file < 0 || write(file, text, (size_t)length) != length)
        fail(path);
    close(file);
}

static void put_below(const char *directory, const char *name, const char *format, long value)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    put(path, format, value);
}

static void record(struct span *spans, volatile uint32_t *count, uint64_t from, uint64_t until)
{
    if (*count < MOST) {
        spans[*count] = (struct span){from, until};
        *count += 1;
    }
}

static void act(uint64_t from, uint64_t until)
{
    record(shared->act, &shared->acts, from, until);
}

/* A guest that writes to a port again and again: returns its vCPU. */
static int vcpu(void)
{
    static const unsigned char code[] = {0xe6, 0x10, 0xeb, 0xfc}; /* again: out 0x10, al; jmp again */
    int kvm = open("/dev/kvm", O_RDWR), vm = ioctl(kvm, KVM_CREATE_VM, 0L), made;
    unsigned char *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvm_userspace_memory_region region = {
        .guest_phys_addr = 0x1000, .memory_size = 4096, .userspace_addr = (unsigned long)memory};
    struct kvm_sregs segments;
    struct kvm_regs registers = {.rip = 0x1000, .rflags = 2};
    if (vm < 0 || memory == MAP_FAILED || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
        fail("KVM");
    memcpy(memory, code, sizeof code);
    if ((made = ioctl(vm, KVM_CREATE_VCPU, 0L)) < 0 || ioctl(made, KVM_GET_SREGS, &segments))
        fail("KVM_CREATE_VCPU");
    segments.cs.base = segments.cs.selector = 0;
    if (ioctl(made, KVM_SET_SREGS, &segments) || ioctl(made, KVM_SET_REGS, &registers))
        fail("KVM_SET_REGS");
    return made;
}

static sem_t asked, answered;

/* Answers the vCPU after 3 ms. */
static void *answer(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "answer");
    pin(elsewhere);
    fifo(0, 20);
    shared->helper = (uint32_t)gettid();
    for (int i = 0; i < wanted; i++) {
        while (sem_wait(&asked))
            ;
        pause_ns(3 * MS);
        sem_post(&answered);
    }
    return 0;
}

static uint64_t last;

/* The subject runs: what it did not run since the last call is a gap of the reference. */
static void runs(void)
{
    uint64_t at = now();
    if (at - last >= over / 2)
        record(shared->gap, &shared->gaps, last, at);
    last = at;
}

/* What the subject does on request: uninterruptible until a child ends; handles an exit for
   2 ms; or waits for the other thread. */
static void block(void)
{
    uint64_t from = now();
    if (!strcmp(kind, "exit")) {
        while (now() - from < 2 * MS)
            ;
        act(from, now());
        runs();
    } else if (!strcmp(kind, "await")) {
        sem_post(&asked);
        while (sem_wait(&answered))
            ;
        act(from, now());
        runs();
    } else {
        pid_t child = vfork();
        if (!child) {
            pause_ns(5 * MS);
            _exit(0);
        }
        act(from, now());
        runs();
        while (waitpid(child, 0, 0) < 0 && errno == EINTR)
            ;
    }
}

/* The subject. */
static void *spin(void *unused)
{
    (void)unused;
    pin(cpu);
    setpriority(PRIO_PROCESS, 0, -20);
    prctl(PR_SET_NAME, "subject");
    int guest = !strcmp(kind, "exit") || !strcmp(kind, "await") ? vcpu() : -1;
    shared->tid = (uint32_t)gettid();
    last = now();
    uint32_t blocks = 0;
    while (!shared->stop) {
        if (shared->blocks != blocks) {
            blocks = shared->blocks;
            block();
        } else if (guest >= 0) {
            ioctl(guest, KVM_RUN, 0);
        }
        runs();
    }
    return 0;
}

/* Runs for this long; what interrupts it for more than 50 us divides the act. */
static void burn(uint64_t ns)
{
    uint64_t begin = now(), from = begin, last = begin;
    while (last - begin < ns) {
        uint64_t at = now();
        if (at - last > 50000) {
            act(from, last);
            from = at;
        }
        last = at;
    }
    act(from, last);
}

static void run_on_cpu(const char *name, int priority, uint64_t ns)
{
    prctl(PR_SET_NAME, name);
    pin(cpu);
    if (priority)
        fifo(0, priority);
    else
        setpriority(PRIO_PROCESS, 0, -20);
    shared->helper = (uint32_t)gettid();
    shared->ready = 1;
    while (!shared->go)
        pause_ns(MS);
    for (int i = 0; i < wanted; i++) {
        burn(ns);
        pause_ns(PAUSE);
    }
}

static void *own_thread(void *unused)
{
    (void)unused;
    run_on_cpu("own-helper", 10, 2 * MS);
    return 0;
}

static void begin_elsewhere(const char *name)
{
    prctl(PR_SET_NAME, name);
    pin(elsewhere);
    fifo(0, 20);
    if (!shared->helper)
        shared->helper = (uint32_t)gettid();
    shared->ready = 1;
    while (!shared->go)
        pause_ns(MS);
}

/* Waits until the subject has this state, or the freezer: a signal waits until its thread runs. */
static void wait_for(const char *path, const char *state)
{
    char text[512] = "";
    for (uint64_t end = now() + 1000 * MS; now() < end;) {
        FILE *file = fopen(path, "r");
        size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
        text[length] = 0;
        if (file)
            fclose(file);
        if (strstr(text, state))
            return;
        pause_ns(MS / 10);
    }
}

static void stop_and_go(pid_t subject)
{
    char path[64];
    begin_elsewhere("stopper");
    snprintf(path, sizeof path, "/proc/%d/task/%u/stat", subject, shared->tid);
    for (int i = 0; i < wanted; i++) {
        kill(subject, SIGSTOP);
        wait_for(path, ") T");
        uint64_t from = now();
        pause_ns(3 * MS);
        kill(subject, SIGCONT);
        act(from, now());
        pause_ns(PAUSE);
    }
}

/* The freezer of cgroup v1. */
static void freeze(const char *directory)
{
    char path[512];
    begin_elsewhere("freezer");
    snprintf(path, sizeof path, "%s/freezer.state", directory);
    for (int i = 0; i < wanted; i++) {
        put(path, "FROZEN");
        wait_for(path, "FROZEN");
        uint64_t from = now();
        pause_ns(3 * MS);
        act(from, now());
        put(path, "THAWED");
        pause_ns(PAUSE);
    }
}

/* Timers that expire together: one interrupt runs all of their functions. */
static void timers(void)
{
    enum { COUNT = 3000 };
    static int file[COUNT];
    struct rlimit limit = {COUNT + 100, COUNT + 100};
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < COUNT; i++)
        if ((file[i] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)) < 0)
            fail("timerfd_create");
    begin_elsewhere("timers");
    for (int n = 0; n < wanted; n++) {
        /* A timer expires on the CPU on which it was set. */
        pin(cpu);
        uint64_t at = now() + 30 * MS, count;
        for (int i = 0; i < COUNT; i++) {
            uint64_t t = at + (i == COUNT - 1);
            struct itimerspec when = {.it_value = {(time_t)(t / 1000000000), (long)(t % 1000000000)}};
            timerfd_settime(file[i], TFD_TIMER_ABSTIME, &when, 0);
        }
        pin(elsewhere);
        if (now() > at)
            continue;
        pause_ns(at - now() - MS / 2);
        while (read(file[COUNT - 1], &count, sizeof count) < 0 && now() < at + 100 * MS)
            ;
        act(at, now());
        pause_ns(PAUSE);
    }
}

/* An interrupt from another CPU that schedules many events of perf anew. */
static void interrupts(void)
{
    enum { COUNT = 2500 };
    struct rlimit limit = {COUNT + 100, COUNT + 100};
    setrlimit(RLIMIT_NOFILE, &limit);
    struct perf_event_attr attr = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_DUMMY};
    int last = -1;
    for (int i = 0; i < COUNT; i++)
        if ((last = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, 0)) < 0)
            fail("perf_event_open");
    begin_elsewhere("interrupts");
    for (int n = 0; n < wanted; n++) {
        ioctl(last, PERF_EVENT_IOC_DISABLE, 0);
        pause_ns(PAUSE);
        uint64_t from = now();
        ioctl(last, PERF_EVENT_IOC_ENABLE, 0);
        act(from, now());
    }
}

static int packet_socket(int index, int type)
{
    int file = socket(AF_PACKET, SOCK_RAW, htons((uint16_t)type));
    struct sockaddr_ll to = {
        .sll_family = AF_PACKET, .sll_protocol = htons((uint16_t)type), .sll_ifindex = index};
    if (file < 0 || bind(file, (void *)&to, sizeof to))
        fail("packet socket");
    return file;
}

/* Packets whose filters are long, received in the softirq of the CPU. */
static void packets(void)
{
    enum { LISTENERS = 150, LENGTH = 4000, PACKETS = 4, TYPE = 0x88b5 };
    static struct sock_filter code[LENGTH];
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)
        || mount("sysfs", "/sys", "sysfs", 0, 0))
        fail("namespaces");
    if (system("ip link add gap0 type veth peer name gap1 && ip link set gap0 up && ip link set gap1 up"))
        fail("ip link");
    put("/sys/class/net/gap1/queues/rx-0/rps_cpus", "%lx", 1L << cpu);
    for (int i = 0; i < LENGTH; i++)
        code[i] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, 1);
    code[LENGTH - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {LENGTH, code};
    /* The last that is bound is the first that receives. */
    int last = packet_socket((int)if_nametoindex("gap1"), TYPE);
    for (int i = 0; i < LISTENERS; i++) {
        int file = packet_socket((int)if_nametoindex("gap1"), TYPE);
        if (setsockopt(file, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program))
            fail("SO_ATTACH_FILTER");
    }
    int out = packet_socket((int)if_nametoindex("gap0"), 0);
    char frame[64] = {-1, -1, -1, -1, -1, -1, 2, 0, 0, 0, 0, 1, TYPE >> 8, TYPE & 0xff};
    begin_elsewhere("packets");
    for (int n = 0; n < wanted; n++) {
        uint64_t from = now();
        for (int i = 0; i < PACKETS; i++)
            if (send(out, frame, sizeof frame, 0) < 0)
                fail("send");
        for (int i = 0; i < PACKETS; i++)
            while (recv(last, frame, sizeof frame, MSG_DONTWAIT) < 0 && now() < from + 100 * MS)
                ;
        act(from, now());
        frame[0] = frame[1] = frame[2] = frame[3] = frame[4] = frame[5] = -1;
        pause_ns(PAUSE);
    }
}

/* QEMU whose vCPU spins in its firmware; it runs for 3 ms, and is stopped between. */
static void machine(const char *directory)
{
    char firmware[512], path[64];
    unsigned char byte[2] = {0xeb, 0xfe};
    snprintf(firmware, sizeof firmware, "%s/spin.bin", directory);
    FILE *file = fopen(firmware, "w");
    if (!file)
        fail(firmware);
    for (int i = 0; i < 32768; i++)
        fwrite(byte, 1, 2, file);
    fclose(file);
    pid_t qemu = fork();
    if (!qemu) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open("/dev/null", O_RDWR), 1);
        execlp("qemu-system-x86_64", "qemu-system-x86_64", "-name", "gap-machine,debug-threads=on", "-accel", "tcg",
               "-bios", firmware, "-display", "none", "-nodefaults", "-m", "32", NULL);
        _exit(1);
    }
    pid_t vcpu = 0;
    for (int i = 0; i < 1000 && !vcpu; i++) {
        pause_ns(20 * MS);
        snprintf(path, sizeof path, "/proc/%d/task", qemu);
        DIR *tasks = opendir(path);
        struct dirent *entry;
        while (tasks && (entry = readdir(tasks))) {
            char name[32] = "", comm[400];
            snprintf(comm, sizeof comm, "%s/%s/comm", path, entry->d_name);
            FILE *at = fopen(comm, "r");
            if (at && fgets(name, sizeof name, at) && !strncmp(name, "CPU 0/", 6))
                vcpu = atoi(entry->d_name);
            if (at)
                fclose(at);
        }
        if (tasks)
            closedir(tasks);
    }
    if (!vcpu)
        fail("QEMU has no vCPU");
    pause_ns(500 * MS);
    kill(qemu, SIGSTOP);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(vcpu, sizeof set, &set))
        fail("sched_setaffinity");
    fifo(vcpu, 15);
    shared->helper = (uint32_t)vcpu;
    begin_elsewhere("machine");
    for (int i = 0; i < wanted; i++) {
        uint64_t from = now();
        kill(qemu, SIGCONT);
        pause_ns(3 * MS);
        kill(qemu, SIGSTOP);
        act(from, now());
        pause_ns(PAUSE);
    }
    kill(qemu, SIGKILL);
    waitpid(qemu, 0, 0);
}

/* A quota of 20 ms in 100 ms: each period has one gap of its rest. */
static void quota(const char *directory)
{
    char path[512];
    begin_elsewhere("quota");
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    int is_v2 = !access(path, F_OK);
    uint64_t from = now();
    if (is_v2)
        put_below(directory, "cpu.max", "20000 100000", 0);
    else
        put_below(directory, "cpu.cfs_quota_us", "20000", 0);
    pause_ns((uint64_t)(wanted + 1) * 100 * MS);
    if (is_v2)
        put_below(directory, "cpu.max", "max 100000", 0);
    else
        put_below(directory, "cpu.cfs_quota_us", "-1", 0);
    act(from, now());
}

static void culprit(pid_t subject, const char *directory)
{
    if (!strcmp(kind, "fifo"))
        run_on_cpu("fifo-task", 50, 2 * MS);
    else if (!strcmp(kind, "fair"))
        run_on_cpu("fair-task", 0, 8 * MS);
    else if (!strcmp(kind, "cgroup")) {
        put_below(directory, "cgroup.procs", "%ld", getpid());
        run_on_cpu("group-task", 0, 8 * MS);
    } else if (!strcmp(kind, "stop"))
        stop_and_go(subject);
    else if (!strcmp(kind, "freezer"))
        freeze(directory);
    else if (!strcmp(kind, "timer"))
        timers();
    else if (!strcmp(kind, "ipi"))
        interrupts();
    else if (!strcmp(kind, "softirq"))
        packets();
    else if (!strcmp(kind, "machine"))
        machine(directory);
    else if (!strcmp(kind, "quota") || !strcmp(kind, "parent-quota"))
        quota(directory);
}

int main(int count, char **arguments)
{
    if (count < 6)
        return 2;
    kind = arguments[1];
    cpu = atoi(arguments[2]);
    elsewhere = atoi(arguments[3]);
    over = strtoull(arguments[4], 0, 10);
    wanted = atoi(arguments[5]);
    const char *directory = count > 6 ? arguments[6] : "";
    pthread_t spinner, helper;
    char line[16], below[512];

    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    pin(elsewhere);
    pid_t child = 0, self = getpid();
    int is_own = !strcmp(kind, "own"), is_await = !strcmp(kind, "await");
    int is_blocked = is_await || !strcmp(kind, "blocked") || !strcmp(kind, "exit");
    if (!is_own && !is_blocked && !(child = fork())) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        culprit(self, directory);
        _exit(0);
    }
    if (!strcmp(kind, "parent-quota")) {
        snprintf(below, sizeof below, "%s/below", directory);
        mkdir(below, 0755);
        put_below(below, "cgroup.procs", "%ld", self);
    } else if (!strcmp(kind, "quota") || !strcmp(kind, "freezer")) {
        put_below(directory, "cgroup.procs", "%ld", self);
    }
    if (is_own)
        pthread_create(&helper, 0, own_thread, 0);
    if (is_await) {
        sem_init(&asked, 0, 0);
        sem_init(&answered, 0, 0);
        pthread_create(&helper, 0, answer, 0);
    }
    if (is_blocked)
        shared->ready = 1;
    while (!shared->ready) {
        int status;
        if (child && waitpid(child, &status, WNOHANG) == child)
            return 1;
        pause_ns(MS);
    }
    pthread_create(&spinner, 0, spin, 0);
    while (!shared->tid || (is_await && !shared->helper))
        pause_ns(MS);
    printf("subject %u\nculprit %u\nready\n", shared->tid, shared->helper);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;
    pause_ns(100 * MS);
    shared->go = 1;
    if (is_blocked)
        for (int i = 0; i < wanted; i++) {
            shared->blocks += 1;
            pause_ns(PAUSE + 5 * MS);
        }
    if (child)
        waitpid(child, 0, 0);
    if (is_own || is_await)
        pthread_join(helper, 0);
    pause_ns(50 * MS);
    shared->stop = 1;
    pthread_join(spinner, 0);
    for (uint32_t i = 0; i < shared->gaps; i++)
        printf("gap %llu %llu\n", (unsigned long long)shared->gap[i].from, (unsigned long long)shared->gap[i].until);
    for (uint32_t i = 0; i < shared->acts; i++)
        printf("act %llu %llu\n", (unsigned long long)shared->act[i].from, (unsigned long long)shared->act[i].until);
    printf("end\n");
    return 0;
}

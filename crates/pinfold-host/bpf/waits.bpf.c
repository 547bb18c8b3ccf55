// How long the threads of a set run and wait, now and in the interval between two readings, and
// which tasks ran on their CPU while they waited.
//
// All that is known about a thread is one value in `threads`, which user space reads in one call.
// Each CPU has the task that is on it (`cpus`) and the threads of the set that wait in its queue
// (`queues`): a slice that ends is added to each of these at once, so that also a wait that does
// not end has its cause.
//
// A thread that has had no event since it was added has run, waited or slept all the time; its
// first event says which of these it was.
// All programs take the arguments of their events. Compiled by `cargo xtask bpf`.

#include "kernel.h"

#define THREADS 1024
#define CPUS 1024
#define SLOTS 32
#define CAUSES 4
#define NAME 16

// What a thread does; `wait_trace.rs` has the same.
enum { UNSEEN, RUNNING, WAITING, ASLEEP, ENDED };

struct thread_info {
    u32 cpu;
} KERNEL_TYPE;
struct task_struct {
    struct thread_info thread_info;
    s32 on_cpu;
    s32 pid;
    char comm[NAME];
} KERNEL_TYPE;

// A task that ran while a thread waited.
struct cause {
    u64 ns;
    u32 tid;
    u32 unused;
    char name[NAME];
};

struct thread {
    // A writer first adds to `begun` and last to `done`: a copy in which they differ is of two
    // states. A copy begins with `done`.
    u64 done;
    u64 since_ns;   // in this state since
    u64 counted_ns; // waiting: until then the slices of its CPU are in `causes`
    u64 run_ns;     // of the runs and waits that have ended
    u64 ready_ns;
    u64 moves;
    u64 longest_ns; // of the waits that ended in this interval
    u64 interval;
    u32 state;
    u32 cpu;        // on which it is, or on whose queue
    struct cause causes[CAUSES];
    u64 begun;
};

struct cpu {
    u64 since_ns; // 0: no switch has been seen
    u32 tid;
    u32 unused;
    char name[NAME];
};

struct queue {
    u64 tids[SLOTS]; // 0: free
};

// The loader sets the sizes of the first three.
MAP(threads, BPF_MAP_TYPE_HASH, THREADS, u32, struct thread);
MAP(cpus, BPF_MAP_TYPE_ARRAY, CPUS, u32, struct cpu);
MAP(queues, BPF_MAP_TYPE_ARRAY, CPUS, u32, struct queue);
// Waits that have no place in a queue: only the last slice before their end is a cause. And runs
// whose start or end had no event, as of tasks that a kernel does not trace: their time is unknown.
MAP(lost, BPF_MAP_TYPE_ARRAY, 1, u32, u64);
// The number of the interval.
SHARED_WORDS(interval, 1);

INLINE void count_lost(void)
{
    u32 zero = 0;
    u64 *number = bpf_map_lookup_elem(&lost, &zero);

    if (number)
        __sync_fetch_and_add(number, 1);
}

#define ordered() asm volatile("" ::: "memory")

INLINE struct thread *known(u32 tid)
{
    struct thread *thread = tid ? bpf_map_lookup_elem(&threads, &tid) : 0;
    return thread && thread->state != ENDED ? thread : 0;
}

INLINE void begin(struct thread *thread)
{
    u32 zero = 0;
    const u64 *now = bpf_map_lookup_elem(&interval, &zero);

    thread->begun += 1;
    ordered();
    if (now && thread->interval != *now) {
        thread->interval = *now;
        thread->longest_ns = 0;
        for (u32 at = 0; at < CAUSES; at += 1) {
            thread->causes[at].ns = 0;
            thread->causes[at].tid = 0;
        }
    }
}

INLINE void end(struct thread *thread)
{
    ordered();
    thread->done = thread->begun;
}

// Adds a slice that ends now. Without a free place it takes that of the task that ran least, with
// its time: a task that had more than a quarter of the waits is always among the causes.
INLINE void credit(struct thread *thread, const struct cpu *cpu, u64 now)
{
    u64 from = cpu->since_ns > thread->counted_ns ? cpu->since_ns : thread->counted_ns;
    struct cause *least = &thread->causes[0];

    thread->counted_ns = now;
    if (!cpu->since_ns || now <= from)
        return;
    for (u32 at = 0; at < CAUSES; at += 1) {
        struct cause *cause = &thread->causes[at];

        if (cause->ns && cause->tid == cpu->tid) {
            cause->ns += now - from;
            return;
        }
        if (cause->ns < least->ns)
            least = cause;
    }
    least->ns += now - from;
    least->tid = cpu->tid;
    __builtin_memcpy(least->name, cpu->name, NAME);
}

// It waits from now on in the queue of this CPU.
INLINE void enqueue(struct thread *thread, u32 tid, u32 number, u64 now)
{
    struct queue *queue = bpf_map_lookup_elem(&queues, &number);

    thread->cpu = number;
    thread->counted_ns = now;
    if (!queue)
        return;
    for (u32 at = 0; at < SLOTS; at += 1) {
        u64 there = queue->tids[at];

        if (there == tid)
            return;
        // Other CPUs put their threads here too.
        if (!there && !__sync_val_compare_and_swap(&queue->tids[at], 0, (u64)tid))
            return;
    }
    count_lost();
}

// The slice that ends is part of the waits of this CPU's queue. Only its own CPU empties a place.
INLINE void credit_queue(const struct cpu *cpu, u32 number, u32 next, u64 now)
{
    struct queue *queue = bpf_map_lookup_elem(&queues, &number);

    if (!queue)
        return;
    for (u32 at = 0; at < SLOTS; at += 1) {
        u32 tid = (u32)queue->tids[at];
        struct thread *thread;

        if (!tid)
            continue;
        thread = tid != next ? known(tid) : 0;
        if (!thread || thread->state != WAITING || thread->cpu != number) {
            queue->tids[at] = 0;
            continue;
        }
        begin(thread);
        credit(thread, cpu, now);
        end(thread);
    }
}

INLINE void arrive(struct thread *thread, const struct cpu *cpu, u32 number, u64 now)
{
    u64 wait = now > thread->since_ns ? now - thread->since_ns : 0;

    begin(thread);
    if (thread->state == WAITING || thread->state == UNSEEN) {
        credit(thread, cpu, now);
        thread->ready_ns += wait;
        if (wait > thread->longest_ns)
            thread->longest_ns = wait;
    } else if (thread->state == RUNNING) {
        count_lost();
    }
    thread->state = RUNNING;
    thread->since_ns = now;
    thread->cpu = number;
    end(thread);
}

INLINE void leave(struct thread *thread, u32 tid, u32 number, int is_runnable, u64 now)
{
    begin(thread);
    if (thread->state == RUNNING || thread->state == UNSEEN)
        thread->run_ns += now > thread->since_ns ? now - thread->since_ns : 0;
    else
        count_lost();
    thread->since_ns = now;
    thread->cpu = number;
    if (is_runnable) {
        thread->state = WAITING;
        enqueue(thread, tid, number, now);
    } else {
        thread->state = ASLEEP;
    }
    end(thread);
}

// sched_switch(preempt, prev, next, prev_state)
SEC("tp_btf/sched_switch")
int at_switch(const u64 *arguments)
{
    u64 now = bpf_ktime_get_ns();
    const struct task_struct *prev = (const void *)arguments[1];
    const struct task_struct *next = (const void *)arguments[2];
    u32 number = bpf_get_smp_processor_id();
    struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
    u32 tid = next->pid;
    struct thread *thread;

    if (!cpu)
        return 0;
    credit_queue(cpu, number, tid, now);
    thread = known(tid);
    if (thread)
        arrive(thread, cpu, number, now);
    thread = known(prev->pid);
    if (thread)
        leave(thread, prev->pid, number, (arguments[0] & 1) || !(u32)arguments[3], now);
    cpu->since_ns = now;
    cpu->tid = tid;
    bpf_probe_read_kernel(cpu->name, NAME, &next->comm);
    return 0;
}

// sched_wakeup(p), sched_wakeup_new(p)
INLINE int woken(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    u32 tid = task->pid;
    struct thread *thread = known(tid);
    u64 now;

    // One that is on a CPU was woken before it fell asleep.
    if (!thread || (thread->state != ASLEEP && thread->state != UNSEEN) || task->on_cpu)
        return 0;
    now = bpf_ktime_get_ns();
    begin(thread);
    thread->since_ns = now;
    thread->state = WAITING;
    enqueue(thread, tid, task->thread_info.cpu, now);
    end(thread);
    return 0;
}

SEC("tp_btf/sched_wakeup")
int at_wakeup(const u64 *arguments)
{
    return woken(arguments);
}

SEC("tp_btf/sched_wakeup_new")
int at_new(const u64 *arguments)
{
    return woken(arguments);
}

// sched_migrate_task(p, dest_cpu)
SEC("tp_btf/sched_migrate_task")
int at_move(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    u32 tid = task->pid;
    u32 to = (u32)arguments[1];
    struct thread *thread = known(tid);
    const struct cpu *left;
    u32 from;
    u64 now;

    if (!thread)
        return 0;
    begin(thread);
    thread->moves += 1;
    if (thread->state == WAITING) {
        now = bpf_ktime_get_ns();
        from = thread->cpu;
        left = bpf_map_lookup_elem(&cpus, &from);
        if (left)
            credit(thread, left, now);
        enqueue(thread, tid, to, now);
    } else if (thread->state != RUNNING) {
        thread->cpu = to;
    }
    end(thread);
    return 0;
}

// task_rename(p, comm): a task that runs has a new name, as after exec.
SEC("tp_btf/task_rename")
int at_rename(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    u32 number = bpf_get_smp_processor_id();
    struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);

    if (cpu && cpu->tid && cpu->tid == (u32)task->pid)
        bpf_probe_read_kernel(cpu->name, NAME, (const void *)arguments[1]);
    return 0;
}

// sched_process_exit(p)
SEC("tp_btf/sched_process_exit")
int at_exit(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    struct thread *thread = known(task->pid);

    if (!thread)
        return 0;
    begin(thread);
    thread->state = ENDED;
    end(thread);
    return 0;
}

// Reading the kernel's memory is for programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

// Why the threads of a set did not run: each gap above a bound becomes a record.
//
// A gap is a wait for a CPU (runnable, `sched_switch` or `sched_wakeup` to `sched_switch`), a time
// stopped or in uninterruptible sleep with the wait after it, a burst of interrupts and softirqs on
// top of the thread, a tick that came too late although nothing was seen on the CPU, or the time
// from an exit of a vCPU to its next entry: on the CPU, or asleep after an exit to user space.
//
// Each CPU keeps the last slices of what was on it: tasks, interrupts, softirqs, functions of
// timers, tasklets and work items. A record is the gap and a copy of these slices, which
// overlap as they were nested; user space computes net times. What is shorter than the bound is
// counted in a histogram of the thread. The slices of a CPU on which observed threads run are also
// sent as pages before they are overwritten: a gap may be longer than the last slices.
//
// All programs take the arguments of their events: programs at event records are not called while
// another BPF program runs on their CPU. Those of KVM, which may be a module, do so without types.
// Compiled by `cargo xtask bpf`.

#include "kernel.h"
#include "gaps.h"

#define THREADS 4096
#define WORKERS 1024

// Set by the loader.
const volatile u64 over_ns = 200000;
// Address of the function of the tick; 0 if it is unknown.
const volatile u64 tick_function = 0;
// The hierarchy whose groups are the tasks' groups: 1 that of the controller cpu of version 1, 2
// version 2; 0: none is described.
const volatile u32 hierarchy = 0;
// Where the reason is in the record of kvm_exit: offset, 1 if it has 8 bytes, and what else tells
// the reason; 0: there is none.
const volatile u32 reason_at = 0;
const volatile u32 reason_is_long = 0;
const volatile u32 detail_at = 0;
// 1: the kernel describes its count of steal time.
const volatile u32 has_steal = 0;
// 1: the kernel describes `throttle_count`.
const volatile u32 has_throttling = 0;

// What a slice is of; `gap_trace.rs` has the same.
enum { TASK, INTERRUPT, VECTOR, SOFTIRQ, TASKLET, TIMER, HRTIMER, WORK };
// What a gap is.
enum { WAIT, BURST, UNSEEN, EXIT, PAGE };
// Marks of a gap.
enum { PREEMPTED = 1, THROTTLED = 2, OUTSIDE = 4 };
// Where a vCPU is: in the guest (or not known), in the kernel, in user space, halted.
enum { INSIDE, KERNEL, USER, HALTED };
// What a thread does.
enum { UNKNOWN, RUNNING, OFF, ENDED };
enum { NO_RECORD, NO_THREAD, NO_PAGE, LOST };

// A burst goes on if the next interrupt begins this soon (ns).
#define SOON 3000
// A page is sent when so many slices are new, if an observed thread was on the CPU this recently
// (ns). Between two checks fewer slices than the rest are added.
#define NEW_SLICES 192
#define RECENT 10000000000ULL
// Shorter slices are not kept (ns).
#define SHORTEST 1000
// A worker of the kernel: `PF_WQ_WORKER`.
#define WORKER 0x20
// `KVM_EXIT_HLT`, plus one: the guest waits for an interrupt.
#define HALT 6
// Nothing waits for records, so none needs an interrupt: `BPF_RB_NO_WAKEUP`.
#define NO_WAKEUP 1

MAP(threads, BPF_MAP_TYPE_HASH, THREADS, u32, struct thread);
MAP(cpus, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct cpu);
MAP(lost, BPF_MAP_TYPE_ARRAY, LOST, u32, u64);
// The function of a work item whose worker is not on a CPU.
MAP(works, BPF_MAP_TYPE_HASH, WORKERS, u32, u64);
MAP(fresh, BPF_MAP_TYPE_ARRAY, 1, u32, struct thread);
struct {
    int (*type)[27];
    int (*max_entries)[16777216];
} records SEC(".maps");

static long (*bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static void *(*bpf_map_lookup_percpu_elem)(void *map, const void *key, u32 cpu) = (void *)195;

INLINE void count(u32 which)
{
    u64 *number = bpf_map_lookup_elem(&lost, &which);
    if (number)
        __sync_fetch_and_add(number, 1);
}

INLINE struct cpu *own_cpu(void)
{
    u32 zero = 0;
    return bpf_map_lookup_elem(&cpus, &zero);
}

INLINE struct thread *watched(u32 tid)
{
    struct thread *thread = tid ? bpf_map_lookup_elem(&threads, &tid) : 0;
    return thread && thread->state != ENDED ? thread : 0;
}

INLINE struct slice *new_slice(struct cpu *cpu)
{
    u64 at = cpu->next;
    cpu->next = at + 1;
    return &cpu->slices[at & (SLICES - 1)];
}

INLINE u32 log2_of(u64 ns)
{
    u32 power = 0;
    if (ns >> 32) { ns >>= 32; power += 32; }
    if (ns >> 16) { ns >>= 16; power += 16; }
    if (ns >> 8) { ns >>= 8; power += 8; }
    if (ns >> 4) { ns >>= 4; power += 4; }
    if (ns >> 2) { ns >>= 2; power += 2; }
    if (ns >> 1) { power += 1; }
    return power < BUCKETS ? power : BUCKETS - 1;
}

INLINE void add_short(struct thread *thread, u64 ns)
{
    u32 at = log2_of(ns);
    thread->count += 1;
    thread->sum_ns += ns;
    if (at < BUCKETS)
        thread->buckets[at] += 1;
}

INLINE void emit(struct cpu *cpu)
{
    if (bpf_ringbuf_output(&records, cpu, RECORD, NO_WAKEUP))
        count(NO_RECORD);
}

INLINE void emit_page(struct cpu *cpu, u64 now)
{
    if (cpu->next - cpu->sent < NEW_SLICES || now - cpu->watched_ns > RECENT)
        return;
    cpu->sent = cpu->next;
    cpu->gap.from_ns = now;
    cpu->gap.until_ns = now;
    cpu->gap.cpu = bpf_get_smp_processor_id();
    cpu->gap.kind = PAGE;
    if (bpf_ringbuf_output(&records, cpu, RECORD, NO_WAKEUP))
        count(NO_PAGE);
}

INLINE void begin_gap(struct gap *gap, const struct thread *thread, u32 tid, u64 now)
{
    gap->from_ns = thread->since_ns;
    gap->until_ns = now;
    gap->woken_ns = thread->woken_ns;
    gap->arrived_ns = thread->arrived_ns;
    gap->tid = tid;
    gap->cpu = bpf_get_smp_processor_id();
    gap->kind = WAIT;
    gap->marks = thread->marks;
    gap->state = thread->prev_state;
    gap->moves = thread->moves;
    gap->waker = thread->waker;
    gap->process = thread->process;
    gap->exit = thread->exit;
    gap->waker_process = thread->waker_process;
    gap->owner = thread->owner;
    __builtin_memcpy(gap->waker_name, thread->waker_name, NAME);
    gap->earlier = thread->earlier;
}

INLINE void add_slice(struct cpu *cpu, u64 from, u64 until, u64 id, u32 kind)
{
    struct slice *slice = new_slice(cpu);

    slice->from_ns = from;
    slice->until_ns = until;
    slice->id = id;
    slice->kind = kind;
    slice->tid = 0;
    slice->process = 0;
}

// The group of a task, by the inode of its directory.
INLINE u64 group_of(const struct task_struct *task)
{
    const struct cgroup *group = 0;
    const struct kernfs_node *node;

    if (hierarchy == 1) {
        const struct task_group *own = task->sched_task_group;
        group = own ? own->css.cgroup : 0;
    } else if (hierarchy == 2) {
        const struct css_set *set = task->cgroups;
        group = set ? set->dfl_cgrp : 0;
    }
    node = group ? group->kn : 0;
    return node ? node->id : 0;
}

// What the kernel has counted until now as taken from this CPU by the hypervisor (ns).
INLINE u64 counted_steal(void)
{
    const struct task_struct *task;
    const struct cfs_rq *queue;
    const struct rq *rq;

    if (!has_steal)
        return 0;
    task = bpf_get_current_task_btf();
    queue = task->se.cfs_rq;
    rq = queue ? queue->rq : 0;
    return rq ? rq->prev_steal_time : 0;
}

// A gap of the thread that runs.
INLINE void emit_running(struct cpu *cpu, u32 kind, const struct thread *thread, u32 tid, u64 from,
                         u64 until)
{
    cpu->gap.from_ns = from;
    cpu->gap.until_ns = until;
    cpu->gap.arrived_ns = from;
    cpu->gap.tid = tid;
    cpu->gap.cpu = bpf_get_smp_processor_id();
    cpu->gap.kind = kind;
    cpu->gap.marks = 0;
    cpu->gap.state = 0;
    cpu->gap.moves = 0;
    cpu->gap.waker = 0;
    cpu->gap.owner = thread->owner;
    cpu->gap.earlier.until_ns = 0;
    cpu->gap.process = bpf_get_current_pid_tgid() >> 32;
    emit(cpu);
}

// The time since an exit, or since it got the CPU after one.
INLINE void end_exit(struct cpu *cpu, const struct thread *thread, u32 tid, u64 now)
{
    u64 from = thread->out_ns;

    if (thread->place == HALTED || !from || now < from || now - from < over_ns)
        return;
    cpu->gap.exit = thread->exit;
    cpu->gap.woken_ns = thread->reason;
    emit_running(cpu, EXIT, thread, tid, from, now);
    cpu->gap.woken_ns = 0;
}

// A worker sleeps or is preempted within a work item, which goes on when it runs again.
INLINE void switch_work(struct cpu *cpu, const struct task_struct *prev,
                        const struct task_struct *next, u64 now)
{
    u32 tid;
    u64 *work;

    if (cpu->work) {
        tid = prev->pid;
        if (now - cpu->work_ns >= SHORTEST)
            add_slice(cpu, cpu->work_ns, now, cpu->work, WORK);
        bpf_map_update_elem(&works, &tid, &cpu->work, BPF_ANY);
        cpu->work = 0;
    }
    if (next->flags & WORKER) {
        tid = next->pid;
        work = bpf_map_lookup_elem(&works, &tid);
        if (work) {
            cpu->work = *work;
            cpu->work_ns = now;
        }
    }
}

// sched_switch(preempt, prev, next, prev_state)
SEC("tp_btf/sched_switch")
int at_switch(const u64 *arguments)
{
    u64 now = bpf_ktime_get_ns();
    const struct task_struct *prev = (const void *)arguments[1];
    const struct task_struct *next = (const void *)arguments[2];
    u32 state = (arguments[0] & 1) ? 0 : (u32)arguments[3];
    u32 tid = next->pid;
    u32 leaves = prev->pid;
    struct cpu *cpu = own_cpu();
    struct thread *thread;
    struct slice *slice;

    if (!cpu)
        return 0;
    switch_work(cpu, prev, next, now);
    slice = new_slice(cpu);
    *slice = cpu->gap.now;
    slice->until_ns = now;
    slice->kind = TASK;
    slice->tid = leaves;
    slice->process = prev->tgid;
    slice->policy = prev->policy;
    slice->priority = prev->prio;
    bpf_probe_read_kernel(slice->name, NAME, &prev->comm);
    if (!leaves)
        slice->id = cpu->idle;

    cpu->gap.now.from_ns = now;
    cpu->gap.now.id = tid ? group_of(next) : 0;
    cpu->gap.now.kind = TASK;
    cpu->gap.now.tid = tid;
    cpu->gap.now.process = next->tgid;
    cpu->gap.now.policy = next->policy;
    cpu->gap.now.priority = next->prio;
    bpf_probe_read_kernel(cpu->gap.now.name, NAME, &next->comm);

    thread = watched(tid);
    if (thread) {
        u64 since = thread->since_ns;

        if (since && now > since) {
            if (now - since >= over_ns) {
                begin_gap(&cpu->gap, thread, tid, now);
                cpu->gap.process = next->tgid;
                emit(cpu);
            } else {
                add_short(thread, now - since);
            }
        }
        thread->since_ns = 0;
        thread->out_ns = now;
        thread->state = RUNNING;
        cpu->watched_ns = now;
    }
    thread = watched(leaves);
    if (thread) {
        cpu->watched_ns = now;
        // A sleep in the kernel is a halt, with the polling before it.
        if (thread->place == USER || (thread->place == KERNEL && !(state & 1)))
            end_exit(cpu, thread, leaves, now);
        thread->state = OFF;
        thread->prev_state = state;
        thread->process = prev->tgid;
        thread->moves = 0;
        thread->earlier.until_ns = 0;
        thread->cpu = bpf_get_smp_processor_id();
        thread->woken_ns = 0;
        thread->arrived_ns = now;
        thread->waker = 0;
        thread->waker_process = 0;
        thread->marks = 0;
        thread->since_ns = 0;
        // Dead threads leave for ever; sleeping ones have a gap only once they are woken.
        if (!(state & 0xff)) {
            thread->marks = PREEMPTED;
            thread->since_ns = now;
            // The interrupts that preempted it belong to the gap.
            if (cpu->burst_ns && now - cpu->end_ns < SOON)
                thread->since_ns = cpu->burst_ns;
            if (has_throttling && prev->se.cfs_rq && prev->se.cfs_rq->throttle_count > 0)
                thread->marks |= THROTTLED;
        } else if (state & 0x0e || state & 0x8000) {
            thread->since_ns = now;
        } else if (thread->place == USER && (u32)thread->exit != HALT) {
            thread->since_ns = now;
            thread->marks = OUTSIDE;
        }
    }
    emit_page(cpu, now);
    return 0;
}

// sched_wakeup(p), sched_wakeup_new(p)
INLINE int woken(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    struct thread *thread = watched(task->pid);
    u64 now;

    if (!thread || thread->state == RUNNING || thread->woken_ns || thread->marks & PREEMPTED)
        return 0;
    now = bpf_ktime_get_ns();
    thread->woken_ns = now;
    thread->arrived_ns = now;
    if (!thread->since_ns)
        thread->since_ns = now;
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

// sched_waking(p): the caller wakes it, or was interrupted by what does.
SEC("tp_btf/sched_waking")
int at_waking(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    struct thread *thread = watched(task->pid);

    if (!thread || thread->state == RUNNING || thread->woken_ns)
        return 0;
    thread->waker = (u32)bpf_get_current_pid_tgid();
    thread->waker_process = bpf_get_current_pid_tgid() >> 32;
    bpf_get_current_comm(thread->waker_name, NAME);
    return 0;
}

// sched_migrate_task(p, dest_cpu): the task on the CPU whose queue it leaves is remembered.
SEC("tp_btf/sched_migrate_task")
int at_move(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    u32 tid = task->pid;
    u32 zero = 0;
    struct thread *thread = watched(tid);
    u64 now;

    if (!thread || thread->state == RUNNING)
        return 0;
    now = bpf_ktime_get_ns();
    if (thread->since_ns && thread->arrived_ns) {
        const struct cpu *left = bpf_map_lookup_percpu_elem(&cpus, &zero, thread->cpu);

        if (left) {
            thread->earlier = left->gap.now;
            if (thread->earlier.from_ns < thread->arrived_ns)
                thread->earlier.from_ns = thread->arrived_ns;
            thread->earlier.until_ns = now;
        }
    }
    thread->moves += 1;
    thread->arrived_ns = now;
    thread->cpu = (u32)arguments[1];
    return 0;
}

// sched_process_fork(parent, child)
SEC("tp_btf/sched_process_fork")
int at_fork(const u64 *arguments)
{
    const struct task_struct *parent = (const void *)arguments[0];
    const struct task_struct *child = (const void *)arguments[1];
    const struct thread *maker = watched(parent->pid);
    u32 tid = child->pid;
    u32 zero = 0;
    struct thread *made;

    if (!maker || (parent->tgid != child->tgid && !maker->follows))
        return 0;
    // All zero, and never written: too large for the stack.
    made = bpf_map_lookup_elem(&fresh, &zero);
    if (made && bpf_map_update_elem(&threads, &tid, made, BPF_ANY))
        count(NO_THREAD);
    made = bpf_map_lookup_elem(&threads, &tid);
    if (made) {
        made->owner = maker->owner;
        made->follows = maker->follows;
    }
    return 0;
}

SEC("tp_btf/sched_process_exit")
int at_exit(const u64 *arguments)
{
    const struct task_struct *task = (const void *)arguments[0];
    struct thread *thread = watched(task->pid);

    if (thread) {
        thread->since_ns = 0;
        thread->state = ENDED;
        thread->process = task->tgid;
    }
    return 0;
}

// cpu_idle(state, cpu)
SEC("tp_btf/cpu_idle")
int at_idle(const u64 *arguments)
{
    struct cpu *cpu = own_cpu();

    if (cpu && (u32)arguments[0] != ~0U)
        cpu->idle = (u32)arguments[0] + 1;
    return 0;
}

INLINE int entered(u32 kind, u64 id)
{
    u64 now = bpf_ktime_get_ns();
    struct cpu *cpu = own_cpu();
    u64 depth;

    if (!cpu)
        return 0;
    depth = cpu->depth;
    if (!depth && now - cpu->end_ns >= SOON) {
        cpu->before_ns = cpu->end_ns > cpu->gap.now.from_ns ? cpu->end_ns : cpu->gap.now.from_ns;
        cpu->burst_ns = now;
    }
    if (depth < FRAMES) {
        struct frame *frame = &cpu->frames[depth & (FRAMES - 1)];
        frame->since_ns = now;
        frame->id = id;
        frame->kind = kind;
        cpu->depth = depth + 1;
    }
    return 0;
}

// A softirq that is raised again and again is one slice: ksoftirqd calls RCU for ten callbacks each.
INLINE void add_or_extend(struct cpu *cpu, const struct frame *frame, u64 now)
{
    u64 last_at = cpu->next - 1;
    struct slice *last = &cpu->slices[last_at & (SLICES - 1)];

    if (last->kind == frame->kind && last->id == frame->id
        && frame->since_ns - last->until_ns < SHORTEST)
        last->until_ns = now;
    else
        add_slice(cpu, frame->since_ns, now, frame->id, frame->kind);
}

// Thousands of timers that expire together are one slice, though each call is short.
INLINE void add_call(struct cpu *cpu, const struct frame *frame, u64 now)
{
    u64 last_at = cpu->next - 1;
    struct slice *last = &cpu->slices[last_at & (SLICES - 1)];

    if (cpu->calls_id != frame->id || cpu->calls_kind != frame->kind
        || frame->since_ns - cpu->calls_until_ns >= SHORTEST) {
        cpu->calls_from_ns = frame->since_ns;
        cpu->calls_id = frame->id;
        cpu->calls_kind = frame->kind;
    }
    cpu->calls_until_ns = now;
    if (now - cpu->calls_from_ns < SHORTEST)
        return;
    if (last->from_ns == cpu->calls_from_ns && last->kind == frame->kind)
        last->until_ns = now;
    else
        add_slice(cpu, cpu->calls_from_ns, now, frame->id, frame->kind);
}

INLINE int left(u32 kind, int is_burst)
{
    u64 now = bpf_ktime_get_ns();
    struct cpu *cpu = own_cpu();
    struct frame *frame;
    struct thread *thread;
    u64 depth;
    u32 tid;

    if (!cpu || !cpu->depth)
        return 0;
    depth = cpu->depth - 1;
    frame = &cpu->frames[depth & (FRAMES - 1)];
    if (frame->kind != kind) {
        // An entry was not seen: begin anew.
        cpu->depth = 0;
        return 0;
    }
    cpu->depth = depth;
    if (now - frame->since_ns >= SHORTEST) {
        add_or_extend(cpu, frame, now);
        cpu->calls_id = 0;
    } else if (!is_burst) {
        add_call(cpu, frame, now);
    }
    if (!is_burst || depth)
        return 0;
    cpu->end_ns = now;
    emit_page(cpu, now);
    tid = (u32)bpf_get_current_pid_tgid();
    thread = watched(tid);
    if (!thread)
        return 0;
    if (now - cpu->burst_ns < over_ns) {
        add_short(thread, now - frame->since_ns);
        return 0;
    }
    // Part of the time since an exit.
    if (thread->place == KERNEL || thread->place == USER)
        return 0;
    cpu->gap.exit = 0;
    cpu->gap.woken_ns = 0;
    emit_running(cpu, BURST, thread, tid, cpu->burst_ns, now);
    // The copy took longer than a burst may pause.
    cpu->end_ns = bpf_ktime_get_ns();
    return 0;
}

#define EVENTS(entry, exit, kind, id, is_burst) \
    SEC("tp_btf/" #entry)                       \
    int entry(const u64 *arguments)             \
    {                                           \
        (void)arguments;                        \
        return entered(kind, id);               \
    }                                           \
    SEC("tp_btf/" #exit)                        \
    int exit(const u64 *arguments)              \
    {                                           \
        (void)arguments;                        \
        return left(kind, is_burst);            \
    }

// Numbers of vectors are names in `gap_trace.rs`.
EVENTS(irq_handler_entry, irq_handler_exit, INTERRUPT, (u32)arguments[0], 1)
EVENTS(softirq_entry, softirq_exit, SOFTIRQ, (u32)arguments[0], 1)
EVENTS(local_timer_entry, local_timer_exit, VECTOR, 0, 1)
EVENTS(reschedule_entry, reschedule_exit, VECTOR, 1, 1)
EVENTS(call_function_entry, call_function_exit, VECTOR, 2, 1)
EVENTS(call_function_single_entry, call_function_single_exit, VECTOR, 3, 1)
EVENTS(irq_work_entry, irq_work_exit, VECTOR, 4, 1)
EVENTS(thermal_apic_entry, thermal_apic_exit, VECTOR, 5, 1)
EVENTS(x86_platform_ipi_entry, x86_platform_ipi_exit, VECTOR, 6, 1)
EVENTS(ipi_entry, ipi_exit, VECTOR, 7, 1)
EVENTS(tasklet_entry, tasklet_exit, TASKLET, arguments[1], 0)
EVENTS(timer_expire_entry, timer_expire_exit, TIMER, (u64)((const struct timer_list *)arguments[0])->function, 0)

// workqueue_execute_start(work): a work item may sleep, so it is no frame of its CPU.
SEC("tp_btf/workqueue_execute_start")
int workqueue_execute_start(const u64 *arguments)
{
    struct cpu *cpu = own_cpu();

    if (cpu) {
        cpu->work = (u64)((const struct work_struct *)arguments[0])->func;
        cpu->work_ns = bpf_ktime_get_ns();
    }
    return 0;
}

SEC("tp_btf/workqueue_execute_end")
int workqueue_execute_end(const u64 *arguments)
{
    u64 now = bpf_ktime_get_ns();
    struct cpu *cpu = own_cpu();
    u32 tid = (u32)bpf_get_current_pid_tgid();

    (void)arguments;
    if (cpu && cpu->work) {
        if (now - cpu->work_ns >= SHORTEST)
            add_slice(cpu, cpu->work_ns, now, cpu->work, WORK);
        cpu->work = 0;
    }
    if (bpf_map_lookup_elem(&works, &tid))
        bpf_map_delete_elem(&works, &tid);
    return 0;
}

// kvm_exit(vcpu, isa)
SEC("raw_tp/kvm_exit")
int at_vm_exit(const u64 *arguments)
{
    struct thread *thread = watched((u32)bpf_get_current_pid_tgid());

    (void)arguments;
    if (thread) {
        thread->place = KERNEL;
        thread->exit = 0;
        thread->out_ns = bpf_ktime_get_ns();
    }
    return 0;
}

// The record of kvm_exit, which has the reason. This program is not called while another one at a
// record runs on its CPU, which costs only the reason.
SEC("tracepoint/at_exit_record")
int at_exit_record(const void *record)
{
    struct thread *thread = watched((u32)bpf_get_current_pid_tgid());
    u64 reason = 0;
    u32 detail = 0;

    if (!thread || !reason_at)
        return 0;
    bpf_probe_read_kernel(&reason, reason_is_long ? 8 : 4, (const char *)record + reason_at);
    if (detail_at)
        bpf_probe_read_kernel(&detail, 4, (const char *)record + detail_at);
    thread->reason = ((u64)detail << 32 | (u32)reason) + 1;
    return 0;
}

// kvm_userspace_exit(reason, errno)
SEC("raw_tp/kvm_userspace_exit")
int at_user(const u64 *arguments)
{
    struct thread *thread = watched((u32)bpf_get_current_pid_tgid());

    if (thread) {
        if (thread->place != KERNEL)
            thread->out_ns = bpf_ktime_get_ns();
        thread->place = USER;
        thread->exit = (arguments[1] << 32) | ((u32)arguments[0] + 1);
    }
    return 0;
}

// kvm_vcpu_wakeup(ns, waited, valid): the end of a halt.
SEC("raw_tp/kvm_vcpu_wakeup")
int at_halted(const u64 *arguments)
{
    struct thread *thread = watched((u32)bpf_get_current_pid_tgid());

    (void)arguments;
    if (thread && thread->place == KERNEL)
        thread->place = HALTED;
    return 0;
}

INLINE int enters(void)
{
    u32 tid = (u32)bpf_get_current_pid_tgid();
    struct thread *thread = watched(tid);
    struct cpu *cpu = own_cpu();

    if (thread && cpu && thread->place) {
        end_exit(cpu, thread, tid, bpf_ktime_get_ns());
        thread->place = INSIDE;
        thread->reason = 0;
    }
    return 0;
}

// kvm_entry(vcpu, …)
SEC("raw_tp/kvm_entry")
int at_vm_entry(const u64 *arguments)
{
    (void)arguments;
    return enters();
}

// kvm_fpu(load): user space lets the vCPU run; some hosts have no other event of it.
SEC("raw_tp/kvm_fpu")
int at_fpu(const u64 *arguments)
{
    return (u32)arguments[0] ? enters() : 0;
}

// hrtimer_expire_entry(hrtimer, now): a tick that is late although nothing was on top of the
// thread since before its time: the CPU itself stood still.
SEC("tp_btf/hrtimer_expire_entry")
int hrtimer_expire_entry(const u64 *arguments)
{
    const struct hrtimer *timer = (const void *)arguments[0];
    u64 function = (u64)timer->function;
    struct cpu *cpu = own_cpu();
    u64 expires;
    u64 from;
    u32 tid;

    if (cpu && tick_function && function == tick_function && cpu->depth == 1) {
        // Both clocks are monotonic.
        expires = timer->node.expires;
        from = expires > cpu->before_ns ? expires : cpu->before_ns;
        tid = (u32)bpf_get_current_pid_tgid();
        cpu->late_tid = 0;
        if (cpu->burst_ns > from && cpu->burst_ns - from >= over_ns && watched(tid)) {
            cpu->late_tid = tid;
            cpu->late_from_ns = from;
            cpu->late_until_ns = cpu->burst_ns;
            cpu->steal_ns = counted_steal();
        }
    }
    return entered(HRTIMER, function);
}

// The tick has counted what the hypervisor took.
SEC("tp_btf/hrtimer_expire_exit")
int hrtimer_expire_exit(const u64 *arguments)
{
    struct cpu *cpu = own_cpu();
    const struct thread *thread;
    u32 tid;

    (void)arguments;
    if (cpu && cpu->late_tid && cpu->depth == 2) {
        tid = (u32)cpu->late_tid;
        cpu->late_tid = 0;
        thread = watched(tid);
        cpu->gap.exit = counted_steal() - cpu->steal_ns;
        cpu->gap.woken_ns = 0;
        if (thread)
            emit_running(cpu, UNSEEN, thread, tid, cpu->late_from_ns, cpu->late_until_ns);
    }
    return left(HRTIMER, 0);
}

// Reading the kernel's memory is for programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

// How long the tasks of a set waited for a PU, who ran there meanwhile, and who woke them.
//
// A task waits from the moment that it is put on a run queue (`sched_wakeup`,
// `sched_wakeup_new`, or `sched_switch` away from it while it could have run on) to the
// `sched_switch` to it. Each wait is put into the task's account: a histogram of 16 buckets per
// octave, sum, and the longest with the slices that ran last on that PU. In `sched_switch` the
// caller is the task that leaves, in `sched_waking` the one that wakes (or was interrupted).
//
// Every map is bounded; what did not fit is counted in `lost`. Threads that a task of the set
// makes join it.
//
// What happens often has two programs. Where the kernel describes its types (BTF) one is called
// with the arguments of the event, of which no record is made. Else one reads the record, whose
// places are constants that the loader fills in from the kernel's `format` files.
// Compiled by `cargo xtask bpf`; the object beside is what Pinfold loads.

#include "kernel.h"

#define TASKS 4096
#define BUCKETS 640
#define SLICES 16
#define NAME 16

// Byte offsets in the records of the tracepoints; set by the loader.
const volatile u32 switch_state = 32;
const volatile u32 switch_next = 56;
const volatile u32 wakeup_tid = 24;
const volatile u32 new_tid = 24;
const volatile u32 waking_tid = 24;
const volatile u32 move_tid = 12;
const volatile u32 fork_child = 20;

// Number of accounts; set by the loader, as is the size of the map.
const volatile u32 accounts_held = TASKS;

enum { OFF = 0, RUNNING = 1, UNKNOWN = 2 };
enum { BORN = 1, ENDED = 2 };

// What is read of the kernel's own; where it is, the loader finds in its description.
struct task_struct {
    s32 pid;
} KERNEL_TYPE;

// A task of the set, by its number.
struct task {
    u64 since_ns;   // waiting since; 0 if it does not wait
    u64 arrived_ns; // on the present PU's queue since
    u32 account;    // index of its account
    u32 state;      // OFF, RUNNING or UNKNOWN
    u32 moves;      // migrations during this wait
    u32 preempted;  // 1 if the wait began with a preemption
};

// A time that one task ran on a PU.
struct slice {
    u64 from_ns;
    u64 until_ns;
    u32 tid;
    u32 unused;
    char name[NAME];
};

// The slices that ended last on a PU.
struct pu {
    u64 since_ns; // the present one began then
    u64 next;
    struct slice slices[SLICES];
};

struct account {
    u64 count;
    u64 sum_ns;
    u64 max_ns;
    u64 preempted;      // waits that began with a preemption
    u64 unseen;         // waits of which only the end was seen, or only the start
    u64 moves;          // migrations
    u64 moves_waiting;  // those during a wait
    u32 tid;
    u32 process;        // 0 until it has run and left once
    u32 parent;         // account of the task that made it
    u32 parent_process;
    u32 flags;          // BORN, ENDED
    u32 worst_pu;
    u64 worst_until_ns;
    u64 worst_arrived_ns;
    u64 worst_moves;
    struct slice worst_slices[SLICES];
    u64 buckets[BUCKETS];
};

struct waker {
    u32 account;
    u32 unused;
    char name[NAME];
};

struct runner {
    u64 count; // slices
    u64 ns;  // of the waits, in the last slices on the PU before each ended
    u64 tid; // the last of that name
};

MAP(tasks, BPF_MAP_TYPE_HASH, TASKS, u32, struct task);
MAP(accounts, BPF_MAP_TYPE_ARRAY, TASKS, u32, struct account);
MAP(pus, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct pu);
MAP(wakers, BPF_MAP_TYPE_HASH, 16384, struct waker, u64);
MAP(runners, BPF_MAP_TYPE_HASH, 16384, struct waker, struct runner);

// 0: accounts in use; 1: births without an account; 2: names of wakers and runners that did
// not fit.
enum { USED = 0, UNBORN = 1, NAMELESS = 2 };
MAP(lost, BPF_MAP_TYPE_ARRAY, 3, u32, u64);

INLINE void count(u32 which)
{
    u64 *number = bpf_map_lookup_elem(&lost, &which);
    if (number)
        __sync_fetch_and_add(number, 1);
}

// 0..15 as they are, then 16 equal buckets for each power of two.
INLINE u32 bucket(u64 ns)
{
    u64 left = ns;
    u32 power = 0;
    u64 index;

    if (ns < 16)
        return (u32)ns;
    if (left >> 32) { left >>= 32; power += 32; }
    if (left >> 16) { left >>= 16; power += 16; }
    if (left >> 8) { left >>= 8; power += 8; }
    if (left >> 4) { left >>= 4; power += 4; }
    if (left >> 2) { left >>= 2; power += 2; }
    if (left >> 1) { power += 1; }
    index = (u64)(power - 3) * 16 + ((ns >> (power - 4)) & 15);
    return index < BUCKETS ? (u32)index : BUCKETS - 1;
}

// Puts a slice into the account of who ran instead.
INLINE void credit(u32 account, const struct slice *slice, u64 ns)
{
    struct waker key = { .account = account };
    struct runner *runner;

    __builtin_memcpy(key.name, slice->name, sizeof(key.name));
    runner = bpf_map_lookup_elem(&runners, &key);
    if (runner) {
        runner->count += 1;
        runner->ns += ns;
        runner->tid = slice->tid;
    } else {
        struct runner first = { .count = 1, .ns = ns, .tid = slice->tid };
        if (bpf_map_update_elem(&runners, &key, &first, BPF_NOEXIST))
            count(NAMELESS);
    }
}

INLINE void came(struct task *task, const struct pu *pu, u64 now)
{
    u32 index = task->account;
    struct account *account = bpf_map_lookup_elem(&accounts, &index);
    u64 since = task->since_ns;
    u64 arrived = task->arrived_ns;
    u64 wait;
    u32 at;

    task->state = RUNNING;
    task->since_ns = 0;
    if (!account)
        return;
    if (!since) {
        account->unseen += 1;
        return;
    }
    wait = now > since ? now - since : 0;
    account->count += 1;
    account->sum_ns += wait;
    account->preempted += task->preempted;
    at = bucket(wait);
    if (at < BUCKETS)
        account->buckets[at] += 1;
    if (wait >= account->max_ns) {
        account->max_ns = wait;
        account->worst_pu = bpf_get_smp_processor_id();
        account->worst_until_ns = now;
        account->worst_arrived_ns = arrived;
        account->worst_moves = task->moves;
        __builtin_memcpy(account->worst_slices, pu->slices, sizeof(pu->slices));
    }
    // The latest first, as far as they lie in the wait on this PU and are remembered.
    for (u32 back = 1; back <= SLICES; back += 1) {
        const struct slice *slice = &pu->slices[(pu->next - back) & (SLICES - 1)];
        u64 from = slice->from_ns > arrived ? slice->from_ns : arrived;

        if (slice->until_ns <= from)
            break;
        credit(index, slice, slice->until_ns - from);
    }
}

INLINE void went(struct task *task, int could_run_on, u32 process, u64 now)
{
    u32 index = task->account;
    struct account *account = bpf_map_lookup_elem(&accounts, &index);

    // It waited, and its kernel did not report that it got a PU.
    if (account && task->since_ns)
        account->unseen += 1;
    task->preempted = could_run_on;
    task->since_ns = could_run_on ? now : 0;
    task->arrived_ns = now;
    task->moves = 0;
    task->state = OFF;
    if (account && !account->process)
        account->process = process;
}

// The PU's account of who ran gets the slice of the task that leaves.
INLINE struct pu *cut(u32 left, u64 now)
{
    u32 zero = 0;
    struct pu *pu = bpf_map_lookup_elem(&pus, &zero);
    struct slice *slice;

    if (!pu)
        return 0;
    slice = &pu->slices[pu->next & (SLICES - 1)];
    bpf_get_current_comm(slice->name, sizeof(slice->name));
    slice->from_ns = pu->since_ns;
    slice->until_ns = now;
    slice->tid = left;
    pu->next += 1;
    pu->since_ns = now;
    return pu;
}

INLINE struct task *known(u32 tid)
{
    return tid ? bpf_map_lookup_elem(&tasks, &tid) : 0;
}

SEC("tracepoint/sched/sched_switch")
int on_switch(void *record)
{
    u64 now = bpf_ktime_get_ns();
    u64 self = bpf_get_current_pid_tgid();
    u32 next = 0;
    u64 state = 0;
    struct pu *pu = cut((u32)self, now);
    struct task *task;

    if (!pu)
        return 0;
    bpf_probe_read_kernel(&next, sizeof(next), record + switch_next);
    task = known(next);
    if (task)
        came(task, pu, now);
    task = known((u32)self);
    if (task) {
        bpf_probe_read_kernel(&state, sizeof(state), record + switch_state);
        // Preempted is 0x100, yielded is 0; the bits below are the ways of sleeping.
        went(task, (state & 0xff) == 0, (u32)(self >> 32), now);
    }
    return 0;
}

// sched_switch(preempt, prev, next, prev_state), the last since Linux 5.18.
SEC("tp_btf/sched_switch")
int at_switch(const u64 *arguments)
{
    u64 now = bpf_ktime_get_ns();
    u64 self = bpf_get_current_pid_tgid();
    const struct task_struct *next = (const void *)arguments[2];
    struct pu *pu = cut((u32)self, now);
    struct task *task;

    if (!pu)
        return 0;
    task = known(next->pid);
    if (task)
        came(task, pu, now);
    task = known((u32)self);
    if (task)
        went(task, (arguments[0] & 1) || !(u32)arguments[3], (u32)(self >> 32), now);
    return 0;
}

INLINE int queued(u32 tid)
{
    struct task *task = known(tid);

    // One that runs was woken before it fell asleep; one that waits is woken again.
    if (!task || task->state == RUNNING || task->since_ns)
        return 0;
    task->since_ns = bpf_ktime_get_ns();
    task->arrived_ns = task->since_ns;
    task->moves = 0;
    task->preempted = 0;
    return 0;
}

INLINE int woken(u32 tid)
{
    struct task *task = known(tid);
    struct waker key = {};
    u64 *number;
    u64 one = 1;

    if (!task)
        return 0;
    key.account = task->account;
    bpf_get_current_comm(key.name, sizeof(key.name));
    number = bpf_map_lookup_elem(&wakers, &key);
    if (number)
        __sync_fetch_and_add(number, 1);
    else if (bpf_map_update_elem(&wakers, &key, &one, BPF_NOEXIST))
        count(NAMELESS);
    return 0;
}

INLINE int moved(u32 tid)
{
    struct task *task = known(tid);
    struct account *account;
    u32 index;

    if (!task)
        return 0;
    index = task->account;
    account = bpf_map_lookup_elem(&accounts, &index);
    if (account)
        account->moves += 1;
    if (task->since_ns && task->state != RUNNING) {
        task->arrived_ns = bpf_ktime_get_ns();
        task->moves += 1;
        if (account)
            account->moves_waiting += 1;
    }
    return 0;
}

// The task of an event that tells of one: by its record, and by its first argument.
INLINE u32 recorded(const void *place)
{
    u32 tid = 0;
    bpf_probe_read_kernel(&tid, sizeof(tid), place);
    return tid;
}

INLINE u32 told(const u64 *arguments)
{
    return ((const struct task_struct *)arguments[0])->pid;
}

#define TELLS_OF_ONE(event, name, place, what)            \
    SEC("tracepoint/sched/" event)                        \
    int on_##name(void *record)                           \
    {                                                     \
        return what(recorded((char *)record + (place)));  \
    }                                                     \
    SEC("tp_btf/" event)                                  \
    int at_##name(const u64 *arguments)                   \
    {                                                     \
        return what(told(arguments));                     \
    }

TELLS_OF_ONE("sched_wakeup", wakeup, wakeup_tid, queued)
TELLS_OF_ONE("sched_wakeup_new", new, new_tid, queued)
TELLS_OF_ONE("sched_waking", waking, waking_tid, woken)
TELLS_OF_ONE("sched_migrate_task", move, move_tid, moved)

SEC("tracepoint/sched/sched_process_fork")
int on_fork(void *record)
{
    u64 self = bpf_get_current_pid_tgid();
    u32 parent = (u32)self;
    u32 child = 0;
    u32 used = USED;
    struct task born = { .state = OFF };
    struct task *task = bpf_map_lookup_elem(&tasks, &parent);
    struct account *account;
    u64 *number;

    if (!task)
        return 0;
    bpf_probe_read_kernel(&child, sizeof(child), record + fork_child);
    number = bpf_map_lookup_elem(&lost, &used);
    if (!number)
        return 0;
    born.account = (u32)__sync_fetch_and_add(number, 1);
    if (born.account >= accounts_held) {
        __sync_fetch_and_add(number, -1);
        count(UNBORN);
        return 0;
    }
    account = bpf_map_lookup_elem(&accounts, &born.account);
    if (!account)
        return 0;
    account->tid = child;
    account->parent = task->account;
    account->parent_process = (u32)(self >> 32);
    account->flags = BORN;
    if (bpf_map_update_elem(&tasks, &child, &born, 0))
        count(UNBORN);
    return 0;
}

SEC("tracepoint/sched/sched_process_exit")
int on_exit(void *record)
{
    u64 self = bpf_get_current_pid_tgid();
    u32 tid = (u32)self;
    u32 index;
    struct task *task = bpf_map_lookup_elem(&tasks, &tid);
    struct account *account;

    (void)record;
    if (!task)
        return 0;
    index = task->account;
    account = bpf_map_lookup_elem(&accounts, &index);
    if (account) {
        account->flags |= ENDED;
        account->process = (u32)(self >> 32);
    }
    bpf_map_delete_elem(&tasks, &tid);
    return 0;
}

// Reading the kernel's memory is for programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

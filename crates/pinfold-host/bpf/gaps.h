// The types of gaps.bpf.c: the parts of the kernel's types that it reads, and its own.

#define SLICES 256
#define FRAMES 8
#define BUCKETS 32
#define NAME 16

struct rq {
    u64 prev_steal_time;
} KERNEL_TYPE;
struct cfs_rq {
    s32 throttle_count;
    struct rq *rq;
} KERNEL_TYPE;
struct kernfs_node {
    u64 id;
} KERNEL_TYPE;
struct cgroup {
    struct kernfs_node *kn;
} KERNEL_TYPE;
struct cgroup_subsys_state {
    struct cgroup *cgroup;
} KERNEL_TYPE;
struct task_group {
    struct cgroup_subsys_state css;
} KERNEL_TYPE;
struct css_set {
    struct cgroup *dfl_cgrp;
} KERNEL_TYPE;
struct sched_entity {
    struct cfs_rq *cfs_rq;
} KERNEL_TYPE;
struct task_struct {
    s32 pid;
    s32 tgid;
    s32 prio;
    u32 policy;
    u32 flags;
    struct sched_entity se;
    struct css_set *cgroups;
    struct task_group *sched_task_group;
    char comm[NAME];
} KERNEL_TYPE;
struct timerqueue_node {
    s64 expires;
} KERNEL_TYPE;
struct hrtimer {
    struct timerqueue_node node;
    void *function;
} KERNEL_TYPE;
struct timer_list {
    void *function;
} KERNEL_TYPE;
struct work_struct {
    void *func;
} KERNEL_TYPE;

struct slice {
    u64 from_ns;
    u64 until_ns;
    u64 id;      // number or address; of a task its group, of the idle task its state
    u32 kind;
    u32 tid;
    u32 process;
    u16 policy;
    u16 priority;
    char name[NAME];
};

struct gap {
    u64 from_ns;
    u64 until_ns;
    u64 woken_ns;   // became runnable then; 0 if it was all the time
    u64 arrived_ns; // on this CPU's queue since then
    u32 tid;
    u32 cpu;
    u32 kind;
    u32 marks;
    u32 state;      // prev_state with which it left
    u32 moves;
    u32 waker;
    u32 process;
    char waker_name[NAME];
    // Reason of the exit to user space plus one, error in the upper half; 0: none. Of UNSEEN the
    // time that the hypervisor took from the CPU since the tick before.
    u64 exit;
    u32 waker_process;
    u32 owner;
    struct slice earlier; // on the CPU from which it was moved
    struct slice now; // what is on the CPU at the end
};

struct frame {
    u64 since_ns;
    u64 id;
    u64 kind;
};

struct cpu {
    // The record.
    struct gap gap;
    struct slice slices[SLICES];
    u64 next;
    u64 burst_ns;  // begin of the present or last burst
    u64 end_ns;    // end of the last one
    u64 before_ns; // last event before the present burst
    u64 idle;
    u64 depth;
    struct frame frames[FRAMES];
    // Calls of one function, too short for a slice of their own: begin, end, function, kind.
    u64 calls_from_ns;
    u64 calls_until_ns;
    u64 calls_id;
    u64 calls_kind;
    // The work item that runs: begin and function, 0 if none does.
    u64 work_ns;
    u64 work;
    // A tick that came too late, until it has ended: begin and end of the gap, the thread, and the
    // steal time before the tick counted it.
    u64 late_from_ns;
    u64 late_until_ns;
    u64 late_tid;
    u64 steal_ns;
    // When an observed thread was last seen here, and `next` at the last page.
    u64 watched_ns;
    u64 sent;
};
#define RECORD (sizeof(struct gap) + sizeof(struct slice) * SLICES)

struct thread {
    u64 since_ns;   // off or runnable since; 0: no gap has begun
    u64 woken_ns;
    u64 arrived_ns;
    u32 state;
    u32 prev_state;
    u32 moves;
    u32 marks;
    u32 waker;
    u32 process;
    u32 cpu; // on whose queue it is
    u32 waker_process;
    char waker_name[NAME];
    // Of which subject it is; 1 in `follows`: its new processes too, not only its threads.
    u32 owner;
    u32 follows;
    // Of a vCPU: where it is, since when it is there on a CPU, and why it left the kernel.
    u64 place;
    u64 out_ns;
    u64 exit;
    u64 reason; // of the exit to the kernel plus one, with more in the upper half; 0: unknown
    struct slice earlier;
    u64 count;
    u64 sum_ns;
    u64 buckets[BUCKETS];
};

// How much of the CPU time of some processes passes inside futex(2).
//
// Tracepoints mark each thread while it is in the system call; a sample of a perf event (cycles, or
// the CPU clock) is counted by whether the running thread is marked. A thread that sleeps in the
// call does not run and is not sampled. Processes, not threads, are chosen, so that later threads
// are in.
// Compiled by `cargo xtask bpf`; the object beside is what Pinfold loads.

#include "kernel.h"

MAP(processes, BPF_MAP_TYPE_HASH, 1024, u32, u32);

// By process and thread: those that are in the call.
MAP(inside, BPF_MAP_TYPE_HASH, 8192, u64, u32);

// 0: all samples; 1: those inside the call; 2: calls that were not marked because the map was full.
enum { ALL = 0, INSIDE = 1, LOST = 2 };
MAP(samples, BPF_MAP_TYPE_ARRAY, 3, u32, u64);

INLINE void count(u32 which)
{
    u64 *number = bpf_map_lookup_elem(&samples, &which);
    if (number)
        __sync_fetch_and_add(number, 1);
}

INLINE int is_chosen(u64 self)
{
    u32 process = (u32)(self >> 32);
    return bpf_map_lookup_elem(&processes, &process) != 0;
}

SEC("tracepoint/syscalls/sys_enter_futex")
int on_enter(void *record)
{
    u64 self = bpf_get_current_pid_tgid();
    u32 yes = 1;

    (void)record;
    if (is_chosen(self) && bpf_map_update_elem(&inside, &self, &yes, BPF_ANY))
        count(LOST);
    return 0;
}

SEC("tracepoint/syscalls/sys_exit_futex")
int on_leave(void *record)
{
    u64 self = bpf_get_current_pid_tgid();

    (void)record;
    if (is_chosen(self))
        bpf_map_delete_elem(&inside, &self);
    return 0;
}

SEC("perf_event")
int on_sample(void *context)
{
    u64 self = bpf_get_current_pid_tgid();

    (void)context;
    if (!is_chosen(self))
        return 0;
    count(ALL);
    if (bpf_map_lookup_elem(&inside, &self))
        count(INSIDE);
    return 0;
}

// The kernel runs programs of perf events only under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

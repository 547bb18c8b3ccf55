// How much of the CPU time of some processes passes inside futex(2).
//
// Tracepoints mark each thread while it is in the system call; a sample of a perf event (cycles, or
// the CPU clock) is counted by whether the running thread is marked, and then by the address of the
// futex word. A thread that sleeps in the call does not run and is not sampled. Processes, not
// threads, are chosen, so that later threads are in. The place of the address in the record is a
// constant that the loader fills in from the kernel's `format` file.
// Compiled by `cargo xtask bpf`; the object beside is what Pinfold loads.

#include "kernel.h"

// Byte offset in the record of the tracepoint; set by the loader.
const volatile u32 enter_address = 16;

MAP(processes, BPF_MAP_TYPE_HASH, 1024, u32, u32);

// By process and thread: the futex word of those that are in the call.
MAP(inside, BPF_MAP_TYPE_HASH, 8192, u64, u64);

// Samples inside the call by futex word.
MAP(words, BPF_MAP_TYPE_HASH, 4096, u64, u64);

// 0: all samples; 1: those inside the call; 2: calls that were not marked, and samples that were not
// counted by word, because a map was full.
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
    u64 address = 0;

    if (!is_chosen(self))
        return 0;
    bpf_probe_read_kernel(&address, sizeof(address), record + enter_address);
    if (bpf_map_update_elem(&inside, &self, &address, BPF_ANY))
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
    u64 *word;
    u64 *number;
    u64 address;
    u64 first = 1;

    (void)context;
    if (!is_chosen(self))
        return 0;
    count(ALL);
    word = bpf_map_lookup_elem(&inside, &self);
    if (!word)
        return 0;
    count(INSIDE);
    address = *word;
    number = bpf_map_lookup_elem(&words, &address);
    if (number)
        __sync_fetch_and_add(number, 1);
    else if (bpf_map_update_elem(&words, &address, &first, BPF_NOEXIST)) {
        // Another CPU was first, or the map is full.
        number = bpf_map_lookup_elem(&words, &address);
        if (number)
            __sync_fetch_and_add(number, 1);
        else
            count(LOST);
    }
    return 0;
}

// The kernel runs programs of perf events only under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

// What the threads of some processes did in futex(2): by thread, address, kind and call site.
//
// A call begins with `sys_enter_futex` and ends with `sys_exit_futex`, both in the thread
// itself. Processes, not threads, are chosen, so that later threads are in. Every map is
// bounded; what did not fit is counted in `lost`. The places of the fields are constants that
// the loader fills in from the kernel's `format` files, so no BTF is needed.
// Compiled by `cargo xtask bpf`; the object beside is what Pinfold loads.

#include "kernel.h"

#define FRAMES 48

// Byte offsets in the records of the tracepoints; set by the loader.
const volatile u32 enter_address = 16;
const volatile u32 enter_operation = 24;
const volatile u32 enter_value = 32;
const volatile u32 exit_result = 16;
// 1 to take the stacks of waits.
const volatile u32 with_stacks = 0;

// include/uapi/linux/futex.h, without the flags PRIVATE and CLOCK_REALTIME.
enum { COMMAND = 0x7f };
enum { WAIT = 0, LOCK_PI = 6, WAIT_BITSET = 9, WAIT_REQUEUE_PI = 11, LOCK_PI2 = 13 };
// What a call is for.
enum { LOCKING = 0, WAITING = 1, OTHER = 2 };
// What a C library's lock holds while somebody waits for it.
enum { CONTENDED = 2 };

struct call {
    u64 since_ns;
    u64 address;
    u32 kind;
    s32 stack;
};

struct place {
    u64 address;
    u32 tid;
    u32 process;
    u32 kind;
    s32 stack; // negative: none
};

struct account {
    u64 count;
    u64 sum_ns;
    u64 max_ns;
    u64 again; // calls that came too late to wait
};

MAP(processes, BPF_MAP_TYPE_HASH, 1024, u32, u32);

// By process and thread.
MAP(calls, BPF_MAP_TYPE_HASH, 8192, u64, struct call);
MAP(places, BPF_MAP_TYPE_HASH, 32768, struct place, struct account);

typedef u64 frames[FRAMES];
MAP(stacks, BPF_MAP_TYPE_STACK_TRACE, 16384, u32, frames);

// 0: calls that did not fit; 1: calls whose place did not fit; 2: waits without a stack;
// 3: calls that were seen to end, not to begin.
enum { CALLS = 0, PLACES = 1, STACKS = 2, UNSEEN = 3 };
MAP(lost, BPF_MAP_TYPE_ARRAY, 4, u32, u64);

INLINE void count(u32 which)
{
    u64 *number = bpf_map_lookup_elem(&lost, &which);
    if (number)
        __sync_fetch_and_add(number, 1);
}

SEC("tracepoint/syscalls/sys_enter_futex")
int on_enter(void *record)
{
    u64 self = bpf_get_current_pid_tgid();
    u32 process = (u32)(self >> 32);
    struct call call = { .stack = -1 };
    u64 operation = 0;
    u64 value = 0;

    if (!bpf_map_lookup_elem(&processes, &process))
        return 0;
    bpf_probe_read_kernel(&call.address, sizeof(call.address), record + enter_address);
    bpf_probe_read_kernel(&operation, sizeof(operation), record + enter_operation);
    bpf_probe_read_kernel(&value, sizeof(value), record + enter_value);
    operation &= COMMAND;
    if (operation == LOCK_PI || operation == LOCK_PI2 ||
        (operation == WAIT && (u32)value == CONTENDED))
        call.kind = LOCKING;
    else if (operation == WAIT || operation == WAIT_BITSET || operation == WAIT_REQUEUE_PI)
        call.kind = WAITING;
    else
        call.kind = OTHER;
    if (with_stacks && call.kind != OTHER) {
        call.stack = (s32)bpf_get_stackid(record, &stacks, BPF_F_USER_STACK);
        if (call.stack < 0)
            count(STACKS);
    }
    call.since_ns = bpf_ktime_get_ns();
    if (bpf_map_update_elem(&calls, &self, &call, BPF_ANY))
        count(CALLS);
    return 0;
}

SEC("tracepoint/syscalls/sys_exit_futex")
int on_leave(void *record)
{
    u64 now = bpf_ktime_get_ns();
    u64 self = bpf_get_current_pid_tgid();
    u32 process = (u32)(self >> 32);
    struct place place = {};
    struct account *account;
    struct call *call;
    u64 spent;
    long result = 0;

    if (!bpf_map_lookup_elem(&processes, &process))
        return 0;
    call = bpf_map_lookup_elem(&calls, &self);
    if (!call) {
        count(UNSEEN);
        return 0;
    }
    place.address = call->address;
    place.tid = (u32)self;
    place.process = process;
    place.kind = call->kind;
    place.stack = call->stack;
    spent = now > call->since_ns ? now - call->since_ns : 0;
    bpf_map_delete_elem(&calls, &self);
    bpf_probe_read_kernel(&result, sizeof(result), record + exit_result);
    account = bpf_map_lookup_elem(&places, &place);
    // No other thread has this key, so nothing races.
    if (account) {
        account->count += 1;
        account->sum_ns += spent;
        if (spent > account->max_ns)
            account->max_ns = spent;
        account->again += result == -11;
    } else {
        struct account first = { 1, spent, spent, result == -11 };
        if (bpf_map_update_elem(&places, &place, &first, BPF_NOEXIST))
            count(PLACES);
    }
    return 0;
}

// Reading the kernel's memory is for programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

// What the threads of some processes did in futex(2): by thread, address, kind and call site.
//
// A call begins with `sys_enter_futex` and ends with `sys_exit_futex`, both in the thread
// itself. Processes, not threads, are chosen, so that later threads are in. Every map is
// bounded; what did not fit is counted in `lost`. The places of the fields are constants that
// the loader fills in from the kernel's `format` files, so no BTF is needed.
// Compiled by `cargo xtask bpf`; the object beside is what Pinfold loads.

typedef int s32;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define FRAMES 48

// The parts of the kernel's interface that are used: include/uapi/linux/bpf.h.
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_STACK_TRACE = 7 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_USER_STACK = 256 };
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_stackid)(void *context, void *map, u64 flags) = (void *)27;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;

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

struct {
    int (*type)[BPF_MAP_TYPE_HASH];
    int (*max_entries)[1024];
    u32 *key;
    u32 *value;
} processes SEC(".maps");

struct {
    int (*type)[BPF_MAP_TYPE_HASH];
    int (*max_entries)[8192];
    u64 *key; // process and thread
    struct call *value;
} calls SEC(".maps");

struct {
    int (*type)[BPF_MAP_TYPE_HASH];
    int (*max_entries)[32768];
    struct place *key;
    struct account *value;
} places SEC(".maps");

struct {
    int (*type)[BPF_MAP_TYPE_STACK_TRACE];
    int (*max_entries)[16384];
    u32 *key;
    u64 (*value)[FRAMES];
} stacks SEC(".maps");

// 0: calls that did not fit; 1: calls whose place did not fit; 2: waits without a stack;
// 3: calls that were seen to end, not to begin.
enum { CALLS = 0, PLACES = 1, STACKS = 2, UNSEEN = 3 };
struct {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*max_entries)[4];
    u32 *key;
    u64 *value;
} lost SEC(".maps");

static __attribute__((always_inline)) void count(u32 which)
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

// Counts and times the exits of a virtual machine's vCPU threads, in the kernel.
//
// The threads to watch are in `threads`, put there before the programs are switched on. `leave`
// ends a stretch in the guest and begins an exit, `enter` ends the exit; each finished stretch is
// summed in place. `switched` takes the time without a PU out of the stretch that it falls into.
// A thread's own state is written only by programs that run on it, or while it is switched in or
// out, which no two PUs do at once: nothing here needs a lock.
//
// Most programs are at raw tracepoints, whose arguments are there without a record being made of
// them, which makes an event cheaper; the loader checks their order by the record's `format`.
// Those that need what only the record has find it at the places that the loader reads from
// there. Compiled by `cargo xtask bpf`; the object beside is what
// Pinfold loads. Needs Linux 5.5 (bpf_probe_read_kernel).

#include "kernel.h"

#define UNUSED __attribute__((unused))

// Where the fields are in the records of this kernel's events; 0: there is no such field.
const volatile u32 reason_at = 0;      // of the exit
const volatile u32 reason_is_long = 0; // it has 8 bytes
const volatile u32 detail_at = 0;      // what else tells the reason
const volatile u32 prev_state_at = 0;
const volatile u32 next_pid_at = 0;
const volatile u32 register_write_at = 0;
const volatile u32 register_number_at = 0; // Op0, Op1, CRn, CRm, Op2, a byte each
// Guest-physical address of the register GICD_SGIR; a write to it is an interprocessor interrupt.
const volatile u64 sgi_address = 0;

// Bits that tell exits of one reason apart.
enum { IS_MMIO = 1, IS_IPI = 2 };
// What a thread is doing; unknown until the first event.
enum { UNKNOWN, IN_GUEST, IN_EXIT };
// Stretches that are no exits.
enum { GUEST, ASLEEP, PREEMPTED, PSEUDO };
// What an address is of; 0 and 1 are ports, and an odd number is a write.
enum { PORT = 0, MMIO = 2, MSR = 4 };

// Durations of one kind of stretch (ns); the squares have 128 bits.
struct stretches {
    u64 count;
    u64 sum;
    u64 shortest;
    u64 longest;
    u64 square_low;
    u64 square_high;
};

struct thread {
    u64 since_ns;   // begin of the stretch
    u64 off_ns;     // time in it without a PU
    u64 out_ns;     // when it lost the PU; 0 while it has one
    u64 reason;     // of the exit
    u32 doing;
    u32 marks;
    u64 is_asleep;  // it gave its PU away of its own accord
    u64 events;     // that these programs saw of it
    u64 unpaired;   // an exit after an exit, or an entry after an entry
    u64 no_room;    // exits that are not in the table, because that was full
    u64 no_address; // addresses that are not in the table, because that was full
    u64 switches;   // how often it lost its PU
    struct stretches pseudo[PSEUDO];
};

struct exit_key {
    u64 reason;
    u32 tid;
    u32 marks;
};

struct address_key {
    u64 address;
    u32 tid;
    u32 kind;
};

// 1 while exits are counted.
MAP(is_on, BPF_MAP_TYPE_ARRAY, 1, u32, u64);
MAP(threads, BPF_MAP_TYPE_HASH, 1024, u32, struct thread);
MAP(exits, BPF_MAP_TYPE_HASH, 16384, struct exit_key, struct stretches);
MAP(addresses, BPF_MAP_TYPE_HASH, 16384, struct address_key, u64);

INLINE void add(struct stretches *sum, u64 ns)
{
    // Below 2^48 ns (three days), so that the middle product fits.
    u64 high = ns >> 32;
    u64 low = ns & 0xffffffff;
    u64 middle = 2 * high * low;
    u64 square = low * low + (middle << 32);
    u64 carry = square < low * low;

    sum->count += 1;
    sum->sum += ns;
    if (ns < sum->shortest)
        sum->shortest = ns;
    if (ns > sum->longest)
        sum->longest = ns;
    sum->square_high += high * high + (middle >> 32) + carry;
    sum->square_low += square;
    sum->square_high += sum->square_low < square;
}

INLINE struct thread *watched(u32 *tid)
{
    u32 first = 0;
    const u64 *on = bpf_map_lookup_elem(&is_on, &first);

    *tid = (u32)bpf_get_current_pid_tgid();
    if (!on || !*on)
        return 0;
    return bpf_map_lookup_elem(&threads, tid);
}

// A program for one event of the watched threads: its body gets the thread and the event,
// which is counted already.
#define OF_WATCHED(section, name, type, event)                                                     \
    INLINE void handle_##name(struct thread *thread, UNUSED u32 tid, UNUSED const type *event);    \
    SEC(section "/" #name)                                                                         \
    int name(const type *event)                                                                    \
    {                                                                                              \
        u32 tid;                                                                                   \
        struct thread *thread = watched(&tid);                                                     \
                                                                                                   \
        if (!thread)                                                                               \
            return 0;                                                                              \
        thread->events += 1;                                                                       \
        handle_##name(thread, tid, event);                                                         \
        return 0;                                                                                  \
    }                                                                                              \
    INLINE void handle_##name(struct thread *thread, UNUSED u32 tid, UNUSED const type *event)
// With the record of the event.
#define RECORD_PROGRAM(name) OF_WATCHED("tracepoint", name, void, event)
// With its arguments.
#define RAW_PROGRAM(name) OF_WATCHED("raw_tracepoint", name, u64, arguments)

INLINE u32 field(const void *event, u32 at)
{
    u32 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (const char *)event + at);
    return value;
}

INLINE u64 long_field(const void *event, u32 at)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (const char *)event + at);
    return value;
}

INLINE u64 length(const struct thread *thread, u64 now)
{
    u64 whole = now - thread->since_ns;
    return whole > thread->off_ns ? whole - thread->off_ns : 0;
}

INLINE void begin_exit(struct thread *thread, u64 reason)
{
    u64 now = bpf_ktime_get_ns();

    if (thread->doing == IN_GUEST)
        add(&thread->pseudo[GUEST], length(thread, now));
    else if (thread->doing == IN_EXIT)
        thread->unpaired += 1;
    thread->reason = reason;
    thread->doing = IN_EXIT;
    thread->marks = 0;
    thread->since_ns = now;
    thread->off_ns = 0;
}

// kvm_exit
RECORD_PROGRAM(leave)
{
    u64 reason = reason_is_long ? long_field(event, reason_at) : field(event, reason_at);

    if (detail_at)
        reason |= (u64)field(event, detail_at) << 32;
    begin_exit(thread, reason);
}

// kvm_userspace_exit(reason, errno)
RAW_PROGRAM(surface)
{
    begin_exit(thread, (u32)arguments[0] | arguments[1] << 32);
}

INLINE void end_exit(struct thread *thread, u32 tid)
{
    struct stretches *sum;
    struct exit_key key;
    u64 now = bpf_ktime_get_ns();

    if (thread->doing == IN_EXIT) {
        key.reason = thread->reason;
        key.tid = tid;
        key.marks = thread->marks;
        sum = bpf_map_lookup_elem(&exits, &key);
        if (!sum) {
            struct stretches none = { .shortest = ~0ULL };
            bpf_map_update_elem(&exits, &key, &none, BPF_NOEXIST);
            sum = bpf_map_lookup_elem(&exits, &key);
        }
        if (sum)
            add(sum, length(thread, now));
        else
            thread->no_room += 1;
    } else if (thread->doing == IN_GUEST) {
        thread->unpaired += 1;
    }
    thread->doing = IN_GUEST;
    thread->since_ns = now;
    thread->off_ns = 0;
}

// kvm_entry
RAW_PROGRAM(enter)
{
    end_exit(thread, tid);
}

// kvm_fpu(load): KVM takes the guest's registers of floating-point numbers before it enters the
// guest, and puts them back before it returns to its user: two events, of which one is looked at.
SEC("raw_tracepoint/dive")
int dive(const u64 *arguments)
{
    struct thread *thread;
    u32 tid;

    if (!(u32)arguments[0])
        return 0;
    thread = watched(&tid);
    if (!thread)
        return 0;
    thread->events += 2;
    end_exit(thread, tid);
    return 0;
}

SEC("tracepoint/switched")
int switched(void *event)
{
    u32 tid;
    struct thread *thread = watched(&tid);
    u32 next = field(event, next_pid_at);
    u64 now;

    if (thread && thread->doing != UNKNOWN) {
        thread->events += 1;
        thread->switches += 1;
        thread->out_ns = bpf_ktime_get_ns();
        // The lowest bits are the states in which a task waits for something; none, or only the
        // one above them, is a task that would have run on.
        thread->is_asleep = (long_field(event, prev_state_at) & 0xff) != 0;
    }
    thread = bpf_map_lookup_elem(&threads, &next);
    if (thread && thread->out_ns) {
        now = bpf_ktime_get_ns();
        thread->events += 1;
        thread->off_ns += now - thread->out_ns;
        add(&thread->pseudo[thread->is_asleep ? ASLEEP : PREEMPTED], now - thread->out_ns);
        thread->out_ns = 0;
    }
    return 0;
}

INLINE void count(struct thread *thread, u32 tid, u32 kind, u64 address)
{
    struct address_key key = { .address = address, .tid = tid, .kind = kind };
    u64 *number = bpf_map_lookup_elem(&addresses, &key);
    u64 one = 1;

    if (number)
        *number += 1;
    else if (bpf_map_update_elem(&addresses, &key, &one, BPF_NOEXIST))
        thread->no_address += 1;
}

INLINE void mark(struct thread *thread, u32 marks)
{
    if (thread->doing == IN_EXIT)
        thread->marks |= marks;
}

// kvm_pio(rw, port, …)
RAW_PROGRAM(port)
{
    count(thread, tid, PORT + ((u32)arguments[0] != 0), (u32)arguments[1]);
}

// kvm_mmio(type, len, gpa, …)
RAW_PROGRAM(mmio)
{
    u32 type = (u32)arguments[0];
    u64 address = arguments[2];

    mark(thread, type == 2 && sgi_address && address == sgi_address ? IS_MMIO | IS_IPI : IS_MMIO);
    // 0 is a read that nobody has answered yet: its answer comes as 1. 2 is a write.
    if (type)
        count(thread, tid, MMIO + (type == 2), address);
}

// A write that only rings a bell (an eventfd), which has no data: kvm_fast_mmio(gpa)
RAW_PROGRAM(bell)
{
    mark(thread, IS_MMIO);
    count(thread, tid, MMIO + 1, arguments[0]);
}

// kvm_msr(write, ecx, …)
RAW_PROGRAM(msr)
{
    count(thread, tid, MSR + ((u32)arguments[0] != 0), (u32)arguments[1]);
}

// A system register of Arm. A write to ICC_SGI1R_EL1, ICC_ASGI1R_EL1 or ICC_SGI0R_EL1
// (Op0 3, Op1 0, CRn 12, CRm 11, Op2 5 to 7) is an interprocessor interrupt.
RECORD_PROGRAM(sysreg)
{
    u8 part[5] = {};
    u8 is_write = 0;
    u64 name;

    bpf_probe_read_kernel(part, sizeof(part), (const char *)event + register_number_at);
    bpf_probe_read_kernel(&is_write, 1, (const char *)event + register_write_at);
    name = (u64)part[0] << 16 | part[1] << 12 | part[2] << 8 | part[3] << 4 | part[4];
    if (is_write && name >= 0x30cb5 && name <= 0x30cb7)
        mark(thread, IS_IPI);
    count(thread, tid, MSR + (is_write != 0), name);
}

// The event itself says that the guest sends an interrupt to another vCPU.
RAW_PROGRAM(ipi)
{
    mark(thread, IS_IPI);
}

// kvm_hypercall(nr, …); KVM_HC_SEND_IPI is 10.
RAW_PROGRAM(hypercall)
{
    if (arguments[0] == 10)
        mark(thread, IS_IPI);
}

// Programs of tracepoints are for programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

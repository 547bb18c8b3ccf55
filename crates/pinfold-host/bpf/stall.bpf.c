// Slows the CPU time of one cgroup: the program of its timer events (method `stall`).
//
// A software clock event of the cgroup fires on each of its cores every so many microseconds
// that the cgroup's tasks run there. This program, in the interrupt, reads how long they ran,
// counts what they owe for it, and spins until it is paid. They stand still from the moment when
// the timer was due, on a virtual machine many microseconds before the first line of this program:
// where the kernel tells its types, the spin ends by that moment. What the rest of the interrupt
// costs them the supervisor has measured, and asks for so much less.
//
// The supervisor beats by moving `beat` ahead, in memory that both share; a program that is past it spins no more.
// Compiled by `cargo xtask bpf`; the object beside is what Pinfold loads. Needs Linux 5.17
// (bpf_loop).

#include "kernel.h"

#define MAX_PUS 4096
#define SPREAD 4             // a sixteenth each time
#define MOST_OWED_NS 2000000 // either way; stalls are far below what the kernel's watchdogs look at
#define MOST_ENTRY_NS 50000  // what is later than that did not stand still all the time

// What the supervisor wishes of a PU; the program only reads it.
struct wish {
    u64 stolen;     // millionths of the run time that the CPU shall not have
    u64 usual_ns;   // a stall that is no longer is paid at once
    u64 longest_ns; // longest single stall
};

// What the program did on a PU; the supervisor only reads it.
struct account {
    u64 seen_ns; // run time of the cgroup that is accounted for, spinning included
    s64 owed_ns; // what is still to be paid
    u64 spun_ns; // sum of all stalls, from when their interrupts were due
    u64 entry_ns; // part of it before this program began
    u64 fired;   // interrupts
    u64 lost_ns; // debt that was forgiven, because it could not be paid in time
    u64 idle_ns; // run time while no supervisor beat, or at full speed
};

// CLOCK_MONOTONIC until which the supervisor vouches for the program.
SHARED_WORDS(beat, 1);

// By OS index of the PU; made as large as the machine is.
MAP(wishes, BPF_MAP_TYPE_ARRAY, MAX_PUS, u32, struct wish);
MAP(accounts, BPF_MAP_TYPE_ARRAY, MAX_PUS, u32, struct account);

// Of the kernel's types what is looked at; where it is, the loader finds in the kernel's own
// description of them (BTF).
struct timerqueue_node {
    s64 expires;
} KERNEL_TYPE;

struct hrtimer {
    struct timerqueue_node node;
} KERNEL_TYPE;

struct hw_perf_event {
    struct hrtimer hrtimer;
} KERNEL_TYPE;

struct perf_event {
    struct hw_perf_event hw;
} KERNEL_TYPE;

struct bpf_perf_event_data_kern {
    struct perf_event *event;
} KERNEL_TYPE;

// Set by the loader where the kernel describes its types.
const volatile u32 sees_types = 0;

// How long ago the timer of this event was due, on the clock of bpf_ktime_get_ns.
INLINE u64 entry_of(void *context, u64 start)
{
    const struct bpf_perf_event_data_kern *data = context;
    const struct perf_event *event = 0;
    u64 due = start;

    if (!sees_types || bpf_probe_read_kernel(&event, sizeof(event), &data->event) ||
        bpf_probe_read_kernel(&due, sizeof(due), &event->hw.hrtimer.node.expires) || due > start)
        return 0;
    return start - due < MOST_ENTRY_NS ? start - due : MOST_ENTRY_NS;
}

struct spin {
    u64 until_ns;
};

static long spin_on(u32 index, void *context)
{
    struct spin *spin = context;
    (void)index;
    return bpf_ktime_get_ns() >= spin->until_ns;
}

SEC("perf_event")
int stall(void *context)
{
    u64 start = bpf_ktime_get_ns();
    u32 pu = bpf_get_smp_processor_id();
    u32 first = 0;
    const u64 *until = bpf_map_lookup_elem(&beat, &first);
    const struct wish *wish = bpf_map_lookup_elem(&wishes, &pu);
    struct account *account = bpf_map_lookup_elem(&accounts, &pu);
    struct bpf_perf_event_value value = {};
    struct spin spin;
    u64 ran, entry;
    s64 pay;

    if (!until || !wish || !account || bpf_perf_prog_read_value(context, &value, sizeof(value)))
        return 0;
    ran = value.counter - account->seen_ns;
    account->seen_ns = value.counter;
    account->fired += 1;
    if (start >= *until || wish->stolen == 0) {
        account->owed_ns = 0;
        account->idle_ns += ran;
        return 0;
    }
    entry = entry_of(context, start);
    account->entry_ns += entry;
    account->owed_ns += (s64)(ran * wish->stolen / 1000000);
    pay = account->owed_ns;
    // An interrupt that came late owes more than one period's stall: that is spread over the next.
    if (pay > (s64)wish->usual_ns)
        pay = (s64)wish->usual_ns + ((pay - (s64)wish->usual_ns) >> SPREAD);
    if (pay > (s64)wish->longest_ns)
        pay = (s64)wish->longest_ns;
    if (pay > (s64)entry) {
        spin.until_ns = start - entry + (u64)pay;
        bpf_loop(1 << 22, spin_on, &spin, 0);
        entry += bpf_ktime_get_ns() - start;
    }
    account->spun_ns += entry;
    account->owed_ns -= (s64)entry;
    if (account->owed_ns < -MOST_OWED_NS)
        account->owed_ns = -MOST_OWED_NS;
    if (account->owed_ns > MOST_OWED_NS) {
        account->lost_ns += (u64)(account->owed_ns - MOST_OWED_NS);
        account->owed_ns = MOST_OWED_NS;
    }
    return 0;
}

// bpf_loop and the reading of the counter are for programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

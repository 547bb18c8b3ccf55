//! The map values that the BPF programs `sched` and `locks` share with their loaders.

/// Number of buckets in a histogram of waits; `BUCKETS` of `bpf/sched.bpf.c`.
pub(crate) const WAIT_BUCKETS: usize = 640;
/// Number of slices stored per CPU; `SLICES` of `bpf/sched.bpf.c`.
const SLICES: usize = 16;

/// `struct task` of `bpf/sched.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) since_ns: u64,
    pub(crate) arrived_ns: u64,
    pub(crate) account: u32,
    pub(crate) state: u32,
    pub(crate) moves: u32,
    pub(crate) preempted: u32,
}

/// `struct slice` of `bpf/sched.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RanSlice {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    pub(crate) tid: u32,
    pub(crate) unused: u32,
    pub(crate) name: [u8; 16],
}

/// `struct account` of `bpf/sched.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitAccount {
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) preempted: u64,
    pub(crate) unseen: u64,
    pub(crate) moves: u64,
    pub(crate) moves_waiting: u64,
    pub(crate) tid: u32,
    pub(crate) process: u32,
    pub(crate) parent: u32,
    pub(crate) parent_process: u32,
    pub(crate) flags: u32,
    pub(crate) worst_pu: u32,
    pub(crate) max_wait_end_ns: u64,
    pub(crate) worst_arrived_ns: u64,
    pub(crate) worst_moves: u64,
    pub(crate) worst_slices: [RanSlice; SLICES],
    pub(crate) buckets: [u64; WAIT_BUCKETS],
}

impl WaitAccount {
    /// The account of a thread without any wait yet.
    pub(crate) fn from_tid(tid: u32) -> Self {
        let slice = RanSlice { from_ns: 0, until_ns: 0, tid: 0, unused: 0, name: [0; 16] };
        Self {
            count: 0,
            sum_ns: 0,
            max_ns: 0,
            preempted: 0,
            unseen: 0,
            moves: 0,
            moves_waiting: 0,
            tid,
            process: 0,
            parent: 0,
            parent_process: 0,
            flags: 0,
            worst_pu: 0,
            max_wait_end_ns: 0,
            worst_arrived_ns: 0,
            worst_moves: 0,
            worst_slices: [slice; SLICES],
            buckets: [0; WAIT_BUCKETS],
        }
    }
}

/// `struct waker` of `bpf/sched.bpf.c`: an account and a name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waker {
    pub(crate) account: u32,
    pub(crate) unused: u32,
    pub(crate) name: [u8; 16],
}

/// `struct runner` of `bpf/sched.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRunner {
    pub(crate) count: u64,
    pub(crate) ns: u64,
    pub(crate) tid: u64,
}

/// `struct call` of `bpf/locks.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) since_ns: u64,
    pub(crate) address: u64,
    pub(crate) kind: u32,
    pub(crate) stack: i32,
}

/// `struct place` of `bpf/locks.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) tid: u32,
    pub(crate) process: u32,
    pub(crate) kind: u32,
    pub(crate) stack: i32,
}

/// `struct account` of `bpf/locks.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FutexAccount {
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) again: u64,
}

// SAFETY: `repr(C)`, consists of whole words without padding, and any bit pattern is valid.
unsafe impl aya::Pod for Waiting {}
// SAFETY: as above.
unsafe impl aya::Pod for WaitAccount {}
// SAFETY: as above.
unsafe impl aya::Pod for Waker {}
// SAFETY: as above.
unsafe impl aya::Pod for RawRunner {}
// SAFETY: as above.
unsafe impl aya::Pod for Call {}
// SAFETY: as above.
unsafe impl aya::Pod for Place {}
// SAFETY: as above.
unsafe impl aya::Pod for FutexAccount {}

//! Map values of the BPF program `bpf/gaps.bpf.c`.

/// Number of buckets of a thread's histogram; `BUCKETS` of the program.
pub(crate) const GAP_BUCKETS: usize = 32;

/// `struct thread` of `bpf/gaps.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GapThread {
    pub(crate) since_ns: u64,
    pub(crate) woken_ns: u64,
    pub(crate) arrived_ns: u64,
    pub(crate) state: u32,
    pub(crate) prev_state: u32,
    pub(crate) moves: u32,
    pub(crate) marks: u32,
    pub(crate) waker: u32,
    pub(crate) process: u32,
    pub(crate) cpu: u32,
    pub(crate) waker_process: u32,
    pub(crate) waker_name: [u8; 16],
    pub(crate) owner: u32,
    pub(crate) follows: u32,
    pub(crate) place: u64,
    pub(crate) out_ns: u64,
    pub(crate) exit: u64,
    pub(crate) reason: u64,
    pub(crate) earlier: [u64; 7],
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) buckets: [u64; GAP_BUCKETS],
}

// SAFETY: `repr(C)`, consists of whole words without padding, and any bit pattern is valid.
unsafe impl aya::Pod for GapThread {}

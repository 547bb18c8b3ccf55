//! Map keys and values of the BPF program `bpf/exits.bpf.c`.

/// `struct stretches` of `bpf/exits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) count: u64,
    pub(crate) sum: u64,
    pub(crate) shortest: u64,
    pub(crate) longest: u64,
    pub(crate) square_low: u64,
    pub(crate) square_high: u64,
}

/// `struct thread` of `bpf/exits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExitThread {
    pub(crate) since_ns: u64,
    pub(crate) off_ns: u64,
    pub(crate) out_ns: u64,
    pub(crate) reason: u64,
    pub(crate) doing: u32,
    pub(crate) marks: u32,
    pub(crate) is_asleep: u64,
    pub(crate) events: u64,
    pub(crate) unpaired: u64,
    pub(crate) no_room: u64,
    pub(crate) no_address: u64,
    pub(crate) switches: u64,
    pub(crate) pseudo: [Sums; 3],
}

/// `struct exit_key` of `bpf/exits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) reason: u64,
    pub(crate) tid: u32,
    pub(crate) marks: u32,
}

/// `struct address_key` of `bpf/exits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AddressKey {
    pub(crate) address: u64,
    pub(crate) tid: u32,
    pub(crate) kind: u32,
}

// SAFETY: `repr(C)`, consists of whole words without padding, and any bit pattern is valid.
unsafe impl aya::Pod for Sums {}
// SAFETY: as above; two halves of a word are adjacent.
unsafe impl aya::Pod for ExitThread {}
// SAFETY: as above.
unsafe impl aya::Pod for Key {}
// SAFETY: as above.
unsafe impl aya::Pod for AddressKey {}

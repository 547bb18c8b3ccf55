//! Map values of the BPF program `bpf/waits.bpf.c`, and a whole map in one system call.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::answer;

/// Number of tasks that are kept for a thread; `CAUSES` of the program.
const CAUSES: usize = 4;

/// `struct cause` of `bpf/waits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawCause {
    pub(crate) ns: u64,
    pub(crate) tid: u32,
    pub(crate) unused: u32,
    pub(crate) name: [u8; 16],
}

/// `struct thread` of `bpf/waits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawThread {
    pub(crate) done: u64,
    pub(crate) since_ns: u64,
    pub(crate) counted_ns: u64,
    pub(crate) run_ns: u64,
    pub(crate) ready_ns: u64,
    pub(crate) moves: u64,
    pub(crate) longest_ns: u64,
    pub(crate) interval: u64,
    pub(crate) state: u32,
    pub(crate) cpu: u32,
    pub(crate) causes: [RawCause; CAUSES],
    pub(crate) begun: u64,
}

/// `struct cpu` of `bpf/waits.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawOccupant {
    pub(crate) since_ns: u64,
    pub(crate) tid: u32,
    pub(crate) unused: u32,
    pub(crate) name: [u8; 16],
}

// SAFETY: `repr(C)`, consists of whole words without padding, and any bit pattern is valid.
unsafe impl aya::Pod for RawThread {}
// SAFETY: as above.
unsafe impl aya::Pod for RawOccupant {}

/// An entry of a map with keys of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<V> {
    pub(crate) key: u32,
    pub(crate) value: V,
}

/// `BPF_MAP_LOOKUP_BATCH` of `include/uapi/linux/bpf.h`.
const LOOKUP_BATCH: libc::c_long = 24;

/// The part of `union bpf_attr` for this call.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: i32,
    element_flags: u64,
    flags: u64,
}

/// The entries of a map with keys of 32 bits and values of the size of `V`, which the caller has
/// checked; at most as many as the map may hold are read. Without an order.
///
/// # Errors
/// The kernel's, before Linux 5.6 `EINVAL`.
pub(crate) fn read_map<V: aya::Pod + Default>(
    map: BorrowedFd<'_>,
    most: u32,
    into: &mut Vec<Entry<V>>,
) -> io::Result<()> {
    let mut keys = vec![0_u32; most as usize];
    let mut values = vec![V::default(); most as usize];
    // The position in a hash table is a number of 32 bits, that in an array is a key.
    let mut position = 0_u64;
    let mut attr = BatchAttr {
        in_batch: 0,
        out_batch: (&raw mut position).addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count: most,
        map: map.as_raw_fd(),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY:
    // - `attr` is readable and writable for the size that is passed, and outlives the call;
    // - `keys` and `values` have room for `count` entries of the map's sizes: keys of 4 bytes, and
    //   values that aya compared with the size of the type when it opened the map;
    // - `position` has 8 bytes, of which the kernel writes the size of a key;
    // - any bit pattern is a valid key and a valid `V`, which is `Pod`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            LOOKUP_BATCH,
            &raw mut attr,
            size_of::<BatchAttr>() as libc::c_ulong,
        )
    };
    match answer(result) {
        Ok(_) => {}
        // The end of the map.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        Err(error) => return Err(error),
    }
    into.clear();
    let entries = keys.into_iter().zip(values).map(|(key, value)| Entry { key, value });
    into.extend(entries.take(attr.count as usize));
    Ok(())
}

//! A number that a BPF program reads, in memory that this process shares with it.
//!
//! The map of the program is an array with `BPF_F_MMAPABLE` (Linux 5.5): a write to the mapped
//! page does what a call of `bpf(2)` would, for less of the CPU.
//! <https://docs.kernel.org/bpf/map_array.html>

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::ProtFlags;

use super::mapping::Mapping;

/// The first number of an array map.
#[derive(Debug)]
pub(crate) struct SharedWord {
    page: Mapping,
}

impl SharedWord {
    /// Maps it. The map's values are of 64 bits.
    pub(crate) fn of(map: BorrowedFd<'_>) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self { page: Mapping::shared(map, rustix::param::page_size(), access)? })
    }

    /// Sets it; the program sees the old number or the new one.
    pub(crate) fn store(&self, value: u64) {
        // SAFETY:
        // - the page is mapped for reading and writing until this is dropped, and begins with the
        //   number, which a page's start is aligned for;
        // - this process reaches it through this atomic alone.
        let word = unsafe { AtomicU64::from_ptr(self.page.start().cast()) };
        word.store(value, Ordering::Relaxed);
    }
}

//! A number in memory that this process shares with a BPF program.
//!
//! The program's map is an array with `BPF_F_MMAPABLE` (Linux 5.5): a write to the mapped page
//! replaces a call of `bpf(2)` and takes less CPU time.
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
    /// Maps it. The map's values have 64 bits.
    pub(crate) fn from_map(map: BorrowedFd<'_>) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self { page: Mapping::map_shared(map, rustix::param::page_size(), access)? })
    }

    /// Sets it atomically: the program sees the old or the new number.
    pub(crate) fn store(&self, value: u64) {
        // SAFETY:
        // - the page is mapped for reading and writing until this is dropped, and begins with the
        //   number; the start of a page is aligned for it;
        // - this process accesses it only through this atomic.
        let word = unsafe { AtomicU64::from_ptr(self.page.start().cast()) };
        word.store(value, Ordering::Relaxed);
    }
}

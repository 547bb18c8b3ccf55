//! A number that a BPF program reads, in memory that this process shares with it.
//!
//! The map of the program is an array with `BPF_F_MMAPABLE` (Linux 5.5): a write to the mapped
//! page does what a call of `bpf(2)` would, for less of the CPU.
//! <https://docs.kernel.org/bpf/map_array.html>

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The first number of an array map.
#[derive(Debug)]
pub(crate) struct SharedWord {
    room: *mut libc::c_void,
    length: usize,
}

impl SharedWord {
    /// Maps it. The map's values are of 64 bits.
    pub(crate) fn of(map: BorrowedFd<'_>) -> Result<Self, Errno> {
        let length = rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let room =
            unsafe { rustix::mm::mmap(ptr::null_mut(), length, access, MapFlags::SHARED, map, 0) }?;
        Ok(Self { room, length })
    }

    /// Sets it; the program sees the old number or the new one.
    pub(crate) fn store(&self, value: u64) {
        // SAFETY:
        // - the page is mapped for reading and writing until this is dropped, and begins with the
        //   number, which a page's start is aligned for;
        // - this process reaches it through this atomic alone.
        let word = unsafe { AtomicU64::from_ptr(self.room.cast()) };
        word.store(value, Ordering::Relaxed);
    }
}

impl Drop for SharedWord {
    fn drop(&mut self) {
        // SAFETY:
        // - address and length are those of the mapping that `of` made, and it is unmapped once;
        // - no reference leads into it.
        let unmapped = unsafe { rustix::mm::munmap(self.room, self.length) };
        // It cannot fail on a mapping that is there; a leak would harm nothing.
        match unmapped {
            Ok(()) | Err(_) => {}
        }
    }
}

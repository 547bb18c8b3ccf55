//! Memory that is mapped, and unmapped when it is dropped.

use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    /// Shares the first so many bytes of what a descriptor stands for.
    pub(super) fn shared(
        of: BorrowedFd<'_>,
        length: usize,
        access: ProtFlags,
    ) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), length, access, MapFlags::SHARED, of, 0) }?;
        Ok(Self { start, length })
    }

    /// So many bytes of zeros, to read and write, of this process alone.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn private(length: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE)
        }?;
        Ok(Self { start, length })
    }

    /// Where it begins: at the start of a page.
    pub(super) fn start(&self) -> *mut libc::c_void {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY:
        // - start and length are those of the mapping that was made, and it is unmapped once;
        // - nobody keeps a reference into it beyond this value.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        // It cannot fail on a mapping that is there; a leak would harm nothing.
        match unmapped {
            Ok(()) | Err(_) => {}
        }
    }
}

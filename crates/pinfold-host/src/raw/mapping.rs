//! A memory mapping that is unmapped when it is dropped.

use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A memory mapping of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes of a descriptor's object as shared memory.
    pub(super) fn map_shared(
        of: BorrowedFd<'_>,
        length: usize,
        access: ProtFlags,
    ) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing one.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), length, access, MapFlags::SHARED, of, 0) }?;
        Ok(Self { start, length })
    }

    /// Maps `length` bytes of zeros for reading and writing, private to this process.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn private(length: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing one.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE)
        }?;
        Ok(Self { start, length })
    }

    /// Start address; page-aligned.
    pub(super) fn start(&self) -> *mut libc::c_void {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY:
        // - start and length are those of the mapping, and it is unmapped once;
        // - no reference into it outlives this value.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        // Cannot fail for an existing mapping; a leak would be harmless.
        match unmapped {
            Ok(()) | Err(_) => {}
        }
    }
}

//! Opens a cgroup by its ID, `open_by_handle_at(2)`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// `FILEID_KERNFS` of `include/linux/exportfs.h`.
const KERNFS: i32 = 0xfe;

/// `struct file_handle` with the ID as its content.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: u64,
}

/// The directory of the group with this ID, in the hierarchy in which `mount` is a directory.
/// Needs `CAP_DAC_READ_SEARCH`; `ESTALE` if the group was removed.
pub(crate) fn open_cgroup(mount: BorrowedFd<'_>, id: u64) -> io::Result<OwnedFd> {
    let handle = Handle { bytes: 8, kind: KERNFS, id };
    // SAFETY: the handle is a valid `struct file_handle` whose content has the 8 bytes that it
    // declares, and lives until the call returns; the kernel only reads it.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw const handle,
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    match i32::try_from(opened) {
        // SAFETY: the kernel has just returned this descriptor, and nothing else has it.
        Ok(file) if file >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

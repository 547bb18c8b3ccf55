//! Wakes the caller when a thread creates another one or exits, by a perf event that counts
//! nothing.
//!
//! A software event with the `task` flag writes a record for each `clone` of its thread and for its
//! exit (`PERF_RECORD_FORK`, `PERF_RECORD_EXIT`), and `poll(2)` reports that one was written. The
//! records themselves are not read: their buffer is mapped read-only, so that the kernel overwrites
//! old ones. <https://man7.org/linux/man-pages/man2/perf_event_open.2.html>

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use pinfold_model::Tid;
use rustix::mm::ProtFlags;

use super::answer;
use super::mapping::Mapping;

/// `struct perf_event_attr` of `include/uapi/linux/perf_event.h`, version 0 (64 bytes), which every
/// kernel accepts.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct EventAttr {
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) config: u64,
    pub(super) sample_period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) wakeup_watermark: u32,
    pub(super) breakpoint_type: u32,
    pub(super) config1: u64,
}

pub(super) const ATTR_SIZE: u32 = 64;
const _: () = assert!(size_of::<EventAttr>() == ATTR_SIZE as usize);

/// `PERF_TYPE_SOFTWARE`.
pub(super) const SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_DUMMY`.
const DUMMY: u64 = 9;
/// Flag bits: exclude kernel and hypervisor (nothing is counted anyway, and this needs fewer
/// permissions), record tasks, wake by number of bytes instead of samples.
const FLAGS: u64 = (1 << 5) | (1 << 6) | (1 << 13) | (1 << 14);
/// `PERF_FLAG_FD_CLOEXEC`.
pub(super) const CLOSE_ON_EXEC: u64 = 8;

/// Events of one thread: readable after it created a thread, hung up after it exited.
#[derive(Debug)]
pub(crate) struct TaskEvents {
    event: OwnedFd,
    // Neither read nor written; only the kernel uses it.
    _room: Mapping,
}

impl TaskEvents {
    /// Subscribes to the events of a thread.
    pub(crate) fn from_tid(tid: Tid) -> io::Result<Self> {
        let attr = EventAttr {
            kind: SOFTWARE,
            size: ATTR_SIZE,
            config: DUMMY,
            flags: FLAGS,
            wakeup_watermark: 1,
            ..EventAttr::default()
        };
        // SAFETY:
        // - `attr` is readable for the 64 bytes that its `size` field specifies, and outlives the
        //   call; the kernel only reads it;
        // - every argument has the width of a register; -1 as CPU means any, -1 as group means
        //   none.
        let result = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                libc::c_long::from(tid.0),
                -1 as libc::c_long,
                -1 as libc::c_long,
                CLOSE_ON_EXEC,
            )
        };
        let event = i32::try_from(answer(result)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just created this descriptor; nothing else owns it.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        // One page for the metadata of the ring buffer, and one for the records.
        let length = 2 * rustix::param::page_size();
        let room = Mapping::map_shared(event.as_fd(), length, ProtFlags::READ)?;
        Ok(Self { event, _room: room })
    }
}

impl AsFd for TaskEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

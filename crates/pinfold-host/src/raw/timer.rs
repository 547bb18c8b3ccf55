//! A timer that runs only while the tasks of one cgroup run on one CPU, and runs a BPF program.
//!
//! A software clock event (`PERF_COUNT_SW_CPU_CLOCK`) of a cgroup is a high-resolution timer that
//! the scheduler starts and stops with the cgroup's tasks.
//! <https://man7.org/linux/man-pages/man2/perf_event_open.2.html>, `PERF_FLAG_PID_CGROUP`.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use pinfold_model::PuId;

use super::answer;
use super::clone_event::{ATTR_SIZE, CLOSE_ON_EXEC, EventAttr, SOFTWARE};

/// `PERF_COUNT_SW_CPU_CLOCK`.
const CPU_CLOCK: u64 = 0;
/// Flag bit: created disabled.
const DISABLED: u64 = 1;
/// `PERF_FLAG_PID_CGROUP`.
const OF_CGROUP: u64 = 4;
/// `_IO('$', 0)`, `PERF_EVENT_IOC_ENABLE`.
const ENABLE: libc::c_ulong = 0x2400;
/// `_IO('$', 1)`, `PERF_EVENT_IOC_DISABLE`.
const DISABLE: libc::c_ulong = 0x2401;
/// `_IOW('$', 4, __u64)`, `PERF_EVENT_IOC_PERIOD`.
const PERIOD: libc::c_ulong = 0x4008_2404;
/// `_IOW('$', 8, __u32)`, `PERF_EVENT_IOC_SET_BPF`.
const SET_BPF: libc::c_ulong = 0x4004_2408;

/// The timer; it ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Timer {
    event: OwnedFd,
}

impl Timer {
    /// Creates a timer that is not running yet.
    pub(crate) fn new(cgroup: BorrowedFd<'_>, pu: PuId, period_ns: u64) -> io::Result<Self> {
        let attr = EventAttr {
            kind: SOFTWARE,
            size: ATTR_SIZE,
            config: CPU_CLOCK,
            sample_period: period_ns,
            flags: DISABLED,
            ..EventAttr::default()
        };
        // SAFETY:
        // - `attr` is readable for the 64 bytes that its `size` field specifies, and outlives the
        //   call; the kernel only reads it;
        // - the cgroup's descriptor, which is passed as the pid, is open during the call;
        // - every argument has the width of a register; -1 as group means none.
        let result = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                libc::c_long::from(cgroup.as_raw_fd()),
                libc::c_long::from(pu.0),
                -1 as libc::c_long,
                CLOSE_ON_EXEC | OF_CGROUP,
            )
        };
        let event = i32::try_from(answer(result)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just created this descriptor; nothing else owns it.
        Ok(Self { event: unsafe { OwnedFd::from_raw_fd(event) } })
    }

    /// Sets the program that runs whenever the timer fires.
    pub(crate) fn set_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        self.control(SET_BPF, libc::c_long::from(program.as_raw_fd()))
    }

    /// Starts it.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.control(ENABLE, 0)
    }

    /// Stops it; it can be started again.
    pub(crate) fn disable(&self) -> io::Result<()> {
        self.control(DISABLE, 0)
    }

    /// Changes its period.
    pub(crate) fn set_period(&self, period_ns: u64) -> io::Result<()> {
        // SAFETY:
        // - the descriptor is an event that this value owns;
        // - the kernel reads one u64 from the address, which is valid during the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_ioctl,
                libc::c_long::from(self.event.as_fd().as_raw_fd()),
                PERIOD,
                &raw const period_ns,
            )
        };
        answer(result).map(|_| ())
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_long) -> io::Result<()> {
        // SAFETY:
        // - the descriptor is an event that this value owns;
        // - these requests take a number, not an address.
        let result = unsafe {
            libc::syscall(
                libc::SYS_ioctl,
                libc::c_long::from(self.event.as_fd().as_raw_fd()),
                request,
                argument,
            )
        };
        answer(result).map(|_| ())
    }
}

/// Input of the program `stall` for a CPU; `struct wish` of `bpf/stall.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StallSpec {
    pub(crate) stolen: u64,
    pub(crate) usual_ns: u64,
    pub(crate) longest_ns: u64,
}

/// Statistics of the program `stall` for a CPU; `struct account` of `bpf/stall.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) seen_ns: u64,
    pub(crate) owed_ns: i64,
    pub(crate) spun_ns: u64,
    pub(crate) entry_ns: u64,
    pub(crate) fired: u64,
    pub(crate) lost_ns: u64,
    pub(crate) idle_ns: u64,
}

// SAFETY: `repr(C)`, consists of whole words without padding, and any bit pattern is valid.
unsafe impl aya::Pod for StallSpec {}
// SAFETY: as above.
unsafe impl aya::Pod for Account {}

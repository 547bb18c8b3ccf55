//! Perf events that run a BPF program at a tracepoint, and perf counters of one thread.
//!
//! <https://man7.org/linux/man-pages/man2/perf_event_open.2.html>

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use pinfold_model::{PuId, Tid};

use super::answer;
use super::clone_event::{ATTR_SIZE, CLOSE_ON_EXEC, EventAttr};

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;
/// `_IO('$', 0)`, `PERF_EVENT_IOC_ENABLE`.
const ENABLE: libc::c_ulong = 0x2400;
/// `_IO('$', 1)`, `PERF_EVENT_IOC_DISABLE`.
const DISABLE: libc::c_ulong = 0x2401;
/// `_IOW('$', 8, __u32)`, `PERF_EVENT_IOC_SET_BPF`.
const SET_BPF: libc::c_ulong = 0x4004_2408;
/// Bit `disabled` of `struct perf_event_attr`.
const DISABLED: u64 = 1;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const WITH_TIMES: u64 = 3;

/// `perf_event_open(2)` for one thread (-1: all) on one CPU (-1: any).
fn open(attr: &EventAttr, tid: libc::c_long, pu: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY:
    // - `attr` is readable for the 64 bytes that its `size` field specifies, and outlives the call;
    //   the kernel only reads it;
    // - every argument has the width of a register; -1 as group means none.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const *attr,
            tid,
            pu,
            -1 as libc::c_long,
            CLOSE_ON_EXEC,
        )
    };
    let event = i32::try_from(answer(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

fn control(event: &OwnedFd, request: libc::c_ulong, argument: libc::c_long) -> io::Result<()> {
    // SAFETY:
    // - the descriptor is an event that this value owns;
    // - these requests take a number, not an address.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            libc::c_long::from(event.as_fd().as_raw_fd()),
            request,
            argument,
        )
    };
    answer(result).map(|_| ())
}

/// A BPF program attached to a tracepoint on all CPUs, until this is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Probe {
    _event: OwnedFd,
}

impl Probe {
    /// Attaches the program to the tracepoint with this ID. The kernel keeps the programs of a
    /// tracepoint in one list, so the CPU of the event does not limit it.
    pub(crate) fn new(id: u64, pu: PuId, program: BorrowedFd<'_>) -> io::Result<Self> {
        let attr =
            EventAttr { kind: TRACEPOINT, size: ATTR_SIZE, config: id, ..EventAttr::default() };
        let event = open(&attr, -1, libc::c_long::from(pu.0))?;
        control(&event, SET_BPF, libc::c_long::from(program.as_raw_fd()))?;
        control(&event, ENABLE, 0)?;
        Ok(Self { _event: event })
    }
}

/// Bits of `struct perf_event_attr`: `inherit` (threads created later count too) and `freq` (the
/// period is a number of samples per second).
const SAMPLED: u64 = (1 << 1) | (1 << 10);

/// A BPF program that runs at samples of one thread and of those that it creates, until this is
/// dropped or the process ends.
#[derive(Debug)]
pub(crate) struct TaskSampler {
    _event: OwnedFd,
}

impl TaskSampler {
    /// Starts with `frequency` samples per second in which the thread runs.
    pub(crate) fn new(
        tid: Tid,
        kind: u32,
        config: u64,
        frequency: u64,
        program: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let attr = EventAttr {
            kind,
            size: ATTR_SIZE,
            config,
            sample_period: frequency,
            flags: DISABLED | SAMPLED,
            ..EventAttr::default()
        };
        let event = open(&attr, libc::c_long::from(tid.0), -1)?;
        control(&event, SET_BPF, libc::c_long::from(program.as_raw_fd()))?;
        control(&event, ENABLE, 0)?;
        Ok(Self { _event: event })
    }
}

/// A counter of one thread, on all CPUs.
#[derive(Debug)]
pub(crate) struct TaskCounter {
    event: OwnedFd,
}

impl TaskCounter {
    /// A counter that starts immediately; `flags` are those of `struct perf_event_attr`.
    pub(crate) fn new(tid: Tid, kind: u32, config: u64, flags: u64) -> io::Result<Self> {
        let attr = EventAttr {
            kind,
            size: ATTR_SIZE,
            config,
            read_format: WITH_TIMES,
            flags,
            ..EventAttr::default()
        };
        open(&attr, libc::c_long::from(tid.0), -1).map(|event| Self { event })
    }

    /// Stops the counter; it can still be read.
    pub(crate) fn disable(&self) -> io::Result<()> {
        control(&self.event, DISABLE, 0)
    }

    /// The count, the time for which the event was enabled, and the time for which it ran (ns).
    pub(crate) fn read(&self) -> io::Result<[u64; 3]> {
        let mut bytes = [0; 24];
        let got = rustix::io::read(&self.event, &mut bytes)?;
        if got != bytes.len() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            *word = u64::from_ne_bytes(eight);
        }
        Ok(words)
    }
}

//! Calls of `futex(2)` by the threads of some processes: duration, address and call stack.
//!
//! The BPF program is `bpf/locks.bpf.c`, on the tracepoints of the system call. It needs `CAP_BPF`,
//! `CAP_PERFMON` and a readable [tracefs](crate::Tracefs), but no BTF. It ends with this process.
//! `futex_waitv(2)` and the new futex calls of Linux 6.7 are not traced.

use std::collections::BTreeMap;
use std::fmt;

use aya::maps::{Array, HashMap, MapData, StackTraceMap};
use aya::{Ebpf, EbpfLoader};
use pinfold_model::Tid;

use crate::bpf::{Named, missed_events, online_pu};
use crate::raw::{Call, FutexAccount, Place, Probe};
use crate::{Clock as _, Host, HostError, SystemClock, Tracefs};

/// The compiled program, for any machine with this byte order.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/locks.bpf.o");

const PROGRAM: Named = Named("the BPF program locks");

/// Purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FutexKind {
    /// Waiting for a lock: `FUTEX_LOCK_PI`, or `FUTEX_WAIT` on a word with the value 2, which the
    /// locks of the C libraries have while a thread waits.
    Lock,
    /// Waiting for anything else: a condition variable, an event, the end of a thread.
    Wait,
    /// Waking or requeueing other threads.
    Wake,
}

impl FutexKind {
    fn from_number(number: u32) -> Self {
        match number {
            0 => FutexKind::Lock,
            1 => FutexKind::Wait,
            _ => FutexKind::Wake,
        }
    }
}

/// All calls of one thread for one address from one place in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutexCallSite {
    /// The process's PID.
    pub process: Tid,
    /// The thread's TID.
    pub tid: Tid,
    /// The address of the word.
    pub address: u64,
    /// Purpose of the calls.
    pub kind: FutexKind,
    /// Return addresses, the innermost first; empty if stacks were not requested or not found.
    pub stack: Vec<u64>,
    /// Number of calls that returned.
    pub count: u64,
    /// Total duration of the calls (ns).
    pub sum_ns: u64,
    /// Longest duration (ns).
    pub max_ns: u64,
    /// Number of calls that came too late to wait (`EAGAIN`).
    pub again: u64,
}

/// A call that had not returned at the end of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// The process's PID.
    pub process: Tid,
    /// The thread's TID.
    pub tid: Tid,
    /// The address of the word.
    pub address: u64,
    /// Purpose of the call.
    pub kind: FutexKind,
    /// Return addresses, the innermost first.
    pub stack: Vec<u64>,
    /// Its duration so far (ns).
    pub ns: u64,
}

/// Result of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FutexReading {
    /// Start of the trace (`CLOCK_MONOTONIC`, ns).
    pub began_ns: u64,
    /// End of the trace (`CLOCK_MONOTONIC`, ns).
    pub ended_ns: u64,
    /// The calls that returned.
    pub places: Vec<FutexCallSite>,
    /// The calls that had not returned.
    pub open: Vec<OpenCall>,
    /// Number of calls that were lost because a map was full.
    pub lost: u64,
    /// Number of waits whose stack could not be read or stored.
    pub stackless: u64,
    /// Number of calls whose start was not traced: mostly those that were active when the trace
    /// started. A call that is active during the whole trace is not counted at all.
    pub unseen: u64,
    /// Number of events of the whole host for which the programs were not called, because another
    /// BPF program was running on that CPU. Counted by Linux 6.7 and later.
    pub missed: u64,
}

/// A running trace.
pub struct FutexTracer {
    program: Ebpf,
    probes: Vec<Probe>,
    calls: HashMap<MapData, u64, Call>,
    places: HashMap<MapData, Place, FutexAccount>,
    stacks: StackTraceMap<MapData>,
    lost: Array<MapData, u64>,
    began_ns: u64,
}

impl fmt::Debug for FutexTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutexTracer").field("began_ns", &self.began_ns).finish_non_exhaustive()
    }
}

impl FutexTracer {
    /// Starts to trace these processes; `stacks` also records the call stacks of waits.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` or `EACCES` without permission, `ENOENT` if the kernel was
    /// built without system-call tracepoints, `EINVAL` before Linux 5.12; [`HostError::Unexpected`]
    /// if a tracepoint lacks a field.
    pub fn open(host: &dyn Host, processes: &[Tid], stacks: bool) -> Result<Self, HostError> {
        let tracefs = Tracefs::open()?;
        let enter = tracefs.format("syscalls/sys_enter_futex")?;
        let leave = tracefs.format("syscalls/sys_exit_futex")?;
        let constants = [
            ("enter_address", enter.offset("uaddr", 8)?),
            ("enter_operation", enter.offset("op", 8)?),
            ("enter_value", enter.offset("val", 8)?),
            ("exit_result", leave.offset("ret", 8)?),
            ("with_stacks", u32::from(stacks)),
        ];
        let pu = online_pu(host)?;
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        for (name, value) in &constants {
            loader.override_global(name, value, true);
        }
        let mut program = loader.load(OBJECT).map_err(|error| PROGRAM.refuse("load", &error))?;
        let mut chosen: HashMap<MapData, u32, u32> = PROGRAM.map(&mut program, "processes")?;
        for process in processes {
            chosen.insert(process.0, 1, 0).map_err(|error| PROGRAM.refuse("set", &error))?;
        }
        let mut watch = Self {
            probes: Vec::new(),
            calls: PROGRAM.map(&mut program, "calls")?,
            places: PROGRAM.map(&mut program, "places")?,
            stacks: PROGRAM.map(&mut program, "stacks")?,
            lost: PROGRAM.map(&mut program, "lost")?,
            began_ns: 0,
            program,
        };
        // Taken before the first call can be traced, and the end after the last one, so that the
        // time in calls never exceeds the duration of the trace.
        watch.began_ns = SystemClock.now_ns();
        for (part, id) in [("on_enter", enter.id), ("on_leave", leave.id)] {
            watch.probes.push(PROGRAM.attach(&mut watch.program, part, id, pu)?);
        }
        Ok(watch)
    }

    /// Ends the trace and reads the result.
    ///
    /// # Errors
    /// [`HostError::File`] if a map, or the kernel's information about the programs, cannot be
    /// read.
    pub fn close(mut self, host: &dyn Host) -> Result<FutexReading, HostError> {
        self.probes.clear();
        let ended_ns = SystemClock.now_ns();
        let mut stacks = Stacks { map: &self.stacks, known: BTreeMap::new() };
        let mut places = Vec::new();
        for (place, account) in PROGRAM.entries(&self.places)? {
            places.push(FutexCallSite {
                process: Tid(place.process),
                tid: Tid(place.tid),
                address: place.address,
                kind: FutexKind::from_number(place.kind),
                stack: stacks.get(place.stack)?,
                count: account.count,
                sum_ns: account.sum_ns,
                max_ns: account.max_ns,
                again: account.again,
            });
        }
        let mut open = Vec::new();
        for (key, call) in PROGRAM.entries(&self.calls)? {
            let [process, tid] = [key >> 32, key & u64::from(u32::MAX)];
            open.push(OpenCall {
                process: Tid(u32::try_from(process).unwrap_or(0)),
                tid: Tid(u32::try_from(tid).unwrap_or(0)),
                address: call.address,
                kind: FutexKind::from_number(call.kind),
                stack: stacks.get(call.stack)?,
                ns: ended_ns.saturating_sub(call.since_ns),
            });
        }
        Ok(FutexReading {
            began_ns: self.began_ns,
            ended_ns,
            places,
            open,
            lost: PROGRAM.number(&self.lost, 0)?.saturating_add(PROGRAM.number(&self.lost, 1)?),
            stackless: PROGRAM.number(&self.lost, 2)?,
            unseen: PROGRAM.number(&self.lost, 3)?,
            missed: missed_events(host, &self.program)?,
        })
    }
}

struct Stacks<'m> {
    map: &'m StackTraceMap<MapData>,
    known: BTreeMap<i32, Vec<u64>>,
}

impl Stacks<'_> {
    fn get(&mut self, number: i32) -> Result<Vec<u64>, HostError> {
        let Ok(key) = u32::try_from(number) else { return Ok(Vec::new()) };
        if let Some(known) = self.known.get(&number) {
            return Ok(known.clone());
        }
        let stack = self.map.get(&key, 0).map_err(|error| PROGRAM.refuse("read", &error))?;
        let frames: Vec<u64> = stack.frames().iter().map(|frame| frame.ip).collect();
        self.known.insert(number, frames.clone());
        Ok(frames)
    }
}

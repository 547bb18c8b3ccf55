//! How long threads run and wait now, and which tasks run meanwhile on their CPU, for any number of
//! threads in two system calls.
//!
//! The BPF program is `bpf/waits.bpf.c`. It needs BTF, `CAP_BPF` and `CAP_PERFMON`, and ends with
//! this process. The kernel's own statistics (`/proc/PID/task/TID/schedstat`) count a wait when it
//! ends; the program knows since when a thread waits.

use std::collections::HashMap as Table;
use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::tp_btf::BtfTracePointLink;
use aya::sys::{Stats, enable_stats};
use aya::{Btf, Ebpf, EbpfLoader};
use pinfold_model::Tid;

use crate::bpf::{Named, name_of, possible_pus, program_sum};
use crate::raw::{Entry, RawCause, RawOccupant, RawThread, SharedWord, read_map};
use crate::{Host, HostError};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/waits.bpf.o");
const PROGRAM: Named = Named("the BPF program waits");

/// The states of the program.
const UNSEEN: u32 = 0;
const RUNNING: u32 = 1;
const WAITING: u32 = 2;
const ENDED: u32 = 4;
/// Attempts to copy a value that the program is changing.
const ATTEMPTS: u32 = 4;

/// In the order of attaching.
const EVENTS: [(&str, &str); 6] = [
    ("at_rename", "task_rename"),
    ("at_exit", "sched_process_exit"),
    ("at_move", "sched_migrate_task"),
    ("at_new", "sched_wakeup_new"),
    ("at_wakeup", "sched_wakeup"),
    ("at_switch", "sched_switch"),
];

/// What a thread does that has had no event since it was added: it does so all the time, because
/// whatever it begins is an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstState {
    /// It runs.
    Running,
    /// It is runnable and waits.
    Waiting,
    /// It sleeps.
    Asleep,
}

/// A thread at the time of a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadWait {
    /// The CPU on which it is, was last, or in whose queue it waits.
    pub cpu: u32,
    /// Time on a CPU since it was added, until now (ns).
    pub run_ns: u64,
    /// Time runnable without a CPU since it was added, until now (ns).
    pub ready_ns: u64,
    /// Since when it waits (`CLOCK_MONOTONIC`, ns).
    pub waiting_since_ns: Option<u64>,
    /// The longest wait that ended since the last reading (ns).
    pub longest_ns: u64,
    /// Migrations since it was added.
    pub moves: u64,
}

/// The task that ran longest on the CPU of a thread while it waited, since the last reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCause {
    /// Its thread ID; 0: none, the CPU was idle.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Time (ns). Of more than four tasks, the least may stand for others that ran less.
    pub ns: u64,
}

/// What is known of all threads at one time.
#[derive(Debug, Default)]
pub struct WaitReading {
    at_ns: u64,
    /// Time of the reading before.
    before_ns: u64,
    interval: u64,
    threads: Table<u32, RawThread>,
    /// The task on each CPU; empty if no thread waits.
    occupants: Vec<Entry<RawOccupant>>,
}

impl WaitReading {
    /// A thread; `None` if it has ended or was not added. `first` is what it does if it has had no
    /// event.
    #[must_use]
    pub fn thread(&self, tid: Tid, first: FirstState) -> Option<ThreadWait> {
        let raw = self.threads.get(&tid.0).filter(|raw| raw.state != ENDED)?;
        let lasted = self.at_ns.saturating_sub(raw.since_ns);
        let is_waiting = is_waiting(raw, first);
        let is_running =
            raw.state == RUNNING || raw.state == UNSEEN && first == FirstState::Running;
        Some(ThreadWait {
            cpu: raw.cpu,
            run_ns: raw.run_ns + if is_running { lasted } else { 0 },
            ready_ns: raw.ready_ns + if is_waiting { lasted } else { 0 },
            waiting_since_ns: is_waiting.then_some(raw.since_ns),
            longest_ns: if raw.interval == self.interval { raw.longest_ns } else { 0 },
            moves: raw.moves,
        })
    }

    /// True if a thread has had no event since it was added.
    #[must_use]
    pub fn is_unseen(&self, tid: Tid) -> bool {
        self.threads.get(&tid.0).is_some_and(|raw| raw.state == UNSEEN)
    }

    /// True if it is not known why a thread waits on a CPU: no task has come to it since the trace
    /// began.
    #[must_use]
    pub fn is_blind(&self, cpu: u32) -> bool {
        !self.occupants.is_empty() && self.occupant(cpu).is_none()
    }

    /// Why a thread waited since the last reading; `None` if it did not, or if no task has left its
    /// CPU since the trace began.
    #[must_use]
    pub fn cause(&self, tid: Tid, first: FirstState) -> Option<WaitCause> {
        let raw = self.threads.get(&tid.0)?;
        let mut causes: Vec<RawCause> = Vec::new();
        if raw.interval == self.interval {
            causes.extend(raw.causes.iter().filter(|cause| cause.ns > 0));
        }
        if is_waiting(raw, first)
            && let Some(occupant) = self.occupant(raw.cpu)
        {
            let from = occupant.since_ns.max(raw.counted_ns).max(self.before_ns);
            let ns = self.at_ns.saturating_sub(from);
            match causes.iter_mut().find(|cause| cause.tid == occupant.tid) {
                Some(cause) => cause.ns += ns,
                None => {
                    causes.push(RawCause { ns, tid: occupant.tid, unused: 0, name: occupant.name });
                }
            }
        }
        let most = causes.into_iter().filter(|cause| cause.tid != tid.0).max_by_key(|c| c.ns)?;
        Some(WaitCause { tid: Tid(most.tid), name: name_of(&most.name), ns: most.ns })
    }

    fn occupant(&self, cpu: u32) -> Option<&RawOccupant> {
        let entry = self.occupants.iter().find(|entry| entry.key == cpu)?;
        Some(&entry.value).filter(|occupant| occupant.since_ns > 0)
    }
}

fn is_waiting(raw: &RawThread, first: FirstState) -> bool {
    raw.state == WAITING || raw.state == UNSEEN && first == FirstState::Waiting
}

/// What a trace costs and has missed since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotals {
    /// Time of the program on all CPUs (ns); 0 if the kernel does not count it.
    pub run_ns: u64,
    /// Events for which it was not called, waits of which only the last cause is known, and runs whose
    /// start or end had no event.
    pub lost: u64,
}

/// A trace in progress.
pub struct WaitTracer {
    program: Ebpf,
    _links: Vec<BtfTracePointLink>,
    threads: Map,
    cpus: Map,
    lost: Array<MapData, u64>,
    interval: SharedWord,
    number: u64,
    before_ns: u64,
    capacity: u32,
    possible: u32,
    _stats: Option<OwnedFd>,
}

impl fmt::Debug for WaitTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitTracer").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl WaitTracer {
    /// Starts a trace that has room for this number of threads.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` without permission, or the kernel lacks BTF or a tracepoint.
    pub fn open(host: &dyn Host, capacity: u32, now_ns: u64) -> Result<Self, HostError> {
        let types = Btf::from_sys_fs().map_err(|error| PROGRAM.refuse("describe", &error))?;
        let possible = possible_pus(host)?;
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&types)).map_max_entries("threads", capacity);
        loader.map_max_entries("cpus", possible).map_max_entries("queues", possible);
        let mut program = loader.load(OBJECT).map_err(|error| PROGRAM.refuse("load", &error))?;
        let mut threads = take(&mut program, "threads")?;
        let cpus = take(&mut program, "cpus")?;
        // These compare the sizes of the values with those of the types.
        view(&mut threads)?;
        let view = Array::<&MapData, RawOccupant>::try_from(&cpus);
        view.map_err(|error| PROGRAM.refuse("open", &error))?;
        let Map::Array(interval) = take(&mut program, "interval")? else {
            return Err(PROGRAM.missing("interval"));
        };
        let interval = SharedWord::from_map(interval.fd().as_fd())
            .map_err(|errno| HostError::file("share memory with", PROGRAM.0, errno))?;
        interval.store(1);
        let lost = PROGRAM.map(&mut program, "lost")?;
        let mut links = Vec::new();
        for (part, event) in EVENTS {
            links.push(PROGRAM.attach_typed(&mut program, part, event, &types)?);
        }
        Ok(Self {
            program,
            _links: links,
            threads,
            cpus,
            lost,
            interval,
            number: 1,
            before_ns: now_ns,
            capacity,
            possible,
            // Where it is refused, the cost is not reported.
            _stats: enable_stats(Stats::RunTime).ok(),
        })
    }

    /// Number of threads for which there is room.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Adds a thread, which is on this CPU or in its queue. What it does must be read after this
    /// call ([`FirstState`]).
    ///
    /// # Errors
    /// [`HostError::File`]: `E2BIG` if there is no room.
    pub fn add(&mut self, tid: Tid, cpu: u32, now_ns: u64) -> Result<(), HostError> {
        let raw = RawThread { since_ns: now_ns, counted_ns: now_ns, cpu, ..RawThread::default() };
        let set = view(&mut self.threads)?.insert(tid.0, raw, 0);
        set.map_err(|error| PROGRAM.refuse("set", &error))
    }

    /// Removes a thread.
    pub fn remove(&mut self, tid: Tid) {
        // One that is not there has been removed.
        let (Ok(()) | Err(_)) = view(&mut self.threads).map(|mut threads| {
            let (Ok(()) | Err(_)) = threads.remove(&tid.0);
        });
    }

    /// Reads all threads and begins the next interval, in two system calls; one if no thread waits.
    ///
    /// What ends between the copy and the new interval is counted as time, but not as a cause or a
    /// longest wait; a wait that was open in the copy is known without it.
    ///
    /// # Errors
    /// [`HostError::File`] if a map cannot be read.
    pub fn read(&mut self, now_ns: u64) -> Result<WaitReading, HostError> {
        let mut reading = WaitReading {
            at_ns: now_ns,
            before_ns: self.before_ns,
            interval: self.number,
            ..WaitReading::default()
        };
        let mut threads: Vec<Entry<RawThread>> = Vec::new();
        read(&self.threads, self.capacity, &mut threads)?;
        if threads.iter().any(|entry| matches!(entry.value.state, UNSEEN | WAITING)) {
            read(&self.cpus, self.possible, &mut reading.occupants)?;
        }
        self.number += 1;
        self.interval.store(self.number);
        self.before_ns = now_ns;
        for Entry { key: tid, value: raw } in threads {
            let whole = if raw.done == raw.begun { Some(raw) } else { self.read_again(tid)? };
            reading.threads.extend(whole.map(|raw| (tid, raw)));
        }
        Ok(reading)
    }

    /// A value that the program changed while it was copied.
    fn read_again(&mut self, tid: u32) -> Result<Option<RawThread>, HostError> {
        let threads = view(&mut self.threads)?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            last = match threads.get(&tid, 0) {
                Ok(raw) => Some(raw),
                Err(MapError::KeyNotFound) => None,
                Err(error) => return Err(PROGRAM.refuse("read", &error)),
            };
            if last.is_none_or(|raw| raw.done == raw.begun) {
                break;
            }
        }
        Ok(last)
    }

    /// What the trace costs and has missed since it began.
    ///
    /// # Errors
    /// [`HostError`] if what the kernel reports about the program cannot be read.
    pub fn totals(&self, host: &dyn Host) -> Result<WaitTotals, HostError> {
        let missed = program_sum(host, &self.program, "recursion_misses:")?;
        Ok(WaitTotals {
            run_ns: program_sum(host, &self.program, "run_time_ns:")?,
            lost: missed.saturating_add(PROGRAM.number(&self.lost, 0)?),
        })
    }
}

fn take(program: &mut Ebpf, name: &str) -> Result<Map, HostError> {
    program.take_map(name).ok_or_else(|| PROGRAM.missing(name))
}

fn view(threads: &mut Map) -> Result<HashMap<&mut MapData, u32, RawThread>, HostError> {
    HashMap::try_from(threads).map_err(|error| PROGRAM.refuse("open", &error))
}

fn read<V: aya::Pod + Default>(
    map: &Map,
    most: u32,
    into: &mut Vec<Entry<V>>,
) -> Result<(), HostError> {
    let (Map::HashMap(data) | Map::Array(data)) = map else {
        return Err(PROGRAM.missing("a map that can be read in one call"));
    };
    read_map(data.fd().as_fd(), most, into).map_err(|e| HostError::file("read", PROGRAM.0, e))
}

#[cfg(test)]
mod tests;

//! Run delays of a set of threads: how long each waits for a CPU, which tasks run there meanwhile,
//! and which tasks wake it.
//!
//! The BPF program is `bpf/sched.bpf.c`, on the scheduler's tracepoints. It aggregates in the
//! kernel, so that no buffer can overflow. It needs `CAP_BPF`, `CAP_PERFMON` and a readable
//! [tracefs](crate::Tracefs), but no BTF. With BTF the overhead is lower, because no event records
//! are written. It ends with this process.

use std::collections::BTreeMap;
use std::fmt;

use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::tp_btf::BtfTracePointLink;
use aya::{Btf, Ebpf, EbpfLoader};
use pinfold_model::{PuId, Tid};

use crate::bpf::{Named, missed_events, name_of, online_pu};
use crate::raw::{Probe, RawRunner, WAIT_BUCKETS, WaitAccount, Waiting, Waker};
use crate::{Clock as _, Host, HostError, SystemClock, Tracefs};

/// The compiled program, for any machine with this byte order.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/sched.bpf.o");

const PROGRAM: Named = Named("the BPF program sched");

/// Number of accounts reserved for threads that [`SchedTracer::add`] adds.
const LATE: u32 = 64;
/// Number of accounts reserved for new threads of the traced ones.
const NEW_THREAD_SLOTS: u32 = 512;
/// `UNKNOWN` and `RUNNING` of the BPF program's states.
const RUNNING: u32 = 1;
const UNKNOWN: u32 = 2;
/// `BORN` and `ENDED` of an account's flags.
const BORN: u32 = 1;
const ENDED: u32 = 2;
/// `BPF_NOEXIST`.
const NEW_ONLY: u64 = 1;

/// A time slice of one task on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Name of the task.
    pub name: String,
    /// TID of the task; 0 if the CPU was idle.
    pub tid: Tid,
    /// Start (`CLOCK_MONOTONIC`, ns); 0 if before the trace started.
    pub from_ns: u64,
    /// End (`CLOCK_MONOTONIC`, ns).
    pub until_ns: u64,
}

/// The longest wait of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorstWait {
    /// Duration (ns).
    pub wait_ns: u64,
    /// End (`CLOCK_MONOTONIC`, ns).
    pub until_ns: u64,
    /// Time from which it waited on the CPU on which it then ran (`CLOCK_MONOTONIC`, ns).
    pub arrived_ns: u64,
    /// The CPU on which it then ran.
    pub pu: PuId,
    /// Number of migrations during the wait.
    pub moves: u64,
    /// The last slices of that CPU before the thread ran, at most 16, in order of time.
    pub slices: Vec<Slice>,
}

/// Tasks that ran directly before a thread that had waited, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    /// Name of the tasks.
    pub name: String,
    /// TID of the last task with that name.
    pub tid: Tid,
    /// Number of waits that ended when such a task left the CPU.
    pub count: u64,
    /// Time that they ran while the thread waited there (ns).
    pub ns: u64,
}

/// Statistics of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedAccount {
    /// TID of the thread.
    pub tid: Tid,
    /// Its process, if the program saw it.
    pub process: Option<Tid>,
    /// For a thread that was created during the trace: index of its creator's account, and its
    /// process.
    pub creator: Option<(usize, Tid)>,
    /// True if it has exited.
    pub has_ended: bool,
    /// Number of waits.
    pub count: u64,
    /// Total of the waits (ns).
    pub sum_ns: u64,
    /// Number of waits that began with a preemption.
    pub preempted: u64,
    /// Number of waits of which only the end was traced, or only the start.
    pub unseen: u64,
    /// Number of migrations.
    pub moves: u64,
    /// Number of migrations while it waited.
    pub moves_waiting: u64,
    /// The longest wait.
    pub worst: Option<WorstWait>,
    /// Duration so far of a wait that had not ended at the end of the trace (ns).
    pub open_ns: Option<u64>,
    /// Histogram of wait durations: one bucket per ns from 0 to 15, then 16 equal buckets per power
    /// of two.
    pub buckets: Vec<u64>,
    /// Number of wake-ups by name of the task that ran where the wake-up occurred.
    pub wakers: Vec<(String, u64)>,
    /// The tasks that ran instead.
    pub runners: Vec<Runner>,
}

/// Result of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedReading {
    /// Start of the trace (`CLOCK_MONOTONIC`, ns).
    pub began_ns: u64,
    /// End of the trace (`CLOCK_MONOTONIC`, ns).
    pub ended_ns: u64,
    /// One account per thread, creators before the threads that they created.
    pub accounts: Vec<SchedAccount>,
    /// Number of new threads that were lost because there was no free account.
    pub lost_new_threads: u64,
    /// Number of wakers and runners that were lost because a map was full.
    pub nameless: u64,
    /// Number of events of the whole host for which the programs were not called, because another
    /// BPF program was running on that CPU. Counted by Linux 6.7 and later.
    pub missed: u64,
}

/// A running trace.
pub struct SchedTracer {
    program: Ebpf,
    probes: Vec<Probe>,
    links: Vec<BtfTracePointLink>,
    tasks: HashMap<MapData, u32, Waiting>,
    accounts: Array<MapData, WaitAccount>,
    wakers: HashMap<MapData, Waker, u64>,
    runners: HashMap<MapData, Waker, RawRunner>,
    lost: Array<MapData, u64>,
    first: u32,
    late: u32,
    held: u32,
    began_ns: u64,
}

impl fmt::Debug for SchedTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedTracer").field("held", &self.held).finish_non_exhaustive()
    }
}

/// A tracepoint, its programs, and the constants that stand for its fields.
struct Point {
    program: &'static str,
    /// Name of the program that takes arguments, for frequent tracepoints.
    typed: Option<&'static str>,
    event: &'static str,
    /// Name of the constant, name of the field, size of the field in bytes.
    fields: &'static [(&'static str, &'static str, u32)],
}

/// In the order of attaching: thread creation before events of new threads, wake-ups before
/// switches.
const POINTS: [Point; 7] = [
    Point {
        program: "on_fork",
        typed: None,
        event: "sched/sched_process_fork",
        fields: &[("fork_child", "child_pid", 4)],
    },
    Point { program: "on_exit", typed: None, event: "sched/sched_process_exit", fields: &[] },
    Point {
        program: "on_move",
        typed: Some("at_move"),
        event: "sched/sched_migrate_task",
        fields: &[("move_tid", "pid", 4)],
    },
    Point {
        program: "on_waking",
        typed: Some("at_waking"),
        event: "sched/sched_waking",
        fields: &[("waking_tid", "pid", 4)],
    },
    Point {
        program: "on_new",
        typed: Some("at_new"),
        event: "sched/sched_wakeup_new",
        fields: &[("new_tid", "pid", 4)],
    },
    Point {
        program: "on_wakeup",
        typed: Some("at_wakeup"),
        event: "sched/sched_wakeup",
        fields: &[("wakeup_tid", "pid", 4)],
    },
    Point {
        program: "on_switch",
        typed: Some("at_switch"),
        event: "sched/sched_switch",
        fields: &[("switch_state", "prev_state", 8), ("switch_next", "next_pid", 4)],
    },
];

impl SchedTracer {
    /// Starts to trace these threads and the threads that they will create.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` or `EACCES` without permission, `ENOENT` if the kernel lacks a
    /// tracepoint, `EINVAL` before Linux 5.12; [`HostError::Unexpected`] if a tracepoint lacks a
    /// field.
    pub fn open(host: &dyn Host, tids: &[Tid]) -> Result<Self, HostError> {
        // Kernels without BTF, under lockdown, or with different tracepoint arguments (before Linux
        // 5.18) use the programs for event records.
        let typed = Btf::from_sys_fs().ok().map(|types| Self::open_with(host, tids, Some(&types)));
        match typed {
            Some(Ok(watch)) => Ok(watch),
            Some(Err(_)) | None => Self::open_at_records(host, tids),
        }
    }

    /// The same with the programs for event records, as on kernels without BTF.
    ///
    /// # Errors
    /// As [`SchedTracer::open`].
    pub fn open_at_records(host: &dyn Host, tids: &[Tid]) -> Result<Self, HostError> {
        Self::open_with(host, tids, None)
    }

    fn open_with(host: &dyn Host, tids: &[Tid], types: Option<&Btf>) -> Result<Self, HostError> {
        let tracefs = Tracefs::open()?;
        let formats: Vec<_> =
            POINTS.iter().map(|point| tracefs.format(point.event)).collect::<Result<_, _>>()?;
        let mut offsets: Vec<(&str, u32)> = Vec::new();
        for (point, format) in POINTS.iter().zip(&formats) {
            for (constant, field, size) in point.fields {
                offsets.push((constant, format.offset(field, *size)?));
            }
        }
        let pu = online_pu(host)?;
        let first = u32::try_from(tids.len()).unwrap_or(u32::MAX);
        let held = first.saturating_mul(2).saturating_add(LATE + NEW_THREAD_SLOTS);
        let mut loader = EbpfLoader::new();
        loader.btf(types).map_max_entries("tasks", held).map_max_entries("accounts", held);
        loader.override_global("accounts_held", &held, true);
        for (constant, offset) in &offsets {
            loader.override_global(constant, offset, true);
        }
        let mut program = loader.load(OBJECT).map_err(|error| PROGRAM.refuse("load", &error))?;
        let mut watch = Self {
            probes: Vec::new(),
            links: Vec::new(),
            tasks: PROGRAM.map(&mut program, "tasks")?,
            accounts: PROGRAM.map(&mut program, "accounts")?,
            wakers: PROGRAM.map(&mut program, "wakers")?,
            runners: PROGRAM.map(&mut program, "runners")?,
            lost: PROGRAM.map(&mut program, "lost")?,
            first: 0,
            late: 0,
            held,
            began_ns: 0,
            program,
        };
        for tid in tids {
            watch.put(*tid, watch.first)?;
            watch.first = watch.first.saturating_add(1);
        }
        let used = u64::from(watch.first + LATE);
        watch.lost.set(0, used, 0).map_err(|error| PROGRAM.refuse("set", &error))?;
        for (point, format) in POINTS.iter().zip(&formats) {
            let program = &mut watch.program;
            if let (Some(types), Some(part)) = (types, point.typed) {
                watch.links.push(PROGRAM.attach_typed(program, part, point.event, types)?);
            } else {
                watch.probes.push(PROGRAM.attach(program, point.program, format.id, pu)?);
            }
        }
        watch.began_ns = SystemClock.now_ns();
        Ok(watch)
    }

    /// Adds a thread to the set. Returns whether it was new and an account was free.
    ///
    /// # Errors
    /// [`HostError::File`] if the map cannot be written.
    pub fn add(&mut self, tid: Tid) -> Result<bool, HostError> {
        if self.late == LATE || self.tasks.get(&tid.0, 0).is_ok() {
            return Ok(false);
        }
        let is_new = self.put(tid, self.first + self.late)?;
        self.late += u32::from(is_new);
        Ok(is_new)
    }

    fn put(&mut self, tid: Tid, account: u32) -> Result<bool, HostError> {
        self.accounts.set(account, WaitAccount::from_tid(tid.0), 0).map_err(refuse)?;
        let task = Waiting { account, state: UNKNOWN, ..Waiting::default() };
        match self.tasks.insert(tid.0, task, NEW_ONLY) {
            Ok(()) => Ok(true),
            // The BPF program has already added it, because its creator is in the set.
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == std::io::ErrorKind::AlreadyExists =>
            {
                Ok(false)
            }
            Err(error) => Err(refuse(error)),
        }
    }

    /// Ends the trace and reads the result.
    ///
    /// # Errors
    /// [`HostError::File`] if a map, or the kernel's information about the programs, cannot be
    /// read.
    pub fn close(mut self, host: &dyn Host) -> Result<SchedReading, HostError> {
        let ended_ns = SystemClock.now_ns();
        self.probes.clear();
        self.links.clear();
        let used = PROGRAM.number(&self.lost, 0)?.min(self.held.into());
        let used = u32::try_from(used).unwrap_or(self.held);
        let mut wakers = by_account(PROGRAM.entries(&self.wakers)?);
        let mut runners = by_account(PROGRAM.entries(&self.runners)?);
        let open = self.open_waits(ended_ns)?;
        let mut places = BTreeMap::new();
        let mut accounts: Vec<SchedAccount> = Vec::new();
        let indexes = (0..self.first + self.late).chain(self.first + LATE..used);
        for index in indexes {
            let raw = self.accounts.get(&index, 0).map_err(|e| PROGRAM.refuse("read", &e))?;
            places.insert(index, accounts.len());
            let mut account = account(&raw, &places);
            account.open_ns = open.get(&index).copied();
            account.wakers = wakers.remove(&index).unwrap_or_default();
            account.wakers.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
            account.runners = runners
                .remove(&index)
                .unwrap_or_default()
                .into_iter()
                .map(|(name, raw)| Runner {
                    name,
                    tid: Tid(u32::try_from(raw.tid).unwrap_or(0)),
                    count: raw.count,
                    ns: raw.ns,
                })
                .collect();
            accounts.push(account);
        }
        Ok(SchedReading {
            began_ns: self.began_ns,
            ended_ns,
            accounts,
            lost_new_threads: PROGRAM.number(&self.lost, 1)?,
            nameless: PROGRAM.number(&self.lost, 2)?,
            missed: missed_events(host, &self.program)?,
        })
    }

    /// Durations of the waits that have not ended, by account. A thread without any switch since
    /// the start of the trace is left out: it is unknown whether it waits or runs.
    fn open_waits(&self, now_ns: u64) -> Result<BTreeMap<u32, u64>, HostError> {
        let tasks = PROGRAM.entries(&self.tasks)?.into_iter();
        let waiting = tasks.filter(|(_, task)| {
            task.since_ns > 0 && task.state != RUNNING && task.state != UNKNOWN
        });
        Ok(waiting.map(|(_, t)| (t.account, now_ns.saturating_sub(t.since_ns))).collect())
    }
}

fn refuse(error: MapError) -> HostError {
    PROGRAM.refuse("set", &error)
}

fn by_account<V>(entries: Vec<(Waker, V)>) -> BTreeMap<u32, Vec<(String, V)>> {
    let mut sorted: BTreeMap<u32, Vec<(String, V)>> = BTreeMap::new();
    for (key, value) in entries {
        sorted.entry(key.account).or_default().push((name_of(&key.name), value));
    }
    sorted
}

fn account(raw: &WaitAccount, places: &BTreeMap<u32, usize>) -> SchedAccount {
    let is_born = raw.flags & BORN != 0;
    let worst = (raw.count > 0).then(|| {
        let mut slices: Vec<Slice> = raw
            .worst_slices
            .iter()
            .filter(|slice| slice.until_ns > 0)
            .map(|slice| Slice {
                name: name_of(&slice.name),
                tid: Tid(slice.tid),
                from_ns: slice.from_ns,
                until_ns: slice.until_ns,
            })
            .collect();
        slices.sort_by_key(|slice| slice.until_ns);
        WorstWait {
            wait_ns: raw.max_ns,
            until_ns: raw.max_wait_end_ns,
            arrived_ns: raw.worst_arrived_ns,
            pu: PuId(raw.worst_pu),
            moves: raw.worst_moves,
            slices,
        }
    });
    SchedAccount {
        tid: Tid(raw.tid),
        process: (raw.process > 0).then_some(Tid(raw.process)),
        creator: is_born
            .then(|| places.get(&raw.parent).map(|place| (*place, Tid(raw.parent_process))))
            .flatten(),
        has_ended: raw.flags & ENDED != 0,
        count: raw.count,
        sum_ns: raw.sum_ns,
        preempted: raw.preempted,
        unseen: raw.unseen,
        moves: raw.moves,
        moves_waiting: raw.moves_waiting,
        worst,
        open_ns: None,
        buckets: raw.buckets.to_vec(),
        wakers: Vec::new(),
        runners: Vec::new(),
    }
}

/// Number of buckets of [`SchedAccount::buckets`].
pub const BUCKETS: usize = WAIT_BUCKETS;

#[cfg(test)]
mod tests;

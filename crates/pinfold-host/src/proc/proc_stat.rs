//! `/proc/PID/stat` and `/proc/PID/task/TID/stat`.
//!
//! ```text
//! 42 (CPU 0/KVM) S 1 42 42 0 -1 138412416 … 20 0 1 0 9912 …
//! ```
//!
//! The name may contain blanks, parentheses and newlines (`prctl(PR_SET_NAME)` accepts any bytes),
//! so it ends at the *last* `)`: no later field contains one.
//! <https://docs.kernel.org/filesystems/proc.html#id10>

use pinfold_model::{TaskId, Tid, escape};

use super::ProcError;
use crate::{Host, HostError, lossy, paths};

/// `PF_NO_SETAFFINITY` of `include/linux/sched.h`: the thread's affinity cannot be changed, and it
/// cannot be moved to another cgroup.
pub const PF_NO_SETAFFINITY: u32 = 0x0400_0000;
/// `PF_KTHREAD`: a kernel thread.
pub const PF_KTHREAD: u32 = 0x0020_0000;
/// `PF_EXITING`: the thread is ending, and has not closed all its files yet.
const PF_EXITING: u32 = 0x4;

/// The fields that Pinfold uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStat {
    /// Thread ID (field 1).
    pub tid: Tid,
    /// Name (field 2), without its parentheses.
    pub comm: String,
    /// State letter (field 3).
    pub state: char,
    /// Parent process (field 4); 0 if it has none.
    pub ppid: Tid,
    /// Process group (field 5), by the PID of its leader; 0 for kernel threads, and for a task that
    /// is being removed, for which the kernel reports -1.
    pub process_group: Tid,
    /// Flags (field 9).
    pub flags: u32,
    /// CPU time in clock ticks, in user and kernel mode (fields 14 and 15). For a process, that of
    /// all its threads including ended ones.
    pub cpu_ticks: u64,
    /// Nice value (field 19), also where the policy does not use it.
    pub nice: i8,
    /// Number of threads of the process (field 20).
    pub threads: u32,
    /// Start time in clock ticks since boot (field 22).
    pub start_time: u64,
    /// CPU on which it last ran, by OS index (field 39).
    pub processor: u32,
}

/// Reads `/proc/TID/stat`; `None` if there is no such task.
///
/// # Errors
/// [`HostError`] if it cannot be read for another reason, or is not in the kernel's format.
pub fn read(host: &dyn Host, tid: Tid) -> Result<Option<ProcStat>, HostError> {
    at(host, &paths::process_stat(tid))
}

/// The same for the file at this path: of a thread in its process's directory.
///
/// # Errors
/// As [`read`].
pub fn at(host: &dyn Host, path: &str) -> Result<Option<ProcStat>, HostError> {
    match host.read_text(path) {
        Ok(text) => parse(&text).map(Some).map_err(|error| error.at(path)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if this thread exists and has not ended, according to its file at this path.
///
/// # Errors
/// [`HostError`] if the file cannot be read; as [`confirm_gone`] if it does not exist.
pub fn is_alive(host: &dyn Host, path: &str, task: TaskId) -> Result<bool, HostError> {
    if let Some(stat) = at(host, path)? {
        return Ok(is_same_task(task, stat));
    }
    match confirm_gone(host, task.tid) {
        Ok(()) => Ok(false),
        // A new thread may have got the number since the file was looked up.
        Err(hidden) => at(host, path)?.map(|stat| is_same_task(task, stat)).ok_or(hidden),
    }
}

fn is_same_task(task: TaskId, stat: ProcStat) -> bool {
    stat.start_time == task.start_time && !stat.has_ended()
}

/// Confirms by a system call that a thread does not exist, after its file was not found: if `/proc`
/// is not mounted, or is mounted with `hidepid`, files of existing threads are missing.
///
/// # Errors
/// [`HostError::Hidden`] if the thread exists.
pub fn confirm_gone(host: &dyn Host, tid: Tid) -> Result<(), HostError> {
    match host.affinity(tid) {
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(HostError::Hidden {
            path: paths::process_stat(tid),
            why: format!("thread {tid} runs"),
        }),
    }
}

/// Reads the `stat` files of these threads of a process; ended threads are left out.
///
/// # Errors
/// As [`read`].
pub fn of_threads(host: &dyn Host, pid: Tid, tids: &[Tid]) -> Result<Vec<ProcStat>, HostError> {
    let names: Vec<String> = tids.iter().map(Tid::to_string).collect();
    let directory = paths::task_dir(pid);
    let mut stats = Vec::with_capacity(tids.len());
    host.read_each(&directory, &names, "stat", &mut |name, bytes| {
        let stat = parse(&lossy(bytes));
        stats.push(stat.map_err(|error| error.at(&format!("{directory}/{name}/stat")))?);
        Ok(())
    })?;
    Ok(stats)
}

impl ProcStat {
    /// True while the thread is ending. The locks that it holds may still be there.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        self.flags & PF_EXITING != 0
    }

    /// Identifies the thread by TID and start time.
    pub fn task(&self) -> TaskId {
        TaskId { tid: self.tid, start_time: self.start_time }
    }

    /// True for a kernel thread.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// True if neither its affinity nor its cgroup can be changed.
    #[must_use]
    pub fn is_unmovable(&self) -> bool {
        self.flags & PF_NO_SETAFFINITY != 0
    }

    /// True if it has ended (zombie or dead).
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Parses the file.
///
/// # Errors
/// [`ProcError`] if a field is missing or not a number.
pub fn parse(text: &str) -> Result<ProcStat, ProcError> {
    let (tid, rest) = text.split_once(" (").ok_or_else(|| fail(text))?;
    let (comm, rest) = rest.rsplit_once(')').ok_or_else(|| fail(text))?;
    // Fields from number 3 of the manual on. Each is read once, in order, because threads are read
    // by the hundred.
    let mut fields = rest.split_ascii_whitespace();
    let mut next = 3;
    let mut field = |number: usize| {
        let skipped = number - next;
        next = number + 1;
        fields.nth(skipped).ok_or_else(|| fail(text))
    };
    Ok(ProcStat {
        tid: Tid(tid.parse().map_err(|_| fail(text))?),
        comm: escape::name(comm).into_owned(),
        state: field(3)?.chars().next().ok_or_else(|| fail(text))?,
        ppid: Tid(field(4)?.parse().map_err(|_| fail(text))?),
        process_group: match field(5)? {
            "-1" => Tid(0),
            group => Tid(group.parse().map_err(|_| fail(text))?),
        },
        flags: field(9)?.parse().map_err(|_| fail(text))?,
        cpu_ticks: ticks(field(14)?)?.saturating_add(ticks(field(15)?)?),
        nice: field(19)?.parse().map_err(|_| fail(text))?,
        threads: field(20)?.parse().map_err(|_| fail(text))?,
        start_time: field(22)?.parse().map_err(|_| fail(text))?,
        processor: field(39)?.parse().map_err(|_| fail(text))?,
    })
}

/// How a task is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// `SCHED_*` of `include/uapi/linux/sched.h` (field 41).
    pub policy: u32,
    /// The kernel's priority, which is 100 more than field 18: below 100 for real-time tasks.
    pub priority: u32,
}

/// Parses how the task of this file is scheduled.
///
/// # Errors
/// As [`parse`].
pub fn scheduling(text: &str) -> Result<Scheduling, ProcError> {
    let (_, rest) = text.rsplit_once(')').ok_or_else(|| fail(text))?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first of these is field 3.
    let priority: Option<i64> = fields.get(15).and_then(|field| field.parse().ok());
    let policy = fields.get(38).and_then(|field| field.parse().ok());
    let priority = priority.and_then(|number| u32::try_from(number.saturating_add(100)).ok());
    match (policy, priority) {
        (Some(policy), Some(priority)) => Ok(Scheduling { policy, priority }),
        (None, _) | (_, None) => Err(fail(text)),
    }
}

fn ticks(text: &str) -> Result<u64, ProcError> {
    text.parse::<u64>().map_err(|_| fail(text))
}

fn fail(text: &str) -> ProcError {
    ProcError::new("the stat of a task", text)
}

//! Threads and processes as the host shows them, and what is to be placed.
//!
//! A task that ends while it is looked at is no error here: the readers answer `None`, and
//! the caller says what that means. A zombie counts as ended, because nothing that Pinfold
//! could set has an effect on it.
//! <https://docs.kernel.org/filesystems/proc.html>

use std::collections::BTreeSet;

use pinfold_host::proc_stat::{self, ProcStat};
use pinfold_host::{Host, HostError, Roll, ThreadSet, paths, proc_status};
use pinfold_model::{Finding, Role, Setting, TaskId, Tid, VnodePlan};

/// What a plan is applied to: one virtual machine, and the loads that Pinfold started beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process of the virtual machine.
    pub pid: Tid,
    /// Its threads with their roles, as QMP or libvirt told them. Threads of the process that
    /// are not named here follow the emulator; threads outside the process (vhost before
    /// Linux 6.4) must be named.
    pub threads: Vec<(TaskId, Role)>,
    /// Processes that Pinfold started itself, such as its loads.
    pub own: Vec<TaskId>,
    /// What another program keeps for the machine, and the values that say the same as the
    /// plan. Empty for a machine that nobody but Pinfold manages.
    pub kept: Vec<Kept>,
    /// The threads of its process, if a census told that there are no others: who applies need
    /// not list them again while it says the same.
    pub roll: Option<Roll>,
}

/// A setting of another program that the plan gives a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The setting.
    pub setting: Setting,
    /// Its value, in the keeper's words.
    pub value: String,
    /// What it decides about the machine as it runs.
    pub rules: Rules,
    /// Why, as a sentence without full stop.
    pub reason: String,
}

/// What a setting decides about a machine that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    /// The masks of a role's threads, which are set through it and in no other way.
    Masks(Role),
    /// Where its memory is.
    Memory,
    /// Nothing: it counts from the next start on.
    NextStart,
}

impl Target {
    /// A machine that nobody but Pinfold manages, without loads beside it.
    #[must_use]
    pub fn new(pid: Tid, threads: Vec<(TaskId, Role)>) -> Self {
        Self { pid, threads, own: Vec::new(), kept: Vec::new(), roll: None }
    }

    /// The threads of its process, ascending.
    pub(crate) fn listed(&self, host: &dyn Host) -> Result<Vec<Tid>, HostError> {
        match &self.roll {
            Some(roll) if ThreadSet::of(host, self.pid) == Some(roll.thread_set) => {
                Ok(roll.tids.clone())
            }
            Some(_) | None => threads_of(host, self.pid),
        }
    }

    /// What rules the masks of a role's threads.
    #[must_use]
    pub(crate) fn kept(&self, role: &Role) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.rules == Rules::Masks(role.clone()))
    }

    /// The role of a thread, if it is known.
    #[must_use]
    pub fn role(&self, tid: Tid) -> Option<&Role> {
        self.threads.iter().find(|(task, _)| task.tid == tid).map(|(_, role)| role)
    }
}

/// True for a vCPU or an iothread that a plan of a virtual machine has no place for: its thread
/// follows the emulator.
pub(crate) fn has_no_place(vnode: &VnodePlan, role: &Role) -> bool {
    let is_own = matches!(role, Role::Vcpu(_) | Role::Iothread(_));
    is_own && vnode.threads.iter().all(|thread| thread.role != *role)
}

/// The finding about its thread.
pub(crate) fn no_place(task: TaskId, role: &Role) -> Finding {
    let text = format!("{role} (thread {}) is not in the plan and follows the emulator", task.tid);
    Finding::warning("threads", text)
        .with_hint("plan again for the vCPUs and iothreads that the machine has now")
}

/// `stat` of a thread, with its own CPU time; `None` if it has ended. The file above it, of the
/// process, is not read: for that the kernel sums up all threads each time.
pub(crate) fn stat(host: &dyn Host, tid: Tid) -> Result<Option<ProcStat>, HostError> {
    Ok(proc_stat::at(host, &paths::task_stat(tid, tid))?.filter(|stat| !stat.has_ended()))
}

/// True if this very thread still runs.
pub(crate) fn is_alive(host: &dyn Host, task: TaskId) -> Result<bool, HostError> {
    proc_stat::is_alive(host, &paths::task_stat(task.tid, task.tid), task)
}

/// The processes above one, up to the first of the PID namespace.
pub(crate) fn ancestors(host: &dyn Host, pid: Tid) -> Result<Vec<TaskId>, HostError> {
    let mut above: Vec<TaskId> = Vec::new();
    let mut parent = stat(host, pid)?.map(|stat| stat.ppid);
    while let Some(tid) = parent.filter(|tid| tid.0 > 0) {
        let Some(stat) = stat(host, tid)? else { break };
        if above.contains(&stat.task()) {
            break;
        }
        above.push(stat.task());
        parent = Some(stat.ppid);
    }
    Ok(above)
}

/// Confirms that a thread has ended, when something of it was not found.
pub(crate) fn confirm_ended(host: &dyn Host, tid: Tid) -> Result<(), HostError> {
    let path = paths::task_stat(tid, tid);
    match proc_stat::at(host, &path)? {
        Some(stat) if stat.has_ended() => Ok(()),
        Some(_) => Err(HostError::Hidden { path, why: format!("thread {tid} runs") }),
        None => proc_stat::confirm_gone(host, tid),
    }
}

/// Confirms that a file or directory of the kernel is not there any more: what is left of the way
/// to it must be of the file system that it was in. Where that is not mounted, or covered by
/// another one, nothing is known.
pub(crate) fn confirm_missing(host: &dyn Host, path: &str) -> Result<(), HostError> {
    if host.exists(path) {
        return Ok(());
    }
    let mut at = path;
    while let Some((parent, _)) = at.rsplit_once('/') {
        if host.exists(parent) {
            break;
        }
        at = parent;
    }
    let parent = at.rsplit_once('/').map_or("", |(parent, _)| parent);
    let has = |file: &str| host.exists(&paths::cgroup_file(parent, file));
    let is_in_place = has("cgroup.procs")
        || has("schemata")
        || paths::ALWAYS_THERE.iter().any(|root| parent.starts_with(root));
    if is_in_place {
        return Ok(());
    }
    let shown = if parent.is_empty() { "/" } else { parent };
    let why = format!("{shown} is of another file system, or empty");
    Err(HostError::Hidden { path: path.to_owned(), why })
}

/// Threads that were seen alive just now, so that not each of them needs a look of its own
/// (a read of `stat` is most of the time that setting a mask takes).
///
/// They are known by number alone: that of a thread that ends is not given out again before
/// all others were, which takes longer than the steps that share one look.
#[derive(Debug, Default)]
pub(crate) struct Seen(Vec<Tid>);

impl Seen {
    /// Threads that were listed just now.
    pub(crate) fn listed(threads: Vec<Tid>) -> Self {
        Self(threads)
    }

    /// The threads of a process, if it is still this very one.
    pub(crate) fn of(host: &dyn Host, process: TaskId) -> Result<Self, HostError> {
        match is_alive(host, process)? {
            true => Ok(Self(threads_of(host, process.tid)?)),
            false => Ok(Self::default()),
        }
    }

    /// True if the thread is among them, or else runs.
    pub(crate) fn is_alive(&self, host: &dyn Host, task: TaskId) -> Result<bool, HostError> {
        Ok(self.0.binary_search(&task.tid).is_ok() || is_alive(host, task)?)
    }
}

/// The process that a process comes from, as far as that can still be known.
///
/// A parent that has ended is replaced by init or another reaper, which knows nothing of the
/// child. Its process group is inherited and stays: where it is not the parent's, its leader is
/// asked first. That is an ancestor, or in a pipeline of a shell a sibling, with the same origin.
pub(crate) fn origin(host: &dyn Host, stat: &ProcStat) -> Result<Tid, HostError> {
    let leader = stat.process_group;
    if leader.0 == 0 || leader == stat.tid {
        return Ok(stat.ppid);
    }
    let of_parent = self::stat(host, stat.ppid)?.map(|parent| parent.process_group);
    let adopted = of_parent != Some(leader);
    Ok(if adopted && self::stat(host, leader)?.is_some() { leader } else { stat.ppid })
}

/// The process that a thread belongs to; `None` if it has ended.
pub(crate) fn process_of(host: &dyn Host, tid: Tid) -> Result<Option<Tid>, HostError> {
    let path = paths::process_status(tid);
    match host.read_text(&path) {
        Ok(text) => {
            let status = proc_status::parse(&text).map_err(|error| error.at(&path))?;
            Ok(Some(status.tgid))
        }
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// This process, as the host sees it; `None` on a host that it does not run on.
pub(crate) fn own_process(host: &dyn Host) -> Result<Option<TaskId>, HostError> {
    Ok(proc_stat::at(host, &paths::own_stat())?.map(|stat| stat.task()))
}

/// The threads of a process by ascending number; none if it has ended.
pub(crate) fn threads_of(host: &dyn Host, pid: Tid) -> Result<Vec<Tid>, HostError> {
    match host.list(&paths::task_dir(pid)) {
        Ok(names) => Ok(numbers(names.iter().map(String::as_str))),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// All processes of the host, kernel threads among them.
pub(crate) fn processes(host: &dyn Host) -> Result<Vec<Tid>, HostError> {
    Ok(numbers(host.list(&paths::proc_dir())?.iter().map(String::as_str)))
}

/// The numbers among some names, ascending, each once. 0 stands for a task of another PID
/// namespace, which cannot be named from here.
pub(crate) fn numbers<'n>(names: impl Iterator<Item = &'n str>) -> Vec<Tid> {
    let numbers: BTreeSet<u32> =
        names.filter_map(|name| name.trim().parse().ok()).filter(|number| *number != 0).collect();
    numbers.into_iter().map(Tid).collect()
}

/// `Some` answer of a host call, `None` if the task is gone meanwhile.
pub(crate) fn unless_gone<T>(answer: Result<T, HostError>) -> Result<Option<T>, HostError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

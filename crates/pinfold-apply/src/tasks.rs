//! Threads and processes of the host, and the target of a plan.
//!
//! A task that ends while it is read is no error here: the readers return `None`, and the caller
//! decides what that means. A zombie counts as ended, because no setting has an effect on it.
//! <https://docs.kernel.org/filesystems/proc.html>

use std::collections::BTreeSet;

use pinfold_host::proc_stat::{self, ProcStat};
use pinfold_host::{Host, HostError, ThreadList, ThreadSet, paths, proc_status};
use pinfold_model::{Change, Finding, NodeId, Role, Setting, Step, TaskId, Tid, VnodePlan};

use serde::{Deserialize, Serialize};

/// What a plan is applied to: one virtual machine and the loads that Pinfold started with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process of the virtual machine.
    pub pid: Tid,
    /// Threads with their roles, as reported by QMP or libvirt. Threads of the process that are not
    /// listed here follow the emulator. Threads outside the process (vhost before Linux 6.4) must
    /// be listed.
    pub threads: Vec<(TaskId, Role)>,
    /// Processes that Pinfold started itself, such as its loads.
    pub own: Vec<TaskId>,
    /// Settings that another program manages for the machine, with the values that correspond to
    /// the plan. Empty for a machine that only Pinfold manages.
    pub kept: Vec<ManagedSetting>,
    /// The node to which its memory has been bound since its start (`MPOL_BIND`), so that no page
    /// is elsewhere except those that it shares with other processes.
    pub started_on: Option<NodeId>,
    /// The threads of its process, if discovery confirmed that there are no others. The caller of
    /// apply need not list them again while it is unchanged.
    pub known_threads: Option<ThreadList>,
    /// Threads that stay where another program moved them, although the plan does not say so.
    pub left: BTreeSet<TaskId>,
    /// What libvirt has as the CPUs of its threads, where a plan sets masks behind its back.
    pub pins: Vec<RecordedPin>,
}

/// A setting that another program manages and that the plan gives a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedSetting {
    /// The setting.
    pub setting: Setting,
    /// Its value, in the syntax of the managing program.
    pub value: String,
    /// Its effect on the running machine.
    pub rules: Rules,
    /// Reason, as a sentence without full stop.
    pub reason: String,
}

/// What the program that manages a machine had as a thread's CPUs when the placement began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedPin {
    /// The thread.
    pub task: TaskId,
    /// Where the program has its CPUs.
    pub setting: Setting,
    /// The CPUs; `None` if it had no restriction.
    pub value: Option<String>,
}

/// Effect of a setting on a running machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    /// The masks of a role's threads, which can be set only through it.
    Masks(Role),
    /// Placement of the machine's memory.
    Memory,
    /// None until the next start.
    NextStart,
}

impl Target {
    /// A machine that only Pinfold manages, without loads.
    #[must_use]
    pub fn new(pid: Tid, threads: Vec<(TaskId, Role)>) -> Self {
        Self {
            pid,
            threads,
            own: Vec::new(),
            kept: Vec::new(),
            started_on: None,
            known_threads: None,
            left: BTreeSet::new(),
            pins: Vec::new(),
        }
    }

    /// The threads that discovery listed, ascending, if the process has the same ones now.
    pub(crate) fn confirmed_threads(&self, host: &dyn Host) -> Option<Vec<Tid>> {
        let roll = self.known_threads.as_ref()?;
        (ThreadSet::read(host, self.pid) == Some(roll.thread_set)).then(|| roll.tids.clone())
    }

    /// The threads of its process, ascending.
    pub(crate) fn list_threads(&self, host: &dyn Host) -> Result<Vec<Tid>, HostError> {
        match self.confirmed_threads(host) {
            Some(threads) => Ok(threads),
            None => threads_of(host, self.pid),
        }
    }

    /// The setting that determines the masks of a role's threads.
    #[must_use]
    pub(crate) fn setting_for(&self, role: &Role) -> Option<&ManagedSetting> {
        self.kept.iter().find(|kept| kept.rules == Rules::Masks(role.clone()))
    }

    /// The role of a thread, if it is known.
    #[must_use]
    pub fn role(&self, tid: Tid) -> Option<&Role> {
        self.threads.iter().find(|(task, _)| task.tid == tid).map(|(_, role)| role)
    }
}

/// True for a vCPU or an iothread that the plan of a virtual machine does not place; its thread
/// follows the emulator.
pub(crate) fn has_no_place(vnode: &VnodePlan, role: &Role) -> bool {
    role.kind().is_reported && vnode.threads.iter().all(|thread| thread.role != *role)
}

/// The finding about a thread that the plan does not place.
pub(crate) fn no_place(task: TaskId, role: &Role) -> Finding {
    let text = format!("{role} (thread {}) is not in the plan and follows the emulator", task.tid);
    Finding::warning("threads", text)
        .with_hint("plan again for the vCPUs and iothreads that the machine has now")
}

/// The task that a step changes.
pub(crate) fn task_of(step: &Step) -> Option<TaskId> {
    match &step.change {
        Change::SetAffinity { task, .. } | Change::SetPolicy { task, .. } => Some(*task),
        Change::WriteSetting { tasks, .. } | Change::MoveTasks { tasks, .. } => {
            tasks.first().copied()
        }
        Change::WriteFile { .. }
        | Change::MakeGroup { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => None,
    }
}

/// `stat` of a thread, with the CPU time of this thread only; `None` if it has ended. The process's
/// own `stat` is not read, because the kernel sums over all threads for it.
pub(crate) fn stat(host: &dyn Host, tid: Tid) -> Result<Option<ProcStat>, HostError> {
    Ok(proc_stat::at(host, &paths::task_stat(tid, tid))?.filter(|stat| !stat.has_ended()))
}

/// True for a kernel thread, and for a thread that has ended.
pub(crate) fn is_kernel_thread(host: &dyn Host, tid: Tid) -> Result<bool, HostError> {
    Ok(stat(host, tid)?.is_none_or(|stat| stat.is_kernel_thread()))
}

/// True if this same thread still runs.
pub(crate) fn is_alive(host: &dyn Host, task: TaskId) -> Result<bool, HostError> {
    proc_stat::is_alive(host, &paths::task_stat(task.tid, task.tid), task)
}

/// The ancestors of a process, up to the first process of the PID namespace.
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

/// Confirms that a thread has ended, after a file of it was not found.
pub(crate) fn confirm_ended(host: &dyn Host, tid: Tid) -> Result<(), HostError> {
    let path = paths::task_stat(tid, tid);
    match proc_stat::at(host, &path)? {
        Some(stat) if stat.has_ended() => Ok(()),
        Some(_) => Err(HostError::Hidden { path, why: format!("thread {tid} runs") }),
        None => proc_stat::confirm_gone(host, tid),
    }
}

/// Confirms that a file or directory of the kernel no longer exists: the remaining part of its path
/// must be on the same file system. If that is not mounted, or covered by another mount, nothing is
/// known.
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
    let is_in_place = host.exists(&paths::cgroup_file(parent, "cgroup.procs"))
        || host.exists(&paths::cgroup_file(parent, "schemata"))
        || paths::ALWAYS_THERE.iter().any(|root| parent.starts_with(root));
    if is_in_place {
        return Ok(());
    }
    let shown = if parent.is_empty() { "/" } else { parent };
    let why = format!("{shown} is on another file system, or empty");
    Err(HostError::Hidden { path: path.to_owned(), why })
}

/// Threads that were seen alive just now, so that not each of them needs its own check (a read of
/// `stat` takes most of the time of setting a mask).
///
/// They are identified by number alone. The kernel reuses the number of an ended thread only after
/// it has used all others, which takes longer than the steps that share one check.
#[derive(Debug, Default)]
pub(crate) struct LiveThreads(Vec<Tid>);

impl LiveThreads {
    /// Threads that were listed just now.
    pub(crate) fn from_list(threads: Vec<Tid>) -> Self {
        Self(threads)
    }

    /// The threads of a process, if it is still the same process.
    pub(crate) fn read(host: &dyn Host, process: TaskId) -> Result<Self, HostError> {
        if is_alive(host, process)? {
            Ok(Self(threads_of(host, process.tid)?))
        } else {
            Ok(Self::default())
        }
    }

    /// True if the thread is in the list, or else alive.
    pub(crate) fn is_alive(&self, host: &dyn Host, task: TaskId) -> Result<bool, HostError> {
        Ok(self.0.binary_search(&task.tid).is_ok() || is_alive(host, task)?)
    }
}

/// The process that started another one, as far as that can still be determined.
///
/// If the parent has ended, the kernel shows init or another reaper instead. The process group is
/// inherited and stays: if it differs from the parent's, its leader is checked first. The leader is
/// an ancestor or, in a shell pipeline, a sibling with the same origin.
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

/// This process as seen from the host; `None` if it does not run on that host.
pub(crate) fn own_process(host: &dyn Host) -> Result<Option<TaskId>, HostError> {
    Ok(proc_stat::at(host, &paths::own_stat())?.map(|stat| stat.task()))
}

/// The threads of a process in ascending order; empty if it has ended.
pub(crate) fn threads_of(host: &dyn Host, pid: Tid) -> Result<Vec<Tid>, HostError> {
    match host.list(&paths::task_dir(pid)) {
        Ok(names) => Ok(numbers(names.iter().map(String::as_str))),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// All processes of the host, including kernel threads.
pub(crate) fn processes(host: &dyn Host) -> Result<Vec<Tid>, HostError> {
    Ok(numbers(host.list(&paths::proc_dir())?.iter().map(String::as_str)))
}

/// The numbers among some names, ascending, without duplicates. 0 stands for a task of another PID
/// namespace, which cannot be addressed from here.
pub(crate) fn numbers<'n>(names: impl Iterator<Item = &'n str>) -> Vec<Tid> {
    let numbers: BTreeSet<u32> =
        names.filter_map(|name| name.trim().parse().ok()).filter(|number| *number != 0).collect();
    numbers.into_iter().map(Tid).collect()
}

/// The result of a host call, `None` if the task has ended meanwhile.
pub(crate) fn ignore_gone<T>(answer: Result<T, HostError>) -> Result<Option<T>, HostError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

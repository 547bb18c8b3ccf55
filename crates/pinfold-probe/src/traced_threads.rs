//! The threads that are observed from the host, and the roles of the other threads of their
//! processes.
//!
//! A thread of a virtual machine without a role counts as [`Role::Emulator`], as in
//! [`crate::roles`]. A thread that a task of a process group creates is a [`Role::Task`].

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, paths, proc_stat, proc_status};
use pinfold_model::{Role, TaskId, Tid};

/// Why an observation could not start or gave no result.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The list is empty.
    #[error("there is no thread to observe")]
    NoThreads,
    /// All of the threads have ended.
    #[error("all {threads} threads to observe have exited")]
    Gone {
        /// Number of threads.
        threads: usize,
    },
    /// The host could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Machine,
    Group,
}

/// The observed threads at the start.
#[derive(Clone, Debug)]
pub(crate) struct TracedThreads {
    pub(crate) threads: Vec<(TaskId, Role)>,
    processes: BTreeMap<Tid, Kind>,
    /// Number of threads that had already ended.
    pub(crate) gone: u32,
}

impl TracedThreads {
    /// Reads each thread once.
    pub(crate) fn read(host: &dyn Host, threads: &[(TaskId, Role)]) -> Result<Self, WatchError> {
        if threads.is_empty() {
            return Err(WatchError::NoThreads);
        }
        let mut found = Self { threads: Vec::new(), processes: BTreeMap::new(), gone: 0 };
        for (task, role) in threads {
            let Some(process) = process_of(host, *task)? else {
                found.gone = found.gone.saturating_add(1);
                continue;
            };
            let kind = if *role == Role::Task { Kind::Group } else { Kind::Machine };
            let known = found.processes.entry(process).or_insert(kind);
            if kind == Kind::Machine {
                *known = kind;
            }
            found.threads.push((*task, role.clone()));
        }
        if found.threads.is_empty() {
            return Err(WatchError::Gone { threads: threads.len() });
        }
        Ok(found)
    }

    pub(crate) fn tids(&self) -> Vec<Tid> {
        self.threads.iter().map(|(task, _)| task.tid).collect()
    }

    pub(crate) fn processes(&self) -> Vec<Tid> {
        self.processes.keys().copied().collect()
    }

    /// The role of a thread that existed at the start.
    pub(crate) fn role(&self, tid: Tid) -> Option<&Role> {
        self.threads.iter().find(|(task, _)| task.tid == tid).map(|(_, role)| role)
    }

    /// The role of a thread of this process that is not in the list.
    pub(crate) fn role_of_others(&self, process: Tid) -> Role {
        match self.processes.get(&process) {
            Some(Kind::Machine) => Role::Emulator,
            Some(Kind::Group) | None => Role::Task,
        }
    }

    /// Threads that belong to the set and are not in the list: those of machines, without a role.
    /// Each is a pair of process and thread.
    pub(crate) fn others(&self, host: &dyn Host) -> Result<Vec<(Tid, Tid)>, HostError> {
        let mut others = Vec::new();
        for (process, _) in self.processes.iter().filter(|(_, kind)| **kind == Kind::Machine) {
            let names = match host.list(&paths::task_dir(*process)) {
                Ok(names) => names,
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error),
            };
            let tids = names.iter().filter_map(|name| name.parse().ok().map(Tid));
            others.extend(tids.filter(|tid| self.role(*tid).is_none()).map(|tid| (*process, tid)));
        }
        Ok(others)
    }

    /// The threads of the list and these [`TracedThreads::others`], with their roles.
    pub(crate) fn with_others(&self, others: &[(Tid, Tid)]) -> impl Iterator<Item = (Tid, Role)> {
        let others = others.iter().map(|(process, tid)| (*tid, self.role_of_others(*process)));
        self.threads.iter().map(|(task, role)| (task.tid, role.clone())).chain(others)
    }
}

/// The process of a thread; `None` if it has ended.
fn process_of(host: &dyn Host, task: TaskId) -> Result<Option<Tid>, HostError> {
    let Some(stat) = proc_stat::read(host, task.tid)? else { return Ok(None) };
    if stat.start_time != task.start_time || stat.has_ended() {
        return Ok(None);
    }
    let path = paths::process_status(task.tid);
    match host.read_text(&path) {
        Ok(text) => {
            proc_status::parse(&text).map(|s| Some(s.tgid)).map_err(|error| error.at(&path))
        }
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

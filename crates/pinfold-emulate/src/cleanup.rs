//! Cleanup of what must not outlive a supervisor: groups that it froze, processes that it stopped.
//!
//! The supervisor itself may be killed or stopped at any time. Therefore a watchdog process does
//! this when heartbeats stop.

use pinfold_host::proc_stat::ProcStat;
use pinfold_host::process::{self, Signaled};
use pinfold_host::{Host, HostError, HostMut, paths, proc_stat};
use pinfold_model::Tid;

use crate::SpeedError;

/// The task of a watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// Writes these values to these files.
    Thaw {
        /// Path and value.
        files: Vec<(String, String)>,
    },
    /// Continues every stopped process in a group and in those below it.
    Continue {
        /// The group's directory.
        group: String,
    },
}

/// Does the task of a watchdog. Missing files and processes are no error; everything is tried.
///
/// # Errors
/// [`SpeedError::Host`] with the first that failed.
pub fn release(host: &dyn HostMut, what: &Cleanup) -> Result<(), SpeedError> {
    let mut failed = None;
    match what {
        Cleanup::Thaw { files } => {
            for (path, value) in files {
                note(&mut failed, host.write(path, value.as_bytes()));
            }
        }
        Cleanup::Continue { group } => {
            for process in processes(host, group)? {
                if process.state == 'T' {
                    note(&mut failed, host.signal(process.task(), Signaled::Continue));
                }
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn note(failed: &mut Option<HostError>, done: Result<(), HostError>) {
    match done {
        Err(error) if !error.is_gone() && failed.is_none() => *failed = Some(error),
        Ok(()) | Err(_) => {}
    }
}

/// The processes in a group and below it that have not ended, except this process.
pub(crate) fn processes(host: &dyn Host, group: &str) -> Result<Vec<ProcStat>, HostError> {
    let mut found = Vec::new();
    for pid in pids(host, group)? {
        if pid == process::own_pid() {
            continue;
        }
        found.extend(proc_stat::read(host, pid)?.filter(|stat| !stat.has_ended()));
    }
    Ok(found)
}

/// The PIDs of all processes in a group and below it.
pub(crate) fn pids(host: &dyn Host, group: &str) -> Result<Vec<Tid>, HostError> {
    let mut pids = list_tasks(host, &paths::cgroup_procs(group))?;
    for name in host.list(group)? {
        let below = paths::cgroup_file(group, &name);
        // The processes of a threaded group are listed in its domain.
        if !host.exists(&paths::cgroup_procs(&below)) {
            continue; // no group
        }
        let is_threaded = match host.read_text(&paths::cgroup_type(&below)) {
            Ok(kind) => kind.trim() == "threaded",
            Err(error) if error.is_gone() => false, // version 1 has no such file
            Err(error) => return Err(error),
        };
        if !is_threaded {
            pids.extend(pids_below(host, &below)?);
        }
    }
    Ok(pids)
}

/// A group may be removed while its parent is read.
fn pids_below(host: &dyn Host, group: &str) -> Result<Vec<Tid>, HostError> {
    match pids(host, group) {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        answer => answer,
    }
}

/// Reads the numbers in a membership file, one per line.
pub(crate) fn list_tasks(host: &dyn Host, path: &str) -> Result<Vec<Tid>, HostError> {
    Ok(numbers(&host.read_text(path)?))
}

/// Parses numbers, one per line.
pub(crate) fn numbers(text: &str) -> Vec<Tid> {
    text.lines().filter_map(|line| line.trim().parse().ok().map(Tid)).collect()
}

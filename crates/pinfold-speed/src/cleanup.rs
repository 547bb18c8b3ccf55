//! What must not outlive a supervisor: groups that it froze, processes that it stopped.
//!
//! The supervisor may be killed or stopped itself at any time, so another process, the
//! sentinel, does this when it hears no more of it.

use pinfold_host::proc_stat::ProcStat;
use pinfold_host::process::{self, Signaled};
use pinfold_host::{Host, HostError, HostMut, paths, proc_stat};
use pinfold_model::Tid;

use crate::SpeedError;

/// What a sentinel does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// Writes these values to these files.
    Thaw {
        /// Path and value.
        files: Vec<(String, String)>,
    },
    /// Lets every stopped process in a group, and in those below it, run again.
    Continue {
        /// The group's directory.
        group: String,
    },
}

/// Does what a sentinel has to do. What is gone needs no release; all is tried.
///
/// # Errors
/// [`SpeedError::Host`] with the first that failed.
pub fn release(host: &dyn HostMut, what: &Cleanup) -> Result<(), SpeedError> {
    let mut failed = None;
    let mut note = |done: Result<(), HostError>| match done {
        Err(error) if !error.is_gone() && failed.is_none() => failed = Some(error),
        Ok(()) | Err(_) => {}
    };
    match what {
        Cleanup::Thaw { files } => {
            for (path, value) in files {
                note(host.write(path, value.as_bytes()));
            }
        }
        Cleanup::Continue { group } => {
            for process in processes(host, group)? {
                if process.state == 'T' {
                    note(host.signal(process.task(), Signaled::Continue));
                }
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The processes in a group and below it that have not ended, without this one.
pub(crate) fn processes(host: &dyn Host, group: &str) -> Result<Vec<ProcStat>, HostError> {
    let mut found = Vec::new();
    for pid in pids(host, group)? {
        if pid == process::own_pid() {
            continue;
        }
        found.extend(proc_stat::of(host, pid)?.filter(|stat| !stat.has_ended()));
    }
    Ok(found)
}

/// The numbers of all processes in a group and below it.
pub(crate) fn pids(host: &dyn Host, group: &str) -> Result<Vec<Tid>, HostError> {
    let mut pids = listed(host, &paths::cgroup_procs(group))?;
    for name in host.list(group)? {
        let below = paths::cgroup_file(group, &name);
        // The processes of a threaded group are listed by the domain above it.
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

/// A group may be removed while its parent is looked through.
fn pids_below(host: &dyn Host, group: &str) -> Result<Vec<Tid>, HostError> {
    match pids(host, group) {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        answer => answer,
    }
}

/// Numbers in a file of members, one per line.
pub(crate) fn listed(host: &dyn Host, path: &str) -> Result<Vec<Tid>, HostError> {
    Ok(numbers(&host.read_text(path)?))
}

/// Numbers, one per line.
pub(crate) fn numbers(text: &str) -> Vec<Tid> {
    text.lines().filter_map(|line| line.trim().parse().ok().map(Tid)).collect()
}

//! Gives a process all CPUs, where the journal with its original masks is missing.

use pinfold_host::{HostError, HostMut, paths};
use pinfold_model::Tid;

use crate::actuators;
use crate::cpusets::Cpusets;
use crate::journal::{self, JournalError, Journals};
use crate::tasks;

/// Maximum number of passes over the threads. Each finds those that were created meanwhile.
const MAX_PASSES: usize = 8;

/// Lets every thread of a process run on all CPUs of its cgroup's cpuset, and removes the mark of
/// the placement whose journal is missing. Policies and groups stay as they are. Returns the number
/// of threads whose mask changed.
///
/// # Errors
/// [`JournalError::Placed`] if another state directory than that of `journals` has an active
/// placement of it; [`JournalError::VmGone`]; [`JournalError::Host`] if a mask cannot be set, or if
/// new threads with the old mask do not end; [`JournalError::Store`] and [`JournalError::Busy`] if
/// the mark cannot be removed.
pub fn reset_masks(
    host: &dyn HostMut,
    pid: Tid,
    journals: &Journals<'_>,
) -> Result<usize, JournalError> {
    let process = tasks::stat(host, pid).map_err(JournalError::Host)?;
    let process = process.ok_or(JournalError::VmGone { pid })?.task();
    journal::require_not_elsewhere(host, process, &journals.path())?;
    let cpusets = Cpusets::find(host).map_err(JournalError::Host)?;
    let mut changed = 0;
    for _ in 0..MAX_PASSES {
        let count = widen(host, cpusets.as_ref(), pid).map_err(JournalError::Host)?;
        if count == 0 {
            journal::remove_lost_mark(host, process)?;
            return Ok(changed);
        }
        changed += count;
    }
    let why = "new threads with the old mask appear faster than they are reset: repeat the command";
    let path = paths::task_dir(pid);
    Err(JournalError::Host(HostError::Unexpected { path, why: why.to_owned() }))
}

/// One pass over the threads; the number of those whose mask changed.
fn widen(host: &dyn HostMut, cpusets: Option<&Cpusets>, pid: Tid) -> Result<usize, HostError> {
    let mut changed = 0;
    for tid in tasks::threads_of(host, pid)? {
        let Some(all) = actuators::allowed_cpus(host, cpusets, tid)? else { continue };
        let Some(mask) = tasks::ignore_gone(host.affinity(tid))? else { continue };
        if mask != all {
            changed += usize::from(tasks::ignore_gone(host.set_affinity(tid, &all))?.is_some());
        }
    }
    Ok(changed)
}

//! Processes that are stopped and continued by signals while an emulation runs.
//!
//! Nothing is done at the start. At the end, no process may remain stopped that was not stopped
//! before: neither in the group and those below it, nor among tasks that were moved into it and may
//! have been moved back already.

use std::collections::BTreeMap;

use pinfold_host::process::Signaled;
use pinfold_host::{Host, HostError, paths};
use pinfold_model::{TaskId, Tid};

use super::{Reverted, UndoContext};
use crate::tasks;

/// State letter of a process that is stopped by a signal.
const STOPPED: char = 'T';

/// Continues stopped processes; one result for each.
pub(super) fn revert(
    past: &UndoContext<'_>,
    group: &str,
    before: &[TaskId],
) -> Vec<Result<Reverted, HostError>> {
    match stopped_processes(past, group) {
        Ok(found) => {
            let ours = found.into_iter().filter(|task| !before.contains(task));
            let answers: Vec<_> = ours.map(|task| send_sigcont(past, task)).collect();
            if answers.is_empty() { vec![Ok(Reverted::Nothing)] } else { answers }
        }
        Err(error) => vec![Err(error)],
    }
}

fn send_sigcont(past: &UndoContext<'_>, task: TaskId) -> Result<Reverted, HostError> {
    let answer = tasks::ignore_gone(past.host.signal(task, Signaled::Continue))?;
    Ok(answer.map_or(Reverted::Gone, |()| Reverted::Restored))
}

/// The processes that are stopped now, without duplicates.
fn stopped_processes(past: &UndoContext<'_>, group: &str) -> Result<Vec<TaskId>, HostError> {
    let mut found = BTreeMap::new();
    for pid in members(past.host, group)? {
        if let Some(stat) = tasks::stat(past.host, pid)? {
            found.insert(stat.task(), stat.state);
        }
    }
    for task in past.moved_into(group) {
        // Signals are sent to processes, but single threads may have been moved.
        if tasks::process_of(past.host, task.tid)? != Some(task.tid) {
            continue;
        }
        if let Some(stat) = tasks::stat(past.host, task.tid)?.filter(|stat| stat.task() == task) {
            found.insert(task, stat.state);
        }
    }
    Ok(found.into_iter().filter(|(_, state)| *state == STOPPED).map(|(task, _)| task).collect())
}

/// The processes in a group and below it; empty if it no longer exists.
pub(crate) fn members(host: &dyn Host, group: &str) -> Result<Vec<Tid>, HostError> {
    // The processes of a threaded group are listed by its domain group.
    let kind = tasks::ignore_gone(host.read_text(&paths::cgroup_type(group)))?;
    if kind.is_some_and(|kind| kind.trim() == "threaded") {
        return Ok(Vec::new());
    }
    let Some(text) = tasks::ignore_gone(host.read_text(&paths::cgroup_procs(group)))? else {
        return tasks::confirm_missing(host, group).map(|()| Vec::new());
    };
    let mut found = tasks::numbers(text.lines().map(str::trim));
    for name in tasks::ignore_gone(host.list(group))?.unwrap_or_default() {
        let below = paths::cgroup_file(group, &name);
        if host.exists(&paths::cgroup_procs(&below)) {
            found.extend(members(host, &below)?);
        }
    }
    Ok(found)
}

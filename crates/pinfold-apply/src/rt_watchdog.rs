//! Takes real-time policies from a virtual machine whose supervisor has ended or hangs.
//!
//! It lists the machine's threads anew and does not rely on what the supervisor last knew: a thread
//! that was created meanwhile inherits the policy of its creator. Threads that were real-time
//! before the apply are not touched. Nothing is written to the journal, which the supervisor may
//! have locked; a later undo finds these values already restored.

use std::collections::BTreeMap;

use pinfold_host::{HostError, HostMut};
use pinfold_model::{Plan, Policy, TaskId, Tid, Undo};

use crate::journal::Record;
use crate::tasks;

/// A thread whose real-time policy was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemotedThread {
    /// The thread.
    pub task: TaskId,
    /// The policy before.
    pub from: Policy,
    /// The policy now.
    pub to: Policy,
}

/// Highest real-time priority of a plan's threads, 0 if only deadline threads are real-time; `None`
/// if no thread is real-time.
#[must_use]
pub fn real_time_priority(plan: &Plan) -> Option<u8> {
    plan.threads().filter_map(|(_, thread)| thread.policy.and_then(priority)).max()
}

/// Restores the former policy of every real-time thread of the record's machine, or sets the
/// default policy.
///
/// # Errors
/// [`HostError`] of the first thread that could not be changed; all others were tried.
pub fn demote_real_time_threads(
    host: &dyn HostMut,
    record: &Record,
) -> Result<Vec<DemotedThread>, HostError> {
    let mut former: BTreeMap<TaskId, Policy> = BTreeMap::new();
    for (_, step) in record.steps() {
        if let Undo::SetPolicy { task, original, .. } = &step.undo {
            former.entry(*task).or_insert(*original);
        }
    }
    let mut tids: Vec<Tid> = former.keys().map(|task| task.tid).collect();
    if tasks::is_alive(host, record.header.vm)? {
        tids.extend(tasks::threads_of(host, record.header.vm.tid)?);
    }
    tids.sort_unstable();
    tids.dedup();
    let (mut demoted, mut failed) = (Vec::new(), None);
    for tid in tids {
        match demote(host, &former, &record.header.threads, tid) {
            Ok(one) => demoted.extend(one),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(demoted), Err)
}

fn demote(
    host: &dyn HostMut,
    former: &BTreeMap<TaskId, Policy>,
    before: &[TaskId],
    tid: Tid,
) -> Result<Option<DemotedThread>, HostError> {
    let Some(stat) = tasks::stat(host, tid)? else { return Ok(None) };
    let task = stat.task();
    let to = match former.get(&task) {
        Some(policy) => *policy,
        // Pinfold never gave this thread a policy: it was created real-time, or was real-time
        // before.
        None if before.contains(&task) => return Ok(None),
        None => Policy::default(),
    };
    let Some(from) = tasks::ignore_gone(host.policy(tid))? else { return Ok(None) };
    if priority(from).is_none() || from == to {
        return Ok(None);
    }
    let set = tasks::ignore_gone(host.set_policy(tid, to))?;
    Ok(set.map(|()| DemotedThread { task, from, to }))
}

fn priority(policy: Policy) -> Option<u8> {
    match policy {
        Policy::Fifo { priority } | Policy::RoundRobin { priority } => Some(priority),
        Policy::Deadline { .. } => Some(0),
        Policy::Other { .. }
        | Policy::Batch { .. }
        | Policy::Idle
        | Policy::Slice { .. }
        | Policy::Unknown { .. } => None,
    }
}

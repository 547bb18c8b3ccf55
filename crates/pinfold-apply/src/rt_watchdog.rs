//! Takes real-time rights away from a virtual machine whose supervisor has ended or hangs.
//!
//! It looks at the machine's threads as they are, not as the supervisor last knew them: one
//! that was born meanwhile has inherited the rights of its maker. What was real-time before
//! Pinfold came is not touched. Nothing is written to the journal, which the supervisor may
//! hold: an undo that comes later finds these values right already.

use std::collections::BTreeMap;

use pinfold_host::{HostError, HostMut};
use pinfold_model::{Plan, Policy, TaskId, Tid, Undo};

use crate::journal::Record;
use crate::tasks;

/// A thread that has lost its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demoted {
    /// The thread.
    pub task: TaskId,
    /// What it had.
    pub from: Policy,
    /// What it has.
    pub to: Policy,
}

/// Highest real-time priority of a plan's threads, 0 for those with a deadline; `None` if none
/// is real-time.
#[must_use]
pub fn real_time_priority(plan: &Plan) -> Option<u8> {
    plan.threads().filter_map(|(_, thread)| thread.policy.and_then(priority)).max()
}

/// Gives every real-time thread of the record's machine its former policy, or the usual one.
///
/// # Errors
/// [`HostError`] of the first thread that kept its rights; all others were tried.
pub fn take_rights(host: &dyn HostMut, record: &Record) -> Result<Vec<Demoted>, HostError> {
    let mut former: BTreeMap<TaskId, Policy> = BTreeMap::new();
    for (_, step) in record.steps() {
        if let Undo::SetPolicy { task, original } = &step.undo {
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
) -> Result<Option<Demoted>, HostError> {
    let Some(stat) = tasks::stat(host, tid)? else { return Ok(None) };
    let task = stat.task();
    let to = match former.get(&task) {
        Some(policy) => *policy,
        // A thread of the machine that Pinfold never gave a policy was born real-time, or was
        // so before.
        None if before.contains(&task) => return Ok(None),
        None => Policy::default(),
    };
    let Some(from) = tasks::unless_gone(host.policy(tid))? else { return Ok(None) };
    if priority(from).is_none() || from == to {
        return Ok(None);
    }
    let set = tasks::unless_gone(host.set_policy(tid, to))?;
    Ok(set.map(|()| Demoted { task, from, to }))
}

fn priority(policy: Policy) -> Option<u8> {
    match policy {
        Policy::Fifo { priority } | Policy::RoundRobin { priority } => Some(priority),
        Policy::Deadline { .. } => Some(0),
        Policy::Other { .. } | Policy::Batch { .. } | Policy::Idle | Policy::Unknown(_) => None,
    }
}

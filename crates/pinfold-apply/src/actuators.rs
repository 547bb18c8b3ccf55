//! The kernel knobs: how each is set, read back and put back.
//!
//! One file per kind of [`Change`]. Each has three functions: `take` makes the change,
//! `verify` compares what the kernel shows with what was asked, `revert` takes it back if
//! the value is still ours. All of them are idempotent, because a crash may have come
//! before, between or after them. The order of steps and the journal are not known here.

mod affinity;
mod cgroup_procs;
mod cpuset_reset;
mod group;
mod kernel_file;
mod other_hierarchies;
mod pages;
mod partition;
mod policy;
mod resctrl;
mod setting;
mod signals;
mod undo_context;
mod write_error;

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::{Change, Finding, Step, TaskId, TaskState, Undo};

pub(crate) use affinity::{allowed, narrowed};
pub(crate) use cpuset_reset::obstacle;
pub(crate) use group::PREFIX as GROUP_PREFIX;
pub(crate) use kernel_file::{
    ENABLE as ENABLE_CPUSET, LATE_LOOKS, LATE_PAUSE_NS, has_cpuset, holds, is_knob, knob_hint,
    still_holds,
};
pub(crate) use partition::fault as partition_fault;
pub(crate) use resctrl::{is_inside as is_in_resctrl, shares};
pub(crate) use undo_context::UndoContext;

use crate::cpusets::Hierarchy;
use crate::tasks::{self, Seen};

/// What became of a change.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It was made; the findings tell of single tasks that were not there any more.
    Done(Vec<Finding>),
    /// The kernel does not make it on this host; nothing was changed.
    Refused {
        /// Its answer.
        error: HostError,
        /// The same for people.
        finding: Finding,
    },
    /// Its task has ended.
    Gone,
}

/// What the kernel shows after a change.
#[derive(Debug)]
pub(crate) enum Shown {
    /// What was asked.
    AsAsked,
    /// Less than was asked, within what the task's cpuset or the host allows.
    Less(Finding),
    /// A number that the kernel could not reach, or rounded.
    Given {
        /// What it is now.
        value: String,
        /// The same for people.
        finding: Finding,
    },
    /// Its task has ended.
    Gone,
    /// Something else.
    Other {
        /// What was asked.
        wanted: String,
        /// What the kernel shows.
        found: String,
    },
}

/// What became of an undo.
#[derive(Debug)]
pub(crate) enum Reverted {
    /// The value that was found before is there again.
    Restored,
    /// It was there already.
    Nothing,
    /// Its task has ended.
    Gone,
    /// A value with the same effect is there, and [`finish`] is to be asked at the end.
    Later,
    /// A value with the same effect is there, because the kernel does not take the original.
    Near(Finding),
    /// Somebody else changed it since; it was left as it is.
    Changed(Finding),
}

/// Makes a change; a thread that was not `seen` just now is looked at first.
pub(crate) fn take(host: &dyn HostMut, seen: &Seen, change: &Change) -> Result<Taken, HostError> {
    match change {
        Change::WriteFile { path, value } if resctrl::is_inside(path) => {
            resctrl::take(host, path, value)
        }
        Change::WriteFile { path, value } => kernel_file::take(host, path, value),
        Change::MakeGroup { path } if resctrl::is_inside(path) => resctrl::make(host, path),
        Change::MakeGroup { path } => group::take(host, path),
        Change::MoveTasks { group, file, tasks } => cgroup_procs::take(host, group, file, tasks),
        Change::SetAffinity { task, mask } => affinity::take(host, seen, *task, mask),
        Change::SetPolicy { task, policy } => policy::take(host, seen, *task, *policy),
        Change::WriteSetting { setting, value, .. } => setting::take(host, setting, value),
        Change::MovePages { task, from, to } => pages::take(host, seen, *task, (from, to)),
        // Who works does that; the step tells what is to be taken back.
        Change::SignalProcesses { .. } => Ok(Taken::Done(Vec::new())),
    }
}

/// True for a change that the kernel makes a little after it was asked.
pub(crate) fn comes_late(change: &Change) -> bool {
    match change {
        Change::WriteFile { path, .. } => kernel_file::comes_late(path),
        Change::MakeGroup { .. }
        | Change::MoveTasks { .. }
        | Change::SetAffinity { .. }
        | Change::SetPolicy { .. }
        | Change::WriteSetting { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => false,
    }
}

/// Reads a change back.
pub(crate) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    change: &Change,
) -> Result<Shown, HostError> {
    match change {
        Change::WriteFile { path, value } if resctrl::is_inside(path) => {
            resctrl::verify(host, path, value)
        }
        Change::WriteFile { path, value } => kernel_file::verify(host, hierarchy, path, value),
        Change::MakeGroup { path } if resctrl::is_inside(path) => {
            Ok(resctrl::verify_group(host, path))
        }
        Change::MakeGroup { path } => Ok(group::verify(host, path)),
        Change::MoveTasks { group, tasks, .. } => {
            cgroup_procs::verify(host, hierarchy, group, tasks)
        }
        Change::SetAffinity { task, mask } => affinity::verify(host, hierarchy, *task, mask),
        Change::SetPolicy { task, policy } => policy::verify(host, *task, *policy),
        Change::WriteSetting { setting, value, tasks } => {
            setting::verify(host, hierarchy, (setting, value), tasks)
        }
        Change::MovePages { task, .. } => pages::verify(host, *task),
        Change::SignalProcesses { group } => Ok(group::verify(host, group)),
    }
}

/// Takes a step back. One answer per thing that the step changed.
pub(crate) fn revert(past: &UndoContext<'_>, step: &Step) -> Vec<Result<Reverted, HostError>> {
    let one = |answer| vec![confirmed(past.host, step, answer)];
    match &step.undo {
        Undo::WriteFile { path, original } => one(kernel_file::revert(past, path, original)),
        Undo::RemoveGroup { path } if resctrl::is_inside(path) => {
            one(resctrl::revert(past.host, path))
        }
        Undo::RemoveGroup { path } => one(group::revert(past, path)),
        Undo::MoveTasks { mount, tasks, .. }
            if other_hierarchies::is_elsewhere(past.cpusets.as_ref(), mount) =>
        {
            let Change::MoveTasks { group, .. } = &step.change else { return Vec::new() };
            let place = (group.as_str(), mount.as_str());
            let revert = |state: &TaskState| {
                let answer = other_hierarchies::revert(past.host, place, state);
                confirmed_of(past.host, state.task, answer)
            };
            tasks.iter().map(revert).collect()
        }
        Undo::MoveTasks { tasks, .. } => {
            let revert = |state: &TaskState| -> Vec<_> {
                let answers = cgroup_procs::revert(past, state).into_iter();
                answers.map(|answer| confirmed_of(past.host, state.task, answer)).collect()
            };
            tasks.iter().flat_map(revert).collect()
        }
        Undo::SetAffinity { task, original } => one(affinity::revert(past, *task, original)),
        Undo::SetPolicy { task, original } => one(policy::revert(past, *task, *original)),
        Undo::WriteSetting { setting, original, masks, files } => {
            setting::revert(past, setting, (original.as_deref(), files), masks)
        }
        Undo::LeavePages { task, kib } => one(pages::revert(past.host, *task, kib)),
        Undo::ContinueProcesses { group, stopped } => signals::revert(past, group, stopped),
    }
}

/// "Gone", said of a file or group that is hidden or of a thread that runs, is an error: nothing
/// was reverted.
fn confirmed(
    host: &dyn Host,
    step: &Step,
    answer: Result<Reverted, HostError>,
) -> Result<Reverted, HostError> {
    match (&step.undo, answer) {
        (
            Undo::WriteFile { path, .. } | Undo::RemoveGroup { path },
            Ok(answer @ (Reverted::Gone | Reverted::Nothing)),
        ) => tasks::confirm_missing(host, path).map(|()| answer),
        (
            Undo::SetAffinity { task, .. }
            | Undo::SetPolicy { task, .. }
            | Undo::LeavePages { task, .. },
            answer,
        ) => confirmed_of(host, *task, answer),
        (_, answer) => answer,
    }
}

/// The same of a thread.
fn confirmed_of(
    host: &dyn Host,
    task: TaskId,
    answer: Result<Reverted, HostError>,
) -> Result<Reverted, HostError> {
    match answer {
        Ok(Reverted::Gone) if tasks::is_alive(host, task)? => Err(HostError::Hidden {
            path: paths::process_cgroup(task.tid),
            why: format!("{task} runs"),
        }),
        answer => answer,
    }
}

/// Ends a step whose revert answered [`Reverted::Later`], when all others are taken back.
pub(crate) fn finish(past: &UndoContext<'_>, step: &Step) -> Result<Reverted, HostError> {
    match &step.undo {
        Undo::WriteFile { path, .. } => {
            confirmed(past.host, step, cpuset_reset::finish(past, path))
        }
        Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::SetAffinity { .. }
        | Undo::SetPolicy { .. }
        | Undo::WriteSetting { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => Ok(Reverted::Nothing),
    }
}

/// Masks of bystanders that a kernel before 6.2 overwrote when their cpuset changed.
pub(crate) fn restore_mask(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &pinfold_model::CpuSet,
) -> Result<Reverted, HostError> {
    affinity::restore_overwritten(past, task, mask)
}

/// Masks that those would have who were born in groups of ours, by where they come from.
pub(crate) fn born_masks(
    past: &UndoContext<'_>,
) -> Result<Vec<(TaskId, pinfold_model::CpuSet)>, HostError> {
    cgroup_procs::born_masks(past)
}

/// A thread that was born while the plan was in force and inherited from one that was placed.
pub(crate) fn release_born(
    past: &UndoContext<'_>,
    task: TaskId,
    main: pinfold_model::Tid,
) -> Vec<Result<Reverted, HostError>> {
    vec![affinity::release_born(past, task, main), policy::release_born(past, task, main)]
}

//! How each kernel setting is written, read back and restored.
//!
//! One file per kind of [`Change`]. Each has three functions: `take` makes the change, `verify`
//! compares the kernel's value with the requested one, and `revert` restores the original if the
//! value is still the one that Pinfold wrote. All three are idempotent, because a crash may have
//! happened before, between or after them. The order of steps and the journal are not known here.

mod affinity;
mod cgroup_procs;
mod controllers;
mod cpuset_reset;
mod group;
mod kernel_file;
mod kernel_paths;
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
use pinfold_model::{Change, Finding, Step, TaskId, Undo};

pub(crate) use affinity::{allowed_cpus, report_narrowed};
pub(crate) use controllers::{ENABLE as ENABLE_CPUSET, has_cpuset};
pub(crate) use cpuset_reset::obstacle;
pub(crate) use group::PREFIX as GROUP_PREFIX;
pub(crate) use kernel_file::{
    LATE_PAUSE_NS, READ_BACK_ATTEMPTS, holds, is_tunable, still_holds, tunable_hint,
};
pub(crate) use partition::fault as partition_fault;
pub(crate) use resctrl::{is_inside as is_in_resctrl, shares};
pub(crate) use signals::members as processes_below;
pub(crate) use undo_context::UndoContext;
pub(crate) use write_error::is_managed_irq;

use self::undo_context::Former;
use crate::cpusets::Hierarchy;
use crate::tasks::{self, LiveThreads};

/// Outcome of making a change.
#[derive(Debug)]
pub(crate) enum ChangeOutcome {
    /// The change was made. The findings name single tasks that no longer existed.
    Done(Vec<Finding>),
    /// The kernel refuses the change on this host; nothing was changed.
    Refused {
        /// The kernel's error.
        error: HostError,
        /// The refusal as a finding for the user.
        finding: Finding,
    },
    /// The task has ended.
    Gone,
}

/// Comparison of the kernel's value with the requested one.
#[derive(Debug)]
pub(crate) enum ReadBack {
    /// The requested value.
    AsAsked,
    /// Less than was requested: the part that the task's cpuset or the host allows.
    Less(Finding),
    /// A number that the kernel rounded or could not reach.
    Given {
        /// The present value.
        value: String,
        /// The difference as a finding for the user.
        finding: Finding,
    },
    /// The task has ended.
    Gone,
    /// Another value.
    Other {
        /// The requested value.
        wanted: String,
        /// The value that the kernel shows.
        found: String,
    },
}

/// Outcome of undoing a change.
#[derive(Debug)]
pub(crate) enum Reverted {
    /// The original value was restored.
    Restored,
    /// The original value was already present.
    Nothing,
    /// The task has ended.
    Gone,
    /// A value with the same effect is set. The caller must call [`finish`] at the end.
    Later,
    /// A value with the same effect is set, because the kernel does not accept the original.
    Near(Finding),
    /// Another program has changed the value since; it was left unchanged.
    Changed(Finding),
}

/// Makes a change. A thread that is not in `seen` is first checked to be alive.
pub(crate) fn apply_change(
    host: &dyn HostMut,
    seen: &LiveThreads,
    change: &Change,
) -> Result<ChangeOutcome, HostError> {
    match change {
        Change::WriteFile { path, value } if resctrl::is_inside(path) => {
            resctrl::apply(host, path, value)
        }
        Change::WriteFile { path, value } => kernel_file::apply(host, path, value),
        Change::MakeGroup { path } if resctrl::is_inside(path) => resctrl::make(host, path),
        Change::MakeGroup { path } => group::apply(host, path),
        Change::MoveTasks { group, file, tasks } => cgroup_procs::apply(host, group, file, tasks),
        Change::SetAffinity { task, mask } => affinity::apply(host, seen, *task, mask),
        Change::SetPolicy { task, policy } => policy::apply(host, seen, *task, *policy),
        Change::WriteSetting { setting, value, .. } => setting::apply(host, setting, value),
        Change::MovePages { task, from, to } => pages::apply(host, seen, *task, from, to),
        // The component that does the work signals the processes; the step only records what to
        // undo.
        Change::SignalProcesses { .. } => Ok(ChangeOutcome::Done(Vec::new())),
    }
}

/// True for a change that the kernel completes some time after the request.
pub(crate) fn is_asynchronous(change: &Change) -> bool {
    change.as_write_file().is_some_and(|(path, _)| kernel_file::is_applied_asynchronously(path))
}

/// Reads a change back.
pub(crate) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    change: &Change,
) -> Result<ReadBack, HostError> {
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
            setting::verify(host, hierarchy, setting, value, tasks)
        }
        Change::MovePages { task, .. } => pages::verify(host, *task),
        Change::SignalProcesses { group } => Ok(group::verify(host, group)),
    }
}

/// Reverts a step. Returns one result per thing that the step changed.
pub(crate) fn revert(past: &UndoContext<'_>, step: &Step) -> Vec<Result<Reverted, HostError>> {
    let one = |answer| vec![confirm_gone(past.host, step, answer)];
    if let Err(error) = kernel_paths::require(past.host, &step.undo) {
        return vec![Err(error)];
    }
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
            tasks
                .iter()
                .map(|state| {
                    let answer = other_hierarchies::revert(past.host, group, mount, state);
                    confirmed_of(past.host, state.task, answer)
                })
                .collect()
        }
        Undo::MoveTasks { tasks, .. } => tasks
            .iter()
            .flat_map(|state| -> Vec<_> {
                let answers = cgroup_procs::revert(past, state).into_iter();
                answers.map(|answer| confirmed_of(past.host, state.task, answer)).collect()
            })
            .collect(),
        Undo::SetAffinity { task, original } => one(affinity::revert(past, *task, original)),
        Undo::SetPolicy { task, original, nice } => {
            one(policy::revert(past, *task, Former { policy: *original, nice: *nice }))
        }
        Undo::WriteSetting { setting, original, masks, files } => {
            setting::revert(past, setting, original.as_deref(), files, masks)
        }
        Undo::LeavePages { task, kib } => one(pages::revert(past.host, *task, kib)),
        Undo::ContinueProcesses { group, stopped } => signals::revert(past, group, stopped),
    }
}

/// Checks an answer of [`Reverted::Gone`]. It is an error if the file or group is only hidden or
/// the thread still runs, because nothing was reverted then.
fn confirm_gone(
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

/// The same check for a thread.
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

/// Completes a step whose revert returned [`Reverted::Later`], after all other steps are undone.
pub(crate) fn finish(past: &UndoContext<'_>, step: &Step) -> Result<Reverted, HostError> {
    let Undo::WriteFile { path, .. } = &step.undo else { return Ok(Reverted::Nothing) };
    confirm_gone(past.host, step, cpuset_reset::finish(past, path))
}

/// Enables controllers again that an interrupted revert of a step has disabled.
pub(crate) fn repair(past: &UndoContext<'_>) -> Result<(), HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(()) };
    for path in past.restored_files() {
        let (group, _) = path.rsplit_once('/').unwrap_or((path, ""));
        if path == paths::cpuset_cpus(group) {
            cpuset_reset::repair(past, cpusets, group)?;
        }
    }
    Ok(())
}

/// Restores the masks of bystanders that a kernel before 6.2 overwrote when their cpuset changed.
pub(crate) fn restore_mask(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &pinfold_model::CpuSet,
) -> Result<Reverted, HostError> {
    affinity::restore_overwritten(past, task, mask)
}

/// Original masks for tasks that were created in Pinfold's groups, derived from their ancestors.
pub(crate) fn masks_of_new_tasks(
    past: &UndoContext<'_>,
) -> Result<Vec<(TaskId, pinfold_model::CpuSet)>, HostError> {
    cgroup_procs::masks_of_created_tasks(past)
}

/// Masks that the owner gave to threads whose pins another program manages: that program sets them
/// anew when the pins are restored.
pub(crate) fn masks_of_owner(
    past: &UndoContext<'_>,
) -> Result<Vec<(TaskId, pinfold_model::CpuSet)>, HostError> {
    let moved = affinity::moved_by_owner(past, past.masks_of_settings(), None)?;
    Ok(moved.into_iter().map(|(task, place)| (task, place.mask)).collect())
}

/// Releases a thread that was created while the plan was active and inherited from a placed
/// thread: of the process `main`, or of one that has ended.
pub(crate) fn release_new_thread(
    past: &UndoContext<'_>,
    task: TaskId,
    main: Option<pinfold_model::Tid>,
) -> Vec<Result<Reverted, HostError>> {
    vec![
        affinity::release_inherited_mask(past, task, main),
        policy::release_inherited_policy(past, task, main),
    ]
}

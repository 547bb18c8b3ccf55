//! Group membership: `tasks` (v1, single threads) and `cgroup.procs` (whole processes).
//!
//! One `write(2)` per task. A task that ends meanwhile gives `ESRCH` and is skipped. A kernel
//! thread that is bound permanently gives `EINVAL` and stays where it is (`kernel/cgroup/cgroup.c`,
//! `no_cgroup_migration`); `status` lists it. Undo works per task and its origin, never per group:
//! tasks that came from different groups return to different groups.

use pinfold_host::mountinfo::Version;
use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::{CpuSet, Finding, TaskId, TaskState, Tid};

use super::{ChangeOutcome, ReadBack, Reverted, UndoContext, affinity, other_hierarchies, policy};
use crate::cpusets::{Cpusets, Hierarchy};
use crate::tasks;

/// How many ancestors are searched for a task's original group before the parent of Pinfold's group
/// is used.
const MAX_ANCESTORS: usize = 64;

pub(super) fn apply(
    host: &dyn HostMut,
    group: &str,
    file: &str,
    moved: &[TaskId],
) -> Result<ChangeOutcome, HostError> {
    let path = paths::cgroup_file(group, file);
    let mut findings = Vec::new();
    for task in moved {
        let Some(stat) = tasks::stat(host, task.tid)? else { continue };
        if stat.start_time != task.start_time {
            continue;
        }
        match tasks::ignore_gone(host.write(&path, task.tid.to_string().as_bytes())) {
            Ok(_) => {}
            Err(error) if stat.is_kernel_thread() && is_invalid(&error) => {
                let text = format!("kernel thread {} ({}) cannot be moved", task.tid, stat.comm);
                findings.push(Finding::note("kernel threads", text));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(ChangeOutcome::Done(findings))
}

pub(super) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    group: &str,
    moved: &[TaskId],
) -> Result<ReadBack, HostError> {
    let Some(cpusets) = hierarchy.get()?.filter(|cpusets| cpusets.is_below(group)) else {
        return other_hierarchies::verify(host, group, moved);
    };
    for task in moved {
        let Some(stat) = tasks::stat(host, task.tid)? else { continue };
        if stat.start_time != task.start_time || stat.is_kernel_thread() {
            continue;
        }
        match cpusets.group_of(host, task.tid)? {
            Some(found) if found != group => {
                return Ok(ReadBack::Other {
                    wanted: format!("{task} in {group}"),
                    found: format!("{task} in {found}"),
                });
            }
            Some(_) | None => {}
        }
    }
    Ok(ReadBack::AsAsked)
}

/// Moves one task back and restores its mask if the moves changed it.
pub(super) fn revert(
    past: &UndoContext<'_>,
    state: &TaskState,
) -> Vec<Result<Reverted, HostError>> {
    match move_back(past, state) {
        Ok(MoveBackOutcome::Gone) => vec![Ok(Reverted::Gone)],
        Ok(MoveBackOutcome::OtherGroup(finding)) => vec![Ok(Reverted::Changed(finding))],
        Ok(MoveBackOutcome::There { moved, inside, before }) => {
            let mut answers = vec![
                affinity::restore_moved(past, state.task, &state.mask, inside.as_ref(), &before),
                policy::check_moved(past, state.task, state.policy),
            ];
            if moved {
                answers.push(Ok(Reverted::Restored));
            }
            answers
        }
        Err(error) => vec![Err(error)],
    }
}

enum MoveBackOutcome {
    There { moved: bool, inside: Option<CpuSet>, before: CpuSet },
    OtherGroup(Finding),
    Gone,
}

fn move_back(past: &UndoContext<'_>, state: &TaskState) -> Result<MoveBackOutcome, HostError> {
    let (host, task) = (past.host, state.task);
    let Some(cpusets) = &past.cpusets else { return Ok(MoveBackOutcome::Gone) };
    if !tasks::is_alive(host, task)? {
        return Ok(MoveBackOutcome::Gone);
    }
    let Some(current) = cpusets.group_of(host, task.tid)? else { return Ok(MoveBackOutcome::Gone) };
    let Some(before) = tasks::ignore_gone(host.affinity(task.tid))? else {
        return Ok(MoveBackOutcome::Gone);
    };
    let origin = cpusets.nearest(past.host, &past.dir_of(&state.group))?;
    // After a crash during an undo the group may be gone; its steps record its CPUs.
    let inside = past.confinement_of(task);
    if current == origin {
        return Ok(MoveBackOutcome::There { moved: false, inside, before });
    }
    if !past.is_ours(&current) {
        let text =
            format!("{task} is in {current}, where Pinfold did not put it; it was left there");
        return Ok(MoveBackOutcome::OtherGroup(Finding::warning("cgroup cpuset", text)));
    }
    Ok(if move_to(past, cpusets, task.tid, &origin)? {
        MoveBackOutcome::There { moved: true, inside, before }
    } else {
        MoveBackOutcome::Gone
    })
}

/// Moves a task; false if it has ended.
fn move_to(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    tid: Tid,
    group: &str,
) -> Result<bool, HostError> {
    let from = cpusets.group_of(past.host, tid)?;
    // Within a threaded domain a thread is moved alone; out of it only with its process.
    let alone = match from {
        Some(from) => {
            cpusets.is_threaded(past.host, &from)?
                && domain(past, cpusets, &from)? == domain(past, cpusets, group)?
        }
        None => false,
    };
    let path = if alone { paths::cgroup_threads(group) } else { cpusets.members_path(group) };
    Ok(tasks::ignore_gone(past.host.write(&path, tid.to_string().as_bytes()))?.is_some())
}

/// The domain group of a threaded group; the group itself if it is not threaded.
fn domain(past: &UndoContext<'_>, cpusets: &Cpusets, group: &str) -> Result<String, HostError> {
    let mut at = group;
    while cpusets.is_threaded(past.host, at)? {
        at = cpusets.parent(at);
    }
    Ok(at.to_owned())
}

/// Moves all tasks out of a group of Pinfold's. Tasks created in it go to the group that their
/// parent came from. Returns the number of moved tasks.
pub(super) fn evacuate(past: &UndoContext<'_>, group: &str) -> Result<usize, HostError> {
    let Some(cpusets) = past.cpusets.as_ref().filter(|cpusets| cpusets.is_below(group)) else {
        return other_hierarchies::evacuate(past.host, group);
    };
    let mut moved = 0;
    for tid in cpusets.members(past.host, group)? {
        let (home, parent) = original_cgroup(past, cpusets, tid, group)?;
        let Some(before) = tasks::ignore_gone(past.host.affinity(tid))? else { continue };
        let Some(stat) = tasks::stat(past.host, tid)? else { continue };
        if !move_to(past, cpusets, tid, &home)? {
            continue;
        }
        moved += 1;
        if let Some(parent) = parent {
            let inside = past.group_cpus(group);
            // A conflicting change is reported for the recorded parent, not for each child.
            affinity::restore_moved(past, stat.task(), &parent.mask, inside.as_ref(), &before)?;
        }
    }
    Ok(moved)
}

/// Masks of the recorded ancestors of tasks that were created in Pinfold's groups.
pub(super) fn masks_of_created_tasks(
    past: &UndoContext<'_>,
) -> Result<Vec<(TaskId, CpuSet)>, HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(Vec::new()) };
    let mut masks = Vec::new();
    for group in past.own_groups() {
        for member in cpusets.members(past.host, group)? {
            for tid in threads_of_member(past, cpusets, member)? {
                let Some(stat) = tasks::stat(past.host, tid)? else { continue };
                let (_, parent) = original_cgroup(past, cpusets, tid, group)?;
                if let Some(parent) = parent.filter(|parent| parent.task != stat.task()) {
                    masks.push((stat.task(), parent.mask.clone()));
                }
            }
        }
    }
    Ok(masks)
}

/// The threads that one line of a group's member list stands for.
fn threads_of_member(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    member: Tid,
) -> Result<Vec<Tid>, HostError> {
    match cpusets.version() {
        Version::V1 => Ok(vec![member]),
        Version::V2 => tasks::threads_of(past.host, member),
    }
}

/// Original group of a task that is not in the journal: that of its nearest recorded ancestor.
fn original_cgroup<'p>(
    past: &'p UndoContext<'_>,
    cpusets: &Cpusets,
    tid: Tid,
    group: &str,
) -> Result<(String, Option<&'p TaskState>), HostError> {
    let mut at = tid;
    for _ in 0..MAX_ANCESTORS {
        let Some(stat) = tasks::stat(past.host, at)? else { break };
        // The parent of a task that was created in this group was in it. A recorded ancestor that
        // was moved into another group has only adopted the task.
        if let Some(state) = past.state_in(group, stat.task()) {
            return Ok((cpusets.nearest(past.host, &past.dir_of(&state.group))?, Some(state)));
        }
        let Some(process) = tasks::process_of(past.host, at)? else { break };
        at = if process == at { tasks::origin(past.host, &stat)? } else { process };
        if at.0 == 0 {
            break;
        }
    }
    let parent = cpusets.parent(group);
    let inner = cpusets.version() == Version::V2 && !cpusets.is_real_root(past.host, parent);
    if !inner {
        return Ok((cpusets.nearest(past.host, parent)?, None));
    }
    // Version 2 does not allow processes in groups that have children with controllers.
    let home = match past.origin_of_members(group) {
        Some(origin) => Some(origin),
        None => outer_group(past, cpusets, tid)?,
    };
    Ok((cpusets.nearest(past.host, home.as_deref().unwrap_or(parent))?, None))
}

/// The group of the nearest ancestor that is not in one of Pinfold's groups: that of Pinfold
/// itself, for a load that it started directly in its group.
fn outer_group(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    tid: Tid,
) -> Result<Option<String>, HostError> {
    let mut at = tid;
    for _ in 0..MAX_ANCESTORS {
        let Some(stat) = tasks::stat(past.host, at)? else { break };
        match cpusets.group_of(past.host, at)? {
            Some(group) if !past.is_ours(&group) => return Ok(Some(group)),
            Some(_) | None => at = tasks::origin(past.host, &stat)?,
        }
    }
    cpusets.own_group(past.host)
}

fn is_invalid(error: &HostError) -> bool {
    let HostError::File { source, .. } = error else { return false };
    source.kind() == std::io::ErrorKind::InvalidInput
}

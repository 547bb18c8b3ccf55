//! Members of groups in hierarchies other than that of cpuset: `cpu`, `freezer` of version 1, and
//! version 2 mounted alongside them.
//!
//! These do not narrow a mask, so a member is only moved: a task that a step moved in returns to
//! its former group, every other task goes to the parent group.

use std::collections::BTreeSet;

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::{TaskId, TaskState, Tid};

use super::{ReadBack, Reverted};
use crate::cpusets;
use crate::tasks;

/// The file that lists the members of a group and through which tasks join it.
fn file_of(host: &dyn Host, group: &str) -> Result<String, HostError> {
    if host.exists(&paths::cgroup_tasks(group)) {
        return Ok("tasks".to_owned());
    }
    let kind = tasks::ignore_gone(host.read_text(&paths::cgroup_type(group)))?;
    let is_threaded = kind.is_some_and(|kind| kind.trim() == "threaded");
    Ok(if is_threaded { cpusets::THREADS_FILE } else { "cgroup.procs" }.to_owned())
}

fn members(host: &dyn Host, group: &str, file: &str) -> Result<BTreeSet<Tid>, HostError> {
    let path = paths::cgroup_file(group, file);
    let text = tasks::ignore_gone(host.read_text(&path))?.unwrap_or_default();
    Ok(text.lines().filter_map(|line| line.trim().parse().ok().map(Tid)).collect())
}

/// Moves all members to the parent group. Returns the number of moved members.
pub(super) fn evacuate(host: &dyn HostMut, group: &str) -> Result<usize, HostError> {
    let Some((parent, _)) = group.rsplit_once('/') else { return Ok(0) };
    let file = file_of(host, group)?;
    let target = paths::cgroup_file(parent, &file);
    let mut moved = 0;
    for tid in members(host, group, &file)? {
        let written = host.write(&target, tid.to_string().as_bytes());
        moved += usize::from(tasks::ignore_gone(written)?.is_some());
    }
    Ok(moved)
}

/// Compares the members of a group with the moved tasks.
pub(super) fn verify(
    host: &dyn Host,
    group: &str,
    moved: &[TaskId],
) -> Result<ReadBack, HostError> {
    let inside = members(host, group, &file_of(host, group)?)?;
    for task in moved {
        if !inside.contains(&task.tid) && tasks::is_alive(host, *task)? {
            return Ok(ReadBack::Other {
                wanted: format!("{task} in {group}"),
                found: format!("{task} elsewhere"),
            });
        }
    }
    Ok(ReadBack::AsAsked)
}

/// Moves a task back that a step had moved into a group. A task that another program has moved on
/// stays there.
pub(super) fn revert(
    host: &dyn HostMut,
    group: &str,
    mount: &str,
    state: &TaskState,
) -> Result<Reverted, HostError> {
    if !tasks::is_alive(host, state.task)? {
        return Ok(Reverted::Gone);
    }
    tasks::confirm_missing(host, group)?;
    let file = file_of(host, group)?;
    if !members(host, group, &file)?.contains(&state.task.tid) {
        return Ok(Reverted::Nothing);
    }
    let home = format!("{}{}", mount.trim_end_matches('/'), state.group.trim_end_matches('/'));
    let home = if host.exists(&home) { home } else { mount.to_owned() };
    let written =
        host.write(&paths::cgroup_file(&home, &file), state.task.tid.to_string().as_bytes());
    Ok(tasks::ignore_gone(written)?.map_or(Reverted::Gone, |()| Reverted::Restored))
}

/// True if a mount is not that of the cpuset hierarchy.
pub(super) fn is_elsewhere(cpusets: Option<&cpusets::Cpusets>, mount: &str) -> bool {
    cpusets.is_none_or(|cpusets| cpusets.root() != mount)
}

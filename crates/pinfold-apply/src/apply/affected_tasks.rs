//! Masks of tasks that no step names but that a kernel before 6.2 changes together with a group.
//!
//! On such a kernel, writing `cpuset.cpus` of a group or enabling the controller for it gives every
//! task in it the whole new set, and masks that `taskset` had set are lost. Those masks are
//! journalled before, and undo restores them.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{Change, CpuSet, Step, TaskId, Undo};

use crate::cpusets::{Cpusets, Hierarchy};
use crate::tasks;

/// Masks that differ from their group's set, in all groups that these steps change.
pub(crate) fn masks(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    steps: &[Step],
) -> Result<Vec<(TaskId, CpuSet)>, HostError> {
    let Some(cpusets) = hierarchy.get()? else { return Ok(Vec::new()) };
    let mut masks = Vec::new();
    for step in steps {
        // A group that Pinfold makes has a different undo and no tasks yet.
        if let (Change::WriteFile { path, .. }, Undo::WriteFile { .. }) = (&step.change, &step.undo)
            && let Some((group, _)) = path.rsplit_once('/')
        {
            let name = path.rsplit('/').next();
            let group = match name {
                // A partition takes CPUs from all groups that share its parent.
                Some("cpuset.cpus.partition") => cpusets.parent(group),
                // A CPU that goes online or offline changes every group.
                Some("online" | "control") => cpusets.root(),
                Some(_) | None => group,
            };
            if host.exists(&paths::cgroup_procs(group)) {
                collect(host, cpusets, group, &mut masks)?;
            }
        }
    }
    Ok(masks)
}

fn collect(
    host: &dyn Host,
    cpusets: &Cpusets,
    group: &str,
    masks: &mut Vec<(TaskId, CpuSet)>,
) -> Result<(), HostError> {
    let whole = cpusets.effective(host, group)?;
    for member in cpusets.members(host, group)? {
        for tid in tasks::threads_of(host, member)? {
            let Some(mask) = tasks::ignore_gone(host.affinity(tid))? else { continue };
            let Some(stat) = tasks::stat(host, tid)? else { continue };
            let task = stat.task();
            if mask != whole && !stat.is_unmovable() && !masks.iter().any(|(at, _)| *at == task) {
                masks.push((task, mask));
            }
        }
    }
    for child in cpusets.children(host, group)? {
        collect(host, cpusets, &child, masks)?;
    }
    Ok(())
}

//! Masks of tasks that a step does not name but a kernel before 6.2 changes with it.
//!
//! There, writing `cpuset.cpus` of a group or switching the controller on for it gives
//! every task in it the whole new set, and what `taskset` had asked for is lost. Those masks
//! are noted in the journal before, and undo puts them back.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{Change, CpuSet, Step, TaskId, Undo};

use crate::cpusets::{Cpusets, Hierarchy};
use crate::tasks;

/// Masks that are not the whole of their group, in all groups that these steps change.
pub(super) fn masks(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    steps: &[Step],
) -> Result<Vec<(TaskId, CpuSet)>, HostError> {
    let Some(cpusets) = hierarchy.get()? else { return Ok(Vec::new()) };
    let mut masks = Vec::new();
    for step in steps {
        // A group of ours has an undo of another kind, and nobody in it yet.
        if let (Change::WriteFile { path, .. }, Undo::WriteFile { .. }) = (&step.change, &step.undo)
            && let Some((group, _)) = path.rsplit_once('/')
        {
            let name = path.rsplit('/').next();
            let group = match name {
                // A partition takes PUs from all that share the group above it.
                Some("cpuset.cpus.partition") => cpusets.parent(group),
                // A PU that comes or goes changes every group.
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
            let Some(mask) = tasks::unless_gone(host.affinity(tid))? else { continue };
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

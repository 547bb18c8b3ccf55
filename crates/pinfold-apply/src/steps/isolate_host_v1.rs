//! Isolation scope `host` on cgroup version 1.
//!
//! ```text
//! /                 the machine stays here, with all CPUs
//! ├─ pinfold-…      cpus = housekeeping; every other movable task of the root
//! └─ containers     cpus = own ∩ housekeeping, deepest first; also the CPUs to which another
//!                   placement has pinned tasks of the group
//! ```
//! A child's CPUs must be a subset of its parent's, so children shrink before and grow after their
//! parents. If the machine is in its own group, each group on the path to it is treated like the
//! root. Processes that fork while the lists are read are found when the steps are planned again.

use std::collections::BTreeSet;

use pinfold_host::paths;
use pinfold_model::{Change, CpuSet, Undo};

use super::draft::{Draft, all_of};
use crate::actuators::GROUP_PREFIX;
use crate::cpusets::{self, Cpusets};
use crate::error::ApplyError;

const REASON: &str = "every movable task stays on the host's CPUs";

pub(super) fn confine(draft: &mut Draft<'_>) -> Result<(), ApplyError> {
    let cpusets = draft.cpusets()??;
    let kept = groups_of_vm(draft, cpusets)?;
    for group in &kept {
        if cpusets.effective(draft.state, group)?.is_subset(&draft.plan.housekeeping) {
            continue;
        }
        move_members(draft, cpusets, group)?;
        for child in cpusets.children(draft.state, group)? {
            let is_ours = child.rsplit('/').next() == Some(draft.name.as_str());
            if !kept.contains(&child) && !is_ours {
                shrink_tree(draft, cpusets, &child)?;
            }
        }
    }
    Ok(())
}

/// The groups that contain threads of the machine, and all their ancestors; parents first.
pub(super) fn groups_of_vm(
    draft: &Draft<'_>,
    cpusets: &Cpusets,
) -> Result<BTreeSet<String>, ApplyError> {
    let mut groups = BTreeSet::new();
    for tid in &draft.vm_tids {
        if let Some(group) = cpusets.group_of(draft.state, *tid)? {
            groups.extend(cpusets.lineage(&group));
        }
    }
    Ok(groups)
}

fn move_members(draft: &mut Draft<'_>, cpusets: &Cpusets, group: &str) -> Result<(), ApplyError> {
    let movable = draft.movable(cpusets, cpusets.members(draft.state, group)?)?;
    let mut states = Vec::new();
    for tid in movable {
        states.extend(draft.state.task(cpusets, tid)?);
    }
    let name = draft.name.clone();
    // The list of an existing group may be that of an earlier plan.
    if states.is_empty() && !draft.state.exists(&paths::cgroup_file(group, &name)) {
        return Ok(());
    }
    let cpus = draft.plan.housekeeping.intersection(&cpusets.effective(draft.state, group)?);
    if cpus.is_empty() {
        draft.left(group, "it has no housekeeping CPU");
        return Ok(());
    }
    let ours = draft.group(cpusets, group, &name, Some(&cpus), REASON)?;
    if states.is_empty() {
        return Ok(());
    }
    let file = cpusets.members_file().to_owned();
    let tasks = states.iter().map(|state| state.task).collect();
    draft.step(
        Change::MoveTasks { group: ours, file: file.clone(), tasks },
        Undo::MoveTasks { mount: cpusets.root().to_owned(), file, tasks: states },
        REASON,
    );
    Ok(())
}

/// Shrinks a group and those below it, the lowest first. False if the group keeps CPUs of the
/// machine, because it has no other CPUs, or because a group below it has none and must remain a
/// subset. The tasks of such a group are moved instead, as for a group on the path to the machine.
fn shrink_tree(draft: &mut Draft<'_>, cpusets: &Cpusets, group: &str) -> Result<bool, ApplyError> {
    let mut confined = true;
    for child in cpusets.children(draft.state, group)? {
        confined &= shrink_tree(draft, cpusets, &child)?;
    }
    let path = paths::cpuset_cpus(group);
    let original = draft.state.required(&path)?;
    let own = cpusets::parse(&path, &original)?;
    let reserved = draft.reserved(cpusets, group)?;
    let allowed = draft.plan.housekeeping.union(&reserved);
    let cpus: CpuSet = own.intersection(&allowed);
    if cpus == own {
        return Ok(true);
    }
    if cpus.is_empty() {
        let whose = if group.contains(GROUP_PREFIX) { "it is Pinfold's and " } else { "it " };
        draft.left(group, &format!("{whose}has no housekeeping CPU"));
        return Ok(false);
    }
    if !confined {
        move_members(draft, cpusets, group)?;
        return Ok(false);
    }
    let masks = if reserved.is_empty() { Vec::new() } else { draft.overwritten(cpusets, group)? };
    // Before and after the list: the last undo of a mask follows that of the list.
    draft.keep_masks(&masks, &all_of(&masks));
    draft.shrink(group, &cpus, original);
    draft.keep_masks(&masks, &cpus);
    Ok(true)
}

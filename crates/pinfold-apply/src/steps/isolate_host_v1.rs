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

use super::step_builder::{StepBuilder, all_of};
use crate::actuators::GROUP_PREFIX;
use crate::cpusets::{self, Cpusets};
use crate::error::ApplyError;

const REASON: &str = "every movable task stays on the host's CPUs";

pub(super) fn confine(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let cpusets = builder.cpusets()??;
    let kept = groups_of_vm(builder, cpusets)?;
    for group in &kept {
        if cpusets.effective(builder.state, group)?.is_subset(&builder.plan.housekeeping) {
            continue;
        }
        move_members(builder, cpusets, group)?;
        for child in cpusets.children(builder.state, group)? {
            let is_ours = child.rsplit('/').next() == Some(builder.name.as_str());
            if !kept.contains(&child) && !is_ours {
                shrink_tree(builder, cpusets, &child)?;
            }
        }
    }
    Ok(())
}

/// The groups that contain threads of the machine, and all their ancestors; parents first.
pub(super) fn groups_of_vm(
    builder: &StepBuilder<'_>,
    cpusets: &Cpusets,
) -> Result<BTreeSet<String>, ApplyError> {
    let mut groups = BTreeSet::new();
    for tid in &builder.vm_tids {
        if let Some(group) = cpusets.group_of(builder.state, *tid)? {
            groups.extend(cpusets.lineage(&group));
        }
    }
    Ok(groups)
}

fn move_members(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    group: &str,
) -> Result<(), ApplyError> {
    let movable = builder.movable(cpusets, cpusets.members(builder.state, group)?)?;
    let mut states = Vec::new();
    for tid in movable {
        states.extend(builder.state.task(cpusets, tid)?);
    }
    let name = builder.name.clone();
    // The list of an existing group may be that of an earlier plan.
    if states.is_empty() && !builder.state.exists(&paths::cgroup_file(group, &name)) {
        return Ok(());
    }
    let cpus = builder.plan.housekeeping.intersection(&cpusets.effective(builder.state, group)?);
    if cpus.is_empty() {
        builder.report_left(group, "it has no housekeeping CPU");
        return Ok(());
    }
    let ours = paths::cgroup_file(group, &name);
    builder.group(cpusets, &ours, Some(&cpus), REASON)?;
    if states.is_empty() {
        return Ok(());
    }
    let file = cpusets.members_file().to_owned();
    let tasks = states.iter().map(|state| state.task).collect();
    builder.step(
        Change::MoveTasks { group: ours, file: file.clone(), tasks },
        Undo::MoveTasks { mount: cpusets.root().to_owned(), file, tasks: states },
        REASON,
    );
    Ok(())
}

/// Shrinks a group and those below it, the lowest first. False if the group keeps CPUs of the
/// machine, because it has no other CPUs, or because a group below it has none and must remain a
/// subset. The tasks of such a group are moved instead, as for a group on the path to the machine.
fn shrink_tree(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    group: &str,
) -> Result<bool, ApplyError> {
    let mut confined = true;
    for child in cpusets.children(builder.state, group)? {
        confined &= shrink_tree(builder, cpusets, &child)?;
    }
    let path = paths::cpuset_cpus(group);
    let original = builder.state.read_required(&path)?;
    let own = cpusets::parse(&path, &original)?;
    let reserved = builder.reserved_cpus(cpusets, group)?;
    let allowed = builder.plan.housekeeping.union(&reserved);
    let cpus: CpuSet = own.intersection(&allowed);
    if cpus == own {
        return Ok(true);
    }
    if cpus.is_empty() {
        let whose = if group.contains(GROUP_PREFIX) { "it is Pinfold's and " } else { "it " };
        builder.report_left(group, &format!("{whose}has no housekeeping CPU"));
        return Ok(false);
    }
    if !confined {
        move_members(builder, cpusets, group)?;
        return Ok(false);
    }
    let masks =
        if reserved.is_empty() { Vec::new() } else { builder.overwritten(cpusets, group)? };
    // Before and after the list: the last undo of a mask follows that of the list.
    builder.keep_masks(&masks, &all_of(&masks));
    builder.shrink(group, &cpus, original);
    builder.keep_masks(&masks, &cpus);
    Ok(true)
}

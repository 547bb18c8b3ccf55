//! Isolation scope `host` on cgroup version 2.
//!
//! ```text
//! /                   ancestors of the machine's group are descended,
//! ├─ machine.slice    with the controller switched on for their children
//! │  ├─ vm1.scope     the machine: untouched
//! │  └─ vm2.scope     cpus = housekeeping, and those to which another placement has pinned it
//! ├─ system.slice     cpus = housekeeping (all below it inherit)
//! └─ pinfold-…        movable tasks that were in the root itself
//! ```
//! If systemd manages the tree, the list of a unit's group is also set at the unit
//! (`AllowedCPUs=`), because systemd would otherwise overwrite it.
//!
//! A machine that shares its group with other tasks gets a group of its own next to it
//! (`pinfold-…-vm`), as a whole process. Undo writes the original bytes, which are often empty:
//! that means "inherit", which is different from the list that was effective.

use std::collections::BTreeSet;

use pinfold_host::paths;
use pinfold_model::tunables::partition;
use pinfold_model::{Change, Finding, Undo};

use super::isolate_host_v1::groups_of_vm;
use super::step_builder::{StepBuilder, all_of};
use crate::actuators;
use crate::cpusets::{self, Cpusets};
use crate::error::ApplyError;

const REASON: &str = "every movable task stays on the host's CPUs";
/// The first kernel that accepts an empty list for a group with tasks.
const CLEARS_POPULATED: (u32, u32) = (7, 0);
const OWN_GROUP: &str = "the process shares its group with others, which are to be excluded";

pub(super) fn confine(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let cpusets = builder.cpusets()??;
    let root = cpusets.root().to_owned();
    if cpusets.effective(builder.state, &root)?.is_subset(&builder.plan.housekeeping) {
        return Ok(());
    }
    let kept = own_group(builder, cpusets)?;
    for group in &kept {
        for child in cpusets.children(builder.state, group)? {
            let name = child.rsplit('/').next();
            let is_ours = name.is_some_and(|name| name.starts_with(builder.name.as_str()));
            if !kept.contains(&child) && !is_ours {
                shrink(builder, cpusets, group, &child)?;
            }
        }
        if cpusets.is_real_root(builder.state, group) {
            move_members(builder, cpusets, group)?;
        }
    }
    Ok(())
}

/// Ensures that the machine has its own group. Returns the groups that are not to be limited: that
/// one and all above it, parents first.
fn own_group(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
) -> Result<BTreeSet<String>, ApplyError> {
    let mut kept = groups_of_vm(builder, cpusets)?;
    let Some(current) = cpusets.group_of(builder.state, builder.vm.tid)? else { return Ok(kept) };
    let name = format!("{}-vm", builder.name);
    // A partition is made directly below the root, where Linux 6.1 supports it.
    if current == cpusets.root() && builder.plan.tuning.has(&partition::TUNABLE) {
        return Ok(kept);
    }
    let in_own = current.rsplit('/').next() == Some(name.as_str());
    // Before Linux 6.4 its vhost threads are separate processes in the same group.
    if in_own {
        // A plan before this one made it, and the partition is better made without it.
        let is_replaced = cpusets.parent(&current) == cpusets.root()
            && builder.plan.tuning.has(&partition::TUNABLE);
        if !is_replaced {
            builder.needs(&current);
        }
        return Ok(kept);
    }
    let shared = current == cpusets.root()
        || cpusets
            .members(builder.state, &current)?
            .iter()
            .any(|tid: &pinfold_model::Tid| !builder.vm_tids.contains(tid));
    if !shared {
        return Ok(kept);
    }
    let parent = cpusets.parent(&current).to_owned();
    builder.enable(cpusets, &parent, OWN_GROUP)?;
    let group = paths::cgroup_file(&parent, &name);
    builder.group(cpusets, &group, None, OWN_GROUP)?;
    let file = cpusets.members_file().to_owned();
    let states = builder.states_of(cpusets, &[builder.vm.tid])?;
    builder.step(
        Change::MoveTasks { group: group.clone(), file: file.clone(), tasks: vec![builder.vm] },
        Undo::MoveTasks { mount: cpusets.root().to_owned(), file, tasks: states },
        OWN_GROUP,
    );
    if current != cpusets.root() {
        kept.remove(&current);
    }
    kept.insert(group);
    Ok(kept)
}

fn shrink(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    parent: &str,
    group: &str,
) -> Result<(), ApplyError> {
    let reserved = builder.reserved_cpus(cpusets, group)?;
    let allowed = builder.plan.housekeeping.union(&reserved);
    let path = paths::cpuset_cpus(group);
    // The file does not exist before the controller is enabled, and is empty then.
    let original = builder.state.file(&path)?.unwrap_or_else(|| b"\n".to_vec());
    let own = cpusets::parse(&path, &original)?;
    if !own.is_empty() && own.is_subset(&allowed) {
        return Ok(());
    }
    let cpus = if own.is_empty() { allowed } else { own.intersection(&allowed) };
    // If the list and the parent's CPUs are disjoint, the kernel treats it as "inherit" without an
    // error.
    if cpus.is_disjoint(&cpusets.effective(builder.state, parent)?) {
        builder.report_left(group, "it has no housekeeping CPU");
        return Ok(());
    }
    if is_partition(builder, group)? {
        builder.report_left(group, "it is a partition that Pinfold did not create");
        return Ok(());
    }
    report_undo(builder, cpusets, parent, group, &original)?;
    builder.enable(cpusets, parent, REASON)?;
    let masks =
        if reserved.is_empty() { Vec::new() } else { builder.overwritten(cpusets, group)? };
    // Before and after the list: the last undo of a mask follows that of the list.
    builder.keep_masks(&masks, &all_of(&masks));
    builder.shrink(group, &cpus, original);
    builder.unit_list(group, &cpus)?;
    builder.keep_masks(&masks, &cpus);
    Ok(())
}

/// Reports before the change if undo cannot make a list empty again.
fn report_undo(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    parent: &str,
    group: &str,
    original: &[u8],
) -> Result<(), ApplyError> {
    let was_on = builder.state.file(&paths::cpuset_cpus(group))?.is_some();
    let release = builder.state.release()?;
    if !was_on || !original.trim_ascii().is_empty() || release >= CLEARS_POPULATED {
        return Ok(());
    }
    // When the steps are planned again, Pinfold's own values are found.
    let why =
        match actuators::obstacle(builder.state, cpusets, parent, &|_: &str, value: &[u8]| {
            Ok(value.trim_ascii() == builder.plan.housekeeping.to_string().as_bytes())
        })? {
            Some(why) => why,
            None if release < cpusets::MASKS_SURVIVE => {
                "its tasks would lose their masks".to_owned()
            }
            None => return Ok(()),
        };
    let text = format!(
        "this kernel will not accept an empty list for {group} again while it has tasks, and \
         {why}: undo will list all CPUs there instead, which has the same effect"
    );
    builder.add_finding(Finding::note("cgroup cpuset", text));
    Ok(())
}

fn is_partition(builder: &StepBuilder<'_>, group: &str) -> Result<bool, ApplyError> {
    let shown = builder.state.file(&paths::cpuset_partition(group))?;
    Ok(shown.is_some_and(|shown| shown.trim_ascii() != b"member"))
}

fn move_members(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    root: &str,
) -> Result<(), ApplyError> {
    let movable = builder.movable(cpusets, cpusets.members(builder.state, root)?)?;
    let states = builder.states_of(cpusets, &movable)?;
    let name = builder.name.clone();
    // The list of an existing group may be that of an earlier plan.
    if states.is_empty() && !builder.state.exists(&paths::cgroup_file(root, &name)) {
        return Ok(());
    }
    let cpus = builder.plan.housekeeping.intersection(&cpusets.effective(builder.state, root)?);
    if cpus.is_empty() {
        let text = format!("{root} has no housekeeping CPU; its tasks stay where they are");
        builder.add_finding(Finding::warning("isolation", text));
        return Ok(());
    }
    builder.enable(cpusets, root, REASON)?;
    let group = paths::cgroup_file(root, &name);
    builder.group(cpusets, &group, Some(&cpus), REASON)?;
    if states.is_empty() {
        return Ok(());
    }
    let leaders = states.iter().map(|state| state.task).filter(|task| movable.contains(&task.tid));
    let file = cpusets.members_file().to_owned();
    let change = Change::MoveTasks { group, file: file.clone(), tasks: leaders.collect() };
    builder.step(
        change,
        Undo::MoveTasks { mount: cpusets.root().to_owned(), file, tasks: states },
        REASON,
    );
    Ok(())
}

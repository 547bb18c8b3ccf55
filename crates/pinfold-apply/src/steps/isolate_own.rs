//! Isolation scope `own`: only processes that Pinfold started are excluded.
//!
//! The loads are moved into a Pinfold group with the housekeeping CPUs, so that their children are
//! excluded too. On version 1 it is made below their present group; on version 2 next to it,
//! because a group with processes cannot have children with controllers. If no group can be made,
//! their masks are set instead; children inherit them but may change them.

use pinfold_host::mountinfo::Version;
use pinfold_host::{HostError, paths};
use pinfold_model::{Change, Finding, Tid, Undo};

use super::step_builder::{ManagerQuery, StepBuilder};
use crate::cpusets::Cpusets;
use crate::error::{ApplyError, Refusal};

const REASON: &str = "Pinfold's own loads stay on the host's CPUs";

pub(super) fn confine(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let mut own = Vec::new();
    for task in &builder.target.own {
        if builder.state.is_alive(*task)? {
            own.push(task.tid);
        }
    }
    match place_for_group(builder, &own)? {
        Ok((cpusets, parent)) => by_group(builder, cpusets, &parent, &own),
        Err(refusal) => {
            let text = format!("{refusal}; the masks of the loads exclude these CPUs instead");
            builder.add_finding(Finding::note("isolation", text));
            by_masks(builder, &own)
        }
    }
}

/// The group below which Pinfold's group can be made, or the reason why it cannot.
fn place_for_group<'a>(
    builder: &StepBuilder<'a>,
    own: &[Tid],
) -> Result<Result<(&'a Cpusets, String), Refusal>, HostError> {
    let cpusets = match builder.cpusets()? {
        Ok(cpusets) => cpusets,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let current = match own.first() {
        Some(tid) => cpusets.group_of(builder.state, *tid)?,
        None => cpusets.own_group(builder.state)?,
    };
    let current = current.unwrap_or_else(|| cpusets.root().to_owned());
    let is_ours = current.rsplit('/').next() == Some(builder.name.as_str());
    let parent = match cpusets.version() {
        Version::V1 if !is_ours => current,
        Version::V1 | Version::V2 => cpusets.parent(&current).to_owned(),
    };
    let is_full = cpusets.version() == Version::V2
        && !cpusets.is_real_root(builder.state, &parent)
        && !cpusets.members(builder.state, &parent)?.is_empty();
    Ok(if is_full { Err(Refusal::NoRoom { group: parent }) } else { Ok((cpusets, parent)) })
}

fn by_group(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    parent: &str,
    own: &[Tid],
) -> Result<(), ApplyError> {
    let allowed = cpusets.effective(builder.state, parent)?;
    let cpus = builder.plan.housekeeping.intersection(&allowed);
    if allowed.is_subset(&builder.plan.housekeeping) {
        return Ok(());
    }
    if cpus.is_empty() {
        builder.report_left(parent, "it has no housekeeping CPU");
        return Ok(());
    }
    if cpusets.version() == Version::V2 {
        builder.enable(cpusets, parent, REASON)?;
    }
    let name = builder.name.clone();
    let group = paths::cgroup_file(parent, &name);
    builder.group(cpusets, &group, Some(&cpus), REASON)?;
    let mut outside = Vec::new();
    for pid in own {
        for tid in builder.state.threads_of(*pid)? {
            if cpusets.group_of(builder.state, tid)?.is_some_and(|at| at != group) {
                outside.push(*pid);
                break;
            }
        }
    }
    if outside.is_empty() {
        return Ok(());
    }
    let states = builder.states_of(cpusets, &outside)?;
    let leaders = states.iter().map(|state| state.task).filter(|task| outside.contains(&task.tid));
    let change = Change::MoveTasks {
        file: file_name(&paths::cgroup_procs(&group)),
        group,
        tasks: leaders.collect(),
    };
    let undo = Undo::MoveTasks {
        mount: cpusets.root().to_owned(),
        file: cpusets.members_file().to_owned(),
        tasks: states,
    };
    builder.step(change, undo, REASON);
    Ok(())
}

fn by_masks(builder: &mut StepBuilder<'_>, own: &[Tid]) -> Result<(), ApplyError> {
    for pid in own {
        for tid in builder.state.threads_of(*pid)? {
            let Some(stat) = builder.state.stat(tid)? else { continue };
            let Some(now) = builder.state.mask(tid)? else { continue };
            let Some(allowed) = builder.state.allowed_cpus(tid)? else {
                continue;
            };
            let mask = builder.plan.housekeeping.intersection(&allowed);
            if mask.is_empty() {
                builder.report_left(&stat.task().to_string(), "its cpuset has no housekeeping CPU");
            } else if !now.is_subset(&mask) {
                builder.affinity(stat.task(), &mask, ManagerQuery::Always, || REASON.to_owned())?;
            }
        }
    }
    Ok(())
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

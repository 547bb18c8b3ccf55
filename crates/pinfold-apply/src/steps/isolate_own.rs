//! Isolation scope `own`: only processes that Pinfold started are excluded.
//!
//! The loads are moved into a Pinfold group with the housekeeping CPUs, so that their children are
//! excluded too. On version 1 it is made below their present group; on version 2 next to it,
//! because a group with processes cannot have children with controllers. If no group can be made,
//! their masks are set instead; children inherit them but may change them.

use pinfold_host::mountinfo::Version;
use pinfold_host::{HostError, paths};
use pinfold_model::{Change, Finding, Tid, Undo};

use super::draft::Draft;
use crate::cpusets::Cpusets;
use crate::error::{ApplyError, Refusal};

const REASON: &str = "Pinfold's own loads stay on the host's CPUs";

pub(super) fn confine(draft: &mut Draft<'_>) -> Result<(), ApplyError> {
    let mut own = Vec::new();
    for task in &draft.target.own {
        if draft.state.is_alive(*task)? {
            own.push(task.tid);
        }
    }
    match place_for_group(draft, &own)? {
        Ok((cpusets, parent)) => by_group(draft, cpusets, &parent, &own),
        Err(refusal) => {
            let text = format!("{refusal}; the masks of the loads exclude these CPUs instead");
            draft.find(Finding::note("isolation", text));
            by_masks(draft, &own)
        }
    }
}

/// The group below which Pinfold's group can be made, or the reason why it cannot.
fn place_for_group<'a>(
    draft: &Draft<'a>,
    own: &[Tid],
) -> Result<Result<(&'a Cpusets, String), Refusal>, HostError> {
    let cpusets = match draft.cpusets()? {
        Ok(cpusets) => cpusets,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let current = match own.first() {
        Some(tid) => cpusets.group_of(draft.state, *tid)?,
        None => cpusets.own_group(draft.state)?,
    };
    let current = current.unwrap_or_else(|| cpusets.root().to_owned());
    let is_ours = current.rsplit('/').next() == Some(draft.name.as_str());
    let parent = match cpusets.version() {
        Version::V1 if !is_ours => current,
        Version::V1 | Version::V2 => cpusets.parent(&current).to_owned(),
    };
    let is_full = cpusets.version() == Version::V2
        && !cpusets.is_real_root(draft.state, &parent)
        && !cpusets.members(draft.state, &parent)?.is_empty();
    Ok(if is_full { Err(Refusal::NoRoom { group: parent }) } else { Ok((cpusets, parent)) })
}

fn by_group(
    draft: &mut Draft<'_>,
    cpusets: &Cpusets,
    parent: &str,
    own: &[Tid],
) -> Result<(), ApplyError> {
    let allowed = cpusets.effective(draft.state, parent)?;
    let cpus = draft.plan.housekeeping.intersection(&allowed);
    if allowed.is_subset(&draft.plan.housekeeping) {
        return Ok(());
    }
    if cpus.is_empty() {
        draft.left(parent, "it has no housekeeping CPU");
        return Ok(());
    }
    if cpusets.version() == Version::V2 {
        draft.enable(cpusets, parent, REASON)?;
    }
    let name = draft.name.clone();
    let group = draft.group(cpusets, parent, &name, Some(&cpus), REASON)?;
    let mut outside = Vec::new();
    for pid in own {
        for tid in draft.state.threads_of(*pid)? {
            if cpusets.group_of(draft.state, tid)?.is_some_and(|at| at != group) {
                outside.push(*pid);
                break;
            }
        }
    }
    if outside.is_empty() {
        return Ok(());
    }
    let states = draft.states_of(cpusets, &outside)?;
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
    draft.step(change, undo, REASON);
    Ok(())
}

fn by_masks(draft: &mut Draft<'_>, own: &[Tid]) -> Result<(), ApplyError> {
    for pid in own {
        for tid in draft.state.threads_of(*pid)? {
            let Some(stat) = draft.state.stat(tid)? else { continue };
            let Some(now) = draft.state.mask(tid)? else { continue };
            let Some(allowed) = draft.state.allowed(tid)? else {
                continue;
            };
            let mask = draft.plan.housekeeping.intersection(&allowed);
            if mask.is_empty() {
                draft.left(&stat.task().to_string(), "its cpuset has no housekeeping CPU");
            } else if !now.is_subset(&mask) {
                draft.affinity(stat.task(), &mask, || REASON.to_owned())?;
            }
        }
    }
    Ok(())
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

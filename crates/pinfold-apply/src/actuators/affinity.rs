//! A thread's affinity mask: `sched_setaffinity(2)`.
//!
//! The kernel gives the intersection of the mask with the thread's cpuset, and refuses
//! (`EINVAL`) an empty one. Since 6.2 it remembers the mask that was asked for; a thread
//! that never asked follows its cpuset. That cannot be told from outside, so where the
//! original mask was the whole cpuset, undo asks for all possible PUs: the thread then
//! follows its cpuset again.

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::{CpuSet, Finding, TaskId, Tid};

use super::{Reverted, Shown, Taken, UndoContext};
use crate::cpusets::{self, Cpusets, Hierarchy};
use crate::tasks::{self, Seen};

pub(super) fn take(
    host: &dyn HostMut,
    seen: &Seen,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Taken, HostError> {
    if !seen.is_alive(host, task)? {
        return Ok(Taken::Gone);
    }
    let answer = tasks::unless_gone(host.set_affinity(task.tid, mask))?;
    Ok(answer.map_or(Taken::Gone, |()| Taken::Done(Vec::new())))
}

pub(super) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Shown, HostError> {
    let Some(found) = tasks::unless_gone(host.affinity(task.tid))? else { return Ok(Shown::Gone) };
    if found == *mask {
        return Ok(Shown::AsAsked);
    }
    let Some(allowed) = allowed(host, hierarchy.get()?, task.tid)? else {
        return Ok(Shown::Gone);
    };
    if !found.is_empty() && found == mask.intersection(&allowed) {
        return Ok(Shown::Less(narrowed(task, mask, &found)));
    }
    Ok(Shown::Other { wanted: mask.to_string(), found: found.to_string() })
}

/// The finding about a thread whose cpuset has only a part of its PUs.
pub(crate) fn narrowed(task: TaskId, mask: &CpuSet, found: &CpuSet) -> Finding {
    let text = format!("{task} may use only {found} of {mask}, its cpuset has no more");
    Finding::warning("affinity", text)
        .with_hint("widen the cpuset of its group, or plan with --avoid")
}

/// The PUs that a thread can be given at all.
pub(crate) fn allowed(
    host: &dyn Host,
    cpusets: Option<&Cpusets>,
    tid: Tid,
) -> Result<Option<CpuSet>, HostError> {
    match cpusets {
        Some(cpusets) => cpusets.effective_of(host, tid),
        None => cpusets::list(host, &paths::cpu_online()).map(Some),
    }
}

pub(super) fn revert(
    past: &UndoContext<'_>,
    task: TaskId,
    original: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    if now == *original {
        return Ok(Reverted::Nothing);
    }
    if past.wrote_mask(task, &now, &allowed) || (!past.masks_survive && now == allowed) {
        return set(past, task, original, &allowed);
    }
    Ok(Reverted::Changed(changed(task, &now, original)))
}

/// Puts a mask back that a keeper of settings replaced by one of ours or by the whole cpuset.
pub(super) fn restore_kept(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Nothing) };
    if now == *mask || !(now == allowed || past.wrote_mask(task, &now, &allowed)) {
        return Ok(Reverted::Nothing);
    }
    set(past, task, mask, &allowed)
}

/// Puts a bystander's mask back if a change of its cpuset overwrote it.
pub(super) fn restore_overwritten(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    // Anything but the whole cpuset was set by somebody since.
    if now == *mask || now != allowed {
        return Ok(Reverted::Nothing);
    }
    set(past, task, mask, &allowed)
}

/// Puts a moved task's mask back after it was moved back. `inside` is what its group of ours
/// allowed, `before` the mask that it had there.
pub(super) fn restore_moved(
    past: &UndoContext<'_>,
    (task, mask): (TaskId, &CpuSet),
    inside: Option<&CpuSet>,
    before: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    // A mask that a step of its own set is put back by that step's undo.
    if now == *mask || past.wrote_mask(task, &now, &allowed) {
        return Ok(Reverted::Nothing);
    }
    let forced = inside.is_some_and(|inside| {
        let narrowed = mask.intersection(inside);
        [before, &now].iter().any(|seen| *seen == inside || **seen == narrowed)
    });
    // No kernel remembers the mask of its own threads (a kcompactd's node, a handler's PU): the
    // move home gave the whole cpuset, whatever the mask was until then.
    let forgets = !past.masks_survive || is_kernel_thread(past, task)?;
    if forced || (forgets && now == allowed) {
        let set = set(past, task, mask, &allowed)?;
        let may_be_short = matches!(set, Reverted::Restored) && *mask != allowed;
        return if may_be_short { as_it_was_shown(past, task, mask) } else { Ok(set) };
    }
    Ok(Reverted::Changed(changed(task, &now, mask)))
}

/// The kernel shows no PU that is offline in any mask: one of its own threads that may have had it
/// (a node's kcompactd and kswapd) gets what was shown, and that alone from then on.
fn as_it_was_shown(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Reverted, HostError> {
    let stat = tasks::stat(past.host, task.tid)?.filter(|stat| stat.is_kernel_thread());
    let Some(stat) = stat else { return Ok(Reverted::Restored) };
    let present = cpusets::list(past.host, &paths::cpu_present())?;
    let offline = present.difference(&cpusets::list(past.host, &paths::cpu_online())?);
    if offline.is_empty() {
        return Ok(Reverted::Restored);
    }
    let text = format!(
        "the mask of {task} ({}) is {mask} again, as the kernel showed it: whether it had PUs {offline}, which are offline, is not known",
        stat.comm
    );
    let both = mask.union(&offline);
    let hint =
        format!("if it is to have them when they are back: taskset -p -c {both} {}", task.tid);
    Ok(Reverted::Near(Finding::note("affinity", text).with_hint(hint)))
}

fn is_kernel_thread(past: &UndoContext<'_>, task: TaskId) -> Result<bool, HostError> {
    Ok(tasks::stat(past.host, task.tid)?.is_some_and(|stat| stat.is_kernel_thread()))
}

/// Frees a thread that inherited the mask of a placed one.
pub(super) fn release_born(
    past: &UndoContext<'_>,
    task: TaskId,
    main: Tid,
) -> Result<Reverted, HostError> {
    if past.has_mask_of(task) {
        return Ok(Reverted::Nothing);
    }
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    let Some(original) = past.inherited_mask(main, &now) else { return Ok(Reverted::Nothing) };
    // The process itself has this mask for reasons of its own.
    if tasks::unless_gone(past.host.affinity(main))?.is_none_or(|mask| mask == now) {
        return Ok(Reverted::Nothing);
    }
    set(past, task, original, &allowed)
}

/// Mask of a living task, and what its cpuset allows.
fn state(past: &UndoContext<'_>, task: TaskId) -> Result<Option<(CpuSet, CpuSet)>, HostError> {
    if !tasks::is_alive(past.host, task)? {
        return Ok(None);
    }
    let Some(now) = tasks::unless_gone(past.host.affinity(task.tid))? else { return Ok(None) };
    let allowed = allowed(past.host, past.cpusets.as_ref(), task.tid)?;
    Ok(allowed.map(|allowed| (now, allowed)))
}

fn set(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
    allowed: &CpuSet,
) -> Result<Reverted, HostError> {
    let asked = match &past.possible {
        Some(possible) if past.masks_survive && mask == allowed => possible,
        Some(_) | None => mask,
    };
    if tasks::unless_gone(past.host.set_affinity(task.tid, asked))?.is_none() {
        return Ok(Reverted::Gone);
    }
    let Some(now) = tasks::unless_gone(past.host.affinity(task.tid))? else {
        return Ok(Reverted::Gone);
    };
    if now == *mask || now == mask.intersection(allowed) {
        return without_offline(past, task, (mask, &now));
    }
    Err(HostError::Unexpected {
        path: paths::process_status(task.tid),
        why: format!("the mask is {now} after it was set back to {mask}"),
    })
}

/// Before 6.2 no mask is kept with a PU that is offline, and the PU is not in it when it comes
/// back.
fn without_offline(
    past: &UndoContext<'_>,
    task: TaskId,
    (mask, now): (&CpuSet, &CpuSet),
) -> Result<Reverted, HostError> {
    if past.masks_survive || now == mask {
        return Ok(Reverted::Restored);
    }
    let offline = mask.difference(&cpusets::list(past.host, &paths::cpu_online())?);
    if offline.is_empty() {
        return Ok(Reverted::Restored);
    }
    let text =
        format!("the mask of {task} is {now} again, without PUs {offline}, which are offline");
    let hint = format!("when they are back: taskset -p -c {mask} {}", task.tid);
    Ok(Reverted::Near(Finding::note("affinity", text).with_hint(hint)))
}

fn changed(task: TaskId, now: &CpuSet, original: &CpuSet) -> Finding {
    let text = format!(
        "the mask of {task} is {now}, which Pinfold did not set; its original {original} was not put back"
    );
    Finding::warning("affinity", text)
        .with_hint(format!("if that was not intended: taskset -p -c {original} {}", task.tid))
}

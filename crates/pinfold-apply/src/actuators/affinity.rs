//! A thread's affinity mask: `sched_setaffinity(2)`.
//!
//! The kernel applies the intersection of the mask with the thread's cpuset, and refuses (`EINVAL`)
//! an empty one. Since 6.2 it remembers the requested mask; a thread that never requested one
//! follows its cpuset. User space cannot read which of the two is the case. So where the original
//! mask was the whole cpuset, undo requests all possible CPUs: the thread then follows its cpuset
//! again. The original is then all CPUs, so that this is so even if its cpuset was narrower, or a
//! CPU was offline.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, HostMut, paths, proc_status};
use pinfold_model::text::{cpus_text, select_verb};
use pinfold_model::{CpuSet, Finding, TaskId, Tid};

use super::{ChangeOutcome, ReadBack, Reverted, UndoContext};
use crate::cpusets::{self, Cpusets, Hierarchy};
use crate::tasks::{self, LiveThreads};

pub(super) fn apply(
    host: &dyn HostMut,
    seen: &LiveThreads,
    task: TaskId,
    mask: &CpuSet,
) -> Result<ChangeOutcome, HostError> {
    if !seen.is_alive(host, task)? {
        return Ok(ChangeOutcome::Gone);
    }
    let answer = tasks::ignore_gone(host.set_affinity(task.tid, mask))?;
    Ok(answer.map_or(ChangeOutcome::Gone, |()| ChangeOutcome::Done(Vec::new())))
}

pub(super) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<ReadBack, HostError> {
    let Some(found) = tasks::ignore_gone(host.affinity(task.tid))? else {
        return Ok(ReadBack::Gone);
    };
    if found == *mask {
        return Ok(ReadBack::AsAsked);
    }
    let Some(allowed) = allowed_cpus(host, hierarchy.get()?, task.tid)? else {
        return Ok(ReadBack::Gone);
    };
    if !found.is_empty() && found == mask.intersection(&allowed) {
        return Ok(ReadBack::Less(report_narrowed(task, mask, &found)));
    }
    Ok(ReadBack::Other { wanted: mask.to_string(), found: found.to_string() })
}

/// The finding about a thread whose cpuset contains only a part of its planned CPUs.
pub(crate) fn report_narrowed(task: TaskId, mask: &CpuSet, found: &CpuSet) -> Finding {
    let text = format!("{task} may use only {found} of {mask}: its cpuset contains no others");
    Finding::warning("affinity", text)
        .with_hint("widen the cpuset of its group, or plan with --avoid")
}

/// The CPUs that a thread's cpuset allows.
pub(crate) fn allowed_cpus(
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
    let owners = past.pin_of_owner(task);
    if owners.as_ref() == Some(&now) {
        return Ok(Reverted::Changed(report_pinned(task, &now, original)));
    }
    let original = owners.as_ref().unwrap_or(original);
    if past.wrote_mask(task, &now, &allowed)
        || past.has_inherited_mask(task, &now)
        || (!past.masks_survive && now == allowed)
    {
        return set(past, task, original, &allowed);
    }
    Ok(if is_whole(&now, &allowed, original) {
        Reverted::Nothing
    } else {
        Reverted::Changed(report_change(task, &now, original))
    })
}

/// True if a thread has its whole cpuset, as before, with other CPUs offline or in its cpuset.
fn is_whole(now: &CpuSet, allowed: &CpuSet, original: &CpuSet) -> bool {
    now == allowed && allowed.is_subset(original)
}

/// Restores a mask that the managing program replaced by a planned one or by the whole cpuset.
pub(super) fn restore_kept(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Nothing) };
    if now == *mask || !(now == allowed || past.wrote_mask(task, &now, &allowed)) {
        return Ok(Reverted::Nothing);
    }
    let owners = past.pin_of_owner(task);
    if owners.as_ref() == Some(&now) {
        return Ok(Reverted::Nothing);
    }
    let mask = owners.as_ref().unwrap_or(mask);
    set(past, task, mask, &allowed)
}

/// Where the owner has moved a thread.
pub(super) struct OwnerPlace {
    pub(super) mask: CpuSet,
    /// The list of the group by which libvirt pins the thread, if the owner has written to it.
    list: Option<GroupList>,
}

struct GroupList {
    path: String,
    content: Vec<u8>,
}

/// The threads with a mask that nothing in this placement explains, with that mask: their owner
/// moved them. The whole cpuset is the mask of a program that has no pin, unless libvirt has a `pin`
/// and the group another list. If an undo was killed, the managing program may have set the mask
/// since: then the one that was recorded before counts.
pub(super) fn moved_by_owner<'m>(
    past: &UndoContext<'_>,
    masks: impl IntoIterator<Item = &'m (TaskId, CpuSet)>,
    pin: Option<&CpuSet>,
) -> Result<BTreeMap<TaskId, OwnerPlace>, HostError> {
    let mut moved = BTreeMap::new();
    for (task, original) in masks {
        let Some((now, allowed)) = state(past, *task)? else { continue };
        let list = pin.map(|pin| list_of_owner(past, *task, pin)).transpose()?.flatten();
        if list.is_some() && now == allowed {
            moved.insert(*task, OwnerPlace { mask: now, list });
            continue;
        }
        let seen = [Some(&now), past.mask_before_undo(*task)].into_iter().flatten();
        let own = seen.into_iter().find(|mask| {
            let is_explained = *mask == original
                || **mask == allowed
                || past.wrote_mask(*task, mask, &allowed)
                || past.has_inherited_mask(*task, mask);
            !is_explained
        });
        if let Some(own) = own {
            moved.insert(*task, OwnerPlace { mask: own.clone(), list });
        }
    }
    Ok(moved)
}

/// The list of the group by which libvirt pins a thread, if it is not libvirt's pin.
fn list_of_owner(
    past: &UndoContext<'_>,
    task: TaskId,
    pin: &CpuSet,
) -> Result<Option<GroupList>, HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(None) };
    let group = cpusets.pin_group(past.host, task.tid)?;
    let Some(group) = group.filter(|group| group.own != group.machine.intersection(pin)) else {
        return Ok(None);
    };
    let path = paths::cpuset_cpus(&group.path);
    let content = past.host.read(&path)?;
    Ok(Some(GroupList { path, content }))
}

/// Gives a thread the mask again that its owner had given it before the managing program set it.
pub(super) fn leave_to_owner(
    past: &UndoContext<'_>,
    task: TaskId,
    own: &OwnerPlace,
    original: &CpuSet,
) -> Result<Reverted, HostError> {
    if let Some(GroupList { path, content }) = &own.list {
        tasks::ignore_gone(past.host.write(path, content.trim_ascii()))?;
    }
    let finding = match &own.list {
        Some(list) => report_list(list, task, &own.mask, original),
        None => report_change(task, &own.mask, original),
    };
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    if now != own.mask {
        set(past, task, &own.mask, &allowed)?;
    }
    Ok(Reverted::Changed(finding))
}

/// Restores a bystander's mask if a change of its cpuset overwrote it.
pub(super) fn restore_overwritten(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    // Any mask other than the whole cpuset was set by another program since.
    if now == *mask || now != allowed {
        return Ok(Reverted::Nothing);
    }
    set(past, task, mask, &allowed)
}

/// Restores a moved task's mask after it was moved back. `inside` is the cpuset of Pinfold's group,
/// `before` the mask that the task had there.
pub(super) fn restore_moved(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
    inside: Option<&CpuSet>,
    before: &CpuSet,
) -> Result<Reverted, HostError> {
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    // If a separate step set the mask, that step's undo restores it.
    if now == *mask || past.wrote_mask(task, &now, &allowed) {
        return Ok(Reverted::Nothing);
    }
    let forced = inside.is_some_and(|inside| {
        let narrowed = mask.intersection(inside);
        [before, &now].iter().any(|seen| *seen == inside || **seen == narrowed)
    });
    // The kernel does not remember the masks of its own threads (a kcompactd's node, a handler's
    // CPU). Moving such a thread back gives it the whole cpuset, whatever its mask was.
    let forgets = !past.masks_survive || is_kernel_thread(past, task)?;
    if forced || (forgets && now == allowed) {
        let set = set(past, task, mask, &allowed)?;
        let may_be_short = matches!(set, Reverted::Restored) && *mask != allowed;
        return if may_be_short { restore_visible_mask(past, task, mask) } else { Ok(set) };
    }
    Ok(if is_whole(&now, &allowed, mask) {
        Reverted::Nothing
    } else {
        Reverted::Changed(report_change(task, &now, mask))
    })
}

/// The kernel hides offline CPUs in every mask. A kernel thread whose mask may have included such a
/// CPU (a node's kcompactd and kswapd) gets exactly the mask that was visible.
fn restore_visible_mask(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
) -> Result<Reverted, HostError> {
    let stat = tasks::stat(past.host, task.tid)?.filter(|stat| stat.is_kernel_thread());
    let Some(stat) = stat else { return Ok(Reverted::Restored) };
    let present = cpusets::list(past.host, &paths::cpu_present())?;
    let offline = present.difference(&cpusets::list(past.host, &paths::cpu_online())?);
    if offline.is_subset(mask) {
        return Ok(Reverted::Restored);
    }
    let text = format!(
        "the mask of {task} ({}) is restored to {mask}, as the kernel reported it; it may also \
         have contained {}",
        stat.comm,
        offline_text(&offline)
    );
    let both = mask.union(&offline);
    let hint = format!("to include them once they are online: taskset -p -c {both} {}", task.tid);
    Ok(Reverted::Near(Finding::note("affinity", text).with_hint(hint)))
}

fn is_kernel_thread(past: &UndoContext<'_>, task: TaskId) -> Result<bool, HostError> {
    Ok(tasks::stat(past.host, task.tid)?.is_some_and(|stat| stat.is_kernel_thread()))
}

/// Releases a thread that inherited the mask of a placed one.
pub(super) fn release_inherited_mask(
    past: &UndoContext<'_>,
    task: TaskId,
    main: Option<Tid>,
) -> Result<Reverted, HostError> {
    if past.has_mask_of(task) {
        return Ok(Reverted::Nothing);
    }
    let Some((now, allowed)) = state(past, task)? else { return Ok(Reverted::Gone) };
    let Some(original) = past.inherited_mask(main, &now).filter(|original| **original != now)
    else {
        return Ok(Reverted::Nothing);
    };
    // The process itself has this mask, which Pinfold did not set.
    if let Some(main) = main
        && tasks::ignore_gone(past.host.affinity(main))? == Some(now)
    {
        return Ok(Reverted::Nothing);
    }
    set(past, task, original, &allowed)
}

/// Mask of a living task, and the CPUs that its cpuset allows.
fn state(past: &UndoContext<'_>, task: TaskId) -> Result<Option<(CpuSet, CpuSet)>, HostError> {
    if !tasks::is_alive(past.host, task)? {
        return Ok(None);
    }
    let Some(now) = tasks::ignore_gone(past.host.affinity(task.tid))? else { return Ok(None) };
    let allowed = allowed_cpus(past.host, past.cpusets.as_ref(), task.tid)?;
    Ok(allowed.map(|allowed| (now, allowed)))
}

fn set(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
    allowed: &CpuSet,
) -> Result<Reverted, HostError> {
    let asked = match &past.possible {
        Some(possible) if past.masks_survive && allowed.is_subset(mask) => possible,
        Some(_) | None => mask,
    };
    if tasks::ignore_gone(past.host.set_affinity(task.tid, asked))?.is_none() {
        return Ok(Reverted::Gone);
    }
    let Some(now) = tasks::ignore_gone(past.host.affinity(task.tid))? else {
        return Ok(Reverted::Gone);
    };
    if now == *mask || now == mask.intersection(allowed) {
        return without_offline(past, task, mask, &now);
    }
    Err(HostError::Unexpected {
        path: paths::process_status(task.tid),
        why: format!("the mask is {now} after it was restored to {mask}"),
    })
}

/// Before 6.2 the kernel drops an offline CPU from a mask, and does not add it again when the CPU
/// comes online.
fn without_offline(
    past: &UndoContext<'_>,
    task: TaskId,
    mask: &CpuSet,
    now: &CpuSet,
) -> Result<Reverted, HostError> {
    if past.masks_survive || now == mask {
        return Ok(Reverted::Restored);
    }
    let offline = mask.difference(&cpusets::list(past.host, &paths::cpu_online())?);
    if offline.is_empty() {
        return Ok(Reverted::Restored);
    }
    let text =
        format!("the mask of {task} is restored to {now}, without {}", offline_text(&offline));
    let hint = format!("when they are online again: taskset -p -c {mask} {}", task.tid);
    Ok(Reverted::Near(Finding::note("affinity", text).with_hint(hint)))
}

/// `CPU 3, which is offline`, or `CPUs 1-3, which are offline`.
fn offline_text(offline: &CpuSet) -> String {
    let verb = select_verb(offline.len(), "is", "are");
    format!("{}, which {verb} offline", cpus_text(offline))
}

/// The finding about a thread that stays on the CPUs to which its owner pinned it.
fn report_pinned(task: TaskId, now: &CpuSet, original: &CpuSet) -> Finding {
    let text = format!(
        "{task} stays on {now}: libvirt has been given this pin since Pinfold placed the thread; \
         its original {original} was not restored"
    );
    Finding::note("affinity", text)
}

fn report_list(list: &GroupList, task: TaskId, now: &CpuSet, original: &CpuSet) -> Finding {
    let path = &list.path;
    let text = format!(
        "{path} is {now}, which neither Pinfold nor libvirt set, so {task} stays on {now}; its \
         original {original} was not restored"
    );
    Finding::warning("affinity", text).with_hint(format!(
        "if that was not intended: virsh vcpupin, or write {original} to {path}"
    ))
}

fn report_change(task: TaskId, now: &CpuSet, original: &CpuSet) -> Finding {
    let text = format!(
        "the mask of {task} is {now}, which Pinfold did not set; its original {original} was not \
         restored"
    );
    Finding::warning("affinity", text)
        .with_hint(format!("if that was not intended: taskset -p -c {original} {}", task.tid))
}

/// Gives the tasks of a hierarchy without cpusets the CPUs that are offline. The kernel does not
/// change the mask of a task that comes to the root cpuset if its group had the same online CPUs
/// (`cpuset_attach`), and adds no CPU to masks there when it comes online.
pub(super) fn add_offline(past: &UndoContext<'_>, cpusets: &Cpusets) -> Result<(), HostError> {
    let Some(possible) = &past.possible else { return Ok(()) };
    let online = cpusets::list(past.host, &paths::cpu_online())?;
    let mut groups = vec![cpusets.root().to_owned()];
    while let Some(group) = groups.pop().filter(|_| online != *possible) {
        for process in cpusets.members(past.host, &group)? {
            for tid in tasks::threads_of(past.host, process)? {
                if lacks_offline_cpus(past, tid, &online)? {
                    tasks::ignore_gone(past.host.set_affinity(tid, possible))?;
                }
            }
        }
        groups.extend(cpusets.children(past.host, &group)?);
    }
    Ok(())
}

/// True if a task may run on all online CPUs and on no other.
fn lacks_offline_cpus(
    past: &UndoContext<'_>,
    tid: Tid,
    online: &CpuSet,
) -> Result<bool, HostError> {
    let is_movable = tasks::stat(past.host, tid)?.is_some_and(|stat| !stat.is_unmovable());
    let path = paths::process_status(tid);
    let Some(text) = tasks::ignore_gone(past.host.read_text(&path))? else { return Ok(false) };
    let status = proc_status::parse(&text).map_err(|error| error.at(&path))?;
    Ok(is_movable && status.cpus_allowed.as_ref() == Some(online))
}

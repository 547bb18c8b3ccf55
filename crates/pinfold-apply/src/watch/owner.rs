//! Which changes of a thread are its owner's: not those of Pinfold itself, of a reset by the kernel,
//! or of the watchdog of real-time policies.

use std::collections::BTreeSet;

use pinfold_host::{Host, HostError, paths};
use pinfold_model::text::cpus_text;
use pinfold_model::{Change, CpuSet, Finding, Policy, Role, Step, TaskId, Tid, Undo, VnodeKind};

use super::change::{self, present_cpus};
use super::{WatchEvent, Watcher};
use crate::actuators;
use crate::cpusets::{Cpusets, PinGroup, is_pin_group};
use crate::error::ApplyError;
use crate::journal::Record;
use crate::other_placements::first_undo;
use crate::recorded_pins;
use crate::steps::plan_threads;
use crate::tasks::{self, task_of};

/// Time after the creation of a thread in which the program that manages the machine gives it its
/// first mask (ns): libvirt does so after QEMU has reported the vCPU.
const NEW_NS: u64 = 10_000_000_000;

/// True for a change of groups after which the kernel resets masks to the whole cpuset.
pub(super) fn resets_masks(event: &WatchEvent) -> bool {
    let WatchEvent::Groups { what, .. } = event else { return false };
    !is_pin_group(what.rsplit_once('/').map_or("", |(group, _)| group))
}

impl PinGroup {
    /// True if the group takes planned CPUs from a thread that its machine has.
    fn takes(&self, planned: &CpuSet, found: &CpuSet) -> bool {
        let left = self.own.intersection(planned);
        left != self.machine.intersection(planned)
            && (*found == left || (left.is_empty() && *found == self.own))
    }
}

fn pin_group(host: &dyn Host, tid: Tid) -> Result<Option<PinGroup>, HostError> {
    let Some(cpusets) = Cpusets::find(host)? else { return Ok(None) };
    cpusets.pin_group(host, tid)
}

/// True if libvirt keeps a thread in a group that takes planned CPUs from it: the owner has pinned
/// it there.
pub(super) fn is_pinned_by_group(host: &dyn Host, step: &Step) -> Result<bool, HostError> {
    let (Some(task), Some(planned), Some(found)) =
        (task_of(step), planned_cpus(step), present_cpus(step))
    else {
        return Ok(false);
    };
    Ok(pin_group(host, task.tid)?.is_some_and(|group| group.takes(&planned, &found)))
}

/// The groups whose owner has pinned them, as found in one check. Such a pin moves all threads of
/// the group and is one change.
#[derive(Default)]
pub(super) struct OwnerPins(BTreeSet<String>);

impl OwnerPins {
    /// True if the owner has pinned the group of a thread, which follows the pin.
    pub(super) fn move_thread(&self, host: &dyn Host, step: &Step) -> Result<bool, HostError> {
        let (Some(task), Some(found)) = (task_of(step), present_cpus(step)) else {
            return Ok(false);
        };
        if self.0.is_empty() {
            return Ok(false);
        }
        let group = pin_group(host, task.tid)?;
        Ok(group.is_some_and(|group| self.0.contains(&group.path) && group.own == found))
    }

    /// Records the group of a thread that its owner has pinned.
    pub(super) fn record(
        &mut self,
        host: &dyn Host,
        step: &Step,
        record: &Record,
    ) -> Result<(), HostError> {
        let Some(task) = task_of(step) else { return Ok(()) };
        if change::is_of_manager(step)
            || is_pinned_by_owner(host, step, record)
            || is_pinned_by_group(host, step)?
        {
            self.0.extend(pin_group(host, task.tid)?.map(|group| group.path));
        }
        Ok(())
    }
}

/// True if a thread has the CPUs to which its owner has pinned it through libvirt.
pub(super) fn is_pinned_by_owner(host: &dyn Host, step: &Step, record: &Record) -> bool {
    let Undo::SetAffinity { task, original } = &step.undo else { return false };
    recorded_pins::pin_of_owner(host, record, *task).as_ref() == Some(original)
}

/// The last value that Pinfold gave a thread: its mask, and its policy.
fn last_set(record: &Record, task: TaskId) -> (Option<CpuSet>, Option<Policy>) {
    let (mut mask, mut policy) = (None, None);
    for (_, step) in record.steps().filter(|(index, _)| record.was_set(*index)) {
        match &step.change {
            Change::SetAffinity { task: of, mask: set } if *of == task => mask = Some(set.clone()),
            Change::SetPolicy { task: of, policy: set } if *of == task => policy = Some(*set),
            Change::WriteSetting { tasks, value, .. } if tasks.contains(&task) => {
                mask = CpuSet::parse_list(value).ok().or(mask);
            }
            Change::SetAffinity { .. }
            | Change::SetPolicy { .. }
            | Change::WriteSetting { .. }
            | Change::WriteFile { .. }
            | Change::MakeGroup { .. }
            | Change::MoveTasks { .. }
            | Change::MovePages { .. }
            | Change::SignalProcesses { .. } => {}
        }
    }
    (mask, policy)
}

/// True if the watchdog has taken a real-time policy, which a step gives back.
fn was_taken(step: &Step, record: &Record) -> bool {
    let (Change::SetPolicy { policy, .. }, Undo::SetPolicy { original: now, .. }) =
        (&step.change, &step.undo)
    else {
        return false;
    };
    let former = match first_undo(record, &step.undo) {
        Some(Undo::SetPolicy { original, .. }) => *original,
        Some(_) | None => Policy::default(),
    };
    policy.is_real_time() && (*now == former || *now == Policy::default())
}

impl Watcher {
    /// The threads that are not as planned and are not left where they are.
    pub(super) fn find_drifted(
        &self,
        host: &dyn Host,
        state: &[(Tid, CpuSet, Option<Policy>)],
    ) -> Result<Vec<change::Drifted>, ApplyError> {
        let mut drifted = Vec::new();
        for mut step in plan_threads(host, &self.plan, &self.target)?.steps {
            if !is_left(host, &self.target.left, &step)? {
                let undo = step.undo.clone();
                change::show_present(&mut step.undo, state);
                drifted.push(change::Drifted { step, undo });
            }
        }
        Ok(drifted)
    }

    /// True if a thread that was placed before is not as planned because another program changed it
    /// on purpose.
    pub(super) fn is_of_owner(
        &self,
        host: &dyn Host,
        step: &Step,
        record: &Record,
    ) -> Result<bool, HostError> {
        let Some(task) = task_of(step) else { return Ok(false) };
        if change::is_of_manager(step)
            || is_pinned_by_owner(host, step, record)
            || self.is_in_pinned_group(host, step)?
        {
            return Ok(true);
        }
        let (mask, policy) = last_set(record, task);
        let was_there = record.header.threads.contains(&task);
        if let Undo::SetPolicy { original, .. } = &step.undo {
            let is_known = policy.is_some() || was_there;
            let is_left = policy == Some(*original) && !self.settled.contains(&task);
            return Ok(is_known && !is_left && !was_taken(step, record));
        }
        let Some(found) = present_cpus(step) else { return Ok(false) };
        // Where Pinfold left it, the plan has changed, unless the thread has followed that plan.
        let is_left = mask.as_ref() == Some(&found) && !self.settled.contains(&task);
        if (mask.is_none() && !was_there) || is_left {
            return Ok(false);
        }
        let is_new = self.is_new(task);
        if is_new && original(record, step).is_some_and(|first| first == found) {
            return Ok(false);
        }
        let Some(all) = allowed_cpus(host, task.tid)? else { return Ok(true) };
        // A cpuset that takes some of the planned CPUs.
        let is_cut = planned_cpus(step).is_some_and(|cpus| cpus.intersection(&all) == found);
        Ok(!is_cut && (!(is_new || self.was_regrouped) || all != found))
    }

    /// True for a thread that was created so shortly before that the program that manages the machine
    /// may not have given it its first mask yet.
    pub(super) fn is_new(&self, task: TaskId) -> bool {
        let created = self.first_seen_ns.get(&task.tid);
        created.is_some_and(|at| self.looked_at.abs_diff(*at) < NEW_NS)
    }

    /// True if libvirt keeps a thread of the plan in a group to which its owner has pinned it. The
    /// group of a thread that the plan does not place yet has the CPUs that libvirt gives each one.
    pub(super) fn is_in_pinned_group(
        &self,
        host: &dyn Host,
        step: &Step,
    ) -> Result<bool, HostError> {
        let is_added = task_of(step).is_some_and(|task| self.is_added(task));
        Ok(!is_added && is_pinned_by_group(host, step)?)
    }

    /// True for a vCPU or iothread that the plan does not place yet.
    fn is_added(&self, task: TaskId) -> bool {
        self.changes.found.added.iter().any(|(added, _)| *added == task)
    }

    /// True for a new vCPU or iothread that has the mask which libvirt gives each: its whole cpuset.
    /// That is no drift.
    pub(super) fn has_first_mask(
        &self,
        host: &dyn Host,
        task: TaskId,
        step: &Step,
    ) -> Result<bool, HostError> {
        let is_reported = self.role(task).kind().is_reported;
        let Some(found) = present_cpus(step).filter(|_| is_reported && self.is_new(task)) else {
            return Ok(false);
        };
        Ok(allowed_cpus(host, task.tid)? == Some(found))
    }

    /// True for a thread that has no place in the plan and cannot have the CPUs of the emulator,
    /// because its own group has none of them. The next plan has a place for it.
    pub(super) fn waits_for_place(&self, host: &dyn Host, step: &Step) -> Result<bool, HostError> {
        let is_added = task_of(step).is_some_and(|task| self.is_added(task));
        Ok(is_added && is_pinned_by_group(host, step)?)
    }

    /// True if a new vCPU or iothread has CPUs that it has not inherited and that no program sets by
    /// default: its owner has pinned it already.
    pub(super) fn is_pinned_already(
        &self,
        host: &dyn Host,
        step: &Step,
        record: &Record,
        usual: &BTreeSet<CpuSet>,
    ) -> Result<bool, HostError> {
        let Some(task) = task_of(step) else { return Ok(false) };
        let Some(found) = present_cpus(step) else { return Ok(false) };
        if !self.role(task).kind().is_reported || usual.contains(&found) {
            return Ok(false);
        }
        let is_planned = self.plan.threads().any(|(_, thread)| thread.pus == found);
        let mut firsts = record.steps().filter_map(|(_, step)| present_cpus(step));
        let is_first = firsts.any(|first| first == found);
        Ok(!is_planned && !is_first && allowed_cpus(host, task.tid)? != Some(found))
    }

    /// Separates the threads that were moved alone, although the plan has the same CPUs for others.
    /// The plan of a machine names them; threads of a process group come and go, and stay where
    /// they are as long as they are watched.
    pub(super) fn separate_single_threads(&mut self, present: &BTreeSet<Tid>) {
        let Some(vnode) = self.plan.vnodes.first() else { return };
        let moved = &self.changes.found.moved;
        let follows = |role: &Role, cpus: &CpuSet| {
            let mut alike = present.iter().filter(|tid| {
                let role_of = self.target.role(**tid).unwrap_or(&Role::Worker);
                vnode.thread(role_of).map(|thread| &thread.role)
                    == vnode.thread(role).map(|thread| &thread.role)
            });
            alike.all(|tid| moved.iter().any(|(task, (_, to))| task.tid == *tid && to == cpus))
        };
        let single = moved.iter().filter(|(_, (role, cpus))| {
            vnode.kind == VnodeKind::ProcessGroup
                || !(role.is_of_one_thread()
                    || self.target.setting_for(role).is_some()
                    || follows(role, cpus))
        });
        let single: Vec<TaskId> = single.map(|(task, _)| *task).collect();
        let is_group = vnode.kind == VnodeKind::ProcessGroup;
        for task in single {
            let Some(moved) = self.changes.found.moved.remove(&task) else { continue };
            if is_group {
                self.target.left.insert(task);
            } else {
                self.changes.found.repinned_threads.insert(task, moved);
            }
        }
        self.target.left.retain(|task| present.contains(&task.tid));
    }
}

fn allowed_cpus(host: &dyn Host, tid: Tid) -> Result<Option<CpuSet>, HostError> {
    actuators::allowed_cpus(host, Cpusets::find(host)?.as_ref(), tid)
}

/// False for a mask whose CPUs are all offline.
pub(super) fn can_run(step: &Step, online: Option<&CpuSet>) -> bool {
    match (&step.change, online) {
        (Change::SetAffinity { mask, .. }, Some(online)) => !mask.is_disjoint(online),
        _ => true,
    }
}

/// A finding about a thread whose cpuset has none of the CPUs that a step sets.
pub(super) fn find_locked_out(
    host: &dyn Host,
    task: TaskId,
    step: &Step,
) -> Result<Option<Finding>, HostError> {
    let Some(planned) = planned_cpus(step) else { return Ok(None) };
    let all = match pin_group(host, task.tid)? {
        Some(group) => Some(group.machine),
        None => allowed_cpus(host, task.tid)?,
    };
    let Some(all) = all else { return Ok(None) };
    Ok(all.is_disjoint(&planned).then(|| {
        let text = format!(
            "thread {} cannot run on {}: its cpuset has only {}",
            task.tid,
            cpus_text(&planned),
            cpus_text(&all)
        );
        Finding::warning("watch", text)
    }))
}

/// The value of a thread when a step was made for it.
pub(super) fn found_value(undo: &Undo) -> String {
    match undo {
        Undo::SetAffinity { original, .. } => cpus_text(original),
        Undo::SetPolicy { original, .. } => original.to_string(),
        Undo::WriteSetting { original, masks, .. } => match masks.first() {
            Some((_, mask)) => cpus_text(mask),
            None => original.clone().unwrap_or_default(),
        },
        Undo::WriteFile { .. }
        | Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => String::new(),
    }
}

/// The value that a step sets.
pub(super) fn planned_value(step: &Step) -> String {
    match &step.change {
        Change::SetPolicy { policy, .. } => policy.to_string(),
        Change::SetAffinity { .. }
        | Change::WriteSetting { .. }
        | Change::WriteFile { .. }
        | Change::MakeGroup { .. }
        | Change::MoveTasks { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => cpus_text(&planned_cpus(step).unwrap_or_default()),
    }
}

/// The CPU list of the group by which libvirt pins a thread, if its owner has set it there.
pub(super) fn list_of_pin_group(host: &dyn Host, undo: &Undo) -> Result<Option<String>, HostError> {
    let Undo::SetAffinity { task, original } = undo else { return Ok(None) };
    let group = pin_group(host, task.tid)?.filter(|group| group.own == *original);
    Ok(group.map(|group| paths::cpuset_cpus(&group.path)))
}

/// The CPUs that a step sets.
pub(super) fn planned_cpus(step: &Step) -> Option<CpuSet> {
    let mask = step.change.as_set_affinity().map(|(_, mask)| mask.clone());
    mask.or_else(|| CpuSet::parse_list(step.change.as_write_setting()?.1).ok())
}

/// The mask of a thread before its first step.
fn original(record: &Record, step: &Step) -> Option<CpuSet> {
    match first_undo(record, &step.undo)? {
        Undo::SetAffinity { original, .. } => Some(original.clone()),
        Undo::WriteSetting { masks, .. } => masks.first().map(|(_, mask)| mask.clone()),
        Undo::SetPolicy { .. }
        | Undo::WriteFile { .. }
        | Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => None,
    }
}

/// True if a step would move a thread that stays where it is. A thread whose mask the kernel has
/// reset to its whole cpuset does not stay there.
pub(crate) fn is_left(
    host: &dyn Host,
    left: &BTreeSet<TaskId>,
    step: &Step,
) -> Result<bool, HostError> {
    match (&step.change, &step.undo) {
        (Change::SetAffinity { task, mask }, Undo::SetAffinity { .. }) if left.contains(task) => {
            // The step may have the mask before the placement as its original.
            let Some(found) = tasks::ignore_gone(host.affinity(task.tid))? else {
                return Ok(true);
            };
            let cpusets = Cpusets::find(host)?;
            let allowed =
                tasks::ignore_gone(actuators::allowed_cpus(host, cpusets.as_ref(), task.tid))?;
            Ok(allowed.flatten().is_none_or(|all| all != found || !mask.is_subset(&all)))
        }
        (Change::WriteSetting { tasks, .. }, Undo::WriteSetting { masks, .. }) => {
            Ok(!masks.is_empty() && tasks.first().is_some_and(|task| left.contains(task)))
        }
        (_, _) => Ok(false),
    }
}

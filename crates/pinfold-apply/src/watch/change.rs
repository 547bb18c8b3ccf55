//! What the plan of a running machine no longer describes: threads that were added or removed, CPUs
//! that went offline, threads that the owner of the machine moved.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Change, CpuSet, Plan, Policy, Role, Step, TaskId, Tid, Undo};

use crate::tasks::{self, Target};

/// What the plan of a machine does not describe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineChange {
    /// vCPUs and iothreads without a place in the plan.
    pub added: Vec<(TaskId, Role)>,
    /// vCPUs and iothreads of the plan whose threads have ended.
    pub removed: Vec<Role>,
    /// Roles all of whose planned CPUs are offline.
    pub stranded: Vec<Role>,
    /// Threads that the owner moved, with their present CPUs.
    pub moved: BTreeMap<TaskId, (Role, CpuSet)>,
    /// Threads that the owner moved away from the others of their role, with their present CPUs.
    pub repinned_threads: BTreeMap<TaskId, (Role, CpuSet)>,
    /// Threads whose policy the owner changed, with the present one.
    pub policies: BTreeMap<TaskId, (Role, Policy)>,
}

impl MachineChange {
    /// True if the plan describes the machine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_only_of_owner()
            && self.moved.is_empty()
            && self.repinned_threads.is_empty()
            && self.policies.is_empty()
    }

    /// True if the machine has the threads and CPUs of its plan.
    #[must_use]
    pub fn is_only_of_owner(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.stranded.is_empty()
    }
}

/// A thread that is not as planned.
pub(super) struct Drifted {
    /// Its correction, with the present state as what is undone.
    pub(super) step: Step,
    /// What undo restores.
    pub(super) undo: Undo,
}

/// Finds what the plan does not describe.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) found: MachineChange,
    // The changes of the owner that were reported.
    moves: BTreeMap<TaskId, CpuSet>,
    policies: BTreeMap<TaskId, Policy>,
    // The threads that vCPUs and iothreads of the machine had.
    known: BTreeMap<Role, TaskId>,
}

impl Changes {
    /// Compares the plan with the threads that the machine has now. A vCPU of the plan that has not
    /// been seen may be plugged in later, and keeps its CPUs.
    pub(super) fn update(
        &mut self,
        plan: &Plan,
        target: &Target,
        present: &BTreeSet<Tid>,
        online: Option<&CpuSet>,
    ) {
        let Some(vnode) = plan.vnodes.first() else { return };
        let reported = target.threads.iter().filter(|(_, role)| role.kind().is_reported);
        let (mut added, mut ended) = (Vec::new(), BTreeSet::new());
        for (task, role) in reported {
            if present.contains(&task.tid) {
                self.known.insert(role.clone(), *task);
                if tasks::has_no_place(vnode, role) {
                    added.push((*task, role.clone()));
                }
            } else {
                ended.insert(role);
            }
        }
        self.found.removed = vnode
            .threads
            .iter()
            .map(|thread| &thread.role)
            .filter(|role| {
                role.kind().is_reported
                    && (ended.contains(role) || self.known.contains_key(role))
                    && !self.known.get(role).is_some_and(|task| present.contains(&task.tid))
            })
            .cloned()
            .collect();
        self.found.stranded = match online {
            None => Vec::new(),
            Some(online) => vnode
                .threads
                .iter()
                .filter(|thread| thread.pus.is_disjoint(online))
                .map(|thread| thread.role.clone())
                .collect(),
        };
        self.found.added = added;
    }

    /// Records that the owner moved a thread or changed its policy. False if that is known.
    pub(super) fn add_move(&mut self, task: TaskId, role: Role, step: &Step) -> bool {
        if let Undo::SetPolicy { original, .. } = &step.undo {
            if role.is_of_one_thread() {
                self.found.policies.insert(task, (role, *original));
            }
            return self.policies.insert(task, *original) != Some(*original);
        }
        let Some(cpus) = present_cpus(step) else { return false };
        self.found.repinned_threads.remove(&task);
        self.found.moved.insert(task, (role, cpus.clone()));
        self.moves.insert(task, cpus.clone()) != Some(cpus)
    }

    /// Forgets the changes of threads that are as planned now.
    pub(super) fn forget_moves_but_of(&mut self, drifted: &BTreeSet<TaskId>) {
        self.found.moved.retain(|task, _| drifted.contains(task));
        self.found.repinned_threads.retain(|task, _| drifted.contains(task));
        self.found.policies.retain(|task, _| drifted.contains(task));
        self.moves.retain(|task, _| drifted.contains(task));
        self.policies.retain(|task, _| drifted.contains(task));
    }
}

/// True if the program that manages the machine has another value for the setting: it was
/// changed there.
pub(super) fn is_of_manager(step: &Step) -> bool {
    let (Change::WriteSetting { value, .. }, Undo::WriteSetting { original, .. }) =
        (&step.change, &step.undo)
    else {
        return false;
    };
    match original {
        Some(original) => {
            original != value && CpuSet::parse_list(original).ok() != CpuSet::parse_list(value).ok()
        }
        None => true,
    }
}

/// Replaces the masks that undo restores by those that the threads have now: the two differ for a
/// thread that may run on its whole cpuset.
pub(super) fn show_present(undo: &mut Undo, state: &[(Tid, CpuSet, Option<Policy>)]) {
    let masks: Vec<(TaskId, &mut CpuSet)> = match undo {
        Undo::SetAffinity { task, original } => vec![(*task, original)],
        Undo::WriteSetting { masks, .. } => {
            masks.iter_mut().map(|(task, mask)| (*task, mask)).collect()
        }
        Undo::SetPolicy { .. }
        | Undo::WriteFile { .. }
        | Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => Vec::new(),
    };
    for (task, mask) in masks {
        if let Some((_, now, _)) = state.iter().find(|(tid, ..)| *tid == task.tid) {
            *mask = now.clone();
        }
    }
}

/// The CPUs of a thread when a step was made for it; `None` for a step that sets no CPUs.
pub(super) fn present_cpus(step: &Step) -> Option<CpuSet> {
    match &step.undo {
        Undo::SetAffinity { original, .. } => Some(original.clone()),
        Undo::WriteSetting { original, masks, .. } => {
            let set = original.as_deref().filter(|_| is_of_manager(step));
            let set = set.and_then(|text| CpuSet::parse_list(text).ok());
            set.or_else(|| masks.first().map(|(_, mask)| mask.clone()))
        }
        Undo::SetPolicy { .. }
        | Undo::WriteFile { .. }
        | Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => None,
    }
}

//! The order of the steps that set masks: a task leaves an exclusive CPU before another one enters
//! it, so that at no step an exclusive CPU is in two masks.
//!
//! ```text
//! vcpu(0) 2 → 3, vcpu(1) 3 → 4     vcpu(1) first
//! vcpu(0) 2 → 3, vcpu(1) 3 → 2     vcpu(0) to the housekeeping CPUs, vcpu(1), vcpu(0)
//! ```
//! A task enters a CPU that its mask does not contain yet. Masks that only become narrower, as when
//! a machine is placed for the first time, enter nothing and keep the order of the plan. An undo
//! reverts the steps in reverse, and so has the same property.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Change, CpuSet, Lifetime, PuId, Step, TaskId, Undo};

/// A change of a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The CPUs before.
    pub before: CpuSet,
    /// The CPUs after.
    pub after: CpuSet,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveAction {
    /// Make the move with this index.
    Go(usize),
    /// First move its task to these housekeeping CPUs, because the moves wait for each other.
    Park(usize, CpuSet),
}

/// The order of some moves. Each is made once, and no earlier than necessary.
///
/// If every housekeeping CPU is itself left or entered, a circle cannot be broken: then a move of
/// it is made although another task is still on the CPU.
#[must_use]
pub fn order_moves(moves: &[Move], housekeeping: &CpuSet) -> Vec<MoveAction> {
    // Most plans narrow the masks of many threads that may use every CPU.
    if moves.iter().all(|one| one.after.is_subset(&one.before)) {
        return (0..moves.len()).map(MoveAction::Go).collect();
    }
    let mut queue = Queue::new(moves, housekeeping);
    let mut turns = Vec::new();
    while let Some(next) = queue.next() {
        queue.take(&next);
        turns.push(next);
    }
    turns
}

/// Moves that are not made yet.
struct Queue<'m> {
    moves: &'m [Move],
    /// The present masks.
    masks: Vec<CpuSet>,
    /// The CPUs that are entered only when they are free.
    guarded: CpuSet,
    parking: CpuSet,
    pending: BTreeSet<usize>,
    /// For each move, those that have to be made before it.
    waits: Vec<BTreeSet<usize>>,
}

impl<'m> Queue<'m> {
    fn new(moves: &'m [Move], housekeeping: &CpuSet) -> Self {
        let alone_before = in_one(moves.iter().map(|one| &one.before));
        let alone_after = in_one(moves.iter().map(|one| &one.after)).difference(housekeeping);
        let mut left = CpuSet::new();
        moves.iter().for_each(|one| left.add(&one.before.difference(&one.after)));
        let guarded = alone_after.union(&alone_before.intersection(&left));
        let mut queue = Self {
            moves,
            masks: moves.iter().map(|one| one.before.clone()).collect(),
            parking: housekeeping.difference(&guarded),
            guarded,
            pending: (0..moves.len()).collect(),
            waits: Vec::new(),
        };
        let leavers = queue.leavers();
        queue.waits = (0..moves.len()).map(|index| queue.waits_of(index, &leavers)).collect();
        queue
    }

    /// For each CPU that a move enters, the moves that leave it.
    fn leavers(&self) -> BTreeMap<PuId, Vec<usize>> {
        let mut entered = CpuSet::new();
        self.pending.iter().for_each(|index| entered.add(&self.cpus_entered(*index)));
        let mut leavers: BTreeMap<PuId, Vec<usize>> = BTreeMap::new();
        for &index in &self.pending {
            let left = self.masks[index].difference(&self.moves[index].after);
            for cpu in left.intersection(&entered).iter() {
                leavers.entry(cpu).or_default().push(index);
            }
        }
        leavers
    }

    fn cpus_entered(&self, index: usize) -> CpuSet {
        self.moves[index].after.difference(&self.masks[index]).intersection(&self.guarded)
    }

    fn waits_of(&self, index: usize, leavers: &BTreeMap<PuId, Vec<usize>>) -> BTreeSet<usize> {
        let entered = self.cpus_entered(index);
        let before = entered.iter().filter_map(|cpu| leavers.get(&cpu)).flatten();
        before.copied().filter(|other| *other != index).collect()
    }

    fn next(&self) -> Option<MoveAction> {
        let mut pending = self.pending.iter().copied();
        let first = *self.pending.first()?;
        if let Some(free) = pending.find(|index| self.waits[*index].is_empty()) {
            return Some(MoveAction::Go(free));
        }
        // Each one waits for another: the path from the first one leads into a circle. No move waits
        // for one that is parked, so the one that is met twice is not.
        let (mut seen, mut at) = (BTreeSet::new(), first);
        while seen.insert(at) {
            at = self.waits[at].first().copied().unwrap_or(first);
        }
        let parking = Some(&self.parking).filter(|parking| !parking.is_empty());
        Some(parking.map_or(MoveAction::Go(at), |parking| MoveAction::Park(at, parking.clone())))
    }

    fn take(&mut self, turn: &MoveAction) {
        let (index, mask) = match turn {
            MoveAction::Go(index) => (*index, &self.moves[*index].after),
            MoveAction::Park(index, parking) => (*index, parking),
        };
        self.masks[index].clone_from(mask);
        for waits in &mut self.waits {
            waits.remove(&index);
        }
        match turn {
            MoveAction::Go(_) => {
                self.pending.remove(&index);
            }
            MoveAction::Park(..) => self.waits[index] = self.waits_of(index, &self.leavers()),
        }
    }
}

/// The CPUs that are in exactly one of some masks.
fn in_one<'m>(masks: impl Iterator<Item = &'m CpuSet>) -> CpuSet {
    let (mut seen, mut again) = (CpuSet::new(), CpuSet::new());
    for mask in masks {
        again.add(&seen.intersection(mask));
        seen.add(mask);
    }
    seen.difference(&again)
}

/// Orders each run of steps that set masks. `present` is the mask of a task now.
pub(crate) fn in_order<E>(
    steps: Vec<Step>,
    housekeeping: &CpuSet,
    mut present: impl FnMut(TaskId) -> Result<Option<CpuSet>, E>,
) -> Result<Vec<Step>, E> {
    let mut ordered = Vec::with_capacity(steps.len());
    for run in steps.chunk_by(|a, b| mask_of(a).is_some() && mask_of(b).is_some()) {
        let mut moves = Vec::new();
        for (tasks, after) in run.iter().filter_map(mask_of) {
            let mut before = CpuSet::new();
            for task in tasks {
                before.add(&present(*task)?.unwrap_or_default());
            }
            moves.push(Move { before, after });
        }
        if moves.len() < 2 {
            ordered.extend_from_slice(run);
            continue;
        }
        let mut run = run.to_vec();
        for turn in order_moves(&moves, housekeeping) {
            match turn {
                MoveAction::Go(index) => ordered.push(run[index].clone()),
                MoveAction::Park(index, parking) => ordered.push(park(&mut run[index], &parking)),
            }
        }
    }
    Ok(ordered)
}

/// The tasks whose mask a step sets, and that mask.
fn mask_of(step: &Step) -> Option<(&[TaskId], CpuSet)> {
    match &step.change {
        Change::SetAffinity { task, mask } => Some((std::slice::from_ref(task), mask.clone())),
        Change::WriteSetting { setting, value, tasks }
            if setting.lifetime == Lifetime::Running && !tasks.is_empty() =>
        {
            Some((tasks, CpuSet::parse_list(value).ok()?))
        }
        Change::WriteSetting { .. }
        | Change::SetPolicy { .. }
        | Change::WriteFile { .. }
        | Change::MakeGroup { .. }
        | Change::MoveTasks { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => None,
    }
}

/// A step to the housekeeping CPUs, before a step that continues from there.
fn park(step: &mut Step, parking: &CpuSet) -> Step {
    let reason = "moves aside first, because other threads move to its CPU and it moves to theirs"
        .to_owned();
    let mut parked = Step { reason, ..step.clone() };
    if let Change::SetAffinity { mask, .. } = &mut parked.change {
        mask.clone_from(parking);
    }
    if let Change::WriteSetting { value, .. } = &mut parked.change {
        *value = parking.to_string();
    }
    if let Undo::SetAffinity { original, .. } = &mut step.undo {
        original.clone_from(parking);
    }
    if let Undo::WriteSetting { original, masks, .. } = &mut step.undo {
        *original = Some(parking.to_string());
        masks.iter_mut().for_each(|(_, mask)| mask.clone_from(parking));
    }
    parked
}

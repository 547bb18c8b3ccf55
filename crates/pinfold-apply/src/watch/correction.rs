//! Which threads that are not as planned are corrected, and which stay as they are.

use std::collections::BTreeSet;

use pinfold_model::text::cpus_text;
use pinfold_model::{Change, CpuSet, Step, TaskId, Undo};

use super::attribution::LikelyCause;
use super::{MAX_REPAIRS, OnDrift, WatchEvent, Watcher, change, owner, task_of};
use crate::error::ApplyError;
use crate::journal::Record;
use crate::other_placements::first_undo;

/// What one check of all threads has read.
pub(super) struct Check<'c> {
    pub(super) clues: &'c LikelyCause<'c>,
    /// The masks of the threads that were there before.
    pub(super) usual: &'c BTreeSet<CpuSet>,
    /// The CPUs that are online.
    pub(super) online: Option<&'c CpuSet>,
}

/// A step selected for execution.
pub(super) struct Chosen {
    pub(super) task: TaskId,
    pub(super) step: Step,
    pub(super) undo: Undo,
    /// Likely cause of a change that is corrected; `None` for a new thread.
    pub(super) clue: Option<String>,
}

impl Watcher {
    /// The corrections that are made, in their order. Reports what is not corrected.
    pub(super) fn choose(
        &mut self,
        record: &Record,
        steps: Vec<change::Drifted>,
        check: &Check<'_>,
        events: &mut Vec<WatchEvent>,
    ) -> Result<Vec<Chosen>, ApplyError> {
        let Check { clues, usual, online } = *check;
        let host = clues.host();
        let (mut chosen, mut pins) = (Vec::new(), owner::OwnerPins::default());
        let mut steps: Vec<_> = steps.into_iter().enumerate().collect();
        // Of a pin that moves all threads of the emulator, the main thread's move is reported.
        let main = self.vm;
        steps.sort_by_key(|(_, drifted)| task_of(&drifted.step) != Some(main));
        for (index, change::Drifted { step, undo }) in steps {
            let Some(task) = task_of(&step) else { continue };
            // All its CPUs are offline, which was already reported; this is no conflict with
            // another program.
            if !owner::can_run(&step, online) {
                continue;
            }
            if let Some(finding) = owner::find_locked_out(host, task, &step)? {
                let is_new = self.reported_unplaced.insert(task);
                events.extend(is_new.then_some(WatchEvent::Finding(finding)));
                continue;
            }
            let follows_pin = pins.move_thread(host, &step)?;
            if follows_pin || self.is_owner_change(&step, record, clues, usual)? {
                let event = self.yield_to_owner(task, &step, clues)?;
                events.extend(event.filter(|_| !follows_pin));
                pins.record(host, &step, record)?;
                continue;
            }
            if self.waits_for_place(host, &step)? {
                continue;
            }
            let mut clue = None;
            if self.seen.contains(&task.tid) && !self.has_first_mask(host, task, &step)? {
                clue = self.may_repair(&step, clues, events)?;
                if clue.is_none() {
                    continue;
                }
            }
            chosen.push((index, Chosen { task, step, undo, clue }));
        }
        chosen.sort_by_key(|(index, _)| *index);
        Ok(chosen.into_iter().map(|(_, chosen)| chosen).collect())
    }

    /// True if a thread stays as it is, because its owner changed it.
    fn is_owner_change(
        &self,
        step: &Step,
        record: &Record,
        clues: &LikelyCause<'_>,
        usual: &BTreeSet<CpuSet>,
    ) -> Result<bool, ApplyError> {
        let is_seen = task_of(step).is_some_and(|task| self.seen.contains(&task.tid));
        Ok(match (self.on_drift, is_seen) {
            (OnDrift::Restore, true) => {
                (change::is_of_manager(step) && first_undo(record, &step.undo).is_some())
                    || owner::is_pinned_by_owner(clues.host(), step, record)
                    || self.is_in_pinned_group(clues.host(), step)?
            }
            (OnDrift::Restore, false) => false,
            (OnDrift::Adopt | OnDrift::Report, true) => {
                self.is_of_owner(clues.host(), step, record)?
            }
            (OnDrift::Adopt | OnDrift::Report, false) => {
                self.is_pinned_already(clues.host(), step, record, usual)?
            }
        })
    }

    /// Records a change of the owner; the event, if it was not reported yet.
    fn yield_to_owner(
        &mut self,
        task: TaskId,
        step: &Step,
        clues: &LikelyCause<'_>,
    ) -> Result<Option<WatchEvent>, ApplyError> {
        let (role, found) = (self.role(task), owner::found_value(&step.undo));
        if !self.changes.add_move(task, role.clone(), step) {
            return Ok(None);
        }
        let planned = match (&step.change, owner::planned_cpus(step)) {
            (Change::SetPolicy { policy, .. }, _) => policy.to_string(),
            (_, cpus) => cpus_text(&cpus.unwrap_or_default()),
        };
        let clue = clues.of_change(task, step)?;
        Ok(Some(WatchEvent::Yielded { task, role, planned, found, clue }))
    }

    /// Likely cause of the change, if the thread is to be corrected; `None` if it is left alone.
    fn may_repair(
        &mut self,
        step: &Step,
        clues: &LikelyCause<'_>,
        events: &mut Vec<WatchEvent>,
    ) -> Result<Option<String>, ApplyError> {
        let Some(task) = task_of(step) else { return Ok(None) };
        let repairs = self.repairs.entry(task).or_insert(0);
        *repairs = repairs.saturating_add(1);
        let repairs = *repairs;
        if repairs > MAX_REPAIRS.saturating_add(1) {
            return Ok(None);
        }
        let clue = clues.of_thread(task, &step.undo)?;
        if repairs <= MAX_REPAIRS {
            return Ok(Some(clue));
        }
        let (role, change) = (self.role(task), step.change.to_string());
        let found = owner::found_value(&step.undo);
        events.push(WatchEvent::Contested { task, role, change, found, clue });
        Ok(None)
    }
}

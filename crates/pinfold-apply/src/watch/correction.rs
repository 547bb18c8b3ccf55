//! Which threads that are not as planned are corrected, and which stay as they are.

use std::collections::BTreeSet;

use pinfold_host::Host;
use pinfold_model::{CpuSet, Step, TaskId, Undo};

use super::attribution::LikelyCause;
use super::{MAX_REPAIRS, OnDrift, WatchEvent, Watcher, change, owner};
use crate::error::ApplyError;
use crate::journal::{Journal, Outcome, Record};
use crate::other_placements::{is_same_thing, last_step};
use crate::tasks::task_of;

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
    /// The value that the owner of the machine has given the setting, if the last step for it has
    /// yielded to that.
    pub(super) of_owner: Option<String>,
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
            chosen.push((index, Chosen { task, step, undo, clue, of_owner: None }));
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
                (change::is_of_manager(step) && last_step(record, &step.undo).is_some())
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

    /// Records a change of the owner, which an undo of the placement leaves if the plan follows it;
    /// the event, if it was not reported yet.
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
        // libvirt's pin is undone and the mask stays, unless the owner has set another pin there.
        let is_kept =
            change::is_of_manager(step) || !matches!(step.undo, Undo::WriteSetting { .. });
        // Under a plan that does not follow, a thread that is back on it is as planned.
        if is_kept && self.follows_owner() {
            self.yielded.push(step.undo.clone());
        }
        let planned = owner::planned_value(step);
        let clue = clues.of_change(task, step)?;
        Ok(Some(WatchEvent::Yielded { task, role, planned, found, clue }))
    }

    /// Writes to the journal what has yielded to the owner: the steps for the thread, and those for
    /// the group in which libvirt pins it.
    pub(super) fn journal_yielded(
        &mut self,
        host: &dyn Host,
        journal: &mut Journal<'_>,
    ) -> Result<(), ApplyError> {
        for undo in std::mem::take(&mut self.yielded) {
            let list = owner::list_of_pin_group(host, &undo)?;
            let value = owner::found_value(&undo);
            let steps = journal.record().steps().filter(|(_, step)| {
                is_same_thing(&undo, &step.undo)
                    || step
                        .undo
                        .as_write_file()
                        .is_some_and(|(path, _)| Some(path) == list.as_deref())
            });
            let steps: Vec<usize> = steps.map(|(index, _)| index).collect();
            for index in steps {
                journal.note(index, Outcome::Yielded, Some(value.clone()));
            }
        }
        Ok(journal.flush()?)
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

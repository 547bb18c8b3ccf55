//! Undoes everything in a journal: on demand, after a failure, after a crash.
//!
//! Steps are undone in reverse order. Each compares before it writes, so it does not matter whether
//! the step was done, or was already undone by an undo that was killed: the same journal can be
//! undone repeatedly. Values that another program changed since are left and reported. Then threads
//! that were created meanwhile and inherited Pinfold's settings are released.
//!
//! After a reboot the kernel has no masks and groups of the former boot, and the numbers in the
//! journal belong to other tasks. Only changes of a definition on disk are then undone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use pinfold_host::{HostError, HostMut, files, with_causes};
use pinfold_model::{Command, CpuSet, Finding, Step, TaskId, Tid};

use crate::actuators::{self, Reverted, UndoContext};
use crate::journal::{Header, Journal, Outcome, RESTARTED, Record};
use crate::layers::OtherPlacements;
use crate::missing_cgroups::vanished;
use crate::tasks;

/// Result of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoReport {
    /// Number of values that were restored.
    pub restored: usize,
    /// Number of values that were already right.
    pub already_right: usize,
    /// Number of tasks and groups that no longer exist.
    pub gone: usize,
    /// Number of steps that a reboot made void.
    pub dropped: usize,
    /// Values that have the same effect as the original but not the same bytes, because the kernel
    /// does not accept the original.
    pub near: Vec<Finding>,
    /// Groups that no longer existed when the undo began.
    pub vanished: Vec<Finding>,
    /// Values that another program changed since and that were therefore left.
    pub changed: Vec<Finding>,
    /// Values that could not be restored; another undo may try again.
    pub failed: Vec<Finding>,
}

impl UndoReport {
    /// True if nothing remains to be undone.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }

    /// Counts a result; true if the value is no longer Pinfold's.
    fn count(&mut self, what: &str, answer: Result<Reverted, HostError>) -> bool {
        match answer {
            Ok(Reverted::Restored) => self.restored += 1,
            // Counted when the step is finished.
            Ok(Reverted::Later) => {}
            Ok(Reverted::Nothing) => self.already_right += 1,
            Ok(Reverted::Gone) => self.gone += 1,
            Ok(Reverted::Near(finding)) => {
                self.restored += 1;
                self.near.push(finding);
            }
            Ok(Reverted::Changed(finding)) => {
                self.changed.push(finding);
                return false;
            }
            Err(error) => {
                self.fail(what, &error);
                return false;
            }
        }
        true
    }

    /// The same for tasks that are not in the journal. Most have no value of Pinfold's, so only
    /// actual changes count.
    fn count_done(&mut self, task: TaskId, answer: Result<Reverted, HostError>) {
        match answer {
            Ok(Reverted::Nothing | Reverted::Gone) => {}
            answer => {
                self.count(&task.to_string(), answer);
            }
        }
    }

    fn fail(&mut self, what: &str, error: &(dyn std::error::Error + 'static)) {
        let text = format!("{what} could not be restored: {}", with_causes(error));
        let hint = format!("remove the cause, then run `{}` again", Command::new("undo"));
        self.failed.push(Finding::problem("undo", text).with_hint(hint));
    }
}

/// Undoes all steps of a journal.
pub fn undo(host: &dyn HostMut, journal: &mut Journal<'_>) -> UndoReport {
    undo_observed(host, journal, &mut |_, _| ControlFlow::Continue(()))
}

/// Undoes all steps of a journal. The observer is called before each step; if it returns `Break`,
/// the undo stops there, as if it had been killed.
pub fn undo_observed(
    host: &dyn HostMut,
    journal: &mut Journal<'_>,
    observer: &mut dyn FnMut(usize, &Step) -> ControlFlow<()>,
) -> UndoReport {
    let mut report = UndoReport::default();
    if journal.record().has_ended() {
        return report;
    }
    match journal.record().is_of_this_boot(host) {
        Ok(true) => {}
        Ok(false) => {
            undo_lasting(host, journal, &mut report);
            finish(host, journal, &mut report, RESTARTED);
            return report;
        }
        Err(error) => {
            report.fail("the journal", &error);
            return report;
        }
    }
    if let Err(error) = journal.record().require_here(host) {
        let finding = Finding::problem("undo", with_causes(&error));
        let hint = error.hint().unwrap_or_default();
        report.failed.push(finding.with_hint(hint));
        return report;
    }
    match vanished(host, journal.record()) {
        Ok(found) => report.vanished = found,
        Err(error) => report.fail("what has vanished", &error),
    }
    note_born(host, journal, &mut report);
    let others = journal.others(host).unwrap_or_else(|error| {
        report.fail("what other placements have set", &error);
        OtherPlacements::default()
    });
    let record = journal.record().clone();
    let record = others.resolved(&record);
    match UndoContext::new(host, journal.clock(), &record) {
        Ok(past) => {
            let work = (&mut *journal, &others);
            if replay(&past, &record, work, (&mut report, observer)).is_break() {
                report.failed.push(Finding::problem("undo", "it was broken off"));
                return report;
            }
            release(&past, &record, &mut report);
        }
        Err(error) => report.fail("the placement", &error),
    }
    finish(host, journal, &mut report, "undone");
    report
}

/// After a reboot: undoes changes of definitions, which are on disk and still exist; all else is
/// void.
fn undo_lasting(host: &dyn HostMut, journal: &mut Journal<'_>, report: &mut UndoReport) {
    let record = journal.record().clone();
    report.dropped = record.steps().filter(|(_, step)| !step.is_lasting()).count();
    if report.dropped == record.step_count() {
        return;
    }
    match UndoContext::new(host, journal.clock(), &record) {
        Ok(past) => {
            for (index, step) in record.steps().rev().filter(|(_, step)| step.is_lasting()) {
                revert_one(&past, (index, step), journal, report);
            }
        }
        Err(error) => report.fail("the definitions", &error),
    }
}

/// Undoes one step and records its outcome. True if it must be finished later.
fn revert_one(
    past: &UndoContext<'_>,
    (index, step): (usize, &Step),
    journal: &mut Journal<'_>,
    report: &mut UndoReport,
) -> bool {
    let what = step.change.to_string();
    let answers = actuators::revert(past, step);
    let later = answers.iter().any(|answer| matches!(answer, Ok(Reverted::Later)));
    // All results are counted, including those after the first failure.
    let settled: Vec<bool> =
        answers.into_iter().map(|answer| report.count(&what, answer)).collect();
    let outcome = if settled.contains(&false) { Outcome::Kept } else { Outcome::Restored };
    journal.note(index, outcome, None);
    later
}

/// Before Linux 6.2 moving a task overwrites its mask, and no step records the masks of tasks that
/// were created in Pinfold's groups. Their inherited masks are journalled before they are moved
/// out, so that an undo that is killed after that can be completed.
fn note_born(host: &dyn HostMut, journal: &mut Journal<'_>, report: &mut UndoReport) {
    let record = journal.record().clone();
    let masks = match UndoContext::new(host, journal.clock(), &record) {
        Ok(past) if past.masks_survive => return,
        Ok(past) => actuators::born_masks(&past),
        Err(error) => Err(error),
    };
    match masks {
        Ok(masks) if masks.is_empty() => {}
        Ok(masks) => match journal.write_masks(masks) {
            // A full disk must not stop an undo. The masks are lost only if the undo is also
            // killed.
            Ok(()) | Err(_) => {}
        },
        Err(error) => report.fail("what new tasks inherited", &error),
    }
}

type Watched<'w> = (&'w mut UndoReport, &'w mut dyn FnMut(usize, &Step) -> ControlFlow<()>);

fn replay(
    past: &UndoContext<'_>,
    record: &Record,
    (journal, others): (&mut Journal<'_>, &OtherPlacements),
    (report, observer): Watched<'_>,
) -> ControlFlow<()> {
    let mut later = Vec::new();
    let path = journal.path();
    for (index, step) in record.steps().rev() {
        observer(index, step)?;
        if let Some(above) = others.above((&path, &record.header), step) {
            report.changed.push(handed_over(step, above));
            journal.note(index, Outcome::Kept, None);
            continue;
        }
        if revert_one(past, (index, step), journal, report) {
            later.push((step.change.to_string(), step));
        }
    }
    for (what, step) in later {
        report.count(&what, actuators::finish(past, step));
    }
    ControlFlow::Continue(())
}

/// A value that another placement changed since is restored by the undo of that placement.
fn handed_over(step: &Step, above: &Record) -> Finding {
    let Header { id, vm_name, .. } = &above.header;
    let what = &step.change;
    let text = format!("{what}: the placement {id} ({vm_name}) has set it since and keeps it");
    Finding::note("undo", text).with_hint(format!("`pinfold undo {id}` restores the original"))
}

/// Releases threads that inherited from a placed thread, and restores overwritten masks of
/// bystanders.
fn release(past: &UndoContext<'_>, record: &Record, report: &mut UndoReport) {
    let mut placed = record.header.threads.clone();
    placed.extend(past.masked());
    match born(past, record, (&placed, &record.header.threads)) {
        Ok(born) => {
            for (task, main) in born {
                for answer in actuators::release_born(past, task, main) {
                    report.count_done(task, answer);
                }
            }
        }
        Err(error) => report.fail("what new threads inherited", &error),
    }
    if past.masks_survive {
        return;
    }
    // A task that was placed or moved has its original restored by its own step.
    let bystanders: BTreeMap<TaskId, &CpuSet> = record
        .masks()
        .filter(|(task, _)| !past.has_step_for(*task))
        .map(|(task, mask)| (*task, mask))
        .collect();
    for (task, mask) in &bystanders {
        report.count_done(*task, actuators::restore_mask(past, *task, mask));
    }
    let noted: Vec<TaskId> = bystanders.keys().copied().collect();
    match born(past, record, (&noted, &noted)) {
        Ok(born) => {
            for (task, main) in born {
                let parent = bystanders.iter().find(|(task, _)| task.tid == main);
                let Some((_, mask)) = parent else { continue };
                report.count_done(task, actuators::restore_mask(past, task, mask));
            }
        }
        Err(error) => report.fail("what new processes inherited", &error),
    }
}

/// Threads that were created after the journal began, each with its process of origin: in the
/// processes of some tasks, and in processes that those started. Known threads are excluded.
fn born(
    past: &UndoContext<'_>,
    record: &Record,
    (from, known): (&[TaskId], &[TaskId]),
) -> Result<Vec<(TaskId, Tid)>, HostError> {
    let known: BTreeSet<TaskId> = known.iter().copied().collect();
    let mut roots = BTreeSet::new();
    for task in from {
        if tasks::is_alive(past.host, *task)? {
            roots.extend(tasks::process_of(past.host, task.tid)?);
        }
    }
    let mut parents = BTreeMap::new();
    for pid in tasks::processes(past.host)? {
        if let Some(stat) = tasks::stat(past.host, pid)? {
            parents.insert(pid, tasks::origin(past.host, &stat)?);
        }
    }
    let mut born = Vec::new();
    for pid in parents.keys() {
        let Some(root) = root_of(*pid, &roots, &parents) else { continue };
        for tid in tasks::threads_of(past.host, *pid)? {
            let Some(stat) = tasks::stat(past.host, tid)? else { continue };
            // A thread older than the Pinfold process inherited nothing from it.
            if stat.start_time >= record.header.supervisor.start_time
                && !known.contains(&stat.task())
            {
                born.push((stat.task(), root));
            }
        }
    }
    Ok(born)
}

fn root_of(pid: Tid, roots: &BTreeSet<Tid>, parents: &BTreeMap<Tid, Tid>) -> Option<Tid> {
    let mut at = pid;
    // A chain of parents is no longer than there are processes.
    for _ in 0..=parents.len() {
        if roots.contains(&at) {
            return Some(at);
        }
        at = *parents.get(&at)?;
    }
    None
}

fn finish(host: &dyn HostMut, journal: &mut Journal<'_>, report: &mut UndoReport, why: &str) {
    // Definitions are libvirt's files. They must reach the disk before the journal's end does.
    if host.is_live() && journal.record().steps().any(|(_, step)| step.is_lasting()) {
        files::sync_disks();
    }
    let written = if report.is_complete() { journal.end(why) } else { journal.flush() };
    if let Err(error) = written {
        report.fail("the journal", &error);
    }
}

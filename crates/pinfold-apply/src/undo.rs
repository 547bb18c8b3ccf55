//! Undoes everything in a journal: on demand, after a failure, after a crash.
//!
//! Steps are undone in reverse order. Each compares before it writes, so it does not matter whether
//! the step was done, or was already undone by an undo that was killed: the same journal can be
//! undone repeatedly. Values that another program changed since are left and reported. Then threads
//! that were created meanwhile and inherited Pinfold's settings are released.
//!
//! After a reboot the kernel has no masks and groups of the former boot, and the numbers in the
//! journal belong to other tasks. Only changes of a definition on disk are then undone.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pinfold_host::{HostError, HostMut, files, paths, with_causes};
use pinfold_model::{CpuSet, Finding, Step, TaskId, Undo};

use crate::actuators::{self, Reverted, UndoContext};
use crate::apply::affected_tasks;
use crate::cpusets::{self, Hierarchy};
use crate::journal::{
    ENDED, GONE, Header, Journal, JournalId, Outcome, RESTARTED, Record, UNDONE_LATER,
};
use crate::missing_cgroups::find_vanished;
use crate::other_placements::{OtherPlacements, undo_target};
use crate::release;
use crate::tasks::{self, task_of};
use crate::undo_report::UndoReport;

/// Undoes all steps of a journal.
///
/// ```
/// # use pinfold_apply::{Journals, NewJournal, Target, apply, no_observer};
/// # use pinfold_host::{SystemClock, files::StateDir};
/// # use pinfold_model::{Request, Role, Speed, Tid, VnodeRequest};
/// # let host = pinfold_sim::SimHost::v2_eight_pus();
/// # let topology = pinfold_samples::from_description("core:4 pu:2");
/// # let request = Request::from_vnodes(vec![VnodeRequest::processes("job", 1, Speed::FULL)]);
/// # let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// # let task = host.task(Tid(400)).ok_or("no task")?.id();
/// # let target = Target::new(Tid(400), vec![(task, Role::Task)]);
/// # let folder = tempfile::tempdir()?;
/// # let state = StateDir::open(&folder.path().to_string_lossy())?;
/// # let journals = Journals::open(&state, &SystemClock)?;
/// # let json = pinfold_plan::schema::to_json(&plan);
/// # let new = NewJournal { vm_name: "job", plan: &json, target: &target, supervised: false };
/// use pinfold_apply::undo;
/// use pinfold_host::Host as _;
///
/// let before = host.affinity(task.tid)?;
/// let mut journal = journals.begin(&host, &new)?;
/// apply(&host, &plan, &target, &mut journal, &mut no_observer())?;
/// assert!(undo(&host, &mut journal).is_complete());
/// assert_eq!(host.affinity(task.tid)?, before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    match find_vanished(host, journal.record()) {
        Ok(found) => report.vanished = found,
        Err(error) => report.fail("what has vanished", &error),
    }
    journal_masks(host, journal, &mut report);
    let others = journal.others(host).unwrap_or_else(|error| {
        report.fail("what other placements have set", &error);
        OtherPlacements::default()
    });
    note_placed(host, journal, &others, &mut report);
    // A full disk must not stop an undo.
    match journal.begin_undo() {
        Ok(()) | Err(_) => {}
    }
    let record = journal.record().clone();
    let record = others.resolve(&record);
    match UndoContext::new(host, journal.clock(), &record) {
        Ok(mut past) => {
            past.reaper = journal.reaper();
            let progress = Progress { report: &mut report, observer };
            if replay(&past, &record, journal, &others, progress).is_break() {
                report.failed.push(Finding::problem("undo", "it was interrupted"));
                return report;
            }
            report_yielded(host, &record, &mut report);
            release::release(&past, &record, &mut report);
        }
        Err(error) => report.fail("the placement", &error),
    }
    let why = match tasks::is_alive(host, record.header.vm) {
        Ok(false) if record.steps().any(|(_, step)| step.is_lasting()) => UNDONE_LATER,
        Ok(false) => ENDED,
        // A process that cannot be read does not change what was undone.
        Ok(true) | Err(_) => "undone",
    };
    finish(host, journal, &mut report, why);
    report
}

/// Undoes some steps of a placement that stays: those that a new plan does not need. Their outcome
/// is [`Outcome::Dropped`], even where another program has changed the value since.
pub(crate) fn drop_steps(
    host: &dyn HostMut,
    journal: &mut Journal<'_>,
    indices: &BTreeSet<usize>,
) -> UndoReport {
    let mut report = UndoReport::default();
    journal_masks(host, journal, &mut report);
    let others = journal.others(host).unwrap_or_else(|error| {
        report.fail("what other placements have set", &error);
        OtherPlacements::default()
    });
    let whole = others.resolve(journal.record()).into_owned();
    let part = whole.with_steps(indices);
    match UndoContext::new(host, journal.clock(), &whole) {
        Ok(past) => {
            let observer = &mut |_: usize, _: &Step| ControlFlow::Continue(());
            let progress = Progress { report: &mut report, observer };
            if replay(&past, &part, journal, &others, progress).is_break() {
                report.failed.push(Finding::problem("undo", "it was interrupted"));
            }
            if !past.masks_survive {
                release::release_bystanders(&past, &whole, &mut report);
            }
        }
        Err(error) => report.fail("the placement", &error),
    }
    if report.is_complete() {
        for (index, step) in part.steps() {
            // A list of CPUs that is not empty yet is emptied by the undo of the placement.
            let outcome = if is_as_before(host, step) { Outcome::Dropped } else { Outcome::Done };
            journal.note(index, outcome, None);
        }
    }
    if let Err(error) = journal.flush() {
        report.fail("the journal", &error);
    }
    report
}

/// Undoes what a placement changed on the host, for a machine that has ended. Changes of its definition
/// stay active until they are undone. Does nothing for a placement of an earlier boot.
pub fn undo_host_part(host: &dyn HostMut, journal: &mut Journal<'_>) -> UndoReport {
    let record = journal.record();
    let mut report = UndoReport::default();
    match record.is_of_this_boot(host) {
        Ok(true) => {}
        Ok(false) => return report,
        Err(error) => {
            report.fail("the journal", &error);
            return report;
        }
    }
    let steps = record.steps();
    let steps = steps.filter(|(index, step)| !step.is_lasting() && !record.is_void(*index));
    let indices: BTreeSet<usize> = steps.map(|(index, _)| index).collect();
    if indices.is_empty() { report } else { drop_steps(host, journal, &indices) }
}

/// False for a file that has other bytes than before a step.
fn is_as_before(host: &dyn HostMut, step: &Step) -> bool {
    let Some((path, original)) = step.undo.as_write_file() else { return true };
    match host.read(path) {
        Ok(now) => now.trim_ascii() == original.trim_ascii(),
        Err(error) => error.is_gone(),
    }
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
            let lasting = record.steps().rev().filter(|(_, step)| step.is_lasting());
            for (index, step) in lasting.filter(|(index, _)| !record.is_void(*index)) {
                revert_one(&past, index, step, journal, report);
            }
        }
        Err(error) => report.fail("the definitions", &error),
    }
}

/// Undoes one step and records its outcome. True if it must be finished later.
fn revert_one(
    past: &UndoContext<'_>,
    index: usize,
    step: &Step,
    journal: &mut Journal<'_>,
    report: &mut UndoReport,
) -> bool {
    let what = step.change.to_string();
    let mut answers = actuators::revert(past, step);
    if answers.iter().any(|answer| matches!(answer, Ok(Reverted::Restored)))
        && is_of_ended_machine(past.host, journal.record().header.vm, step)
    {
        answers.clear();
        answers.push(Ok(Reverted::Gone));
    }
    let is_gone =
        !answers.is_empty() && answers.iter().all(|answer| matches!(answer, Ok(Reverted::Gone)));
    let later = answers.iter().any(|answer| matches!(answer, Ok(Reverted::Later)));
    // All results are counted, including those after the first failure.
    let settled: Vec<bool> =
        answers.into_iter().map(|answer| report.count(&what, answer)).collect();
    let outcome = if settled.contains(&false) { Outcome::Kept } else { Outcome::Restored };
    journal.note(index, outcome, is_gone.then(|| GONE.to_owned()));
    later
}

/// True for a setting of a thread of a machine that has ended. The kernel still accepts a mask for a
/// thread that is exiting, but there is nothing to restore.
fn is_of_ended_machine(host: &dyn HostMut, machine: TaskId, step: &Step) -> bool {
    let (Undo::SetAffinity { task, .. } | Undo::SetPolicy { task, .. }) = &step.undo else {
        return false;
    };
    matches!(tasks::is_alive(host, machine), Ok(false))
        && (host.exists(&paths::task_file(machine.tid, task.tid, "stat"))
            || matches!(tasks::is_alive(host, *task), Ok(false)))
}

/// Before Linux 6.2 moving a task overwrites its mask, and no step records the masks of tasks that
/// were created in Pinfold's groups. Their inherited masks are journalled before they are moved
/// out, and those that libvirt will overwrite, so that an undo that is killed after that can be
/// completed.
fn journal_masks(host: &dyn HostMut, journal: &mut Journal<'_>, report: &mut UndoReport) {
    let record = journal.record().clone();
    let past = match UndoContext::new(host, journal.clock(), &record) {
        Ok(past) => past,
        Err(error) => return report.fail("the masks of threads", &error),
    };
    if !past.masks_survive {
        let masks = actuators::masks_of_new_tasks(&past);
        write_masks(masks, "what new tasks inherited", journal, report);
    }
    write_masks(actuators::masks_of_owner(&past), "the masks of the owner", journal, report);
}

fn write_masks(
    masks: Result<Vec<(TaskId, CpuSet)>, HostError>,
    what: &str,
    journal: &mut Journal<'_>,
    report: &mut UndoReport,
) {
    match masks {
        Ok(masks) if masks.is_empty() => {}
        Ok(masks) => match journal.write_masks(masks) {
            // A full disk must not stop an undo. The masks are lost only if the undo is also
            // killed.
            Ok(()) | Err(_) => {}
        },
        Err(error) => report.fail(what, &error),
    }
}

/// Before Linux 6.2 writing the list of a group overwrites the masks of its tasks, also those that
/// another placement has set since. They are journalled before, and restored at the end.
fn note_placed(
    host: &dyn HostMut,
    journal: &mut Journal<'_>,
    others: &OtherPlacements,
    report: &mut UndoReport,
) {
    let masks = placed_masks(host, journal.record(), others);
    write_masks(masks, "the masks of other placements", journal, report);
}

fn placed_masks(
    host: &dyn HostMut,
    record: &Record,
    others: &OtherPlacements,
) -> Result<Vec<(TaskId, CpuSet)>, HostError> {
    if others.is_empty() || cpusets::masks_survive(host)? {
        return Ok(Vec::new());
    }
    let steps: Vec<Step> = record.steps().map(|(_, step)| step.clone()).collect();
    let mut placed = BTreeSet::new();
    for machine in others.machines() {
        placed.extend(tasks::threads_of(host, machine.tid)?);
    }
    let sets = |step: &Step, task: TaskId| {
        step.change.as_set_affinity().is_some_and(|(own, _)| own == task)
    };
    let mut masks = affected_tasks::masks(host, &Hierarchy::read(host), &steps)?;
    masks.retain(|(task, _)| {
        placed.contains(&task.tid) && !steps.iter().any(|step| sets(step, *task))
    });
    Ok(masks)
}

/// Receives the outcome of each step that is undone.
struct Progress<'w> {
    report: &'w mut UndoReport,
    observer: &'w mut dyn FnMut(usize, &Step) -> ControlFlow<()>,
}

fn replay(
    past: &UndoContext<'_>,
    record: &Record,
    journal: &mut Journal<'_>,
    others: &OtherPlacements,
    progress: Progress<'_>,
) -> ControlFlow<()> {
    let Progress { report, observer } = progress;
    let (mut later, mut is_pinned) = (Vec::new(), true);
    let path = journal.path();
    for (index, step) in record.steps().rev().filter(|(index, _)| !record.is_void(*index)) {
        observer(index, step)?;
        // What inherited its mask in a group can be found only as long as the group exists.
        if is_pinned && leaves_group(step) {
            release::release_members(past, record, report);
        }
        is_pinned = matches!(step.undo, Undo::SetAffinity { .. } | Undo::SetPolicy { .. })
            || (is_pinned && !leaves_group(step));
        if let Some(above) =
            others.find_later(JournalId { path: &path, header: &record.header }, step)
        {
            report.changed.push(superseded_finding(step, above));
            journal.note(index, Outcome::Kept, None);
            continue;
        }
        if revert_one(past, index, step, journal, report) {
            later.push((step.change.to_string(), step));
        }
    }
    for (what, step) in later {
        report.count(&what, actuators::finish(past, step));
    }
    ControlFlow::Continue(())
}

/// True for a step whose undo moves tasks out of a group.
fn leaves_group(step: &Step) -> bool {
    matches!(step.undo, Undo::MoveTasks { .. } | Undo::RemoveGroup { .. })
}

/// A value that another placement changed since is restored by the undo of that placement.
fn superseded_finding(step: &Step, above: &Record) -> Finding {
    let Header { id, vm_name, .. } = &above.header;
    let what = &step.change;
    let text = format!("{what}: not restored, because placement {id} ({vm_name}) has set it since");
    Finding::note("undo", text).with_hint(format!("`pinfold undo {id}` restores the original"))
}

/// Reports the threads that stay as the owner of the machine has set them since.
fn report_yielded(host: &dyn HostMut, record: &Record, report: &mut UndoReport) {
    let mut reported = BTreeSet::new();
    for (index, step) in record.steps().rev().filter(|(index, _)| record.is_void(*index)) {
        let Some(task) = task_of(step) else { continue };
        let Some(value) = record.owner_value(index) else { continue };
        if reported.insert(undo_target(&step.undo))
            && matches!(tasks::is_alive(host, task), Ok(true))
        {
            let text = format!(
                "{}: not undone, because the owner of the machine has set {value} since",
                step.change
            );
            report.changed.push(Finding::note("undo", text));
        }
    }
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

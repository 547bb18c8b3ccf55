//! Releases tasks that inherited a mask or policy of the placement: threads and processes that were
//! created while it was active, and bystanders whose mask a kernel before 6.2 overwrote.
//!
//! A task that has not been released yet can create others meanwhile, so listing and releasing is
//! repeated until a pass finds nothing. In a group of Pinfold's, tasks are found by membership,
//! also if their parents have ended; a group that does not come to rest is frozen for the last
//! passes.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{HostError, paths};
use pinfold_model::{Command, CpuSet, Finding, TaskId, Tid};

use crate::actuators::{self, Reverted, UndoContext};
use crate::journal::Record;
use crate::tasks;
use crate::undo_report::UndoReport;

/// Maximum number of passes.
const MAX_PASSES: usize = 32;
/// Passes without a release after which tasks that end while they are checked no longer matter.
const QUIET_PASSES: usize = 3;
/// Maximum wait until a group is frozen, and the pause between two reads.
const FREEZE_READS: usize = 100;
const FREEZE_PAUSE_NS: u64 = 2_000_000;
/// Maximum number of tasks that a finding names.
const NAMED: usize = 8;

/// A task that was created while the placement was active, and the placed process that it descends
/// from; `None` if it is only known that it is in one of Pinfold's groups.
type Created = (TaskId, Option<Tid>);

/// Releases everything that descends from placed tasks, and restores overwritten masks of
/// bystanders.
pub(crate) fn release(past: &UndoContext<'_>, record: &Record, report: &mut UndoReport) {
    let mut placed = record.header.threads.clone();
    placed.extend(past.masked_tasks());
    match repeat_until_quiet(
        &|| find_created(past, record, &placed, &record.header.threads),
        &|(task, main): &Created| actuators::release_new_thread(past, *task, *main),
        report,
    ) {
        Ok(ReleaseOutcome::Yes | ReleaseOutcome::Probably) => {}
        Ok(ReleaseOutcome::No(left)) => report.failed.push(report_unreleased(past, &left)),
        Err(error) => report.fail("what new threads inherited", &error),
    }
    if !past.masks_survive {
        release_bystanders(past, record, report);
    }
}

/// Releases what is in the groups in which Pinfold pinned tasks. To be called while the groups
/// exist.
pub(crate) fn release_members(past: &UndoContext<'_>, record: &Record, report: &mut UndoReport) {
    let groups = past.groups_of_pinned();
    if groups.is_empty() {
        return;
    }
    let list = || members(past, record, &groups);
    let release = |(task, main): &Created| actuators::release_new_thread(past, *task, *main);
    let freezers: Vec<Freezer> =
        groups.iter().filter_map(|group| Freezer::new(past, group)).collect();
    let left = match repeat_until_quiet(&list, &release, report) {
        Ok(ReleaseOutcome::Yes) => return,
        Ok(ReleaseOutcome::Probably) if freezers.is_empty() => return,
        Ok(ReleaseOutcome::Probably) => Vec::new(),
        Ok(ReleaseOutcome::No(left)) => left,
        Err(error) => return report.fail("what new processes inherited", &error),
    };
    if freezers.is_empty() {
        report.failed.push(report_unreleased(past, &left));
        return;
    }
    let frozen: Result<Vec<()>, HostError> =
        freezers.iter().map(|freezer| freezer.freeze(past)).collect();
    let rest = frozen.and_then(|_| repeat_until_quiet(&list, &release, report));
    // A group that remains frozen after a kill is thawed by the next undo, which moves its tasks
    // out.
    let thawed: Result<Vec<()>, HostError> =
        freezers.iter().map(|freezer| freezer.thaw(past)).collect();
    match rest.and_then(|rest| thawed.map(|_| rest)) {
        Ok(ReleaseOutcome::Yes | ReleaseOutcome::Probably) => {}
        Ok(ReleaseOutcome::No(left)) => report.failed.push(report_unreleased(past, &left)),
        Err(error) => report.fail("what new processes inherited", &error),
    }
}

/// Whether tasks with inherited settings remain.
enum ReleaseOutcome {
    /// A pass found none, and no task ended while it was checked.
    Yes,
    /// Several passes found none, and in each of them tasks ended before they were checked.
    Probably,
    /// The last pass still released these.
    No(Vec<TaskId>),
}

fn repeat_until_quiet(
    list: &dyn Fn() -> Result<Vec<Created>, HostError>,
    release: &dyn Fn(&Created) -> Vec<Result<Reverted, HostError>>,
    report: &mut UndoReport,
) -> Result<ReleaseOutcome, HostError> {
    let (mut quiet, mut released) = (0, Vec::new());
    let failures = report.failed.len();
    for _ in 0..MAX_PASSES {
        released.clear();
        let mut ended = false;
        for created in list()? {
            for answer in release(&created) {
                ended |= matches!(answer, Ok(Reverted::Gone));
                if matches!(answer, Ok(Reverted::Restored | Reverted::Near(_))) {
                    released.push(created.0);
                }
                report.count_done(created.0, answer);
            }
        }
        // A refusal is the same in each pass.
        if report.failed.len() > failures {
            return Ok(ReleaseOutcome::Yes);
        }
        quiet = if released.is_empty() { quiet + 1 } else { 0 };
        if released.is_empty() && !ended {
            return Ok(ReleaseOutcome::Yes);
        }
        if quiet == QUIET_PASSES {
            return Ok(ReleaseOutcome::Probably);
        }
    }
    Ok(ReleaseOutcome::No(released))
}

fn report_unreleased(past: &UndoContext<'_>, left: &[TaskId]) -> Finding {
    let names: Vec<String> = left
        .iter()
        .take(NAMED)
        .map(|task| match tasks::stat(past.host, task.tid) {
            Ok(Some(stat)) => format!("{} ({})", task.tid, stat.comm),
            Ok(None) | Err(_) => task.tid.to_string(),
        })
        .collect();
    let more = left.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let text = format!(
        "tasks are forked faster than they can be released from the placement; last seen: {}{more}",
        names.join(", ")
    );
    let hint = format!(
        "stop the process that creates them (kill -STOP), run `{}`, and continue it (kill -CONT)",
        Command::new("undo")
    );
    Finding::problem("undo", text).with_hint(hint)
}

/// The file that freezes a group, and its two values.
struct Freezer {
    path: String,
    values: [&'static [u8]; 2],
    /// The file that shows when all tasks are frozen, and its line.
    shown: (String, &'static str),
}

impl Freezer {
    fn new(past: &UndoContext<'_>, group: &str) -> Option<Self> {
        let (unified, v1) = (paths::cgroup_freeze(group), paths::freezer_state(group));
        if past.host.exists(&unified) {
            let shown = (paths::cgroup_file(group, "cgroup.events"), "frozen 1");
            return Some(Self { path: unified, values: [b"1", b"0"], shown });
        }
        let shown = (v1.clone(), "FROZEN");
        past.host.exists(&v1).then_some(Self { path: v1, values: [b"FROZEN", b"THAWED"], shown })
    }

    fn freeze(&self, past: &UndoContext<'_>) -> Result<(), HostError> {
        past.host.write(&self.path, self.values[0])?;
        for _ in 0..FREEZE_READS {
            let text = past.host.read_text(&self.shown.0)?;
            if text.lines().any(|line| line == self.shown.1) {
                break;
            }
            past.clock.sleep_ns(FREEZE_PAUSE_NS);
        }
        Ok(())
    }

    fn thaw(&self, past: &UndoContext<'_>) -> Result<(), HostError> {
        past.host.write(&self.path, self.values[1])
    }
}

/// Restores the masks of bystanders, and of what they started since, if a change of their cpuset
/// overwrote them.
pub(crate) fn release_bystanders(past: &UndoContext<'_>, record: &Record, report: &mut UndoReport) {
    // What the machine has created since inherited its mask, and was released.
    let of_machine = match tasks::threads_of(past.host, record.header.vm.tid) {
        Ok(threads) => threads.into_iter().collect::<BTreeSet<Tid>>(),
        Err(error) => return report.fail("the masks of bystanders", &error),
    };
    // A task that was placed or moved has its original restored by its own step.
    let bystanders: BTreeMap<TaskId, &CpuSet> = record
        .masks()
        .filter(|(task, _)| {
            !past.has_step_for(*task)
                && (!of_machine.contains(&task.tid) || record.header.threads.contains(task))
        })
        .map(|(task, mask)| (*task, mask))
        .collect();
    for (task, mask) in &bystanders {
        report.count_done(*task, actuators::restore_mask(past, *task, mask));
    }
    let noted: Vec<TaskId> = bystanders.keys().copied().collect();
    match find_created(past, record, &noted, &noted) {
        Ok(found) => {
            for (task, main) in found {
                let parent = bystanders.iter().find(|(task, _)| Some(task.tid) == main);
                let Some((_, mask)) = parent else { continue };
                report.count_done(task, actuators::restore_mask(past, task, mask));
            }
        }
        Err(error) => report.fail("what new processes inherited", &error),
    }
}

/// The threads in some groups and below them that were created after the journal began.
fn members(
    past: &UndoContext<'_>,
    record: &Record,
    groups: &BTreeSet<&str>,
) -> Result<Vec<Created>, HostError> {
    let mut found = Vec::new();
    for group in groups {
        for pid in actuators::processes_below(past.host, group)? {
            found.extend(threads(past, record, pid)?.into_iter().map(|task| (task, None)));
        }
    }
    Ok(found)
}

/// The threads of a process that may have inherited something from this placement: a thread that is
/// older than the Pinfold process did not.
fn threads(past: &UndoContext<'_>, record: &Record, pid: Tid) -> Result<Vec<TaskId>, HostError> {
    let mut found = Vec::new();
    for tid in tasks::threads_of(past.host, pid)? {
        let Some(stat) = tasks::stat(past.host, tid)? else { continue };
        if stat.start_time >= record.header.supervisor.start_time {
            found.push(stat.task());
        }
    }
    Ok(found)
}

/// Threads that were created after the journal began, each with its process of origin: in the
/// processes of some tasks, and in processes that those started. Known threads are excluded.
fn find_created(
    past: &UndoContext<'_>,
    record: &Record,
    from: &[TaskId],
    known: &[TaskId],
) -> Result<Vec<Created>, HostError> {
    let known: BTreeSet<TaskId> = known.iter().copied().collect();
    let mut roots = BTreeSet::new();
    for task in from {
        if tasks::is_alive(past.host, *task)? {
            roots.extend(tasks::process_of(past.host, task.tid)?);
        }
    }
    roots.extend(past.reaper);
    let mut parents = BTreeMap::new();
    for pid in tasks::processes(past.host)? {
        if let Some(stat) = tasks::stat(past.host, pid)? {
            parents.insert(pid, tasks::origin(past.host, &stat)?);
        }
    }
    let mut found = Vec::new();
    for pid in parents.keys() {
        let Some(root) = root_of(*pid, &roots, &parents) else { continue };
        let main = Some(root).filter(|root| Some(*root) != past.reaper);
        let threads = threads(past, record, *pid)?.into_iter();
        found.extend(threads.filter(|task| !known.contains(task)).map(|task| (task, main)));
    }
    Ok(found)
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

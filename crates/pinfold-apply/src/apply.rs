//! Applies a plan step by step: journal, change, read back.
//!
//! The steps come from [`crate::plan_steps`]. After they are done it is called again until it
//! returns none, because threads are created and processes fork meanwhile, and other programs may
//! change what was set. Steps that only set one thread's mask or policy share one write and one
//! `fsync` of the journal (each is still on disk before it is done). One `fsync` per step would
//! take most of the time of pinning a machine with many threads.
//!
//! If anything fails, all steps are undone in reverse order before the error is returned.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pinfold_host::{HostError, HostMut, paths};
use pinfold_model::{Change, CpuSet, Finding, IsolationScope, Plan, Step, TaskId, Undo};

use crate::actuators::{self, ChangeOutcome, ReadBack};
use crate::cpusets::{self, Hierarchy};
use crate::error::ApplyError;
use crate::host_state::HostState;
use crate::journal::{EarlierUndo, Journal, JournalError, Outcome};
use crate::other_placements::{self, OtherPlacements, first_undo};
use crate::steps::{Planned, Request, all_steps, group_name};
use crate::tasks::{LiveThreads, Target};
use crate::undo::{drop_steps, undo};
use crate::undo_report::UndoReport;
use crate::watch::is_left;

pub(crate) mod affected_tasks;
mod managed_irqs;
mod replace;

use managed_irqs::ManagedIrqs;
pub use managed_irqs::no_movable_irq;
pub use replace::{Difference, NotReplaced, Replacement, difference, replace};

/// Maximum number of passes over the host before [`ApplyError`] reports that it does not settle.
const MAX_PASSES: usize = 8;

/// Where in a step an [`Observer`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The step is planned; nothing is written.
    BeforeJournal,
    /// The step is on disk and not yet done.
    AfterJournal,
    /// The step is done and not yet read back.
    AfterChange,
}

/// Argument of an [`Observer`].
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Position within the step.
    pub point: Point,
    /// Number of the step in the journal.
    pub index: usize,
    /// The current step.
    pub step: &'a Step,
}

/// Callback for progress and for tests. If it returns `Break`, the apply stops at once, as if it
/// had been killed, and nothing is undone.
pub type Observer<'o> = dyn FnMut(&Event<'_>) -> ControlFlow<()> + 'o;

/// An observer that never interrupts.
pub fn no_observer() -> impl FnMut(&Event<'_>) -> ControlFlow<()> {
    |_| ControlFlow::Continue(())
}

/// Result of a successful apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The steps that were done, in order.
    pub steps: Vec<Step>,
    /// Number of steps of an earlier plan that were undone, because this one replaced it.
    pub undone: usize,
    /// Requests that were not fulfilled completely, and tasks that ended meanwhile.
    pub findings: Vec<Finding>,
    /// The cgroup that Pinfold made for the housekeeping CPUs, if any. Loads that are started later
    /// join it through its `cgroup.procs`.
    pub group: Option<String>,
}

/// Applies a plan.
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
/// let mut journal = journals.begin(&host, &new)?;
/// let applied = apply(&host, &plan, &target, &mut journal, &mut no_observer())?;
/// assert_eq!(applied.steps.len(), journal.record().step_count());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ApplyError`]. The host is then in its former state, unless the error's report says otherwise
/// or the observer interrupted the apply ([`ApplyError::Abandoned`]).
pub fn apply(
    host: &dyn HostMut,
    plan: &Plan,
    target: &Target,
    journal: &mut Journal<'_>,
    observer: &mut Observer<'_>,
) -> Result<Applied, ApplyError> {
    let mut run = Run::new(host, journal, observer, plan.tuning.required);
    match run.until_done(plan, target) {
        Ok(()) => {
            let name = group_name(run.journal.record().header.vm);
            let group = run.applied.steps.iter().find_map(|step| created_name(step, &name));
            Ok(Applied { group, ..run.applied })
        }
        Err(failure) => Err(failure.roll_back(host, journal)),
    }
}

/// Executes steps that the caller planned, such as those of an emulated platform.
///
/// # Errors
/// As [`apply`].
pub fn take_steps(
    host: &dyn HostMut,
    steps: Vec<Step>,
    journal: &mut Journal<'_>,
    observer: &mut Observer<'_>,
) -> Result<Applied, ApplyError> {
    let mut run = Run::new(host, journal, observer, true);
    match run.apply_round(steps) {
        Ok(()) => Ok(run.applied),
        Err(failure) => Err(failure.roll_back(host, journal)),
    }
}

/// As [`take_steps`], for an addition to a placement: a failure reverts only these steps.
///
/// # Errors
/// As [`apply`].
pub fn add_steps(
    host: &dyn HostMut,
    steps: Vec<Step>,
    journal: &mut Journal<'_>,
) -> Result<Applied, ApplyError> {
    let first = journal.record().step_count();
    let mut observer = no_observer();
    let mut run = Run::new(host, journal, &mut observer, true);
    match run.apply_round(steps) {
        Ok(()) => Ok(run.applied),
        Err(failure) => Err(failure.after(undo_steps_from(host, journal, first))),
    }
}

/// Reverts the steps from this number on, and keeps the placement.
pub fn undo_steps_from(host: &dyn HostMut, journal: &mut Journal<'_>, first: usize) -> UndoReport {
    let added = (first..journal.record().step_count()).collect();
    drop_steps(host, journal, &added)
}

/// Leaves a file to another program that has written it since: the steps that wrote it are no
/// longer undone, and a later step takes the present content as the original.
///
/// # Errors
/// [`crate::JournalError::Store`].
pub fn leave_file(journal: &mut Journal<'_>, path: &str) -> Result<(), crate::JournalError> {
    let record = journal.record();
    let steps = record.steps().filter(|(index, step)| {
        !record.is_void(*index) && step.undo.as_write_file().is_some_and(|(at, _)| at == path)
    });
    let indices: Vec<usize> = steps.map(|(index, _)| index).collect();
    for index in indices {
        journal.note(index, Outcome::Dropped, None);
    }
    journal.flush()
}

fn created_name(step: &Step, name: &str) -> Option<String> {
    let path = step.change.made_group()?;
    (path.rsplit('/').next() == Some(name)).then(|| path.to_owned())
}

/// Why an apply stopped, before its steps are undone.
enum Failure {
    Plan(Box<ApplyError>),
    Refused { index: usize, step: Box<Step>, source: HostError },
    NotSo { index: usize, step: Box<Step>, wanted: String, found: String },
    Restless { left: String },
    Journal(crate::JournalError),
    Abandoned { index: usize },
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        Failure::Plan(Box::new(error))
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        Failure::Plan(Box::new(error.into()))
    }
}

impl From<crate::JournalError> for Failure {
    fn from(error: crate::JournalError) -> Self {
        Failure::Journal(error)
    }
}

impl Failure {
    fn roll_back(self, host: &dyn HostMut, journal: &mut Journal<'_>) -> ApplyError {
        if let Failure::Abandoned { index } = self {
            return ApplyError::Abandoned { index };
        }
        self.after(undo(host, journal))
    }

    /// The error after its steps were undone.
    fn after(self, undone_report: UndoReport) -> ApplyError {
        let undone_report = Box::new(undone_report);
        match self {
            Failure::Plan(error) if undone_report.is_complete() => *error,
            Failure::Plan(source) => ApplyError::Left { source, undone_report },
            Failure::Refused { index, step, source } => {
                ApplyError::Step { index, change: step.change.to_string(), source, undone_report }
            }
            Failure::NotSo { index, step, wanted, found } => ApplyError::ReadBackMismatch {
                index,
                change: step.change.to_string(),
                wanted,
                found,
                undone_report,
            },
            Failure::Restless { left } => {
                ApplyError::NotConverged { passes: MAX_PASSES, left, undone_report }
            }
            Failure::Journal(source) => ApplyError::NotJournalled { source, undone_report },
            Failure::Abandoned { index } => ApplyError::Abandoned { index },
        }
    }
}

struct Run<'r, 'c, 'o> {
    host: &'r dyn HostMut,
    journal: &'r mut Journal<'c>,
    observer: &'r mut Observer<'o>,
    applied: Applied,
    /// Tasks for which a move was tried: a kernel thread that stays is not tried again.
    tried: BTreeSet<TaskId>,
    /// Changes of tunables and pages that the kernel refused or made in part; these are not tried
    /// again either.
    not_retried: BTreeSet<String>,
    /// The interrupts of `irq:all` that the kernel keeps on their CPUs.
    irqs: ManagedIrqs,
    /// Whether a refused tunable ends the apply.
    required: bool,
    /// Whether CPUs that are offline stay so, because another program took them offline under the
    /// placement.
    offline_stays: bool,
    /// Other active placements. Read when a step first needs them, and again for each pass.
    others: Option<OtherPlacements>,
}

impl<'r, 'c, 'o> Run<'r, 'c, 'o> {
    fn new(
        host: &'r dyn HostMut,
        journal: &'r mut Journal<'c>,
        observer: &'r mut Observer<'o>,
        required: bool,
    ) -> Self {
        Self {
            host,
            journal,
            observer,
            applied: Applied::default(),
            tried: BTreeSet::new(),
            not_retried: BTreeSet::new(),
            irqs: ManagedIrqs::default(),
            required,
            offline_stays: false,
            others: None,
        }
    }

    fn until_done(&mut self, plan: &Plan, target: &Target) -> Result<(), Failure> {
        let request = Request::new(plan, target).map_err(ApplyError::from)?;
        let hierarchy = Hierarchy::read(self.host);
        let masks_survive = cpusets::masks_survive(self.host)?;
        let mut left = String::new();
        for pass in 0..MAX_PASSES {
            let mut state = HostState::read(self.host, &hierarchy, target)?;
            if plan.isolation == IsolationScope::Host {
                state = state.next_to(self.others()?)?;
            }
            if pass == 0 {
                self.irqs = ManagedIrqs::new(&state, plan)?;
            }
            let Planned { mut steps, findings, groups: _ } = all_steps(&state, &request)?;
            self.others = None;
            self.find(findings);
            self.drop_left(&mut steps, target)?;
            self.drop_offline(&mut steps, plan)?;
            steps.retain_mut(|step| self.is_new(step));
            // The steps of the first pass follow at once; later passes list the threads again.
            let mut seen = Some(LiveThreads::from_list(state.listed));
            let Some(first) = steps.first() else {
                let stay = self.irqs.finding(self.required)?;
                self.find(stay.into_iter().collect());
                return Ok(self.journal.complete()?);
            };
            left = first.change.to_string();
            for batch in
                steps.chunk_by(|a, b| can_share_journal_write(a) && can_share_journal_write(b))
            {
                self.note_masks(&hierarchy, batch, masks_survive)?;
                self.take(&hierarchy, batch, seen.take())?;
            }
        }
        Err(Failure::Restless { left })
    }

    /// Drops the steps that would move threads which stay where they are.
    fn drop_left(&self, steps: &mut Vec<Step>, target: &Target) -> Result<(), HostError> {
        let mut others = Vec::with_capacity(steps.len());
        for step in std::mem::take(steps) {
            if !is_left(self.host, &target.left, &step)? {
                others.push(step);
            }
        }
        *steps = others;
        Ok(())
    }

    /// Drops the steps that bring CPUs of the plan online, and those that need them, if these CPUs
    /// stay offline. The kernel has moved the threads, and a later plan can place them.
    fn drop_offline(&self, steps: &mut Vec<Step>, plan: &Plan) -> Result<(), HostError> {
        if !self.offline_stays {
            return Ok(());
        }
        let planned = plan.threads().map(|(_, thread)| &thread.pus).collect::<CpuSet>();
        let offline = planned.difference(&cpusets::list(self.host, &paths::cpu_online())?);
        let files: BTreeSet<String> = offline.iter().map(paths::cpu_is_online).collect();
        steps.retain(|step| {
            let file = step.change.as_write_file().map(|(path, _)| path);
            let is_pin = matches!(
                &step.change,
                Change::SetAffinity { mask, .. } if mask.is_subset(&offline)
            );
            !is_pin && file.is_none_or(|path| !files.contains(path))
        });
        Ok(())
    }

    fn apply_round(&mut self, mut steps: Vec<Step>) -> Result<(), Failure> {
        let hierarchy = Hierarchy::read(self.host);
        let masks_survive = cpusets::masks_survive(self.host)?;
        steps.retain_mut(|step| self.is_new(step));
        for batch in steps.chunk_by(|a, b| can_share_journal_write(a) && can_share_journal_write(b))
        {
            self.note_masks(&hierarchy, batch, masks_survive)?;
            self.take(&hierarchy, batch, None)?;
        }
        Ok(self.journal.flush()?)
    }

    /// Journals the masks of bystanders that the steps will overwrite.
    fn note_masks(
        &mut self,
        hierarchy: &Hierarchy<'_>,
        batch: &[Step],
        masks_survive: bool,
    ) -> Result<(), Failure> {
        if masks_survive {
            return Ok(());
        }
        let masks = affected_tasks::masks(self.host, hierarchy, batch)?;
        if !masks.is_empty() {
            self.journal.write_masks(masks)?;
        }
        Ok(())
    }

    /// False for a step that has nothing new to do. A step that sets a tunable again gets the undo
    /// of the first one, because that is the original value.
    fn is_new(&mut self, step: &mut Step) -> bool {
        if let Change::MoveTasks { tasks, .. } = &mut step.change {
            tasks.retain(|task| self.tried.insert(*task));
            if tasks.is_empty() {
                return false;
            }
        }
        if !self.not_retried.is_empty() && self.not_retried.contains(&change_key(&step.change)) {
            return false;
        }
        if let Some(first) = first_undo(self.journal.record(), &step.undo) {
            step.undo = first.clone();
        }
        true
    }

    fn find(&mut self, findings: Vec<Finding>) {
        for finding in findings {
            if !self.applied.findings.contains(&finding) {
                self.applied.findings.push(finding);
            }
        }
    }

    fn take(
        &mut self,
        hierarchy: &Hierarchy<'_>,
        batch: &[Step],
        seen: Option<LiveThreads>,
    ) -> Result<(), Failure> {
        let next = self.journal.record().step_count();
        for (step, index) in batch.iter().zip(next..) {
            self.report(Point::BeforeJournal, index, step)?;
        }
        let earlier = self.earlier(hierarchy, batch)?;
        let first = self.journal.write_steps(batch, earlier)?;
        let seen = match (seen, batch.iter().any(can_share_journal_write)) {
            (Some(seen), _) => seen,
            (None, true) => LiveThreads::read(self.host, self.journal.record().header.vm)?,
            (None, false) => LiveThreads::default(),
        };
        for (step, index) in batch.iter().zip(first..) {
            self.report(Point::AfterJournal, index, step)?;
            let outcome = self.take_one(hierarchy, &seen, index, step);
            if outcome.is_err() {
                self.journal.note(index, Outcome::Failed, None);
            }
            outcome?;
        }
        Ok(())
    }

    fn others(&mut self) -> Result<&OtherPlacements, JournalError> {
        let others = match self.others.take() {
            Some(others) => others,
            None => self.journal.others(self.host)?,
        };
        Ok(self.others.insert(others))
    }

    /// For each step, the earlier values that it finds from other active placements.
    fn earlier(
        &mut self,
        hierarchy: &Hierarchy<'_>,
        batch: &[Step],
    ) -> Result<Vec<Vec<EarlierUndo>>, Failure> {
        let mut all = Vec::new();
        // Most threads may use all CPUs, so the online list is read once, not per thread.
        let online = if batch.iter().any(can_share_journal_write) {
            cpusets::list(self.host, &paths::cpu_online())?
        } else {
            CpuSet::new()
        };
        for (place, step) in batch.iter().enumerate() {
            if first_undo(self.journal.record(), &step.undo).is_some() {
                continue;
            }
            let earlier =
                if other_placements::is_shared(step, &self.journal.record().header.threads) {
                    self.others()?.earlier(step)
                } else {
                    self.narrowing(hierarchy, step, &online)?.into_iter().collect()
                };
            if !earlier.is_empty() {
                all.resize(place, Vec::new());
                all.push(earlier);
            }
        }
        Ok(all)
    }

    /// The other placement, if any, that has narrowed the mask of one of our threads.
    fn narrowing(
        &mut self,
        hierarchy: &Hierarchy<'_>,
        step: &Step,
        online: &CpuSet,
    ) -> Result<Option<EarlierUndo>, Failure> {
        let Undo::SetAffinity { task, original } = &step.undo else { return Ok(None) };
        if online.is_subset(original) || self.others()?.is_empty() {
            return Ok(None);
        }
        let Some(cpusets) = hierarchy.get()? else { return Ok(None) };
        if cpusets.effective_of(self.host, task.tid)?.as_ref() != Some(original) {
            return Ok(None);
        }
        let Some(group) = cpusets.group_of(self.host, task.tid)? else { return Ok(None) };
        let lineage = cpusets.lineage(&group);
        let possible = cpusets::list(self.host, &paths::cpu_possible())?;
        let undo = Undo::SetAffinity { task: *task, original: possible };
        Ok(self.others()?.narrowing(&lineage, &undo))
    }

    fn take_one(
        &mut self,
        hierarchy: &Hierarchy<'_>,
        seen: &LiveThreads,
        index: usize,
        step: &Step,
    ) -> Result<(), Failure> {
        let refused = |source| Failure::Refused { index, step: Box::new(step.clone()), source };
        let taken = actuators::apply_change(self.host, seen, &step.change).map_err(refused)?;
        self.report(Point::AfterChange, index, step)?;
        if matches!(step.change, Change::MovePages { .. }) {
            self.not_retried.insert(change_key(&step.change));
        }
        let shown = match taken {
            ChangeOutcome::Gone => ReadBack::Gone,
            ChangeOutcome::Refused { error, finding: _ } if self.irqs.stays(&error) => {
                self.not_retried.insert(change_key(&step.change));
                self.journal.note(index, Outcome::Skipped, None);
                return Ok(());
            }
            ChangeOutcome::Refused { error, finding: _ } if self.required => {
                return Err(refused(error));
            }
            ChangeOutcome::Refused { error: _, finding } => {
                self.not_retried.insert(change_key(&step.change));
                self.journal.note(index, Outcome::Skipped, None);
                self.find(vec![finding]);
                return Ok(());
            }
            ChangeOutcome::Done(findings) => {
                self.find(findings);
                self.read_back(hierarchy, &step.change).map_err(refused)?
            }
        };
        let mut given = None;
        match shown {
            ReadBack::AsAsked => {}
            ReadBack::Given { value, finding } => {
                self.not_retried.insert(change_key(&step.change));
                self.find(vec![finding]);
                given = Some(value);
            }
            ReadBack::Less(finding) => {
                self.not_retried.insert(change_key(&step.change));
                self.find(vec![finding]);
            }
            ReadBack::Gone => {
                let text = format!("{}: skipped, because the task has exited", step.change);
                self.journal.note(index, Outcome::Skipped, None);
                self.find(vec![Finding::note("threads", text)]);
                return Ok(());
            }
            ReadBack::Other { wanted, found } => {
                return Err(Failure::NotSo { index, step: Box::new(step.clone()), wanted, found });
            }
        }
        self.journal.note(index, Outcome::Done, given);
        self.applied.steps.push(step.clone());
        Ok(())
    }

    /// The value that the kernel shows. For a change that completes late, waits for it first.
    fn read_back(&self, hierarchy: &Hierarchy<'_>, change: &Change) -> Result<ReadBack, HostError> {
        let mut shown = actuators::verify(self.host, hierarchy, change)?;
        for _ in 0..actuators::READ_BACK_ATTEMPTS {
            if !matches!(shown, ReadBack::Given { .. }) || !actuators::is_asynchronous(change) {
                break;
            }
            self.journal.clock().sleep_ns(actuators::LATE_PAUSE_NS);
            shown = actuators::verify(self.host, hierarchy, change)?;
        }
        Ok(shown)
    }

    fn report(&mut self, point: Point, index: usize, step: &Step) -> Result<(), Failure> {
        match (self.observer)(&Event { point, index, step }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Failure::Abandoned { index }),
        }
    }
}

/// Key of a change that is not tried again: a tunable with its value, or the pages of a process.
fn change_key(change: &Change) -> String {
    if let Change::MovePages { task, .. } = change {
        format!("pages of {task}")
    } else {
        change.to_string()
    }
}

/// True for steps that may share one write of the journal.
fn can_share_journal_write(step: &Step) -> bool {
    match step.change {
        Change::SetAffinity { .. } | Change::SetPolicy { .. } | Change::WriteSetting { .. } => true,
        Change::WriteFile { .. }
        | Change::MakeGroup { .. }
        | Change::MoveTasks { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => false,
    }
}

//! Replaces the plan of a placement: the difference of two plans, in the same journal.
//!
//! ```text
//! journal   plan A, its steps │ plan B │ A's steps that B does not need: undone, `dropped`
//!                                      │ what B sets otherwise than it is now: steps
//! ```
//! The undos of the first plan stay valid, so that one undo leads back to the state before the
//! first plan. A thread that both plans place goes from one mask to the next: nothing is released
//! in between. To know what plan B needs, it is planned for a host on which the placement has set
//! nothing ([`HostState::without`]). What is so already is not written again.
//!
//! A partition of CPUs cannot get other CPUs while threads are in it, and a list of version 1
//! cannot leave that of its parent. They are undone and made again.

use std::collections::BTreeSet;

use pinfold_host::mountinfo::Version;
use pinfold_host::{Clock, HostError, HostMut, SystemClock, paths, with_causes};
use pinfold_model::{Change, Finding, IsolationScope, Plan, Step, TaskId, Undo};

use super::{Applied, Failure, Observer, Run, can_share_journal_write};
use crate::actuators::{self, ReadBack, UndoContext};
use crate::cpusets::{self, Cpusets, Hierarchy};
use crate::error::ApplyError;
use crate::host_state::HostState;
use crate::journal::{Journal, JournalError, Journals, Record};
use crate::order;
use crate::other_placements::{OtherPlacements, UndoTarget, first_undo, undo_target};
use crate::steps::{Planned, Request, group_name, partition_name, unordered_steps};
use crate::tasks::{self, Target};
use crate::undo::drop_steps;
use crate::watch::is_left;

/// Why a plan did not replace another one.
#[derive(Debug, thiserror::Error)]
pub enum NotReplaced {
    /// It failed. The host is in a state between the two plans, and the journal can undo both.
    #[error("{0}")]
    Failed(String),
    /// The journal could not be written before the first step: the earlier plan is active.
    #[error(transparent)]
    Unwritten(JournalError),
    /// The observer stopped it; nothing was undone.
    #[error("replacing the plan was interrupted")]
    Abandoned,
}

impl From<Failure> for NotReplaced {
    fn from(failure: Failure) -> Self {
        Self::Failed(match failure {
            Failure::Abandoned { .. } => return Self::Abandoned,
            Failure::Plan(error) => with_causes(&*error),
            Failure::Refused { step, source, .. } => {
                format!("{} failed: {}", step.change, with_causes(&source))
            }
            Failure::NotSo { step, wanted, found, .. } => {
                format!(
                    "{} was accepted, but the kernel reports {found} instead of {wanted}",
                    step.change
                )
            }
            Failure::Restless { left } => {
                format!("the host keeps changing; a step remains: {left}")
            }
            Failure::Journal(error) => with_causes(&error),
        })
    }
}

impl From<HostError> for NotReplaced {
    fn from(error: HostError) -> Self {
        Self::from(Failure::from(error))
    }
}

/// A plan with the machine that it places.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'r> {
    /// The plan.
    pub plan: &'r Plan,
    /// The same as JSON text, for the journal.
    pub text: &'r str,
    /// The machine.
    pub target: &'r Target,
}

/// Replaces the plan of an active placement that stays until its undo.
///
/// # Errors
/// [`NotReplaced`]. Nothing is reverted: the caller replaces the plan by the former one, or undoes
/// the placement.
pub fn replace(
    host: &dyn HostMut,
    replacement: Replacement<'_>,
    journal: &mut Journal<'_>,
    observer: &mut Observer<'_>,
) -> Result<Applied, NotReplaced> {
    let Replacement { plan, text, target } = replacement;
    let request =
        Request::new(plan, target).map_err(|error| Failure::from(ApplyError::from(error)))?;
    journal.replace_plan(host, text).map_err(NotReplaced::Unwritten)?;
    actuators::repair(&UndoContext::new(host, journal.clock(), journal.record())?)?;
    let hierarchy = Hierarchy::read(host);
    let mut run = Run::new(host, journal, observer, plan.tuning.required);
    run.offline_stays = true;
    let stale = run.comparison(&hierarchy, &request)?.stale()?;
    run.drop_stale(&stale)?;
    run.take_missing(&hierarchy, &request)?;
    run.until_done(plan, target)?;
    Ok(run.applied)
}

/// What [`replace`] would do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The steps of the present plan that would be undone.
    pub undone: Vec<Step>,
    /// The steps that would be made.
    pub steps: Vec<Step>,
    /// Requests that cannot be fulfilled completely.
    pub findings: Vec<Finding>,
}

/// Compares a plan with the present one of a placement, the `record` of one of these journals.
///
/// # Errors
/// [`NotReplaced::Failed`] if the plan must not be applied here, or if the host cannot be read.
pub fn difference(
    host: &dyn HostMut,
    plan: &Plan,
    target: &Target,
    journals: &Journals<'_>,
    record: &Record,
) -> Result<Difference, NotReplaced> {
    let request =
        Request::new(plan, target).map_err(|error| Failure::from(ApplyError::from(error)))?;
    let hierarchy = Hierarchy::read(host);
    let clock = &SystemClock;
    let others = journals.active_but(host, Some(&record.header.id)).map_err(Failure::from)?;
    let comparison =
        Comparison { host, clock, record, hierarchy: &hierarchy, request: &request, others };
    let stale = comparison.stale()?;
    let undone = record.steps().rev().filter(|(index, _)| stale.contains(index));
    Ok(Difference {
        undone: undone.map(|(_, step)| step.clone()).collect(),
        steps: comparison.missing()?,
        findings: comparison.plan_all()?.findings,
    })
}

impl Run<'_, '_, '_> {
    fn comparison<'s>(
        &'s self,
        hierarchy: &'s Hierarchy<'s>,
        request: &'s Request<'s>,
    ) -> Result<Comparison<'s>, Failure> {
        let (clock, record) = (self.journal.clock(), self.journal.record());
        let others = self.journal.others(self.host)?;
        Ok(Comparison { host: self.host, clock, record, hierarchy, request, others })
    }

    fn drop_stale(&mut self, stale: &BTreeSet<usize>) -> Result<(), NotReplaced> {
        if stale.is_empty() {
            return Ok(());
        }
        let report = drop_steps(self.host, self.journal, stale);
        if let Some(first) = report.failed.first() {
            return Err(NotReplaced::Failed(first.text.clone()));
        }
        self.applied.undone = stale.len();
        self.find(report.equivalent.into_iter().chain(report.changed).collect());
        Ok(())
    }

    /// Makes the settings of the plan that are not as it has them.
    fn take_missing(
        &mut self,
        hierarchy: &Hierarchy<'_>,
        request: &Request<'_>,
    ) -> Result<(), Failure> {
        let masks_survive = cpusets::masks_survive(self.host)?;
        let mut missing = self.comparison(hierarchy, request)?.missing()?;
        self.drop_offline(&mut missing, request.plan())?;
        missing.retain_mut(|step| self.is_new(step));
        for batch in
            missing.chunk_by(|a, b| can_share_journal_write(a) && can_share_journal_write(b))
        {
            self.note_masks(hierarchy, batch, masks_survive)?;
            self.take(hierarchy, batch, None)?;
        }
        Ok(())
    }
}

/// A plan and the placement that it is to replace.
struct Comparison<'c> {
    host: &'c dyn HostMut,
    clock: &'c dyn Clock,
    record: &'c Record,
    hierarchy: &'c Hierarchy<'c>,
    request: &'c Request<'c>,
    others: OtherPlacements,
}

impl Comparison<'_> {
    /// All steps of the plan on a host on which the placement has set nothing.
    fn plan_all(&self) -> Result<Planned, Failure> {
        let Self { host, clock, record, hierarchy, request, ref others } = *self;
        let state = HostState::read(host, hierarchy, request.target())?;
        let state = state.next_to(others)?.without(record)?;
        let mut needed = unordered_steps(&state, request)?;
        let past = UndoContext::new(host, clock, record)?;
        for step in &mut needed.steps {
            if first_undo(record, &step.undo).is_none() {
                past.inherit(
                    record.header.vm.tid,
                    |task: TaskId| {
                        state.listed.contains(&task.tid) && !record.header.threads.contains(&task)
                    },
                    &mut step.undo,
                );
            }
        }
        Ok(needed)
    }

    /// The steps that are needed and not so yet.
    fn missing(&self) -> Result<Vec<Step>, Failure> {
        let mut missing = Vec::new();
        for step in self.plan_all()?.steps {
            let left = &self.request.target().left;
            if !is_left(self.host, left, &step)? && !self.is_applied(&step)? {
                missing.push(step);
            }
        }
        // The masks of the present plan, which `needed` does not know.
        Ok(order::in_order(missing, &self.request.parking(), |task: TaskId| {
            tasks::ignore_gone(self.host.affinity(task.tid))
        })?)
    }

    fn is_applied(&self, step: &Step) -> Result<bool, Failure> {
        // A group, or a file in it, that does not exist yet cannot be read back.
        let file = step.change.as_write_file().map(|(path, _)| path);
        if file.is_some_and(|path| !self.host.exists(path)) {
            return Ok(false);
        }
        let shown = actuators::verify(self.host, self.hierarchy, &step.change)?;
        Ok(matches!(shown, ReadBack::AsAsked | ReadBack::Gone))
    }

    /// The numbers of the steps that the plan does not need.
    fn stale(&self) -> Result<BTreeSet<usize>, Failure> {
        let record = self.record;
        let needed = self.plan_all()?;
        let version = self.hierarchy.get()?.map(Cpusets::version);
        let partition = format!("/{}", partition_name(&group_name(record.header.vm)));
        let mut unneeded: BTreeSet<&str> = groups(record).collect();
        unneeded.retain(|group| !needed.groups.contains(*group) || group.ends_with(&partition));
        let plan = self.request.plan();
        let needs = Needs {
            things: needed.steps.iter().filter_map(|step| undo_target(&step.undo)).collect(),
            unneeded,
            own: (plan.isolation == IsolationScope::Own).then_some(&self.request.target().own),
            is_v1: version == Some(Version::V1),
        };
        let active = record.steps().filter(|(index, _)| !record.is_void(*index));
        Ok(active.filter(|(_, step)| needs.is_stale(step)).map(|(index, _)| index).collect())
    }
}

/// The groups that a placement made.
fn groups(record: &Record) -> impl Iterator<Item = &str> {
    record.steps().filter_map(|(_, step)| step.change.made_group())
}

/// What a plan needs of what an earlier one has set.
struct Needs<'n> {
    things: BTreeSet<UndoTarget<'n>>,
    /// The groups of the earlier plan that are not needed, or have to be made again.
    unneeded: BTreeSet<&'n str>,
    /// The only processes that the plan excludes from the machine's CPUs, if not all of the host.
    own: Option<&'n Vec<TaskId>>,
    is_v1: bool,
}

impl Needs<'_> {
    fn is_stale(&self, step: &Step) -> bool {
        let is_needed = undo_target(&step.undo).is_some_and(|thing| self.things.contains(&thing));
        match (&step.undo, &step.change) {
            (Undo::RemoveGroup { path }, _) => self.unneeded.contains(path.as_str()),
            (Undo::MoveTasks { .. }, Change::MoveTasks { group, file, tasks }) => {
                // Threads that were moved out of a partition are in the group above it.
                self.unneeded.contains(group.as_str())
                    || (file == cpusets::THREADS_FILE
                        && self.unneeded.iter().any(|gone| parent_of(gone) == group))
                    || self.own.is_some_and(|own| !tasks.iter().all(|task| own.contains(task)))
            }
            (Undo::WriteFile { path, .. }, _) => {
                let group = parent_of(path);
                let is_list = *path == paths::cpuset_cpus(group);
                self.unneeded.contains(group) || (self.is_v1 && is_list) || !is_needed
            }
            (Undo::SetAffinity { .. } | Undo::SetPolicy { .. } | Undo::WriteSetting { .. }, _) => {
                !is_needed
            }
            (
                Undo::MoveTasks { .. } | Undo::LeavePages { .. } | Undo::ContinueProcesses { .. },
                _,
            ) => false,
        }
    }
}

fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(parent, _)| parent)
}

//! Applying and undoing for the commands: journal, steps, findings.
//!
//! ```no_run
//! use pinfold_host::SystemClock;
//! use pinfold_run::apply_session::{self, OnStop, Placement};
//! use pinfold_run::target::{Vm, to_target};
//! use pinfold_run::{host, inputs};
//! use pinfold_vm::VmSelector;
//!
//! let host = host::live()?;
//! let vm = Vm::find(&host, &VmSelector::Name("web".to_owned()))?;
//! let (plan, target) = (inputs::read_plan("plan.json")?, to_target(&vm.found));
//! let state = host::state(None)?;
//! let journals = host::journals(&state, &SystemClock)?;
//! let placement = Placement { plan: &plan, target: &target };
//! let (_, journal) = apply_session::apply(&host, placement, &journals, OnStop::Undo)?;
//! apply_session::undo(&host, journal)?;
//! # Ok::<(), pinfold_run::Failure>(())
//! ```

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pinfold_apply::order::{self, Move, MoveAction};
use pinfold_apply::{
    Applied, ApplyError, CommandGroup, Event, Journal, JournalError, Journals, NewJournal,
    NotReplaced, Observer, Planned, Replacement, Target, UndoReport, page_tables,
};
use pinfold_host::{Host as _, HostMut, LiveHost, with_causes};
use pinfold_model::text::{count_noun, cpus_text, select_verb};
use pinfold_model::{Command, CpuSet, Finding, Plan, Severity, Tuning};
use pinfold_plan::{HostMatch, command, schema};

use crate::message::say;
use crate::rt_watchdog::{RtWatchdog, Supervision};
use crate::{Exit, Failure, interrupt, plans};

/// Effect of a [request to stop](interrupt::is_requested) on an apply in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// The steps so far are undone.
    Undo,
    /// The apply is completed: the caller checks for the request afterwards, or there is none.
    Finish,
}

/// A plan, and the machine or processes that it is applied to.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// The target.
    pub target: &'p Target,
}

/// Applies a plan, with a journal. The journal is locked until it is dropped: until then no other
/// Pinfold process works on the same machine.
pub fn apply<'c>(
    host: &LiveHost,
    placement: Placement<'_>,
    journals: &Journals<'c>,
    on_stop: OnStop,
) -> Result<(Applied, Journal<'c>), Failure> {
    let mut journal = begin(host, placement, journals, PlacementLifetime::UntilUndone)?;
    let applied = apply_steps(host, placement, &mut journal, on_stop)?;
    record_complete(&journal);
    Ok((applied, journal))
}

/// Records the number of steps in the marks of a placement.
pub(crate) fn record_complete(journal: &Journal<'_>) {
    if let Err(error) = journal.record_complete() {
        say(&format!(
            "note: an undo would not detect a truncated journal: {}",
            with_causes(&error)
        ));
    }
}

/// An active placement whose plan is to be replaced.
pub struct Existing<'c, 'p> {
    /// Its journal.
    pub journal: Journal<'c>,
    /// Its present plan, which is put back if the new one cannot be applied; `None` if this version
    /// cannot read it. Then everything is undone.
    pub former: Option<Placement<'p>>,
}

/// Replaces the plan of an active placement, in its journal. An undo leads back to the state before
/// its first plan.
///
/// # Errors
/// [`Failure`]. The earlier plan is active again, or everything was undone if that failed; the
/// message says which.
pub fn replace<'c>(
    host: &LiveHost,
    placement: Placement<'_>,
    Existing { mut journal, former }: Existing<'c, '_>,
    on_stop: OnStop,
) -> Result<(Applied, Journal<'c>), Failure> {
    let applied = replace_in(host, placement, former, &mut journal, on_stop)?;
    Ok((applied, journal))
}

/// As [`replace`], in an open journal, with its present plan.
///
/// # Errors
/// Those of [`replace`].
pub fn replace_in(
    host: &LiveHost,
    placement: Placement<'_>,
    former: Option<Placement<'_>>,
    journal: &mut Journal<'_>,
    on_stop: OnStop,
) -> Result<Applied, Failure> {
    require_online(host, placement)?;
    let why = match replace_plan(host, placement, journal, on_stop) {
        Ok(applied) if !(on_stop == OnStop::Undo && interrupt::is_requested()) => {
            record_complete(journal);
            return Ok(applied);
        }
        Ok(_) | Err(NotReplaced::Abandoned) => None,
        Err(NotReplaced::Failed(why)) => Some(why),
        Err(NotReplaced::Unwritten(error)) => return Err(not_begun(&error)),
    };
    let back = restore(host, former, journal)?;
    Err(match why {
        None => Failure::new(Exit::Interrupted, format!("interrupted; {back}")),
        Some(why) => Failure::new(Exit::Host, format!("the plan was not applied: {why}; {back}")),
    })
}

/// The failure of a replacement that has changed nothing.
fn not_begun(error: &JournalError) -> Failure {
    let why = with_causes(error);
    let text = format!("the plan was not applied: {why}; the earlier placement is active");
    let hint = if error.is_full() {
        Some("free some space on that disk, then run it again".to_owned())
    } else {
        error.hint()
    };
    let failure = Failure::new(Exit::Host, text);
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// Puts a plan back that another one was to replace. Returns the state of the host in words.
fn restore(
    host: &LiveHost,
    former: Option<Placement<'_>>,
    journal: &mut Journal<'_>,
) -> Result<&'static str, Failure> {
    if let Some(former) = former {
        match replace_plan(host, former, journal, OnStop::Finish) {
            Ok(_) => {
                record_complete(journal);
                return Ok("the earlier placement is active again");
            }
            Err(error) => {
                say(&format!("the earlier plan could not be restored: {}", with_causes(&error)))
            }
        }
    }
    revert(host, journal)?;
    Ok("the placement was reverted")
}

/// Replaces the plan of a journal. After a failure nothing is reverted.
pub(crate) fn replace_plan(
    host: &LiveHost,
    Placement { plan, target }: Placement<'_>,
    journal: &mut Journal<'_>,
    on_stop: OnStop,
) -> Result<Applied, NotReplaced> {
    let replacement = Replacement { plan, text: &schema::to_json_line(plan), target };
    pinfold_apply::replace(host, replacement, journal, &mut |_: &Event<'_>| {
        if on_stop == OnStop::Undo && interrupt::is_requested() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

/// Whether a plan fits the host is only known when its CPUs are online.
fn require_online(
    host: &LiveHost,
    Placement { plan, target }: Placement<'_>,
) -> Result<(), Failure> {
    if pinfold_apply::online_steps(host, plan, target)?.steps.is_empty() {
        return Ok(());
    }
    let text = "the plan needs CPUs that are offline, but the machine is placed already";
    Err(Failure::new(Exit::Host, text).with_hint("bring them online, or undo the placement first"))
}

/// The order in which several machines are placed: one leaves its exclusive CPUs before another one
/// enters them.
///
/// # Errors
/// [`Failure`] if the mask of a vCPU cannot be read.
pub fn turns(host: &LiveHost, placements: &[Placement<'_>]) -> Result<Vec<MoveAction>, Failure> {
    let mut housekeeping: Option<CpuSet> = None;
    let mut moves = Vec::new();
    for Placement { plan, target } in placements {
        let mut before = CpuSet::new();
        for (task, _) in target.threads.iter().filter(|(_, role)| role.is_vcpu()) {
            match host.affinity(task.tid) {
                Ok(mask) => before.add(&mask),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A machine that floats has no exclusive CPUs yet.
        if !before.is_disjoint(&plan.housekeeping) {
            before = CpuSet::new();
        }
        let common = housekeeping.map(|known| known.intersection(&plan.housekeeping));
        housekeeping = Some(common.unwrap_or_else(|| plan.housekeeping.clone()));
        moves.push(Move { before, after: plan.exclusive.clone() });
    }
    Ok(order::order_moves(&moves, &housekeeping.unwrap_or_default()))
}

/// The plan of a machine that waits on housekeeping CPUs until another one has left its CPUs.
#[must_use]
pub fn parked_plan(plan: &Plan, cpus: &CpuSet) -> Plan {
    let mut parked = Plan { tuning: Tuning::default(), ..plan.clone() };
    for thread in parked.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
        if !thread.pus.is_disjoint(&plan.exclusive) {
            thread.pus.clone_from(cpus);
            thread.policy = None;
        }
    }
    parked
}

/// As [`apply`], for a caller that stays: a plan with real-time threads gets a watchdog before it
/// is applied.
pub fn apply_guarded<'c>(
    host: &LiveHost,
    placement: Placement<'_>,
    supervision: Supervision<'_, 'c>,
    on_stop: OnStop,
) -> Result<(Applied, Journal<'c>, Option<RtWatchdog>), Failure> {
    let mut journal =
        begin(host, placement, supervision.journals, PlacementLifetime::WithThisProcess)?;
    let guard = RtWatchdog::new(supervision, placement.plan, &journal.record().header.id)?;
    match apply_steps(host, placement, &mut journal, on_stop) {
        Ok(applied) => Ok((applied, journal, guard)),
        Err(failure) => {
            if let Some(guard) = guard {
                guard.end();
            }
            Err(failure)
        }
    }
}

/// As [`apply_guarded`], for a command that waits at its start: with a group in which what it
/// leaves in the background is found. Returns the group, if this user can make one.
pub fn apply_command<'c>(
    host: &LiveHost,
    placement: Placement<'_>,
    supervision: Supervision<'_, 'c>,
) -> Result<(Applied, Journal<'c>, Option<RtWatchdog>, Option<CommandGroup>), Failure> {
    let mut journal = begin(host, placement, supervision.journals, stay())?;
    let command = journal.record().header.vm;
    let mut group = CommandGroup::plan(host, command)?;
    if let Some(planned) = &group {
        let mut observer = pinfold_apply::no_observer();
        let made =
            pinfold_apply::take_steps(host, planned.steps.clone(), &mut journal, &mut observer);
        if let Err(error) = made {
            say(&format!("note: the command has no group of its own: {}", with_causes(&error)));
            group = None;
            drop(journal);
            journal = begin(host, placement, supervision.journals, stay())?;
        }
    }
    journal.reap();
    let guard = RtWatchdog::new(supervision, placement.plan, &journal.record().header.id)?;
    match apply_steps(host, placement, &mut journal, OnStop::Finish) {
        Ok(applied) => Ok((applied, journal, guard, group)),
        Err(failure) => {
            if let Some(guard) = guard {
                guard.end();
            }
            Err(failure)
        }
    }
}

/// Begins the journal of a placement that ends with this process, before any of its steps.
pub(crate) fn begin_supervised<'c>(
    host: &LiveHost,
    placement: Placement<'_>,
    journals: &Journals<'c>,
) -> Result<Journal<'c>, Failure> {
    begin(host, placement, journals, stay())
}

fn stay() -> PlacementLifetime {
    PlacementLifetime::WithThisProcess
}

/// How long a placement stays.
enum PlacementLifetime {
    UntilUndone,
    WithThisProcess,
}

fn begin<'c>(
    host: &LiveHost,
    Placement { plan, target }: Placement<'_>,
    journals: &Journals<'c>,
    stay: PlacementLifetime,
) -> Result<Journal<'c>, Failure> {
    let text = schema::to_json_line(plan);
    let vnode = plans::single(plan)?;
    let supervised = matches!(stay, PlacementLifetime::WithThisProcess);
    let new = NewJournal { vm_name: &vnode.name, plan: &text, target, supervised };
    Ok(journals.begin(host, &new)?)
}

fn apply_steps(
    host: &LiveHost,
    placement: Placement<'_>,
    journal: &mut Journal<'_>,
    on_stop: OnStop,
) -> Result<Applied, Failure> {
    let is_asked = || on_stop == OnStop::Undo && interrupt::is_requested();
    match bring_online_and_place(host, placement, journal, &mut |_: &Event<'_>| {
        if is_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }) {
        Ok(applied) if !is_asked() => Ok(applied),
        Ok(_) | Err(PlacementError::Apply(ApplyError::Abandoned { .. })) => {
            revert(host, journal)?;
            Err(Failure::new(Exit::Interrupted, "interrupted; every change was reverted"))
        }
        Err(PlacementError::Apply(error)) => Err(Failure::from(error)),
        Err(PlacementError::Elsewhere(failure)) => Err(failure),
    }
}

/// Why a plan was not applied; earlier steps were undone.
enum PlacementError {
    Apply(ApplyError),
    /// The plan is for another host.
    Elsewhere(Failure),
}

impl From<ApplyError> for PlacementError {
    fn from(error: ApplyError) -> Self {
        PlacementError::Apply(error)
    }
}

/// Applies a plan. Offline CPUs that its threads need are first brought online. Then the topology
/// is read again, and threads are placed only if the plan is for this host.
fn bring_online_and_place<H: HostMut>(
    host: &H,
    Placement { plan, target }: Placement<'_>,
    journal: &mut Journal<'_>,
    observer: &mut Observer<'_>,
) -> Result<Applied, PlacementError> {
    let Planned { steps, findings, groups: _ } = pinfold_apply::online_steps(host, plan, target)?;
    if steps.is_empty() && findings.is_empty() {
        return Ok(pinfold_apply::apply(host, plan, target, journal, observer)?);
    }
    let online = pinfold_apply::take_steps(host, steps, journal, observer)?;
    if let Err(failure) = require_fit(host, plan) {
        return Err(PlacementError::Elsewhere(match revert(host, journal) {
            Ok(_) => failure,
            Err(left) => left,
        }));
    }
    let mut applied = pinfold_apply::apply(host, plan, target, journal, observer)?;
    applied.steps.splice(0..0, online.steps);
    applied.findings.splice(0..0, online.findings);
    Ok(applied)
}

/// Refuses a plan of another host, as far as the online CPUs show it.
fn require_fit<H: HostMut>(host: &H, plan: &Plan) -> Result<(), Failure> {
    let topology = pinfold_topology::discover(host)
        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
    match pinfold_plan::fit(plan, &topology) {
        HostMatch::Same | HostMatch::OtherOnline => Ok(()),
        HostMatch::Offline(pus) => {
            let text = format!(
                "{} did not come online, but threads of the plan need {}",
                cpus_text(&pus),
                select_verb(pus.len(), "it", "them")
            );
            Err(Failure::new(Exit::Host, text)
                .with_hint("run it as root; `journalctl -k` shows the kernel's messages"))
        }
        HostMatch::Other(differences) => Err(plans::another_host("the plan", &differences)
            .with_hint(format!("create it again on this host: {}", command::plan_command(plan)))),
    }
}

/// Undoes all steps; if something could not be restored, the failure names it.
pub fn undo(host: &LiveHost, mut journal: Journal<'_>) -> Result<UndoReport, Failure> {
    revert(host, &mut journal)
}

/// Undoes what a placement changed on the host, for a machine that has ended; the changes of its
/// definition (`--config`) stay until `undo`.
pub(crate) fn undo_host_part(
    host: &LiveHost,
    mut journal: Journal<'_>,
) -> Result<UndoReport, Failure> {
    let report = pinfold_apply::undo_host_part(host, &mut journal);
    check(report, &journal)
}

fn revert(host: &dyn HostMut, journal: &mut Journal<'_>) -> Result<UndoReport, Failure> {
    let report = pinfold_apply::undo(host, journal);
    check(report, journal)
}

/// Prints what an undo could not restore exactly.
fn check(report: UndoReport, journal: &Journal<'_>) -> Result<UndoReport, Failure> {
    let findings = report.equivalent.iter().chain(&report.vanished).chain(&report.changed);
    // Several steps of one thread or file have the same finding.
    let texts: BTreeSet<String> = findings.map(ToString::to_string).collect();
    texts.iter().for_each(|text| say(text));
    if report.is_complete() {
        return Ok(report);
    }
    let lines: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
    Err(Failure::new(
        Exit::Residue,
        format!("not everything was restored:\n  {}", lines.join("\n  ")),
    )
    .with_hint(format!(
        "then run `{}` again",
        Command::new("undo").arg(&journal.record().header.id)
    )))
}

/// Prints what an apply did and could not do.
pub fn report(applied: &Applied) {
    report_named("", applied);
}

/// The same for one of several machines: the label stands before each message.
pub fn report_named(label: &str, applied: &Applied) {
    let done = count_noun(applied.steps.len(), "step");
    if applied.undone == 0 && applied.steps.is_empty() {
        say(&format!("{label}nothing to change: what the plan sets is so already"));
    } else if applied.undone == 0 {
        say(&format!("{label}{done} applied"));
    } else {
        say(&format!("{label}{done} applied, {} of the earlier plan undone", applied.undone));
    }
    for finding in applied.findings.iter().filter(|one: &&Finding| {
        one.severity > Severity::Note || one.subject == page_tables::SUBJECT
    }) {
        say(&format!("{label}{finding}"));
    }
}

/// Prints what is not supervised after an apply that does not stay.
pub fn report_unguarded(plan: &Plan) {
    report_unguarded_named("", plan);
}

/// The same for one of several machines: the label stands before the message.
pub fn report_unguarded_named(label: &str, plan: &Plan) {
    if pinfold_apply::real_time_priority(plan).is_some() {
        say(&format!(
            "{label}warning: guard: its threads keep their real-time priority until the undo, even \
             if they never sleep; with --watch or `pinfold watch` they lose it when Pinfold exits \
             or hangs"
        ));
    }
}

#[cfg(test)]
mod tests;

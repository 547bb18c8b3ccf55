//! Applying and reverting, for the commands: journal, steps, findings.

use std::ops::ControlFlow;

use pinfold_apply::{
    Applied, ApplyError, Event, Journal, Journals, NewJournal, Target, UndoReport,
};
use pinfold_host::LiveHost;
use pinfold_model::text::counted;
use pinfold_model::{Command, Plan, Severity};
use pinfold_plan::schema;

use crate::failure::{Exit, Failure};
use crate::guard::Guard;
use crate::output::say;
use crate::{common, interrupt};

/// A failure of the apply crate. If something could not be taken back, that is what counts.
pub fn apply_failure(error: &ApplyError) -> Failure {
    let exit = match (error.undone(), error) {
        (Some(report), _) if !report.is_complete() => Exit::Residue,
        (_, ApplyError::VmGone { .. }) => Exit::Vm,
        (_, _) => Exit::Host,
    };
    Failure::from_error(exit, error, error.hint())
}

/// Opens the journals of a state directory.
pub fn journals<'c>(
    state: &pinfold_host::user::StateDir,
    clock: &'c dyn pinfold_host::Clock,
) -> Result<Journals<'c>, Failure> {
    let journals = Journals::open(state, clock).map(Journals::with_marks);
    journals.map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))
}

/// What a [request to stop](interrupt::requested) does to an apply that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// What was done is taken back.
    TakeBack,
    /// It is finished: whoever applies looks for the request afterwards, or there is none.
    Finish,
}

/// Makes a plan true, journalled. The journal is held until it is dropped: while it lives no
/// other Pinfold works on the same machine.
pub fn apply<'c>(
    host: &LiveHost,
    (plan, target): (&Plan, &Target),
    journals: &Journals<'c>,
    on_stop: OnStop,
) -> Result<(Applied, Journal<'c>), Failure> {
    let mut journal = begin(host, plan, target, (journals, Stay::UntilUndone))?;
    let applied = make_true(host, (plan, target), &mut journal, on_stop)?;
    Ok((applied, journal))
}

/// The same for one who stays: a plan with real-time threads is guarded before it is made true.
pub fn apply_guarded<'c>(
    host: &LiveHost,
    (plan, target): (&Plan, &Target),
    journals: &Journals<'c>,
    on_stop: OnStop,
) -> Result<(Applied, Journal<'c>, Option<Guard>), Failure> {
    let mut journal = begin(host, plan, target, (journals, Stay::WithThisProcess))?;
    let guard = Guard::of(plan, journals, &journal.record().header.id)?;
    match make_true(host, (plan, target), &mut journal, on_stop) {
        Ok(applied) => Ok((applied, journal, guard)),
        Err(failure) => {
            if let Some(guard) = guard {
                guard.end();
            }
            Err(failure)
        }
    }
}

/// How long a placement is to stay.
enum Stay {
    UntilUndone,
    WithThisProcess,
}

fn begin<'c>(
    host: &LiveHost,
    plan: &Plan,
    target: &Target,
    (journals, stay): (&Journals<'c>, Stay),
) -> Result<Journal<'c>, Failure> {
    let text = schema::to_json_line(plan);
    let vnode = common::single(plan)?;
    let supervised = matches!(stay, Stay::WithThisProcess);
    let new = NewJournal { vm_name: &vnode.name, plan: &text, target, supervised };
    journals.begin(host, &new).map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))
}

fn make_true(
    host: &LiveHost,
    (plan, target): (&Plan, &Target),
    journal: &mut Journal<'_>,
    on_stop: OnStop,
) -> Result<Applied, Failure> {
    let is_asked = || on_stop == OnStop::TakeBack && interrupt::requested();
    let mut observer = |_: &Event<'_>| match is_asked() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    match pinfold_apply::apply(host, plan, target, journal, &mut observer) {
        Ok(applied) if !is_asked() => Ok(applied),
        Ok(_) | Err(ApplyError::Abandoned { .. }) => {
            take_back(host, journal)?;
            Err(Failure::new(Exit::Interrupted, "interrupted; what was done was reverted"))
        }
        Err(error) => Err(apply_failure(&error)),
    }
}

/// Takes everything back; what could not be restored is a failure that names it.
pub fn undo(host: &LiveHost, mut journal: Journal<'_>) -> Result<UndoReport, Failure> {
    take_back(host, &mut journal)
}

fn take_back(host: &LiveHost, journal: &mut Journal<'_>) -> Result<UndoReport, Failure> {
    let report = pinfold_apply::undo(host, journal);
    for finding in report.near.iter().chain(&report.vanished).chain(&report.changed) {
        say(&finding.to_string());
    }
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

/// Says what an apply did and could not do.
pub fn report(applied: &Applied) {
    say(&format!("{} applied", counted(applied.steps.len(), "step")));
    for finding in applied.findings.iter().filter(|one| one.severity > Severity::Note) {
        say(&finding.to_string());
    }
}

/// Says what an apply that does not stay leaves unguarded.
pub fn tell_unguarded(plan: &Plan) {
    if pinfold_apply::real_time_priority(plan).is_some() {
        say(
            "warning: guard: its threads keep their real-time priority until the undo, even if they \
             never sleep; with --watch or `pinfold watch` they lose it when Pinfold ends or hangs",
        );
    }
}

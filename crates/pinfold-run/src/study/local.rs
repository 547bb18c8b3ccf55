//! Starts and resumes a study on this host.

use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_model::Command;
use pinfold_probe::pinload::Pinload;
use pinfold_study::store::{HostChange, OpenRun, RunId, SessionRecord, Store, StoreError};
use pinfold_study::study::{self, Environment, Loaded, NewStudy, Outcome, PresetSelection, Study};

use super::runner::HostRunner;
use super::{Display, LOCK, Machine, file_failure};
use crate::{Exit, Failure, Session, host, interrupt};

/// A new run of a study.
#[derive(Clone, Copy, Debug)]
pub struct NewRun<'a> {
    /// The study, as in its file.
    pub whole: &'a Study,
    /// The form that is run.
    pub study: &'a Study,
    /// The name of that form.
    pub form: &'a PresetSelection,
    /// Path of the file, for messages.
    pub file: &'a str,
    /// Path of the store.
    pub store: &'a str,
    /// The command line.
    pub command: &'a str,
}

/// Runs a study to its end. Returns its store.
///
/// # Errors
/// [`Failure`] if no trial can be run, or the run was interrupted and can be resumed.
pub fn run(
    new: &NewRun<'_>,
    session: Session<'_>,
    display: Display<'_>,
) -> Result<(Store, RunId), Failure> {
    let machine = Machine::from_study(new.study, new.file)?;
    let pinload = Pinload::install()?;
    let mut runner = HostRunner::new(&machine, session, &pinload)?;
    let mut store = Store::open_or_create(new.store)?;
    // Before kernels of guests are looked for, which takes seconds.
    study::require_no_unfinished_run(&store, &new.whole.name)?;
    let cells = study::cells(new.study, &machine.facts, &runner);
    runner.prepare(new.study, &cells.map_err(|error| file_failure(new.file, error))?)?;
    let origin = host::origin(&machine.host, &machine.topology, new.study.seed)?;
    let origin = runner.origin(origin);
    let stored = NewStudy {
        study: new.whole,
        form: new.form,
        command: new.command,
        origin: &origin,
        facts: &machine.facts,
        now_unix_s: SystemClock.unix_seconds(),
    };
    let run = study::create(&mut store, &stored, &runner);
    let run = run.map_err(|error| file_failure(new.file, error))?;
    work(&mut store, run, &mut runner, session.state, display)?;
    Ok((store, run.id()))
}

/// A store contains commands that a resume executes: only this user may have access to it, and to
/// the files that SQLite reads next to it.
///
/// # Errors
/// [`Failure`] if another user may write to one of them.
pub fn require_own(store: &str) -> Result<(), Failure> {
    for suffix in ["", "-wal", "-journal", "-shm"] {
        let path = format!("{store}{suffix}");
        if suffix.is_empty() || files::exists(&path) {
            files::require_own(&path).map_err(|error| {
                Failure::from(error).with_hint(
                    "a resume runs the commands that it holds: read them, then copy it to a file that \
                     only you may write to, and resume the copy",
                )
            })?;
        }
    }
    Ok(())
}

/// A stored run of a study that is not finished.
pub struct StoredRun<'a> {
    /// Its store.
    pub store: &'a mut Store,
    /// The run.
    pub id: RunId,
    /// Its study and cells.
    pub loaded: &'a Loaded,
}

/// Runs the remaining trials of a run; a changed host is accepted if `accept` says so.
///
/// # Errors
/// As [`run`], and if the host has changed.
pub fn resume(
    StoredRun { store, id, loaded }: StoredRun<'_>,
    accept: HostChange,
    session: Session<'_>,
    display: Display<'_>,
) -> Result<(), Failure> {
    let machine = Machine::from_study(&loaded.study, store.path())?;
    let pinload = Pinload::install()?;
    let mut runner = HostRunner::new(&machine, session, &pinload)?;
    runner.prepare(&loaded.study, &loaded.cells)?;
    let origin = host::origin(&machine.host, &machine.topology, loaded.study.seed)?;
    let origin = runner.origin(origin);
    let now = SessionRecord { began_unix_s: SystemClock.unix_seconds(), origin };
    let run = store.open_run(id, &now, accept).map_err(|error| {
        let is_host = matches!(error, StoreError::HostChanged { .. });
        let failure = Failure::from(error);
        if is_host {
            return failure.with_hint(
                "start a new run, or continue with --accept-host-change: the page will report it",
            );
        }
        failure
    })?;
    work(store, run, &mut runner, session.state, display)
}

/// Runs the remaining trials of a run.
fn work(
    store: &mut Store,
    run: OpenRun,
    runner: &mut HostRunner<'_>,
    state: &StateDir,
    display: Display<'_>,
) -> Result<(), Failure> {
    let Some(_lock) = state.lock(LOCK)? else {
        return Err(Failure::new(
            Exit::Host,
            "another pinfold process is measuring on this machine",
        )
        .with_hint("wait until it exits: two measurements at a time would disturb each other"));
    };
    interrupt::install()?;
    (display.begins)(store, run.id())?;
    let outcome = study::run(
        store,
        run,
        &mut Environment {
            runner: &mut *runner,
            clock: &SystemClock,
            progress: display.progress,
            stop: interrupt::flag(),
            node: "",
        },
    );
    display.progress.finish();
    // Child processes of later work must not inherit the mask of the last trial's supervisor.
    runner.release()?;
    match outcome? {
        Outcome::Finished => Ok(()),
        Outcome::Interrupted { done, total } => {
            let path = store.path();
            let text =
                format!("interrupted after {done} of {total} trials; they are stored in {path}");
            let hint = format!("continue with `{}`", Command::new("study resume").arg(path));
            Err(Failure::new(Exit::Interrupted, text).with_hint(hint))
        }
    }
}

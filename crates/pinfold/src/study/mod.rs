//! `pinfold study`: an experiment from a file, on this host.
//!
//! ```text
//! file ─► pinfold_study::study (cells, design, store) ─► HostRunner: plan → apply → run → undo
//!                                                          or: boot → plan → apply → run in it
//! ```
//!
//! The design, the store and the statistics are in `pinfold-study`; this module places and runs the
//! workloads ([`runner`]) and prints the progress.

mod environment;
mod guest_trials;
mod guests;
mod interference;
mod job;
mod nodes;
mod page;
mod print;
mod probes;
mod runner;
mod slurm;
mod trials;

use pinfold_host::process::Spawn;
use pinfold_host::{Clock as _, LiveHost, SystemClock, files};
use pinfold_model::text::counted;
use pinfold_model::{Command, Topology};
use pinfold_probe::pinload::Pinload;
use pinfold_run::{Exit, Failure, host, inputs, interrupt};
use pinfold_study::store::{HostChange, OpenRun, RunId, SessionRecord, Store, StoreError};
use pinfold_study::study::{
    self as library, Analysis, Environment, HostFacts, KIND, Loaded, NewStudy, Outcome, Study,
    StudyError,
};

use self::runner::HostRunner;
use crate::cli::study::{
    CheckArgs, DiffArgs, ExportArgs, GateArgs, ReportArgs, ResumeArgs, RunArgs, StoreArgs,
    StudyArgs, StudyCommand,
};
use crate::common;
use crate::output::{data, say};
use crate::progress;

/// Lock held while trials run: only one process may measure at a time.
const LOCK: &str = "measuring";

/// Runs a subcommand of `pinfold study`.
pub fn study(arguments: &StudyArgs, state: Option<&str>) -> Result<(), Failure> {
    match &arguments.command {
        StudyCommand::Check(arguments) => check(arguments, state),
        StudyCommand::Run(arguments) => run(arguments, state),
        StudyCommand::Resume(arguments) => resume(arguments, state),
        StudyCommand::Status(arguments) => status(arguments),
        StudyCommand::Export(arguments) => export(arguments),
        StudyCommand::Diff(arguments) => diff(arguments),
        StudyCommand::Report(arguments) => report(arguments),
        StudyCommand::Worker(arguments) => slurm::worker::worker(arguments, state),
    }
}

/// `pinfold gate`: waits until its standard input ends, then executes the command.
pub fn gate(arguments: &GateArgs) -> Result<(), Failure> {
    if let Some(socket) = &arguments.socket {
        return pinfold_run::gate::wait_at(socket, &arguments.command);
    }
    let failed = |error: std::io::Error| Failure::new(Exit::Host, format!("gate: {error}"));
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).map_err(failed)?;
    let Some((program, words)) = arguments.command.split_first() else {
        return Err(Failure::new(Exit::Input, "no command is given"));
    };
    Err(Failure::from(Spawn::new(program).args(words).replace_self()))
}

/// The failure for an error of the study crate.
pub fn study_failure(error: &StudyError) -> Failure {
    let exit = match error {
        StudyError::Runner { .. } | StudyError::KeepsFailing { .. } => Exit::Host,
        StudyError::Rule(_)
        | StudyError::AllSkipped { .. }
        | StudyError::OtherStudy { .. }
        | StudyError::OtherText { .. }
        | StudyError::Unfinished { .. }
        | StudyError::Stored(_)
        | StudyError::OtherCells { .. }
        | StudyError::Document { .. }
        | StudyError::Store(_) => Exit::Input,
    };
    Failure::from_error(exit, error, error.hint())
}

/// The failure for an error that refers to a file.
fn file_failure(file: &str, error: &StudyError) -> Failure {
    let failure = study_failure(error);
    match error {
        StudyError::Rule(_) => {
            Failure { message: format!("{file}: {}", failure.message), ..failure }
        }
        StudyError::AllSkipped { .. }
        | StudyError::OtherStudy { .. }
        | StudyError::OtherText { .. }
        | StudyError::Unfinished { .. }
        | StudyError::Stored(_)
        | StudyError::OtherCells { .. }
        | StudyError::Runner { .. }
        | StudyError::KeepsFailing { .. }
        | StudyError::Document { .. }
        | StudyError::Store(_) => failure,
    }
}

/// The failure for an error of the store.
pub fn store_failure(error: &StoreError) -> Failure {
    Failure::from_error(Exit::Input, error, error.hint())
}

/// A study from its file.
fn read(path: &str) -> Result<Study, Failure> {
    let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
    inputs::asked(path, library::from_toml(&text))
}

/// The facts about this host for the expressions of the file.
fn facts(topology: &Topology) -> HostFacts {
    let usable = &topology.allowed;
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(usable)).count();
    HostFacts {
        pus: usable.len(),
        cores,
        nodes: topology.nodes.len(),
        packages: topology.packages.len(),
        smt: topology.has_smt(),
        cpufreq: !topology.frequency_domains.is_empty(),
    }
}

/// The data for the trials.
struct Bench {
    host: LiveHost,
    topology: Topology,
    facts: HostFacts,
}

impl Bench {
    /// This host, with the CPUs that the study may use.
    fn of(study: &Study, file: &str) -> Result<Self, Failure> {
        let host = host::live()?;
        let mut topology = inputs::topology(&host, None)?;
        if let Some(pus) = &study.pus {
            inputs::require_known(&format!("{file}: pus"), pus, &topology)?;
            topology.allowed = topology.allowed.intersection(pus);
            if topology.allowed.is_empty() {
                return Err(Failure::new(
                    Exit::Input,
                    format!("{file}: pus: none may be used here"),
                ));
            }
        }
        let facts = facts(&topology);
        Ok(Self { host, topology, facts })
    }
}

fn check(arguments: &CheckArgs, state: Option<&str>) -> Result<(), Failure> {
    let file = arguments.file.as_str();
    let whole = read(file)?;
    let study = chosen(&whole, arguments.quick, file)?;
    let bench = Bench::of(&study, file)?;
    let pinload = Pinload::install()?;
    let state = host::state(state)?;
    let runner = HostRunner::new(&bench.host, &bench.topology, (&state, &pinload))?;
    let cells = library::cells(&study, &bench.facts, &runner);
    let cells = cells.map_err(|error| file_failure(file, &error))?;
    let prediction = library::predict(&study, &cells, &bench.facts);
    let prediction = prediction.map_err(|error| file_failure(file, &error))?;
    print::check(arguments, &study, (&cells, &prediction));
    Ok(())
}

/// The form of the study that is run.
fn chosen(study: &Study, quick: bool, file: &str) -> Result<Study, Failure> {
    match quick {
        false => Ok(study.clone()),
        true => study.quickly().ok_or_else(|| {
            Failure::new(Exit::Input, format!("{file} has no [quick] table"))
                .with_hint("write one: what it leaves out, and its repetitions, levels and values")
        }),
    }
}

fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    let file = arguments.file.as_str();
    let whole = read(file)?;
    let study = chosen(&whole, arguments.quick, file)?;
    if slurm::is_meant(arguments)? {
        return slurm::run(arguments, &whole, state);
    }
    let bench = Bench::of(&study, file)?;
    let pinload = Pinload::install()?;
    let state = host::state(state)?;
    let mut runner = HostRunner::new(&bench.host, &bench.topology, (&state, &pinload))?;
    let path = arguments.store.clone().unwrap_or_else(|| format!("{}.sqlite", study.name));
    let mut store = Store::open_or_create(&path).map_err(|error| store_failure(&error))?;
    let cells = library::cells(&study, &bench.facts, &runner);
    runner.prepare(&study, &cells.map_err(|error| file_failure(file, &error))?)?;
    let origin = runner.origin(host::origin(&bench.host, &bench.topology, study.seed)?);
    let new = NewStudy {
        study: &whole,
        quick: arguments.quick,
        command: &common::command_line(),
        origin: &origin,
        facts: &bench.facts,
        now_unix_s: SystemClock.unix_seconds(),
    };
    let run = library::create(&mut store, &new, &runner);
    let run = run.map_err(|error| file_failure(file, &error))?;
    work(&mut store, run, (&bench, &mut runner), &state)
}

/// A store contains commands that a resume executes: only this user may have access to it, and to
/// the files that SQLite reads next to it.
fn require_own(store: &str) -> Result<(), Failure> {
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

fn resume(arguments: &ResumeArgs, state: Option<&str>) -> Result<(), Failure> {
    if files::exists(&arguments.store) {
        require_own(&arguments.store)?;
    }
    let mut store = Store::open(&arguments.store).map_err(|error| store_failure(&error))?;
    let unfinished = store.unfinished_run(KIND).map_err(|error| store_failure(&error))?;
    let Some(id) = unfinished else {
        return Err(Failure::new(
            Exit::Input,
            format!("{} holds no run of a study that is not finished", arguments.store),
        )
        .with_hint("begin one with `pinfold study run FILE`"));
    };
    let loaded = Loaded::read(&store, id).map_err(|error| study_failure(&error))?;
    if let Some(file) = &arguments.file {
        let text = files::read_text(file)
            .map_err(|error| Failure::from_error(Exit::Input, &error, None))?;
        loaded.same_text(file, &text).map_err(|error| study_failure(&error))?;
    }
    if let Some(options) = slurm::options_of(&store, id)? {
        return slurm::resume(arguments, (store, id, &loaded), (options, state));
    }
    slurm::refuse_words(&arguments.slurm)?;
    let bench = Bench::of(&loaded.study, &arguments.store)?;
    let pinload = Pinload::install()?;
    let state = host::state(state)?;
    let mut runner = HostRunner::new(&bench.host, &bench.topology, (&state, &pinload))?;
    runner.prepare(&loaded.study, &loaded.cells)?;
    let origin = host::origin(&bench.host, &bench.topology, loaded.study.seed)?;
    let origin = runner.origin(origin);
    let now = SessionRecord { began_unix_s: SystemClock.unix_seconds(), origin };
    let on_change = match arguments.accept_host_change {
        true => HostChange::Accept,
        false => HostChange::Refuse,
    };
    let run = store.open_run(id, &now, on_change).map_err(|error| {
        let failure = store_failure(&error);
        if matches!(error, StoreError::HostChanged { .. }) {
            return failure.with_hint(
                "begin a new run, or go on with --accept-host-change: the page will say so",
            );
        }
        failure
    })?;
    work(&mut store, run, (&bench, &mut runner), &state)
}

/// Runs the remaining trials of a run.
fn work(
    store: &mut Store,
    run: OpenRun,
    (bench, runner): (&Bench, &mut HostRunner<'_>),
    state: &files::StateDir,
) -> Result<(), Failure> {
    let lock = state.lock(LOCK)?;
    let Some(_lock) = lock else {
        return Err(Failure::new(Exit::Host, "another Pinfold measures on this machine")
            .with_hint("wait until it has ended: two at a time would measure each other"));
    };
    interrupt::install()?;
    print::announce(store, run.id())?;
    let mut bar = progress::Bar::new("trials");
    let outcome = library::run(
        store,
        run,
        &mut Environment {
            runner,
            clock: &SystemClock,
            progress: &mut bar,
            stop: interrupt::flag(),
            node: "",
        },
    );
    bar.finish();
    // Child processes of later work must not inherit the mask of the last trial's supervisor.
    runner.release(&bench.topology)?;
    match outcome.map_err(|error| study_failure(&error))? {
        Outcome::Finished { .. } => print::ended(store, run.id()),
        Outcome::Interrupted { done, total } => Err(Failure::new(
            Exit::Interrupted,
            format!(
                "interrupted after {done} of {total} trials; they are kept in {}",
                store.path()
            ),
        )
        .with_hint(format!("go on with `{}`", Command::new("study resume").arg(store.path())))),
    }
}

fn status(arguments: &StoreArgs) -> Result<(), Failure> {
    let store = Store::open(&arguments.store).map_err(|error| store_failure(&error))?;
    print::status(&store, run_of(&store, arguments.run)?, arguments.json)
}

fn export(arguments: &ExportArgs) -> Result<(), Failure> {
    let (store, analysis) = analysed(&arguments.store, arguments.run)?;
    let name = &analysis.loaded.study.name;
    let folder = arguments.out.clone().unwrap_or_else(|| format!("{name}-tables"));
    for (table, rows) in page::export(&store, &analysis, &folder)? {
        data(&format!("{folder}/{table}.csv, .parquet: {}", counted(rows, "row")));
    }
    Ok(())
}

fn diff(arguments: &DiffArgs) -> Result<(), Failure> {
    let one = |text: &str| {
        let (path, run) = match text.rsplit_once(':') {
            Some((path, run)) if run.parse::<i64>().is_ok() => (path, run.parse().ok()),
            Some(_) | None => (text, None),
        };
        analysed(path, run).map(|(_, analysis)| analysis)
    };
    let (first, second) = (one(&arguments.first)?, one(&arguments.second)?);
    for line in page::differences(&first, &second) {
        say(&format!("note: {line}"));
    }
    data(&page::diff(&first, &second, arguments.json));
    Ok(())
}

fn report(arguments: &ReportArgs) -> Result<(), Failure> {
    let (store, analysis) = analysed(&arguments.store, arguments.run)?;
    let name = &analysis.loaded.study.name;
    let path = arguments.out.clone().unwrap_or_else(|| format!("{name}.html"));
    let nodes = library::cluster::node_table(&store, &analysis).map_err(|e| study_failure(&e))?;
    page::write(&page::page(&analysis, &nodes)?, &path)?;
    let folder = format!("{}-tables", path.trim_end_matches(".html"));
    page::export(&store, &analysis, &folder)?;
    data(&format!("{path}\n{folder}"));
    Ok(())
}

fn analysed(path: &str, run: Option<i64>) -> Result<(Store, Analysis), Failure> {
    let store = Store::open(path).map_err(|error| store_failure(&error))?;
    let run = run_of(&store, run)?;
    let analysis = library::analyse(&store, run).map_err(|error| study_failure(&error))?;
    Ok((store, analysis))
}

/// The requested run, else the last one of a study.
fn run_of(store: &Store, asked: Option<i64>) -> Result<RunId, Failure> {
    if let Some(run) = asked {
        return Ok(RunId(run));
    }
    let runs = store.runs().map_err(|error| store_failure(&error))?;
    for run in runs.into_iter().rev() {
        if store.run(run).map_err(|error| store_failure(&error))?.kind == KIND {
            return Ok(run);
        }
    }
    Err(Failure::new(Exit::Input, format!("{} holds no run of a study", store.path()))
        .with_hint("begin one with `pinfold study run FILE`"))
}

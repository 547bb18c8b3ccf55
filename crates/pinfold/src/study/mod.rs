//! `pinfold study`: an experiment from a file, on this host or on the nodes of a cluster.
//!
//! The design, the store and the statistics are in `pinfold-study`, the trials in
//! [`pinfold_run::study`], the batch systems in `pinfold-cluster`; this module reads the arguments
//! and prints.

mod print;

use pinfold_cluster::{self as cluster, Options, Submission, node};
use pinfold_host::files;
use pinfold_host::process::Spawn;
use pinfold_model::text::count_noun;
use pinfold_probe::pinload::Pinload;
use pinfold_run::study::{
    self as runner, Display, HostRunner, Machine, file_failure, in_file, page,
};
use pinfold_run::{Exit, Failure, HelperProgram, Session, host};
use pinfold_study::RunError;
use pinfold_study::store::{HostChange, RunId, Store};
use pinfold_study::study::{self as library, Analysis, KIND, Loaded};

use crate::cli::study::{
    CheckArgs, DiffArgs, Engine, ExportArgs, GateArgs, ReportArgs, ResumeArgs, RunArgs, SlurmArgs,
    StoreArgs, StudyArgs, StudyCommand, WorkerArgs,
};
use crate::common;
use crate::output::{print_data, print_message};
use crate::progress::Bar;

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
        StudyCommand::Worker(arguments) => worker(arguments, state),
    }
}

/// `pinfold gate`: waits until its standard input ends, then executes the command.
pub fn gate(arguments: &GateArgs) -> Result<(), Failure> {
    if let Some(socket) = &arguments.socket {
        return pinfold_run::gate::wait_at(socket, &arguments.command);
    }
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())
        .map_err(|error: std::io::Error| Failure::new(Exit::Host, format!("gate: {error}")))?;
    let Some((program, words)) = arguments.command.split_first() else {
        return Err(Failure::new(Exit::Input, "no command was given"));
    };
    Err(Failure::from(Spawn::new(program).args(words).replace_self()))
}

fn check(arguments: &CheckArgs, state: Option<&str>) -> Result<(), Failure> {
    let file = arguments.file.as_str();
    let study = runner::choose_form(&runner::read(file)?, &arguments.form.form(), file)?;
    let machine = Machine::from_study(&study, file)?;
    let pinload = Pinload::install()?;
    let (state, program) = (host::state(state)?, HelperProgram::own()?);
    let session = Session { state: &state, program: &program };
    let runner = HostRunner::new(&machine, session, &pinload)?;
    let cells = library::cells(&study, &machine.facts, &runner);
    let cells = cells.map_err(|error| file_failure(file, error))?;
    let prediction = library::predict(&study, &cells, &machine.facts);
    let prediction = prediction.map_err(|error| file_failure(file, error))?;
    let absent = runner.absent_probes(&study, &cells)?;
    print::check(arguments, &study, &cells, &prediction, &absent);
    Ok(())
}

/// Runs or resumes with a progress bar.
fn with_bar<T>(work: impl FnOnce(Display<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut bar = Bar::new("trials");
    work(Display { begins: &print::announce, progress: &mut bar })
}

fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    let file = arguments.file.as_str();
    let whole = runner::read(file)?;
    let form = arguments.form.form();
    let study = runner::choose_form(&whole, &form, file)?;
    let command = common::command_line();
    fn path(name: &str, arguments: &RunArgs) -> String {
        arguments.store.clone().unwrap_or_else(|| format!("{name}.sqlite"))
    }
    if let Some(scheduler) = scheduler(arguments.engine) {
        let new = cluster::NewRun {
            study: &whole,
            scheduler,
            file,
            form,
            store: &path(&whole.name, arguments),
            command: &command,
            shared: arguments.shared.clone(),
            program: arguments.program.clone(),
        };
        let submission = submission(&arguments.slurm);
        let (store, outcome) = with_bar(|display| cluster::run(&new, &submission, state, display))?;
        return ended_on_cluster(&store, outcome);
    }
    refuse_cluster_options(&arguments.slurm)?;
    let given = [("--shared", &arguments.shared), ("--program", &arguments.program)];
    if let Some((option, _)) = given.iter().find(|(_, word)| word.is_some()) {
        return Err(wants_engine(option));
    }
    let (whole, study, store) = (&whole, &study, &path(&study.name, arguments));
    let new = runner::NewRun { whole, study, form: &form, file, store, command: &command };
    let (state, program) = (host::state(state)?, HelperProgram::own()?);
    let session = Session { state: &state, program: &program };
    let (store, run) = with_bar(|display| runner::run(&new, session, display))?;
    print::print_end(&store, run)
}

fn resume(arguments: &ResumeArgs, state: Option<&str>) -> Result<(), Failure> {
    if files::exists(&arguments.store) {
        runner::require_own(&arguments.store)?;
    }
    let mut store = Store::open(&arguments.store)?;
    let Some(id) = store.unfinished_run(KIND)? else {
        return Err(Failure::new(
            Exit::Input,
            format!("{} contains no unfinished run of a study", arguments.store),
        )
        .with_hint("start one with `pinfold study run FILE`"));
    };
    let loaded = Loaded::read(&store, id)?;
    if let Some(file) = &arguments.file {
        let text = files::read_text(file)
            .map_err(|error| Failure::from_error(Exit::Input, &error, None))?;
        loaded.require_same_text(file, &text)?;
    }
    if let Some(options) = cluster::options_of(&store, id)? {
        let stored = runner::StoredRun { store: &mut store, id, loaded: &loaded };
        return resume_on_cluster(stored, options, &submission(&arguments.slurm), state);
    }
    refuse_cluster_options(&arguments.slurm)?;
    let on_change =
        if arguments.accept_host_change { HostChange::Accept } else { HostChange::Refuse };
    let stored = runner::StoredRun { store: &mut store, id, loaded: &loaded };
    let (state, program) = (host::state(state)?, HelperProgram::own()?);
    let session = Session { state: &state, program: &program };
    with_bar(|display| runner::resume(stored, on_change, session, display))?;
    print::print_end(&store, id)
}

fn resume_on_cluster(
    stored: runner::StoredRun<'_>,
    options: Options,
    submission: &Submission,
    state: Option<&str>,
) -> Result<(), Failure> {
    let runner::StoredRun { store, id, loaded } = stored;
    let outcome = with_bar(|display| {
        let stored = runner::StoredRun { store: &mut *store, id, loaded };
        cluster::resume(stored, options, submission, state, display)
    })?;
    ended_on_cluster(store, outcome)
}

fn ended_on_cluster(store: &Store, outcome: cluster::Outcome) -> Result<(), Failure> {
    match outcome {
        cluster::Outcome::Finished(run) => print::print_end(store, run),
        cluster::Outcome::Detached => Ok(()),
    }
}

/// The batch system of an engine; `None` for this machine.
fn scheduler(engine: Engine) -> Option<&'static str> {
    match engine {
        Engine::Local => None,
        Engine::Slurm => Some("slurm"),
    }
}

fn submission(arguments: &SlurmArgs) -> Submission {
    let SlurmArgs { partition, nodes, time, detach, patience } = arguments.clone();
    Submission { partition, nodes, time, detach, patience }
}

/// Rejects options of a cluster if the trials run on this machine.
fn refuse_cluster_options(words: &SlurmArgs) -> Result<(), Failure> {
    let given = [
        ("--partition", words.partition.is_some()),
        ("--nodes", words.nodes.is_some()),
        ("--time", words.time.is_some()),
        ("--detach", words.detach),
        ("--patience", words.patience.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(wants_engine(option)),
        None => Ok(()),
    }
}

fn wants_engine(option: &str) -> Failure {
    Failure::new(Exit::Input, format!("{option} needs --engine slurm"))
        .with_hint("`local` runs the trials on this machine")
}

/// The program that a task of the cluster runs on its node.
fn worker(arguments: &WorkerArgs, state: Option<&str>) -> Result<(), Failure> {
    let task = node::Task {
        job: &arguments.job,
        out: &arguments.out,
        scout: arguments.scout,
        offset: arguments.offset,
        attempt: arguments.attempt,
    };
    node::work(&task, state, &HelperProgram::own()?)
}

fn status(arguments: &StoreArgs) -> Result<(), Failure> {
    let store = Store::open(&arguments.store)?;
    print::status(&store, run_of(&store, arguments.run)?, arguments.json)
}

fn export(arguments: &ExportArgs) -> Result<(), Failure> {
    let (store, analysis) = read_analysis(&arguments.store, arguments.run)?;
    let name = &analysis.loaded.study.name;
    let folder = arguments.out.clone().unwrap_or_else(|| format!("{name}-tables"));
    for (table, rows) in page::export(&store, &analysis, &folder)? {
        let more = if cfg!(feature = "parquet") { ", .parquet" } else { "" };
        print_data(&format!("{folder}/{table}.csv{more}: {}", count_noun(rows, "row")));
    }
    Ok(())
}

fn diff(arguments: &DiffArgs) -> Result<(), Failure> {
    let (first, second) = (one(&arguments.first)?, one(&arguments.second)?);
    for line in page::differences(&first, &second) {
        print_message(&format!("note: {line}"));
    }
    print_data(&print::diff(&first, &second, arguments.json));
    Ok(())
}

fn one(text: &str) -> Result<Analysis, Failure> {
    let (path, run) = match text.rsplit_once(':') {
        Some((path, run)) if run.parse::<i64>().is_ok() => (path, run.parse().ok()),
        Some(_) | None => (text, None),
    };
    read_analysis(path, run).map(|(_, analysis)| analysis)
}

fn report(arguments: &ReportArgs) -> Result<(), Failure> {
    let (store, analysis) = match &arguments.study {
        None => read_analysis(&arguments.store, arguments.run)?,
        Some(file) => {
            let study = runner::read(file)?;
            let store = Store::open(&arguments.store)?;
            let run = run_of(&store, arguments.run)?;
            let analysis = library::analyse_with_text(&store, run, &study);
            let analysis = analysis.map_err(|error| {
                if matches!(error, RunError::Refused { .. }) {
                    in_file(file, error.into())
                } else {
                    file_failure(file, error)
                }
            });
            (store, analysis?)
        }
    };
    let name = &analysis.loaded.study.name;
    let path = arguments.out.clone().unwrap_or_else(|| format!("{name}.html"));
    let nodes = library::node_table(&store, &analysis)?;
    let page = page::page(&analysis, &nodes)?;
    if path.ends_with(".md") {
        let charts = page::write_markdown(&page, &arguments.store, &path)?;
        print_data(&format!("{path}\n{charts}"));
        return Ok(());
    }
    page::write(&page, &path)?;
    let folder = format!("{}-tables", path.trim_end_matches(".html"));
    page::export(&store, &analysis, &folder)?;
    print_data(&format!("{path}\n{folder}"));
    Ok(())
}

fn read_analysis(path: &str, run: Option<i64>) -> Result<(Store, Analysis), Failure> {
    let store = Store::open(path)?;
    let run = run_of(&store, run)?;
    let analysis = library::analyse(&store, run)?;
    Ok((store, analysis))
}

/// The requested run, else the last one of a study.
fn run_of(store: &Store, asked: Option<i64>) -> Result<RunId, Failure> {
    if let Some(run) = asked {
        return Ok(RunId(run));
    }
    let runs = store.runs()?;
    for run in runs.into_iter().rev() {
        if store.run(run)?.kind == KIND {
            return Ok(run);
        }
    }
    Err(Failure::new(Exit::Input, format!("{} contains no run of a study", store.path()))
        .with_hint("start one with `pinfold study run FILE`"))
}

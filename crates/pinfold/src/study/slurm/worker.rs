//! `pinfold study worker`: the program that a task of the cluster runs on its node.
//!
//! It reads the job, checks that this node equals the first one, runs its part with the usual
//! runner of this host, and returns one complete result. A failed trial is part of the result; if
//! the task cannot continue at all, it exits with an error message and without a result.

use std::io::Read as _;

use pinfold_cluster::{
    self as cluster, Answer, Found, Given, Head, JobDocument, result_text, study_digest,
};
use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, SystemClock, process};
use pinfold_probe::pinload::Pinload;
use pinfold_run::{Exit, Failure, host, inputs, interrupt};
use pinfold_study::study::Environment;

use super::super::runner::HostRunner;
use super::super::{Bench, LOCK, study_failure};
use super::shared::{result_path, scout_path};
use crate::cli::study::WorkerArgs;
use crate::output::{data, say};

/// Interval of waiting for another Pinfold process on this node.
const LOCK_NS: u64 = 200_000_000;

/// Runs a part, or the check.
pub fn worker(arguments: &WorkerArgs, state: Option<&str>) -> Result<(), Failure> {
    if arguments.remove_self {
        // If the copy cannot be removed, it is left on the node; this does not affect the work.
        if let Ok(path) = std::env::current_exe() {
            match files::remove(&path.to_string_lossy()) {
                Ok(()) => {}
                Err(error) => say(&format!("note: {error}")),
            }
        }
    }
    interrupt::install()?;
    let began_unix_s = SystemClock.unix_seconds();
    let job = JobDocument::from_json(&read(&arguments.job)?)
        .map_err(|error| Failure::from_error(Exit::Input, &error, None))?;
    let part = match arguments.scout {
        true => None,
        false => Some(number(arguments)?),
    };
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?;
    let head = Head {
        key: job.key.clone(),
        pinfold: env!("CARGO_PKG_VERSION").to_owned(),
        study: study_digest(&job.toml, job.quick),
        part,
        attempt: arguments.attempt,
        node: reported("SLURMD_NODENAME")?,
        job: job_number()?,
        mask: topology.inherited().to_string(),
        origin: host::origin(&host, &topology, 0)?,
        began_unix_s,
    };
    drop((host, topology));
    let given = match job.pinfold == head.pinfold {
        true => given(&job, part, (&head, state))?,
        false => Given::Refused(format!("it has Pinfold {}, not {}", head.pinfold, job.pinfold)),
    };
    let attempt = arguments.attempt;
    let answer = Answer { head, given };
    let text =
        result_text(&answer).map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    if arguments.out == "-" {
        data(text.trim_end());
        return Ok(());
    }
    let path = match part {
        Some(part) => result_path(&arguments.out, part, attempt),
        None => scout_path(&arguments.out),
    };
    let folder = path.rsplit_once('/').map_or(".", |(folder, _)| folder);
    files::make_dirs(folder)?;
    files::write_atomic(&path, text.as_bytes()).map_err(Failure::from)
}

fn read(job: &str) -> Result<String, Failure> {
    if job != "-" {
        return files::read_text(job).map_err(|error| {
            Failure::from(error).with_hint("is the folder of --shared the same one on this node?")
        });
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.map_err(|error| Failure::new(Exit::Input, format!("the job cannot be read: {error}")))?;
    Ok(text)
}

fn number(arguments: &WorkerArgs) -> Result<u32, Failure> {
    if let Some(part) = arguments.part {
        return Ok(part);
    }
    let index = variable("SLURM_ARRAY_TASK_ID").and_then(|text| text.parse::<u32>().ok());
    let (Some(offset), Some(index)) = (arguments.offset, index) else {
        return Err(Failure::new(
            Exit::Input,
            "neither a part is named nor is this an array's task",
        ));
    };
    offset
        .checked_add(index)
        .ok_or_else(|| Failure::new(Exit::Input, format!("{offset} + {index} is no part")))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The variables that Slurm sets for each of its tasks.
fn reported(name: &str) -> Result<String, Failure> {
    variable(name).ok_or_else(|| {
        Failure::new(Exit::Input, format!("{name} is not set: this is no task of Slurm"))
            .with_hint("`pinfold study run FILE --engine slurm` submits such tasks")
    })
}

fn job_number() -> Result<String, Failure> {
    match (variable("SLURM_ARRAY_JOB_ID"), variable("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(element)) => Ok(format!("{job}_{element}")),
        (Some(_), None) | (None, Some(_)) | (None, None) => reported("SLURM_JOB_ID"),
    }
}

/// The folder of this node's journals, locks and programs. The user's own folders may be shared by
/// all nodes, but locks and copies of programs must not be.
fn own_folder(state: Option<&str>) -> Result<StateDir, Failure> {
    match (state, process::is_root()) {
        (Some(_), _) | (None, true) => host::state(state),
        (None, false) => {
            let path = format!("/tmp/pinfold-{}-node", process::own_uid());
            host::state(Some(&path))
        }
    }
}

fn given(
    job: &JobDocument,
    part: Option<u32>,
    (head, state): (&Head, Option<&str>),
) -> Result<Given, Failure> {
    let scout = cluster::scout(job).map_err(|error| study_failure(&error))?;
    let bench = Bench::of(&scout.study, &scout.study.name)?;
    let state = own_folder(state)?;
    let pinload = Pinload::install_in(&state.path_of("bin"))?;
    let mut runner = HostRunner::new(&bench.host, &bench.topology, (&state, &pinload))?;
    let here = scout.look(&bench.facts, &runner).map_err(|error| study_failure(&error))?;
    let Some(first) = &job.scouted else { return Ok(Given::Scouted(here)) };
    if let Some(why) = cluster::differences(&scout, first, &here) {
        return Ok(Given::Refused(why));
    }
    let part = part.ok_or_else(|| Failure::new(Exit::Input, "no part is named"))?;
    let _lock = loop {
        if let Some(lock) = state.lock(LOCK)? {
            break lock;
        }
        if interrupt::requested() {
            return Err(interrupted(0, 0).with_hint("another Pinfold measured on this node"));
        }
        SystemClock.sleep_ns(LOCK_NS);
    };
    let cells = pinfold_study::study::cells(&scout.study, &bench.facts, &runner);
    runner.prepare(&scout.study, &cells.map_err(|error| study_failure(&error))?)?;
    let mut quiet = |_: &pinfold_study::study::Update<'_>| {};
    let found = cluster::work(
        (&scout, part),
        (&head.origin, &bench.facts),
        &mut Environment {
            runner: &mut runner,
            clock: &SystemClock,
            progress: &mut quiet,
            stop: interrupt::flag(),
            node: &head.node,
        },
    );
    runner.release(&bench.topology)?;
    match found.map_err(|error| study_failure(&error))? {
        Found::Whole(trials) => Ok(Given::Trials(trials)),
        Found::Interrupted(done, total) => Err(interrupted(done, total)),
    }
}

fn interrupted(done: u64, total: u64) -> Failure {
    Failure::new(
        Exit::Interrupted,
        format!("ended by a signal, as before a time limit, after {done} of {total} trials"),
    )
}

//! The program that a task of the cluster runs on its node.
//!
//! It reads the job, checks that this node equals the first one, runs its part with the usual
//! runner of this host, and returns one complete result. A failed trial is part of the result; if
//! the task cannot continue at all, it fails with an error message and without a result.

use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, SystemClock, process};
use pinfold_probe::pinload::Pinload;
use pinfold_run::study::{HostRunner, LOCK, Machine};
use pinfold_run::{Exit, Failure, HelperProgram, Session, host, inputs, interrupt};
use pinfold_study::study::{Environment, Update, cells};

use crate::documents::{
    JobDocument, OWN_VERSION, ResultContent, ResultIdentity, TaskResult, result_text, study_digest,
};
use crate::schedulers::kind_here;
use crate::shared_folder::{result_path, scout_path};
use crate::worker::{self, PartResult};

/// Interval of waiting for another Pinfold process on this node.
const LOCK_NS: u64 = 200_000_000;

/// What a task is to do.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// Path of the job's document.
    pub job: &'a str,
    /// Folder of the results.
    pub out: &'a str,
    /// True to only report the properties of this node.
    pub scout: bool,
    /// What is added to the index of an array's task to get the number of the part.
    pub offset: Option<u32>,
    /// Attempt, 1 or 2.
    pub attempt: u32,
}

/// Runs a part, or the check, and writes the result.
///
/// ```no_run
/// use pinfold_cluster::node::{Task, work};
/// use pinfold_run::HelperProgram;
///
/// let task = Task {
///     job: "/shared/run/job.json",
///     out: "/shared/run/results",
///     scout: true,
///     offset: None,
///     attempt: 1,
/// };
/// work(&task, None, &HelperProgram::at("/usr/bin/pinfold"))?;
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn work(task: &Task<'_>, state: Option<&str>, program: &HelperProgram) -> Result<(), Failure> {
    interrupt::install()?;
    let began_unix_s = SystemClock.unix_seconds();
    let text = files::read_text(task.job).map_err(|error| {
        Failure::from(error).with_hint("is the directory of --shared the same on this node?")
    })?;
    let job = JobDocument::from_json(&text)
        .map_err(|error| Failure::from_error(Exit::Input, &error, None))?;
    let kind = kind_here();
    let part = if task.scout { None } else { Some(number(task, (kind.array_index)())?) };
    let live = host::live()?;
    let topology = inputs::topology(&live, None)?;
    let here = (kind.task)()?;
    let head = ResultIdentity {
        key: job.key.clone(),
        pinfold: OWN_VERSION.to_owned(),
        study: study_digest(&job.toml, &job.form),
        part,
        attempt: task.attempt,
        node: here.node,
        job: here.job,
        mask: topology.inherited_cpus().to_string(),
        origin: host::origin(&live, &topology, 0)?,
        began_unix_s,
    };
    drop((live, topology));
    let given = if job.pinfold == head.pinfold {
        make_result(&job, part, &head, state, program)?
    } else {
        ResultContent::Refused(format!("it has Pinfold {}, not {}", head.pinfold, job.pinfold))
    };
    let answer = TaskResult { head, given };
    let text =
        result_text(&answer).map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    let path = match part {
        Some(part) => result_path(task.out, part, task.attempt),
        None => scout_path(task.out),
    };
    let folder = path.rsplit_once('/').map_or(".", |(folder, _)| folder);
    files::make_dirs(folder)?;
    Ok(files::write_atomic(&path, text.as_bytes())?)
}

fn number(task: &Task<'_>, index: Option<u32>) -> Result<u32, Failure> {
    let (Some(offset), Some(index)) = (task.offset, index) else {
        return Err(Failure::new(Exit::Input, "this is not an array task of a study"));
    };
    offset
        .checked_add(index)
        .ok_or_else(|| Failure::new(Exit::Input, format!("{offset} + {index} is not a part")))
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

fn make_result(
    job: &JobDocument,
    part: Option<u32>,
    head: &ResultIdentity,
    state: Option<&str>,
    program: &HelperProgram,
) -> Result<ResultContent, Failure> {
    let scout = worker::scout(job)?;
    let machine = Machine::from_study(&scout.study, &scout.study.name)?;
    let state = own_folder(state)?;
    let pinload = Pinload::install_in(&state.path_of("bin"))?;
    let mut runner = HostRunner::new(&machine, Session { state: &state, program }, &pinload)?;
    let here = scout.read_properties(&machine.facts, &runner)?;
    let Some(first) = &job.scouted else { return Ok(ResultContent::Scouted(here)) };
    if let Some(why) = worker::differences(&scout, first, &here) {
        return Ok(ResultContent::Refused(why));
    }
    let part = part.ok_or_else(|| Failure::new(Exit::Input, "no part was given"))?;
    let _lock = loop {
        if let Some(lock) = state.lock(LOCK)? {
            break lock;
        }
        if interrupt::is_requested() {
            return Err(
                interruption(0, 0).with_hint("another pinfold process was measuring on this node")
            );
        }
        SystemClock.sleep_ns(LOCK_NS);
    };
    runner.prepare(&scout.study, &cells(&scout.study, &machine.facts, &runner)?)?;
    let found = worker::work(
        &scout,
        part,
        &head.origin,
        &machine.facts,
        &mut Environment {
            runner: &mut runner,
            clock: &SystemClock,
            progress: &mut ignore,
            stop: interrupt::flag(),
            node: &head.node,
        },
    );
    runner.release()?;
    match found? {
        PartResult::Whole(trials) => Ok(ResultContent::Trials(trials)),
        PartResult::Interrupted(done, total) => Err(interruption(done, total)),
    }
}

fn ignore(_: &Update<'_>) {}

fn interruption(done: u64, total: u64) -> Failure {
    Failure::new(
        Exit::Interrupted,
        format!(
            "terminated by a signal (a scheduler sends one before the time limit) after {done} of \
             {total} trials"
        ),
    )
}

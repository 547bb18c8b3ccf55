//! Starts and resumes a study on the nodes of a cluster.
//!
//! ```text
//! check on one node ─► cells, store ─► tasks (a part of a block each) ─► results ─► store
//! ```

use pinfold_host::{Clock as _, SystemClock, process};
use pinfold_model::Origin;
use pinfold_model::text::count_noun;
use pinfold_run::message::say;
use pinfold_run::study::{Display, StoredRun, file_failure};
use pinfold_run::{Exit, Failure, interrupt, time};
use pinfold_study::store::{HostChange, OpenRun, RunId, SessionRecord, Store};
use pinfold_study::study::{NewStudy, PresetSelection, Study, require_no_unfinished_run};

use crate::collect::{GRACE_NS, Outcome, RunContext};
use crate::documents::{
    JobDocument, NodeProperties, OWN_VERSION, Options, ResultContent, failure_of, read_options,
    read_result, study_digest,
};
use crate::scheduler::{ClusterOffer, JobRequest, Rejection, Scheduler};
use crate::schedulers::{KINDS, kind_of};
use crate::shared_folder::{Request, SharedFolder};
use crate::wait_limit::WaitLimit;
use crate::worker::create_on_cluster;

/// How tasks are submitted in this session.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The partition, instead of the earlier one.
    pub partition: Option<String>,
    /// Number of nodes at a time, or a list of nodes, instead of the earlier one.
    pub nodes: Option<String>,
    /// Time limit of a task, instead of the earlier one.
    pub time: Option<String>,
    /// True to return when all tasks are submitted.
    pub detach: bool,
    /// Maximum time without progress, such as `30m`.
    pub patience: Option<String>,
}

/// A new run on a cluster.
#[derive(Clone, Debug)]
pub struct NewRun<'a> {
    /// The study, as in its file.
    pub study: &'a Study,
    /// Name of the batch system, of `KINDS`.
    pub scheduler: &'a str,
    /// Path of the file, for messages.
    pub file: &'a str,
    /// The form that is run.
    pub form: PresetSelection,
    /// Path of the store.
    pub store: &'a str,
    /// The command line.
    pub command: &'a str,
    /// A folder that all nodes share.
    pub shared: Option<String>,
    /// Path of the program on the nodes, if it is installed there.
    pub program: Option<String>,
}

/// How a run of the store is submitted; `None` for one of this machine.
///
/// # Errors
/// [`Failure`] if the store cannot be read.
pub fn options_of(store: &Store, run: RunId) -> Result<Option<Options>, Failure> {
    let text = store.submission_options(run)?;
    text.map(|text| read_options(&text))
        .transpose()
        .map_err(|error| Failure::from_error(Exit::Input, &error, None))
}

impl Submission {
    /// Applies it to the options.
    fn set(&self, options: &mut Options) -> Result<(), Failure> {
        fn set(value: &mut Option<String>, given: Option<String>) {
            if given.is_some() {
                *value = given;
            }
        }

        let mut given = Options::new(String::new());
        given.partition.clone_from(&self.partition);
        given.nodes.clone_from(&self.nodes);
        given.time.clone_from(&self.time);
        (kind_of(options)?.check)(&given)?;
        set(&mut options.partition, given.partition);
        set(&mut options.nodes, given.nodes);
        set(&mut options.time, given.time);
        Ok(())
    }

    fn patience_ns(&self) -> Result<Option<u64>, Failure> {
        self.patience.as_deref().map(|text| time::parse_ns("--patience", text)).transpose()
    }
}

/// Starts a study on the cluster. Returns its store.
///
/// ```no_run
/// use pinfold_cluster::{NewRun, Submission};
/// use pinfold_run::study::{Display, read};
/// use pinfold_study::study::{PresetSelection, Update};
///
/// let study = read("studies/vm-latency.toml")?;
/// let new = NewRun {
///     study: &study,
///     scheduler: "slurm",
///     file: "studies/vm-latency.toml",
///     form: PresetSelection::from_preset(None),
///     store: "results.sqlite",
///     command: "pinfold study run",
///     shared: Some("/shared".to_owned()),
///     program: None,
/// };
/// let display = Display { begins: &|_, _| Ok(()), progress: &mut |_: &Update<'_>| {} };
/// let (store, _outcome) = pinfold_cluster::run(&new, &Submission::default(), None, display)?;
/// println!("{} runs", store.runs()?.len());
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
///
/// # Errors
/// [`Failure`] if it cannot be started, or was interrupted.
pub fn run(
    new: &NewRun<'_>,
    submission: &Submission,
    state: Option<&str>,
    display: Display<'_>,
) -> Result<(Store, Outcome), Failure> {
    let (whole, path) = (new.study, new.store);
    let now = SystemClock.unix_seconds();
    let salt = format!("{path} {now} {} {}", SystemClock.now_ns(), process::own_pid());
    let mut options = Options::new(study_digest(&salt, &PresetSelection::Whole)[..16].to_owned());
    options.scheduler = Some(new.scheduler.to_owned()).filter(|name| name != KINDS[0].name);
    options.shared.clone_from(&new.shared);
    options.program.clone_from(&new.program);
    submission.set(&mut options)?;
    let patience_ns = submission.patience_ns()?;
    let scheduler = (kind_of(&options)?.find)()?;
    let mut patience = WaitLimit::new(&*scheduler, patience_ns);
    let offer = scheduler.offer(&options)?;
    let mut store = Store::open_or_create(path)?;
    require_no_unfinished_run(&store, &whole.name)?;
    interrupt::install()?;
    let mut folder = open_folder(&*scheduler, &options, &offer, state)?;
    announce(&offer, &folder);
    let mut job = JobDocument {
        key: options.key.clone(),
        pinfold: OWN_VERSION.to_owned(),
        toml: whole.text.clone(),
        form: new.form.clone(),
        scouted: None,
    };
    let (origin, scouted) = check_first_node(&*scheduler, &mut folder, &mut patience, &job)?;
    job.scouted = Some(scouted.clone());
    folder.write_job(&job)?;
    let study = NewStudy {
        study: whole,
        form: &new.form,
        command: new.command,
        origin: &origin,
        facts: &scouted.facts,
        now_unix_s: SystemClock.unix_seconds(),
    };
    let run = match create_on_cluster(&mut store, &study, &scouted, &options) {
        Ok(run) => run,
        Err(error) => {
            folder.close()?;
            return Err(file_failure(new.file, error));
        }
    };
    let detach = submission.detach;
    let work = RunContext {
        scheduler: &*scheduler,
        options: &options,
        offer: &offer,
        detach,
        state,
        display,
    };
    let outcome = work.run_tasks(&mut store, run, &mut folder, &mut patience)?;
    Ok((store, outcome))
}

/// Resumes a run.
///
/// ```no_run
/// use pinfold_cluster::{Submission, options_of, resume};
/// use pinfold_run::study::{Display, StoredRun};
/// use pinfold_study::store::{RunId, Store};
/// use pinfold_study::study::{Update, Loaded};
///
/// let (mut store, id) = (Store::open("results.sqlite")?, RunId(1));
/// let loaded = Loaded::read(&store, id)?;
/// let options = options_of(&store, id)?.expect("a run on a cluster");
/// let run = StoredRun { store: &mut store, id, loaded: &loaded };
/// let display = Display { begins: &|_, _| Ok(()), progress: &mut |_: &Update<'_>| {} };
/// resume(run, options, &Submission::default(), None, display)?;
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
///
/// # Errors
/// [`Failure`] if it cannot be resumed, or was interrupted.
pub fn resume(
    StoredRun { store, id, loaded }: StoredRun<'_>,
    mut options: Options,
    submission: &Submission,
    state: Option<&str>,
    display: Display<'_>,
) -> Result<Outcome, Failure> {
    let record = store.run(id)?;
    if record.origin.pinfold != OWN_VERSION {
        let then = &record.origin.pinfold;
        return Err(Failure::new(
            Exit::Input,
            format!("the run was started with Pinfold {then}, but this is {OWN_VERSION}"),
        )
        .with_hint("continue with that version, or start a new run"));
    }
    submission.set(&mut options)?;
    let patience_ns = submission.patience_ns()?;
    let scheduler = (kind_of(&options)?.find)()?;
    let mut patience = WaitLimit::new(&*scheduler, patience_ns);
    let offer = scheduler.offer(&options)?;
    // Each trial has its own node: the properties of the run are those of the first node.
    let before = record.sessions.last().map_or(&record.origin, |session| &session.origin);
    let now = SessionRecord { began_unix_s: SystemClock.unix_seconds(), origin: before.clone() };
    let run: OpenRun = store.open_run(id, &now, HostChange::Refuse)?;
    let json = options.to_json().map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
    store.save_submission_options(run, &json)?;
    interrupt::install()?;
    let mut folder = open_folder(&*scheduler, &options, &offer, state)?;
    announce(&offer, &folder);
    let skipped = loaded.cells.all.iter().map(|cell| cell.skipped.clone()).collect();
    folder.write_job(&JobDocument {
        key: options.key.clone(),
        pinfold: OWN_VERSION.to_owned(),
        toml: loaded.record.toml.clone(),
        form: loaded.record.form.clone(),
        scouted: Some(NodeProperties { facts: loaded.facts.clone(), skipped }),
    })?;
    let detach = submission.detach;
    let work = RunContext {
        scheduler: &*scheduler,
        options: &options,
        offer: &offer,
        detach,
        state,
        display,
    };
    work.run_tasks(store, run, &mut folder, &mut patience)
}

fn open_folder<'a>(
    scheduler: &'a dyn Scheduler,
    options: &Options,
    offer: &ClusterOffer,
    state: Option<&str>,
) -> Result<SharedFolder<'a>, Failure> {
    let shared = options.shared.as_deref().ok_or_else(|| {
        Failure::new(Exit::Input, "--engine slurm needs --shared, a directory that the nodes share")
            .with_hint("name a directory of the shared file system, such as --shared /home/me/runs")
    })?;
    let job = JobRequest {
        name: format!("pinfold-{}", options.key),
        partition: options.partition.clone(),
        exclude: offer.excluded.clone(),
        time: options.time.clone(),
    };
    let program = options.program.as_deref();
    // With a program of the nodes, the state directory is theirs too.
    let state = state.filter(|_| program.is_none());
    let request = Request { key: &options.key, program, state, job, offer, grace_ns: GRACE_NS };
    SharedFolder::open(scheduler, shared, &request)
}

fn announce(offer: &ClusterOffer, folder: &SharedFolder<'_>) {
    let up = offer.up();
    let nodes = count_noun(offer.nodes.len(), "node");
    say(&format!("{}: {nodes}, {up} of them up; {}", offer.cluster, folder.describe()));
    if up == 0 {
        let first = offer.nodes.iter().take(8);
        let states: Vec<String> =
            first.map(|node| format!("{} {}", node.name, node.state)).collect();
        say(&format!("warning: no node is up ({}); tasks wait until one is", states.join(", ")));
    }
}

/// Runs the check of the first node; without a result, nothing is left behind.
fn check_first_node(
    scheduler: &dyn Scheduler,
    folder: &mut SharedFolder<'_>,
    patience: &mut WaitLimit<'_>,
    job: &JobDocument,
) -> Result<(Origin, NodeProperties), Failure> {
    folder.write_job(job)?;
    let looked = await_first_node(scheduler, folder, patience);
    looked.and_then(|text| read_scouted(&text, job)).or_else(|failure| {
        folder.cancel()?;
        folder.close()?;
        Err(failure)
    })
}

/// Runs the check of the first node, as soon as the scheduler accepts a job for it.
fn await_first_node(
    scheduler: &dyn Scheduler,
    folder: &mut SharedFolder<'_>,
    patience: &mut WaitLimit<'_>,
) -> Result<String, Failure> {
    let mut reported = false;
    loop {
        match folder.scout(patience) {
            Err(failure)
                if scheduler.classify_rejection(&failure.message) == Some(Rejection::NoRoom) =>
            {
                if !std::mem::replace(&mut reported, true) {
                    say(&format!(
                        "note: {}; waiting until the scheduler accepts a job",
                        failure.message
                    ));
                }
                patience.wait_for_room()?;
            }
            looked => return looked,
        }
    }
}

/// The properties that the first node reported.
fn read_scouted(text: &str, job: &JobDocument) -> Result<(Origin, NodeProperties), Failure> {
    let digest = study_digest(&job.toml, &job.form);
    let answer = read_result(text, &job.key, &digest, OWN_VERSION).map_err(|e| failure_of(&e))?;
    match answer.given {
        ResultContent::Scouted(scouted) => Ok((answer.head.origin, scouted)),
        ResultContent::Trials(_) | ResultContent::Refused(_) => {
            Err(Failure::new(Exit::Host, "the first node returned a result that was not requested"))
        }
    }
}

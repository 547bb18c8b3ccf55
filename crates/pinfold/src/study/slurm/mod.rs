//! A study on the nodes of a Slurm cluster: submits, collects, resumes.
//!
//! ```text
//! check on one node ─► cells, store ─► tasks (a part of a block each) ─► results ─► store
//! ```
//!
//! `pinfold-study` ([`pinfold_cluster`]) defines the parts, the retries and the
//! format of results; this module has the programs of Slurm ([`client`]), the two transports
//! ([`shared`], [`stream`]) and the program of a node ([`worker`]).

mod client;
mod collect;
mod shared;
mod stream;
mod transport;
mod watch;
pub mod worker;

use pinfold_cluster::slurm::{self, NotTaken, Wish};
use pinfold_cluster::{
    self as cluster, Given, JobDocument, Options, ResultError, Scouted, read_options, read_result,
    study_digest,
};
use pinfold_host::files;
use pinfold_host::{Clock as _, SystemClock, process};
use pinfold_model::text::counted;
use pinfold_run::{Exit, Failure, interrupt, time};
use pinfold_study::store::{HostChange, RunId, SessionRecord, Store};
use pinfold_study::study::{self as library, Loaded, NewStudy, Study};

use self::client::{Offer, Slurm, bad_word};
use self::collect::{GRACE_NS, Work};
use self::shared::{Shared, SharedRequest};
use self::stream::Stream;
use self::transport::Transport;
use self::watch::Patience;
use super::{file_failure, store_failure, study_failure};
use crate::cli::study::{Engine, ResumeArgs, RunArgs, SlurmArgs};
use crate::common;
use crate::output::say;

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// True if the tasks are submitted to Slurm. Rejects options of Slurm with another engine.
pub fn is_meant(arguments: &RunArgs) -> Result<bool, Failure> {
    if arguments.engine == Engine::Slurm {
        return Ok(true);
    }
    refuse_words(&arguments.slurm)?;
    let given = [("--shared", &arguments.shared), ("--program", &arguments.program)];
    match given.iter().find(|(_, word)| word.is_some()) {
        Some((option, _)) => Err(wants_engine(option)),
        None => Ok(false),
    }
}

/// Rejects options of Slurm if the trials run on this machine.
pub fn refuse_words(words: &SlurmArgs) -> Result<(), Failure> {
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
    Failure::new(Exit::Input, format!("{option} goes with --engine slurm"))
        .with_hint("`local` runs the trials on this machine")
}

/// How a run of the store is submitted; `None` for one of this machine.
pub fn options_of(store: &Store, run: RunId) -> Result<Option<Options>, Failure> {
    let text = store.cluster(run).map_err(|error| store_failure(&error))?;
    text.map(|text| read_options(&text))
        .transpose()
        .map_err(|error| Failure::from_error(Exit::Input, &error, None))
}

/// Path of this program.
fn own_path() -> Result<String, Failure> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Host, format!("cannot find this program: {error}")))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Contents of this program.
fn own_program() -> Result<Vec<u8>, Failure> {
    files::read(&own_path()?).map_err(Failure::from)
}

/// The failure if the first node could not report its properties.
fn scout_failed(node: &str, how: &str, said: Option<&str>) -> Failure {
    let node = if node.is_empty() { "the first node" } else { node };
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    Failure::new(Exit::Host, format!("{node} could not look at the study, {how}{said}"))
}

/// Applies the command line to the options.
fn set_words(options: &mut Options, words: &SlurmArgs) -> Result<(), Failure> {
    if let Some(name) = &words.partition {
        slurm::partition(name).map_err(|error| bad_word(&error))?;
        options.partition = Some(name.clone());
    }
    if let Some(limit) = &words.time {
        slurm::time(limit).map_err(|error| bad_word(&error))?;
        options.time = Some(limit.clone());
    }
    if let Some(nodes) = &words.nodes {
        slurm::nodes(nodes).map_err(|error| bad_word(&error))?;
        options.nodes = Some(nodes.clone());
    }
    if words.detach && options.shared.is_none() {
        return Err(Failure::new(Exit::Input, "--detach needs --shared").with_hint(
            "without a shared folder results come through srun, which lives no longer than this \
             command",
        ));
    }
    Ok(())
}

fn patience(words: &SlurmArgs) -> Result<Patience, Failure> {
    let limit = words.patience.as_deref().map(|text| time::parse_ns("--patience", text));
    Ok(Patience::new(limit.transpose()?))
}

/// Starts a study on the cluster.
pub fn run(arguments: &RunArgs, whole: &Study, state: Option<&str>) -> Result<(), Failure> {
    let file = arguments.file.as_str();
    let path = arguments.store.clone().unwrap_or_else(|| format!("{}.sqlite", whole.name));
    let now = SystemClock.unix_seconds();
    let salt = format!("{path} {now} {} {}", SystemClock.now_ns(), process::own_pid());
    let mut options = Options::new(study_digest(&salt, false)[..16].to_owned());
    options.shared.clone_from(&arguments.shared);
    options.program.clone_from(&arguments.program);
    set_words(&mut options, &arguments.slurm)?;
    let mut patience = patience(&arguments.slurm)?;
    let slurm = Slurm::find()?;
    let offer = slurm.offer(options.partition.as_deref(), options.nodes.as_deref())?;
    let mut store = Store::open_or_create(&path).map_err(|error| store_failure(&error))?;
    library::vacant(&store, &whole.name).map_err(|error| study_failure(&error))?;
    interrupt::install()?;
    let mut transport = open_transport(&slurm, &options, (&offer, state))?;
    announce(&offer, &*transport);
    let mut job = JobDocument {
        key: options.key.clone(),
        pinfold: OWN_VERSION.to_owned(),
        toml: whole.text.clone(),
        quick: arguments.quick,
        scouted: None,
    };
    transport.give(&job)?;
    let looked = first_look(&mut *transport, &mut patience);
    let looked = looked.and_then(|text| scouted(&text, &options.key, &job));
    let (origin, scouted) = match looked {
        Ok(looked) => looked,
        Err(failure) => {
            transport.cancel()?;
            transport.close()?;
            return Err(failure);
        }
    };
    job.scouted = Some(scouted.clone());
    transport.give(&job)?;
    let new = NewStudy {
        study: whole,
        quick: arguments.quick,
        command: &common::command_line(),
        origin: &origin,
        facts: &scouted.facts,
        now_unix_s: SystemClock.unix_seconds(),
    };
    let run = cluster::create_on_cluster(&mut store, &new, (&scouted, &options));
    let run = match run {
        Ok(run) => run,
        Err(error) => {
            transport.close()?;
            return Err(file_failure(file, &error));
        }
    };
    let work = Work { options: &options, offer: &offer, detach: arguments.slurm.detach, state };
    work.go((&mut store, run), &mut *transport, &mut patience)
}

/// Resumes a run.
pub fn resume(
    arguments: &ResumeArgs,
    (mut store, id, loaded): (Store, RunId, &Loaded),
    (mut options, state): (Options, Option<&str>),
) -> Result<(), Failure> {
    let record = store.run(id).map_err(|error| store_failure(&error))?;
    if record.origin.pinfold != OWN_VERSION {
        let then = &record.origin.pinfold;
        return Err(Failure::new(
            Exit::Input,
            format!("the run was begun with Pinfold {then}, this is {OWN_VERSION}"),
        )
        .with_hint("go on with that version, or begin a new run"));
    }
    set_words(&mut options, &arguments.slurm)?;
    let mut patience = patience(&arguments.slurm)?;
    let slurm = Slurm::find()?;
    let offer = slurm.offer(options.partition.as_deref(), options.nodes.as_deref())?;
    // Each trial has its own node: the properties of the run are those of the first node.
    let before = record.sessions.last().map_or(&record.origin, |session| &session.origin);
    let now = SessionRecord { began_unix_s: SystemClock.unix_seconds(), origin: before.clone() };
    let run = store.open_run(id, &now, HostChange::Refuse).map_err(|e| store_failure(&e))?;
    let json = options.to_json().map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
    store.save_cluster(run, &json).map_err(|error| store_failure(&error))?;
    interrupt::install()?;
    let mut transport = open_transport(&slurm, &options, (&offer, state))?;
    announce(&offer, &*transport);
    let skipped = loaded.cells.all.iter().map(|cell| cell.skipped.clone()).collect();
    transport.give(&JobDocument {
        key: options.key.clone(),
        pinfold: OWN_VERSION.to_owned(),
        toml: loaded.record.toml.clone(),
        quick: loaded.record.quick,
        scouted: Some(Scouted { facts: loaded.facts.clone(), skipped }),
    })?;
    let work = Work { options: &options, offer: &offer, detach: arguments.slurm.detach, state };
    work.go((&mut store, run), &mut *transport, &mut patience)
}

fn open_transport<'a>(
    slurm: &'a Slurm,
    options: &Options,
    (offer, state): (&Offer, Option<&str>),
) -> Result<Box<dyn Transport + 'a>, Failure> {
    let wish = Wish {
        name: format!("pinfold-{}", options.key),
        partition: options.partition.clone(),
        exclude: offer.excluded.clone(),
        time: options.time.clone(),
    };
    let program = options.program.as_deref();
    // With a program of the nodes, the state directory is theirs too.
    let state = state.filter(|_| program.is_none());
    match &options.shared {
        None => Ok(Box::new(Stream::new(slurm, (&options.key, program, state), wish))),
        Some(shared) => {
            let wish = SharedRequest {
                key: &options.key,
                program,
                state,
                wish,
                at_once: offer.at_once,
                max_array: offer.config.max_array,
                grace_ns: GRACE_NS,
            };
            Ok(Box::new(Shared::open(slurm, shared, wish)?))
        }
    }
}

fn announce(offer: &Offer, transport: &dyn Transport) {
    let up = offer.nodes.iter().filter(|node| node.is_up()).count();
    say(&format!(
        "Slurm {} of cluster {}: {}, {up} of them up; {}",
        offer.config.version,
        offer.config.cluster,
        counted(offer.nodes.len(), "node"),
        transport.describe()
    ));
    if up == 0 {
        let states: Vec<String> = offer
            .nodes
            .iter()
            .take(8)
            .map(|node| format!("{} {}", node.name, node.state))
            .collect();
        say(&format!("warning: no node is up ({}); tasks wait until one is", states.join(", ")));
    }
}

/// Runs the check of the first node, as soon as Slurm accepts a job for it.
fn first_look(transport: &mut dyn Transport, patience: &mut Patience) -> Result<String, Failure> {
    let mut reported = false;
    loop {
        match transport.scout(patience) {
            Err(failure) if slurm::not_taken(&failure.message) == Some(NotTaken::NoRoom) => {
                if !std::mem::replace(&mut reported, true) {
                    say(&format!("note: {}; waiting until a job is taken", failure.message));
                }
                patience.wait_for_room()?;
            }
            looked => return looked,
        }
    }
}

/// The properties that the first node reported.
fn scouted(
    text: &str,
    key: &str,
    job: &JobDocument,
) -> Result<(pinfold_model::Origin, Scouted), Failure> {
    let digest = study_digest(&job.toml, job.quick);
    let answer = read_result(text, (key, &digest, OWN_VERSION)).map_err(|e| refused(&e))?;
    match answer.given {
        Given::Scouted(scouted) => Ok((answer.head.origin, scouted)),
        Given::Trials(_) | Given::Refused(_) => {
            Err(Failure::new(Exit::Host, "the first node gave another result than was asked for"))
        }
    }
}

fn refused(error: &ResultError) -> Failure {
    let failure = Failure::from_error(Exit::Host, error, None);
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

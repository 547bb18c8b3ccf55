//! How tasks reach the nodes, and how their results are returned.

mod attached;
mod shared;

use std::collections::BTreeMap;

use pinfold_host::files;
use pinfold_run::{Exit, Failure};
use pinfold_study::store::TaskRecord;

use crate::collector::{Ask, Collector};
use crate::documents::JobDocument;
use crate::patience::Patience;
use crate::scheduler::{ClusterOffer, JobRequest, QueuedTask, Scheduler, TaskState};

pub use self::attached::Attached;
pub use self::shared::{Shared, result_path, scout_path};

/// Called with tasks as soon as they are submitted.
pub type Note<'n> = dyn FnMut(&[TaskRecord]) -> Result<(), Failure> + 'n;

/// How a result was handled.
#[derive(Clone, Copy, Debug)]
pub enum Collected<'a> {
    /// The store has it.
    Yes,
    /// It was rejected, for this reason.
    No(&'a str),
}

/// A task that ended without a result.
#[derive(Debug)]
pub struct Lost {
    /// Its part and attempt.
    pub ask: Ask,
    /// Its node; empty if it is not known.
    pub node: String,
    /// Why it gave no result.
    pub reason: String,
}

/// The state of the tasks.
#[derive(Debug)]
pub struct TaskStates {
    /// Number of running tasks.
    pub running: usize,
    /// Number of pending tasks, by reason.
    pub pending: BTreeMap<String, usize>,
    /// Tasks that ended without a result.
    pub lost: Vec<Lost>,
    /// Tasks that the scheduler did not accept, with its message.
    pub refused: Vec<(Ask, String)>,
}

/// What both transports are given.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Key of the run.
    pub key: &'a str,
    /// Path of the program on the nodes; `None` to send this program.
    pub program: Option<&'a str>,
    /// State directory of the nodes' Pinfold.
    pub state: Option<&'a str>,
    /// The requirements of each job.
    pub job: JobRequest,
    /// What the cluster offers.
    pub offer: &'a ClusterOffer,
    /// Maximum delay of the result of a task that ended successfully (ns).
    pub grace_ns: u64,
}

/// A transport to the nodes and back.
pub trait Transport {
    /// Description for the user.
    fn describe(&self) -> String;

    /// Sets the job of the following tasks.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be written.
    fn give(&mut self, job: &JobDocument) -> Result<(), Failure>;

    /// Runs the check of one node and returns its result.
    ///
    /// # Errors
    /// [`Failure`] if the node gave none.
    fn scout(&mut self, patience: &mut Patience<'_>) -> Result<String, Failure>;

    /// Submits tasks, up to the first that is not accepted.
    ///
    /// # Errors
    /// [`Failure`] with the scheduler's message.
    fn submit(&mut self, asks: &[Ask], note: &mut Note<'_>) -> Result<(), Failure>;

    /// Queries the state of the tasks.
    ///
    /// # Errors
    /// [`Failure`] if the scheduler does not respond.
    fn poll(&mut self) -> Result<(), Failure>;

    /// Available results: source and text. If there are many, some of them.
    ///
    /// # Errors
    /// [`Failure`] if they cannot be read.
    fn collect(&mut self) -> Result<Vec<(String, String)>, Failure>;

    /// Called with the outcome of each result.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be removed.
    fn settle(&mut self, from: &str, taken: Collected<'_>) -> Result<(), Failure>;

    /// The tasks that ended without a result, by the last poll.
    ///
    /// # Errors
    /// [`Failure`] if the scheduler does not respond.
    fn judge(&mut self, collector: &mut Collector) -> Result<TaskStates, Failure>;

    /// Cancels everything that was submitted.
    ///
    /// # Errors
    /// [`Failure`] if the scheduler does not respond.
    fn cancel(&mut self) -> Result<(), Failure>;

    /// True if tasks continue without this process.
    fn outlives(&self) -> bool;

    /// Cleans up after the last result; returns a message on what is left behind.
    ///
    /// # Errors
    /// [`Failure`] if something cannot be removed.
    fn close(&mut self) -> Result<Option<String>, Failure>;
}

/// The transport through a shared folder, else the one without.
///
/// # Errors
/// [`Failure`] if the folder cannot be used.
pub fn open<'a>(
    scheduler: &'a dyn Scheduler,
    shared: Option<&str>,
    request: &Request<'_>,
) -> Result<Box<dyn Transport + 'a>, Failure> {
    match shared {
        None => Ok(Box::new(Attached::new(scheduler, request))),
        Some(shared) => Ok(Box::new(Shared::open(scheduler, shared, request)?)),
    }
}

/// Number of pending tasks, by reason.
fn pending_of(queue: &[QueuedTask]) -> BTreeMap<String, usize> {
    let mut pending = BTreeMap::new();
    for line in queue {
        if let TaskState::Pending(reason) = &line.state {
            *pending.entry(reason.clone()).or_default() += 1;
        }
    }
    pending
}

/// Path of this program.
fn own_path() -> Result<String, Failure> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Host, format!("cannot find this program: {error}")))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Contents of this program.
fn own_program() -> Result<Vec<u8>, Failure> {
    Ok(files::read(&own_path()?)?)
}

/// The failure if the first node could not report its properties.
fn scout_failed(node: &str, how: &str, said: Option<&str>) -> Failure {
    let node = if node.is_empty() { "the first node" } else { node };
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    Failure::new(Exit::Host, format!("{node} could not look at the study, {how}{said}"))
}

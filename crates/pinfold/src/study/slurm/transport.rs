//! The interface of the two transports: how tasks reach the nodes, and how results are returned.

use std::collections::BTreeMap;

use pinfold_study::store::TaskRecord;
use pinfold_study::study::cluster::slurm::{QueueLine, State};
use pinfold_study::study::cluster::{Ask, Collector, JobDocument};

use super::watch::Patience;
use crate::failure::Failure;

/// Called with tasks as soon as they are submitted.
pub type Note<'n> = dyn FnMut(&[TaskRecord]) -> Result<(), Failure> + 'n;

/// How a result was handled.
#[derive(Clone, Copy)]
pub enum Taken<'a> {
    /// The store has it.
    Yes,
    /// It was rejected, for this reason.
    No(&'a str),
}

/// A task that ended without a result.
pub struct Lost {
    pub ask: Ask,
    pub node: String,
    pub reason: String,
}

/// The state of the tasks.
pub struct Look {
    pub running: usize,
    /// Number of pending tasks, by reason.
    pub pending: BTreeMap<String, usize>,
    pub lost: Vec<Lost>,
    /// Tasks that Slurm did not accept, with its message.
    pub refused: Vec<(Ask, String)>,
}

/// A transport to the nodes and back.
pub trait Transport {
    /// Description for the user.
    fn describe(&self) -> String;

    /// Sets the job of the following tasks.
    fn give(&mut self, job: &JobDocument) -> Result<(), Failure>;

    /// Runs the check of one node and returns its result.
    fn scout(&mut self, patience: &mut Patience) -> Result<String, Failure>;

    /// Submits tasks, up to the first that is not accepted.
    fn submit(&mut self, asks: &[Ask], note: &mut Note<'_>) -> Result<(), Failure>;

    /// Queries the state of the tasks.
    fn poll(&mut self) -> Result<(), Failure>;

    /// Available results: source and text. If there are many, some of them.
    fn collect(&mut self) -> Result<Vec<(String, String)>, Failure>;

    /// Called with the outcome of each result.
    fn settle(&mut self, from: &str, taken: Taken<'_>) -> Result<(), Failure>;

    /// The tasks that ended without a result, by the last poll.
    fn judge(&mut self, collector: &mut Collector) -> Result<Look, Failure>;

    /// Cancels everything that was submitted.
    fn cancel(&mut self) -> Result<(), Failure>;

    /// True if tasks continue without this process.
    fn outlives(&self) -> bool;

    /// Cleans up after the last result; returns a message on what is left behind.
    fn close(&mut self) -> Result<Option<String>, Failure>;
}

/// Number of pending tasks, by reason.
pub fn pending_of(queue: &[QueueLine]) -> BTreeMap<String, usize> {
    let mut pending = BTreeMap::new();
    for line in queue {
        if let State::Pending(reason) = &line.state {
            *pending.entry(reason.clone()).or_default() += 1;
        }
    }
    pending
}

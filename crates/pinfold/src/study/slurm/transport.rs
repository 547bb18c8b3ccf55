//! How tasks reach the nodes and results come back: the door that the two ways share.

use std::collections::BTreeMap;

use pinfold_study::store::TaskRecord;
use pinfold_study::study::cluster::slurm::{QueueLine, State};
use pinfold_study::study::cluster::{Ask, Collector, JobDocument};

use super::watch::Patience;
use crate::failure::Failure;

/// Told of tasks as soon as they are submitted.
pub type Note<'n> = dyn FnMut(&[TaskRecord]) -> Result<(), Failure> + 'n;

/// What became of a result.
#[derive(Clone, Copy)]
pub enum Taken<'a> {
    /// The store has it.
    Yes,
    /// It was refused, and why.
    No(&'a str),
}

/// A task that ended and gave nothing.
pub struct Lost {
    pub ask: Ask,
    pub node: String,
    pub reason: String,
}

/// How the tasks are.
pub struct Look {
    pub running: usize,
    /// Those that wait, by reason.
    pub pending: BTreeMap<String, usize>,
    pub lost: Vec<Lost>,
    /// Tasks that were submitted and that Slurm did not take, and what it said.
    pub refused: Vec<(Ask, String)>,
}

/// A way to the nodes and back.
pub trait Transport {
    /// In words, for who runs the study.
    fn describe(&self) -> String;

    /// What the tasks from here on are given.
    fn give(&mut self, job: &JobDocument) -> Result<(), Failure>;

    /// Lets one node look; its result.
    fn scout(&mut self, patience: &mut Patience) -> Result<String, Failure>;

    /// Submits tasks, those before the first that is not taken.
    fn submit(&mut self, asks: &[Ask], note: &mut Note<'_>) -> Result<(), Failure>;

    /// Asks Slurm how the tasks are.
    fn poll(&mut self) -> Result<(), Failure>;

    /// Results that are there: from where, and their text. Some of them, if there are many.
    fn collect(&mut self) -> Result<Vec<(String, String)>, Failure>;

    /// Told what became of each.
    fn settle(&mut self, from: &str, taken: Taken<'_>) -> Result<(), Failure>;

    /// Which tasks ended with nothing, by the last poll.
    fn judge(&mut self, collector: &mut Collector) -> Result<Look, Failure>;

    /// Takes back everything that was submitted.
    fn cancel(&mut self) -> Result<(), Failure>;

    /// Whether tasks go on without this process.
    fn outlives(&self) -> bool;

    /// Cleans up after the last result; tells what it leaves behind.
    fn close(&mut self) -> Result<Option<String>, Failure>;
}

/// What waits, by reason.
pub fn pending_of(queue: &[QueueLine]) -> BTreeMap<String, usize> {
    let mut pending = BTreeMap::new();
    for line in queue {
        if let State::Pending(reason) = &line.state {
            *pending.entry(reason.clone()).or_default() += 1;
        }
    }
    pending
}

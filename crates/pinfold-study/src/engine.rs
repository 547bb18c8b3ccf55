//! The common engine: runs the starts of a block in sequence, and saves each trial when it ends.
//!
//! It is independent of studies and candidates: what a start is, what it measures and where the
//! result is stored is defined by a [`RunKind`]. The work of a study is in [`crate::study`], that of a
//! race of placements in [`crate::tune`]; they also choose the next block. The engine does what
//! both have in common: it skips what the store has already; it runs a failed trial once more in a
//! new start, then records it as failed; it does not record a failure that coincides with the stop
//! signal; it ends the run after several consecutive failures.

use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::Clock;

use crate::error::RunError;

/// Maximum number of starts for a trial.
const MAX_STARTS: u32 = 2;

/// The environment of the engine. `R` starts and measures.
pub struct Environment<'a, R: ?Sized> {
    /// Runs the starts.
    pub runner: &'a mut R,
    /// The clock for durations and timestamps.
    pub clock: &'a dyn Clock,
    /// Receives progress updates.
    pub progress: &'a mut dyn Progress,
    /// If set, the run ends after the current trial; it can be resumed.
    pub stop: &'a AtomicBool,
    /// Name of the machine if several work on one run, else empty.
    pub node: &'a str,
}

/// A trial that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TrialError {
    /// True if no trial can succeed: the run stops, and this trial is not recorded.
    pub fatal: bool,
    /// What happened, with the program's error message if it has one.
    pub message: String,
    /// A hint for the user.
    pub hint: Option<String>,
}

impl TrialError {
    /// A failure of this trial only.
    pub fn from_message(message: impl Into<String>) -> Self {
        Self { fatal: false, message: message.into(), hint: None }
    }

    /// A failure that would affect every trial.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { fatal: true, message: message.into(), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Whether the run continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Continue with the next trial.
    GoOn,
    /// Stop: undo all changes and return.
    Stop,
}

/// How a call that runs the rest of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All trials are done, or enough of them.
    Finished,
    /// The stop flag was set.
    Interrupted {
        /// Number of trials that are done.
        done: u64,
        /// Number of trials of the whole run, as far as known.
        total: u64,
    },
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A trial was measured and saved.
    Done,
    /// A trial failed and is run once more.
    Retries {
        /// Error message of the first attempt.
        message: String,
    },
    /// A trial failed again and is recorded as failed.
    Failed {
        /// The last error message.
        message: String,
    },
    /// A candidate cannot win any more and is not started again.
    Dropped {
        /// Why it cannot win.
        reason: String,
    },
    /// A race has ended; these candidates remain (besides the baseline and its twin).
    Kept {
        /// Names of the candidates.
        names: Vec<String>,
    },
    /// No further block starts.
    Ends {
        /// Why the run ends.
        reason: String,
    },
}

/// State of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Update<'a> {
    /// What happened.
    pub event: Event,
    /// Block, from 0.
    pub block: u32,
    /// Name of the cell or candidate; empty if the event has none.
    pub name: &'a str,
    /// Number of trials that have ended, in all sessions.
    pub done: u64,
    /// Number of trials of the whole run.
    pub total: u64,
    /// Estimate of the remaining time (seconds); based on measured durations as soon as there are
    /// any.
    pub left_s: f64,
}

/// Receives the progress of a run.
pub trait Progress {
    /// Called at each [`Event`].
    fn update(&mut self, update: &Update<'_>);

    /// Called when no further update follows.
    fn finish(&mut self) {}
}

impl<F: FnMut(&Update<'_>)> Progress for F {
    fn update(&mut self, update: &Update<'_>) {
        self(update);
    }
}

/// Called with each trial of a start when it ends, by its index in the request.
pub(crate) type Reported<'f, T> = dyn FnMut(usize, Result<T, TrialError>) -> NextStep + 'f;

/// What the engine runs: one kind of run.
pub(crate) trait RunKind {
    /// Position of a trial in the design.
    type Slot: Copy;
    /// Result of a trial.
    type Output;
    /// The type that runs the starts.
    type Runner<'r>: ?Sized + 'r;
    /// A request to the runner.
    type Request;
    /// What cannot be done if the runner cannot run any start.
    const ACTION: &'static str;
    /// A trial, in messages.
    const TRIAL: &'static str;

    /// True if the store has this trial.
    fn has_ended(&self, slot: Self::Slot) -> bool;
    /// Block and name of a trial, for progress updates.
    fn place(&self, slot: Self::Slot) -> (u32, String);
    /// The request for a start of these trials.
    fn request(&self, slots: &[Self::Slot]) -> Self::Request;
    /// Runs a start, and returns when it has ended.
    fn start<'r>(
        runner: &mut Self::Runner<'r>,
        request: &Self::Request,
        reported: &mut Reported<'_, Self::Output>,
    ) -> Result<(), TrialError>;
    /// Saves a trial, with its result or as failed.
    fn save(
        &mut self,
        trial: EndedTrial<Self::Slot>,
        output: Option<Self::Output>,
    ) -> Result<(), RunError>;
    /// Sends a progress update.
    fn report(&self, progress: &mut dyn Progress, event: Event, block: u32, name: &str);
}

/// A trial that has ended.
#[derive(Clone, Debug)]
pub(crate) struct EndedTrial<S> {
    pub slot: S,
    /// Position in the order of the block, from 0.
    pub position: u32,
    /// Name of the machine.
    pub node: String,
    /// Number of attempts, 1 or 2.
    pub attempts: u32,
    /// Message of the last failed attempt, if any.
    pub error: Option<String>,
    /// Start of its last attempt (seconds since 1970).
    pub began_unix_s: u64,
    /// Duration of all attempts, each including its share of the start (ns).
    pub duration_ns: u64,
}

/// A trial of the current start.
struct PendingTrial<S> {
    slot: S,
    position: u32,
    attempts: u32,
    spent_ns: u64,
    error: Option<TrialError>,
    /// Number of starts in which it failed itself, without those that another trial ended before
    /// its turn.
    failures: u32,
}

impl<S: Copy> PendingTrial<S> {
    fn finish(&self, clock: &dyn Clock, node: &str) -> EndedTrial<S> {
        EndedTrial {
            slot: self.slot,
            position: self.position,
            node: node.to_owned(),
            attempts: self.attempts.max(1),
            error: self.error.as_ref().map(|error| error.message.clone()),
            began_unix_s: clock.unix_seconds().saturating_sub(self.spent_ns / 1_000_000_000),
            duration_ns: self.spent_ns,
        }
    }

    fn message(&self) -> String {
        let error = self.error.as_ref();
        error.map_or_else(|| "the start ended before it".to_owned(), |one| one.message.clone())
    }
}

/// The engine, with its state.
pub(crate) struct Engine<W> {
    /// The work.
    pub work: W,
    failures_in_a_row: u32,
    most_failures: u32,
}

impl<W: RunKind> Engine<W> {
    /// An engine that gives up after this number of consecutive failures.
    pub(crate) fn new(work: W, most_failures: u32) -> Self {
        Self { work, failures_in_a_row: 0, most_failures }
    }

    /// Runs the starts of a block that the store does not have yet.
    pub(crate) fn block<'r>(
        &mut self,
        starts: &[Vec<W::Slot>],
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<NextStep, RunError> {
        let mut positions = 0..;
        for slots in starts {
            let open = slots.iter().copied().zip(&mut positions).collect();
            if self.start(open, environment)? == NextStep::Stop {
                return Ok(NextStep::Stop);
            }
        }
        Ok(NextStep::GoOn)
    }

    /// Starts those of these trials that the store does not have, and makes further starts for the
    /// rest: a failed trial is run once more, after those whose turn it prevented.
    pub(crate) fn start<'r>(
        &mut self,
        trials: Vec<(W::Slot, u32)>,
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<NextStep, RunError> {
        let trials = trials.into_iter().filter(|(slot, _)| !self.work.has_ended(*slot));
        let open = trials.map(|(slot, position)| PendingTrial {
            slot,
            position,
            attempts: 0,
            spent_ns: 0,
            error: None,
            failures: 0,
        });
        let mut open: Vec<PendingTrial<W::Slot>> = open.collect();
        while !open.is_empty() {
            if environment.stop.load(Ordering::SeqCst) {
                return Ok(NextStep::Stop);
            }
            open = self.attempt(open, environment)?;
            if environment.stop.load(Ordering::SeqCst) {
                // A failure that coincides with the stop signal says nothing about the trial.
                return Ok(NextStep::Stop);
            }
            let (failed, left) = open.into_iter().partition(|one| one.failures >= MAX_STARTS);
            open = left;
            self.give_up(failed, environment)?;
            for one in open.iter().filter(|one| one.failures > 0) {
                let event = Event::Retries { message: one.message() };
                let (block, name) = self.work.place(one.slot);
                self.work.report(environment.progress, event, block, &name);
            }
            open.sort_by_key(|one| one.failures);
        }
        Ok(NextStep::GoOn)
    }

    /// Records trials as failed.
    fn give_up<'r>(
        &mut self,
        failed: Vec<PendingTrial<W::Slot>>,
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<(), RunError> {
        for one in failed {
            let message = one.message();
            let ended = one.finish(environment.clock, environment.node);
            self.work.save(EndedTrial { error: Some(message.clone()), ..ended }, None)?;
            self.failures_in_a_row += 1;
            let (block, name) = self.work.place(one.slot);
            let event = Event::Failed { message: message.clone() };
            self.work.report(environment.progress, event, block, &name);
            if self.failures_in_a_row >= self.most_failures {
                let (count, what) = (self.failures_in_a_row, W::TRIAL);
                return Err(RunError::KeepsFailing { count, what, name, message });
            }
        }
        Ok(())
    }

    /// Runs one start. Successful trials are saved, the others are returned.
    fn attempt<'r>(
        &mut self,
        mut open: Vec<PendingTrial<W::Slot>>,
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<Vec<PendingTrial<W::Slot>>, RunError> {
        let slots: Vec<W::Slot> = open.iter().map(|one| one.slot).collect();
        let request = self.work.request(&slots);
        let Environment { runner, clock, progress, stop, node } = environment;
        let (clock, stop, node) = (*clock, *stop, *node);
        let mut since = clock.now_ns();
        let mut saved: Vec<bool> = vec![false; open.len()];
        let (mut failed_store, mut fatal, mut blamed) = (None, None, false);
        let ended = W::start(&mut **runner, &request, &mut |index, result| {
            let Some(one) = open.get_mut(index) else { return NextStep::Stop };
            let now = clock.now_ns();
            one.attempts += 1;
            one.spent_ns += now.saturating_sub(since);
            since = now;
            match result {
                Ok(output) => {
                    if let Err(error) = self.work.save(one.finish(clock, node), Some(output)) {
                        failed_store = Some(error);
                        return NextStep::Stop;
                    }
                    saved[index] = true;
                    self.failures_in_a_row = 0;
                    let (block, name) = self.work.place(one.slot);
                    self.work.report(&mut **progress, Event::Done, block, &name);
                }
                Err(error) if error.fatal => {
                    fatal = Some(error);
                    return NextStep::Stop;
                }
                Err(error) => {
                    one.error = Some(error);
                    one.failures += 1;
                    blamed = true;
                }
            }
            if stop.load(Ordering::SeqCst) { NextStep::Stop } else { NextStep::GoOn }
        });
        if let Some(error) = failed_store {
            return Err(error);
        }
        let left_ns = clock.now_ns().saturating_sub(since);
        fatal = ended.as_ref().err().filter(|error| error.fatal).cloned().or(fatal);
        if !blamed {
            distribute_time(&mut open, &saved, ended.err(), left_ns);
        }
        match fatal.filter(|_| !stop.load(Ordering::SeqCst)) {
            Some(TrialError { message, hint, .. }) => {
                Err(RunError::Runner { what: W::ACTION, message, hint })
            }
            None => {
                let left = open.into_iter().zip(saved).filter(|(_, saved)| !saved);
                Ok(left.map(|(one, _)| one).collect())
            }
        }
    }
}

/// Counts a failure for each trial of a start without a saved result, and divides the remaining
/// time of the start among those that had no error of their own.
fn distribute_time<S>(
    open: &mut [PendingTrial<S>],
    saved: &[bool],
    error: Option<TrialError>,
    left_ns: u64,
) {
    let lost = saved.iter().filter(|saved| !**saved).count().max(1) as u64;
    for (one, _) in open.iter_mut().zip(saved).filter(|(_, saved)| !**saved) {
        one.failures += 1;
        if one.error.is_none() && error.is_some() {
            one.attempts += 1;
            one.spent_ns += left_ns / lost;
        }
        one.error = one.error.take().or_else(|| error.clone());
    }
}

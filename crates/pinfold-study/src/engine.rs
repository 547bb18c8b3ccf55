//! The one engine: starts of a block one after the other, each trial saved when it ends.
//!
//! It knows neither studies nor candidates: what a start is, what it measures and where that is
//! kept is a [`Work`]. A study's work is in [`crate::study`], that of a race of placements in
//! [`crate::tune`]; which block comes next is theirs too. What is the same for both is here: what
//! the store holds is skipped; a trial that failed is run once more in a start of its own, then
//! recorded as failed; a failure that came with the stop signal says nothing and is not recorded;
//! failure after failure ends the run.

use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::Clock;

/// Starts that a trial gets.
const MAX_STARTS: u32 = 2;

/// What the engine needs from outside. `R` starts and measures.
pub struct Environment<'a, R: ?Sized> {
    /// Makes the starts.
    pub runner: &'a mut R,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Who watches.
    pub progress: &'a mut dyn Progress,
    /// Set it, and the run ends after the current trial; it can be gone on with.
    pub stop: &'a AtomicBool,
    /// The machine's name where several work on one run, else empty.
    pub node: &'a str,
}

/// A trial that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TrialError {
    /// True if no trial can succeed: the run stops, this one is not recorded.
    pub fatal: bool,
    /// What happened, with the program's own words if it had any.
    pub message: String,
    /// What the user can do next.
    pub hint: Option<String>,
}

impl TrialError {
    /// A failure of this trial alone.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { fatal: false, message: message.into(), hint: None }
    }

    /// A failure that every trial would share.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { fatal: true, message: message.into(), hint: None }
    }

    /// The same failure with a way out.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next trial.
    GoOn,
    /// Not: take everything back and return.
    Stop,
}

/// What has just happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A trial was measured and saved.
    Done,
    /// It failed and is tried once more.
    Retries {
        /// The first attempt's message.
        message: String,
    },
    /// It failed again; that is recorded.
    Failed {
        /// The last message.
        message: String,
    },
    /// A candidate cannot win any more and is not started again.
    Dropped {
        /// Why.
        reason: String,
    },
    /// A race has ended; these go on (the baseline and its twin besides).
    Kept {
        /// Names.
        names: Vec<String>,
    },
    /// No further block begins.
    Ends {
        /// Why.
        reason: String,
    },
}

/// Where the run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Update<'a> {
    /// What has just happened.
    pub event: Event,
    /// Block, from 0.
    pub block: u32,
    /// Name of the cell or candidate; empty where it is of none.
    pub name: &'a str,
    /// Trials that have ended, in all sessions.
    pub done: u64,
    /// Trials of the whole run.
    pub total: u64,
    /// Time left (seconds), from what was measured once something was.
    pub left_s: f64,
}

/// Watches a run.
pub trait Progress {
    /// Called at each [`Event`].
    fn update(&mut self, update: &Update<'_>);
}

impl<F: FnMut(&Update<'_>)> Progress for F {
    fn update(&mut self, update: &Update<'_>) {
        self(update);
    }
}

/// Told of each trial of a start when it ends, by its place in the request.
pub(crate) type Reported<'f, T> = dyn FnMut(usize, Result<T, TrialError>) -> Next + 'f;

/// What the engine does: one kind of run.
pub(crate) trait Work {
    /// The place of a trial in the design.
    type Slot: Copy;
    /// What a trial measured.
    type Output;
    /// What makes the starts.
    type Runner<'r>: ?Sized + 'r;
    /// What a runner is asked for.
    type Request;
    /// Why a run ends.
    type Error;

    /// True if the store holds it.
    fn has_ended(&self, slot: Self::Slot) -> bool;
    /// Its block, as it is told, and its name.
    fn place(&self, slot: Self::Slot) -> (u32, String);
    /// The start of these trials.
    fn request(&self, slots: &[Self::Slot]) -> Self::Request;
    /// Makes a start; it is over when this returns.
    fn start<'r>(
        runner: &mut Self::Runner<'r>,
        request: &Self::Request,
        reported: &mut Reported<'_, Self::Output>,
    ) -> Result<(), TrialError>;
    /// Saves a trial, with what it measured or as failed.
    fn save(
        &mut self,
        trial: Ended<Self::Slot>,
        output: Option<Self::Output>,
    ) -> Result<(), Self::Error>;
    /// Tells who watches.
    fn report(&self, progress: &mut dyn Progress, event: Event, place: (u32, &str));
    /// The error of a runner that can make no start at all.
    fn cannot_run(error: TrialError) -> Self::Error;
    /// The error of failure after failure.
    fn keeps_failing(count: u32, name: String, message: String) -> Self::Error;
}

/// A trial that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended<S> {
    pub slot: S,
    /// Its place in the block's order, from 0.
    pub position: u32,
    /// The machine's name.
    pub node: String,
    /// Attempts, 1 or 2.
    pub attempts: u32,
    /// Message of the last failed attempt, if any.
    pub error: Option<String>,
    /// When its last attempt began (seconds since 1970).
    pub began_unix_s: u64,
    /// How long it took with its share of the start, all attempts together (ns).
    pub duration_ns: u64,
}

/// A trial of a start under way.
struct Open<S> {
    slot: S,
    position: u32,
    attempts: u32,
    spent_ns: u64,
    error: Option<TrialError>,
    /// Starts in which it failed itself; not those that another trial ended before its turn.
    failures: u32,
}

impl<S: Copy> Open<S> {
    fn ended(&self, (clock, node): (&dyn Clock, &str)) -> Ended<S> {
        Ended {
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

/// The engine at work.
pub(crate) struct Engine<W> {
    /// Its work.
    pub work: W,
    failures_in_a_row: u32,
    most_failures: u32,
}

impl<W: Work> Engine<W> {
    /// An engine that gives up after so many failures in a row.
    pub(crate) fn new(work: W, most_failures: u32) -> Self {
        Self { work, failures_in_a_row: 0, most_failures }
    }

    /// Makes the starts of a block that the store does not hold yet.
    pub(crate) fn block<'r>(
        &mut self,
        starts: &[Vec<W::Slot>],
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<Next, W::Error> {
        let mut positions = 0..;
        for slots in starts {
            let open = slots.iter().copied().zip(&mut positions).collect();
            if self.start(open, environment)? == Next::Stop {
                return Ok(Next::Stop);
            }
        }
        Ok(Next::GoOn)
    }

    /// Makes a start of those of these trials that the store does not hold, and further ones for
    /// what is left of it: a trial that failed is run once more, after those to which it did not
    /// let their turn.
    pub(crate) fn start<'r>(
        &mut self,
        trials: Vec<(W::Slot, u32)>,
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<Next, W::Error> {
        let new = |(slot, position)| Open {
            slot,
            position,
            attempts: 0,
            spent_ns: 0,
            error: None,
            failures: 0,
        };
        let trials = trials.into_iter().filter(|(slot, _)| !self.work.has_ended(*slot));
        let mut open: Vec<Open<W::Slot>> = trials.map(new).collect();
        while !open.is_empty() {
            if environment.stop.load(Ordering::SeqCst) {
                return Ok(Next::Stop);
            }
            open = self.attempt(open, environment)?;
            if environment.stop.load(Ordering::SeqCst) {
                // A failure that came with the signal says nothing of the trial.
                return Ok(Next::Stop);
            }
            let (failed, left) = open.into_iter().partition(|one| one.failures >= MAX_STARTS);
            open = left;
            self.give_up(failed, environment)?;
            for one in open.iter().filter(|one| one.failures > 0) {
                let event = Event::Retries { message: one.message() };
                let (block, name) = self.work.place(one.slot);
                self.work.report(environment.progress, event, (block, &name));
            }
            open.sort_by_key(|one| one.failures);
        }
        Ok(Next::GoOn)
    }

    /// Records trials as failed.
    fn give_up<'r>(
        &mut self,
        failed: Vec<Open<W::Slot>>,
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<(), W::Error> {
        for one in failed {
            let message = one.message();
            let ended = one.ended((environment.clock, environment.node));
            self.work.save(Ended { error: Some(message.clone()), ..ended }, None)?;
            self.failures_in_a_row += 1;
            let (block, name) = self.work.place(one.slot);
            let event = Event::Failed { message: message.clone() };
            self.work.report(environment.progress, event, (block, &name));
            if self.failures_in_a_row >= self.most_failures {
                return Err(W::keeps_failing(self.failures_in_a_row, name, message));
            }
        }
        Ok(())
    }

    /// One start; what went well is saved, what did not comes back.
    fn attempt<'r>(
        &mut self,
        mut open: Vec<Open<W::Slot>>,
        environment: &mut Environment<'r, W::Runner<'r>>,
    ) -> Result<Vec<Open<W::Slot>>, W::Error> {
        let slots: Vec<W::Slot> = open.iter().map(|one| one.slot).collect();
        let request = self.work.request(&slots);
        let Environment { runner, clock, progress, stop, node } = environment;
        let (clock, stop, node) = (*clock, *stop, *node);
        let mut since = clock.now_ns();
        let mut saved: Vec<bool> = vec![false; open.len()];
        let (mut failed_store, mut fatal, mut blamed) = (None, None, false);
        let ended = W::start(&mut **runner, &request, &mut |index, result| {
            let Some(one) = open.get_mut(index) else { return Next::Stop };
            let now = clock.now_ns();
            one.attempts += 1;
            one.spent_ns += now.saturating_sub(since);
            since = now;
            match result {
                Ok(output) => {
                    if let Err(error) = self.work.save(one.ended((clock, node)), Some(output)) {
                        failed_store = Some(error);
                        return Next::Stop;
                    }
                    saved[index] = true;
                    self.failures_in_a_row = 0;
                    let (block, name) = self.work.place(one.slot);
                    self.work.report(&mut **progress, Event::Done, (block, &name));
                }
                Err(error) if error.fatal => {
                    fatal = Some(error);
                    return Next::Stop;
                }
                Err(error) => {
                    one.error = Some(error);
                    one.failures += 1;
                    blamed = true;
                }
            }
            match stop.load(Ordering::SeqCst) {
                true => Next::Stop,
                false => Next::GoOn,
            }
        });
        if let Some(error) = failed_store {
            return Err(error);
        }
        let left_ns = clock.now_ns().saturating_sub(since);
        fatal = ended.as_ref().err().filter(|error| error.fatal).cloned().or(fatal);
        if !blamed {
            share_out(&mut open, &saved, (ended.err(), left_ns));
        }
        match fatal.filter(|_| !stop.load(Ordering::SeqCst)) {
            Some(error) => Err(W::cannot_run(error)),
            None => {
                let left = open.into_iter().zip(saved).filter(|(_, saved)| !saved);
                Ok(left.map(|(one, _)| one).collect())
            }
        }
    }
}

/// A start that ended by itself cost its time, and failed what it had not come to.
fn share_out<S>(open: &mut [Open<S>], saved: &[bool], (error, left_ns): (Option<TrialError>, u64)) {
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

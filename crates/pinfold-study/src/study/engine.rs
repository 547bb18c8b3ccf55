//! The engine: runs the trials that the store does not hold yet, and saves each when it ends.
//!
//! The store is its only memory. Going on after an interruption, a crash or a power cut is the
//! same call: the design is rebuilt from the seed, what the store holds is skipped. A failed
//! trial is tried once more in a start of its own, then recorded as failed; it is never dropped
//! and never repeated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::Clock;

use super::analyse::is_narrow;
use super::cluster::Part;
use super::design::{self, PlannedStart, TrialSlot};
use super::error::StudyError;
use super::predict::{Prediction, predict};
use super::record::{Early, Loaded, early_to_json};
use super::runner::{Event, Next, Progress, Runner, StartRequest, TrialError, TrialResult, Update};
use crate::store::{OpenRun, Store, TrialRecord};

/// Starts that a trial gets.
const MAX_STARTS: u32 = 2;

/// After this many failed trials in a row the run stops.
pub const MAX_FAILURES_IN_A_ROW: u32 = 12;

/// What the engine needs from outside.
pub struct Environment<'a> {
    /// Places and runs workloads.
    pub runner: &'a mut dyn Runner,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Who watches.
    pub progress: &'a mut dyn Progress,
    /// Set it, and the run ends after the current trial; it can be gone on with.
    pub stop: &'a AtomicBool,
    /// The machine's name where several work on one run, else empty.
    pub node: &'a str,
}

/// How a call of [`run`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is done, or enough.
    Finished {
        /// Why before the last block, if it was.
        early: Option<Early>,
    },
    /// The stop flag was set.
    Interrupted {
        /// Trials that are done.
        done: u64,
        /// Trials of the whole run.
        total: u64,
    },
}

/// Runs the study's remaining trials.
///
/// # Errors
/// [`StudyError`]: no trial can be run, trial after trial failed, or the store failed. What was
/// saved is kept.
pub fn run(
    store: &mut Store,
    run: OpenRun,
    environment: &mut Environment<'_>,
) -> Result<Outcome, StudyError> {
    Engine::of(store, run, MAX_FAILURES_IN_A_ROW)?.go(environment)
}

/// Runs the starts of one part of a block, however many of its trials fail.
///
/// # Errors
/// [`StudyError`]: no trial can be run, or the store failed.
pub(super) fn run_part(
    (store, run): (&mut Store, OpenRun),
    part: &Part,
    environment: &mut Environment<'_>,
) -> Result<Outcome, StudyError> {
    let mut engine = Engine::of(store, run, u32::MAX)?;
    for start in &part.starts {
        let open = start.iter().map(|(slot, position)| Open::new(*slot, *position)).collect();
        if engine.start(open, environment)? == Next::Stop {
            let (done, total) = (engine.done.len() as u64, part.trials().count() as u64);
            return Ok(Outcome::Interrupted { done, total });
        }
    }
    Ok(Outcome::Finished { early: None })
}

pub(super) fn slot_of(record: &TrialRecord) -> TrialSlot {
    TrialSlot { block: record.block, cell: record.cell, start: record.start, twin: record.twin }
}

struct Engine<'a> {
    store: &'a mut Store,
    run: OpenRun,
    loaded: Loaded,
    prediction: Prediction,
    /// By trial, whether it went well.
    done: BTreeMap<TrialSlot, bool>,
    failures_in_a_row: u32,
    most_failures: u32,
    /// In all sessions (ns).
    spent_ns: u64,
    /// Trials of this session, and what they took (ns).
    session: (u64, u64),
}

/// A trial of a start under way.
struct Open {
    slot: TrialSlot,
    position: u32,
    attempts: u32,
    spent_ns: u64,
    error: Option<TrialError>,
    /// Starts in which it failed itself; not those that another trial ended before its turn.
    failures: u32,
}

impl Open {
    fn new(slot: TrialSlot, position: u32) -> Self {
        Self { slot, position, attempts: 0, spent_ns: 0, error: None, failures: 0 }
    }
}

impl<'a> Engine<'a> {
    fn of(store: &'a mut Store, run: OpenRun, most_failures: u32) -> Result<Self, StudyError> {
        let loaded = Loaded::read(store, run.id())?;
        let prediction = predict(&loaded.study, &loaded.cells, &loaded.facts)?;
        let mut done = BTreeMap::new();
        let mut spent_ns = 0;
        for (_, record) in store.trials(run.id())? {
            spent_ns += record.duration_ns;
            done.insert(slot_of(&record), record.ok);
        }
        Ok(Self {
            store,
            run,
            loaded,
            prediction,
            done,
            failures_in_a_row: 0,
            most_failures,
            spent_ns,
            session: (0, 0),
        })
    }

    fn go(&mut self, environment: &mut Environment<'_>) -> Result<Outcome, StudyError> {
        let mut early = self.loaded.early.clone();
        for block in 0..self.prediction.blocks {
            if early.as_ref().is_some_and(|early| block >= early.blocks) {
                break;
            }
            if early.is_none()
                && let Some(reason) = self.is_enough(block)?
            {
                let end = Early { blocks: block, reason };
                self.store.set_confirmation(self.run, &early_to_json(&end)?)?;
                self.tell(
                    environment.progress,
                    Event::Ends { reason: end.reason.clone() },
                    (block, ""),
                );
                early = Some(end);
                break;
            }
            if self.block(block, environment)? == Next::Stop {
                let total = self.prediction.trials();
                return Ok(Outcome::Interrupted { done: self.done.len() as u64, total });
            }
        }
        self.store.finish_run(self.run, environment.clock.unix_seconds())?;
        Ok(Outcome::Finished { early })
    }

    /// Why no further block begins. One that has begun is always ended.
    fn is_enough(&self, block: u32) -> Result<Option<String>, StudyError> {
        let begun = self.done.keys().next_back().is_some_and(|slot| slot.block >= block);
        if begun || block == 0 {
            return Ok(None);
        }
        enough((&*self.store, self.run), &self.loaded, (block, self.spent_ns))
    }

    fn block(&mut self, block: u32, environment: &mut Environment<'_>) -> Result<Next, StudyError> {
        let mut position = 0;
        for PlannedStart { trials } in design::block(&self.loaded.study, &self.loaded.cells, block)
        {
            let mut open = Vec::new();
            for slot in trials {
                if !self.done.contains_key(&slot) {
                    open.push(Open::new(slot, position));
                }
                position += 1;
            }
            if !open.is_empty() && self.start(open, environment)? == Next::Stop {
                return Ok(Next::Stop);
            }
        }
        Ok(Next::GoOn)
    }

    /// Makes a start, and further ones for what is left of it: a trial that failed is run once
    /// more, after those to which it did not let their turn.
    fn start(
        &mut self,
        mut open: Vec<Open>,
        environment: &mut Environment<'_>,
    ) -> Result<Next, StudyError> {
        while !open.is_empty() {
            if environment.stop.load(Ordering::SeqCst) {
                return Ok(Next::Stop);
            }
            open = self.attempt(open, environment)?;
            if environment.stop.load(Ordering::SeqCst) {
                // A failure that came with the signal says nothing of the cell.
                return Ok(Next::Stop);
            }
            let (failed, left) = open.into_iter().partition(|one| one.failures >= MAX_STARTS);
            open = left;
            self.give_up(failed, environment)?;
            for one in open.iter().filter(|one| one.failures > 0) {
                let message = one.error.as_ref().map(|error| error.message.clone());
                let name = self.loaded.cells.all[one.slot.cell].name(&self.loaded.study);
                let event = Event::Retries { message: message.unwrap_or_default() };
                self.tell(environment.progress, event, (one.slot.block, &name));
            }
            open.sort_by_key(|one| one.failures);
        }
        Ok(Next::GoOn)
    }

    /// Records trials as failed.
    fn give_up(
        &mut self,
        failed: Vec<Open>,
        environment: &mut Environment<'_>,
    ) -> Result<(), StudyError> {
        for one in failed {
            let message = one.error.as_ref().map_or_else(
                || "the start ended before it".to_owned(),
                |error| error.message.clone(),
            );
            let result = Err(TrialError::failed(message.clone()));
            self.save(&one, &result, (environment.clock, environment.node))?;
            let name = self.loaded.cells.all[one.slot.cell].name(&self.loaded.study);
            self.tell(
                environment.progress,
                Event::Failed { message: message.clone() },
                (one.slot.block, &name),
            );
            if self.failures_in_a_row >= self.most_failures {
                let count = self.failures_in_a_row;
                return Err(StudyError::KeepsFailing { count, name, message });
            }
        }
        Ok(())
    }

    /// One start; what went well is saved, what did not comes back.
    fn attempt(
        &mut self,
        mut open: Vec<Open>,
        environment: &mut Environment<'_>,
    ) -> Result<Vec<Open>, StudyError> {
        let (study, cells) = (self.loaded.study.clone(), self.loaded.cells.clone());
        let slots: Vec<TrialSlot> = open.iter().map(|one| one.slot).collect();
        let request = StartRequest { study: &study, cells: &cells, trials: &slots };
        let mut since = environment.clock.now_ns();
        let mut saved: Vec<bool> = vec![false; open.len()];
        let mut failed_store = None;
        let Environment { runner, clock, progress, stop, node } = environment;
        let (clock, stop, node) = (*clock, *stop, *node);
        let mut fatal = None;
        let mut blamed = false;
        let ended = runner.start(&request, &mut |index, result| {
            let Some(one) = open.get_mut(index) else { return Next::Stop };
            let now = clock.now_ns();
            one.attempts += 1;
            one.spent_ns += now.saturating_sub(since);
            since = now;
            match result {
                Ok(result) => {
                    match self.save(one, &Ok(result), (clock, node)) {
                        Ok(()) => saved[index] = true,
                        Err(error) => {
                            failed_store = Some(error);
                            return Next::Stop;
                        }
                    }
                    let name = cells.all[one.slot.cell].name(&study);
                    self.tell(&mut **progress, Event::Done, (one.slot.block, &name));
                }
                Err(error) => {
                    if error.fatal {
                        fatal = Some(error);
                        return Next::Stop;
                    }
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
        if let Some(TrialError { message, hint, .. }) = fatal
            && !stop.load(Ordering::SeqCst)
        {
            return Err(StudyError::Runner { message, hint });
        }
        Ok(open.into_iter().zip(saved).filter(|(_, saved)| !saved).map(|(one, _)| one).collect())
    }

    fn save(
        &mut self,
        one: &Open,
        result: &Result<TrialResult, TrialError>,
        (clock, node): (&dyn Clock, &str),
    ) -> Result<(), StudyError> {
        let error = one.error.as_ref().map(|error| error.message.clone());
        let record = TrialRecord {
            block: one.slot.block,
            cell: one.slot.cell,
            start: one.slot.start,
            twin: one.slot.twin,
            position: one.position,
            node: node.to_owned(),
            ok: result.is_ok(),
            attempts: one.attempts.max(1),
            error: error.or_else(|| result.as_ref().err().map(|error| error.message.clone())),
            began_unix_s: clock.unix_seconds().saturating_sub(one.spent_ns / 1_000_000_000),
            duration_ns: one.spent_ns,
            work_ns: result.as_ref().map_or(0, |result| result.work_ns),
        };
        let figures = result.as_ref().map_or(&[][..], |result| result.figures.as_slice());
        self.store.save_trial(self.run, &record, figures)?;
        self.failures_in_a_row = if record.ok { 0 } else { self.failures_in_a_row + 1 };
        self.done.insert(one.slot, record.ok);
        self.spent_ns += record.duration_ns;
        self.session = (self.session.0 + 1, self.session.1 + record.duration_ns);
        Ok(())
    }

    fn tell(&self, progress: &mut dyn Progress, event: Event, (block, name): (u32, &str)) {
        let (done, total) = (self.done.len() as u64, self.prediction.trials());
        // What this session has shown, else what was predicted.
        let trial_s = match self.session {
            (0, _) => self.prediction.seconds() / total.max(1) as f64,
            (trials, ns) => ns as f64 / 1e9 / trials as f64,
        };
        let left_s = total.saturating_sub(done) as f64 * trial_s;
        progress.update(&Update { event, block, name, done, total, left_s });
    }
}

/// Why no block needs to begin after so many that are done, which took that long (ns).
pub(super) fn enough(
    (store, run): (&Store, OpenRun),
    loaded: &Loaded,
    (blocks, spent_ns): (u32, u64),
) -> Result<Option<String>, StudyError> {
    if let Some(stop) = &loaded.study.stop
        && blocks >= stop.at_least
        && is_narrow(store, run.id(), (loaded, &stop.figure, stop.half_width))?
    {
        let percent = stop.half_width * 100.0;
        return Ok(Some(format!(
            "all intervals of {} are within {percent} % of their ratios",
            stop.figure
        )));
    }
    let Some(budget_ns) = loaded.study.budget_ns else { return Ok(None) };
    let (spent_s, budget_s) = (spent_ns as f64 / 1e9, budget_ns as f64 / 1e9);
    let block_s = spent_s / f64::from(blocks);
    if spent_s + block_s > budget_s {
        return Ok(Some(format!(
            "{spent_s:.0} s were spent, and a further block of {block_s:.0} s would exceed the \
             budget of {budget_s:.0} s"
        )));
    }
    Ok(None)
}

/// A start that ended by itself cost its time, and failed what it had not come to.
fn share_out(open: &mut [Open], saved: &[bool], (error, left_ns): (Option<TrialError>, u64)) {
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

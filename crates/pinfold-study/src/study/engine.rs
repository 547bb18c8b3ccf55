//! Runs the trials of a study that the store does not have yet, block by block.
//!
//! The store is the only state. The same call resumes a run after an interruption, a crash or a
//! power failure: the design is rebuilt from the seed, and what the store has is skipped. The
//! common engine, which tuning uses too, runs, retries and saves the starts.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::analyse::is_narrow;
use super::cells::Cells;
use super::design::{self, TrialSlot};
use super::file::Study;
use super::predict::{Prediction, predict};
use super::record::{EarlyEnd, Loaded};
use super::runner::{Runner, StartRequest, TrialResult};
use crate::engine::{
    self, EndedTrial, Engine, Event, NextStep, Outcome, Progress, Reported, RunKind, TrialError,
    Update,
};
use crate::error::RunError;
use crate::store::{OpenRun, Store, TrialRecord};

/// The run stops after this number of consecutive failed trials.
pub const MAX_FAILURES_IN_A_ROW: u32 = 12;

/// The environment of a study.
pub type Environment<'a> = engine::Environment<'a, dyn Runner + 'a>;

/// Runs the remaining trials of the study.
///
/// # Errors
/// [`RunError`]: no trial can be run, several consecutive trials failed, or the store failed.
/// Saved data are kept.
pub fn run(
    store: &mut Store,
    run: OpenRun,
    environment: &mut Environment<'_>,
) -> Result<Outcome, RunError> {
    go(&mut Engine::new(Trials::from_store(store, run)?, MAX_FAILURES_IN_A_ROW), environment)
}

/// Runs these starts, each trial with its position in its block, regardless of the number of failed
/// trials.
///
/// # Errors
/// [`RunError`]: no trial can be run, or the store failed.
pub fn run_starts(
    store: &mut Store,
    run: OpenRun,
    starts: &[Vec<(TrialSlot, u32)>],
    environment: &mut Environment<'_>,
) -> Result<Outcome, RunError> {
    let mut engine = Engine::new(Trials::from_store(store, run)?, u32::MAX);
    for start in starts {
        if engine.start(start.clone(), environment)? == NextStep::Stop {
            let done = engine.work.done.len() as u64;
            let total = starts.iter().flatten().count() as u64;
            return Ok(Outcome::Interrupted { done, total });
        }
    }
    Ok(Outcome::Finished)
}

/// The trials of a study, as the [`RunKind`] of the engine.
struct Trials<'a> {
    store: &'a mut Store,
    run: OpenRun,
    loaded: Loaded,
    /// Study and cells, passed to each start.
    design: Rc<(Study, Cells)>,
    prediction: Prediction,
    /// By trial, whether it succeeded.
    done: BTreeMap<TrialSlot, bool>,
    /// Time of all sessions (ns).
    spent_ns: u64,
    /// Number and duration (ns) of the trials of this session.
    session: (u64, u64),
}

fn go(
    engine: &mut Engine<Trials<'_>>,
    environment: &mut Environment<'_>,
) -> Result<Outcome, RunError> {
    for block in 0..engine.work.prediction.blocks {
        match &engine.work.loaded.early {
            Some(early) if block >= early.blocks => break,
            Some(_) => {}
            None => {
                if let Some(reason) = engine.work.is_enough(block)? {
                    let end = EarlyEnd { blocks: block, reason };
                    engine.work.end(&end, &mut *environment.progress)?;
                    break;
                }
            }
        }
        let Loaded { study, cells, .. } = &engine.work.loaded;
        let starts: Vec<Vec<TrialSlot>> =
            design::block(study, cells, block).into_iter().map(|start| start.trials).collect();
        if engine.block(&starts, environment)? == NextStep::Stop {
            let total = engine.work.prediction.trials();
            return Ok(Outcome::Interrupted { done: engine.work.done.len() as u64, total });
        }
    }
    let Trials { store, run, .. } = &mut engine.work;
    store.finish_run(*run, environment.clock.unix_seconds())?;
    Ok(Outcome::Finished)
}

impl<'a> Trials<'a> {
    fn from_store(store: &'a mut Store, run: OpenRun) -> Result<Self, RunError> {
        let loaded = Loaded::read(store, run.id())?;
        let prediction = predict(&loaded.study, &loaded.cells, &loaded.facts)?;
        let mut done = BTreeMap::new();
        let mut spent_ns = 0;
        for (_, record) in store.trials(run.id())? {
            spent_ns += record.duration_ns;
            done.insert(TrialSlot::from_record(&record), record.ok);
        }
        let design = Rc::new((loaded.study.clone(), loaded.cells.clone()));
        Ok(Self { store, run, loaded, design, prediction, done, spent_ns, session: (0, 0) })
    }

    /// Why no further block starts. A block that has started is always completed.
    fn is_enough(&self, block: u32) -> Result<Option<String>, RunError> {
        let begun = self.done.keys().next_back().is_some_and(|slot| slot.block >= block);
        if begun || block == 0 {
            return Ok(None);
        }
        let spent = Spent { blocks: block, ns: self.spent_ns };
        reason_to_stop(self.store, self.run, &self.loaded, spent)
    }

    fn end(&mut self, end: &EarlyEnd, progress: &mut dyn Progress) -> Result<(), RunError> {
        end.save(self.store, self.run)?;
        self.report(progress, Event::Ends { reason: end.reason.clone() }, end.blocks, "");
        Ok(())
    }
}

impl RunKind for Trials<'_> {
    type Slot = TrialSlot;
    type Output = TrialResult;
    type Runner<'r> = dyn Runner + 'r;
    type Request = (Rc<(Study, Cells)>, Vec<TrialSlot>);
    const ACTION: &'static str = "run the study";
    const TRIAL: &'static str = "trial";

    fn has_ended(&self, slot: TrialSlot) -> bool {
        self.done.contains_key(&slot)
    }

    fn place(&self, slot: TrialSlot) -> (u32, String) {
        (slot.block, self.loaded.cells.all[slot.cell].name(&self.loaded.study))
    }

    fn request(&self, slots: &[TrialSlot]) -> Self::Request {
        (Rc::clone(&self.design), slots.to_vec())
    }

    fn start<'r>(
        runner: &mut Self::Runner<'r>,
        request: &Self::Request,
        reported: &mut Reported<'_, TrialResult>,
    ) -> Result<(), TrialError> {
        let (design, trials) = request;
        let (study, cells) = &**design;
        runner.start(&StartRequest { study, cells, trials }, reported)
    }

    fn save(
        &mut self,
        trial: EndedTrial<TrialSlot>,
        output: Option<TrialResult>,
    ) -> Result<(), RunError> {
        let TrialSlot { block, cell, start, twin } = trial.slot;
        let record = TrialRecord {
            block,
            cell,
            start,
            twin,
            position: trial.position,
            node: trial.node,
            ok: output.is_some(),
            attempts: trial.attempts,
            error: trial.error,
            began_unix_s: trial.began_unix_s,
            duration_ns: trial.duration_ns,
            work_ns: output.as_ref().map_or(0, |output| output.work_ns),
        };
        let figures = output.map(|output| output.figures).unwrap_or_default();
        self.store.save_trial(self.run, &record, &figures)?;
        self.done.insert(trial.slot, record.ok);
        self.spent_ns += record.duration_ns;
        self.session = (self.session.0 + 1, self.session.1 + record.duration_ns);
        Ok(())
    }

    fn report(&self, progress: &mut dyn Progress, event: Event, block: u32, name: &str) {
        let (done, total) = (self.done.len() as u64, self.prediction.trials());
        // The mean of this session, else the prediction.
        let trial_s = match self.session {
            (0, _) => self.prediction.seconds() / total.max(1) as f64,
            (trials, ns) => ns as f64 / 1e9 / trials as f64,
        };
        let left_s = total.saturating_sub(done) as f64 * trial_s;
        progress.update(&Update { event, block, name, done, total, left_s });
    }
}

/// The completed blocks of a run.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Number of blocks.
    pub blocks: u32,
    /// Their time (ns).
    pub ns: u64,
}

/// Why no block needs to start after these.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn reason_to_stop(
    store: &Store,
    run: OpenRun,
    loaded: &Loaded,
    Spent { blocks, ns: spent_ns }: Spent,
) -> Result<Option<String>, RunError> {
    if let Some(stop) = &loaded.study.stop
        && blocks >= stop.at_least
        && is_narrow(store, run.id(), loaded, &stop.figure, stop.half_width)?
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

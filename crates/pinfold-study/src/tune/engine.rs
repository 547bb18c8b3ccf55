//! Runs the starts of a run that the store does not have yet, block by block.
//!
//! The store is the only state. The same call resumes a run after an interruption, a crash or a
//! power failure: the design is rebuilt from the seed, and what the store has is skipped. The
//! common engine, which studies use too, runs, retries and saves the starts.

use std::collections::BTreeMap;

use super::budget::{Prediction, grow};
use super::config::{ConfirmPlan, Costs, TuneConfig};
use super::design::PlannedStart;
use super::loaded::Loaded;
use super::ranking::rank;
use super::schedule::{Dropped, Facts, NextAction, Schedule};
use super::starter::{StartRequest, Starter};
use super::summary::{Summaries, check_result};
use crate::engine::{
    self, EndedTrial, Engine, Event, NextStep, Outcome, Progress, Reported, RunKind, TrialError,
    Update,
};
use crate::error::RunError;
use crate::store::{CellResult, OpenRun, Phase, Slot, StartRecord, StartStatus, Store, StoreError};

/// The run stops after this number of consecutive failed starts.
pub const MAX_FAILURES_IN_A_ROW: u32 = 4;

/// The environment of a tuning run.
pub type Environment<'a> = engine::Environment<'a, dyn Starter + 'a>;

/// Runs the remaining starts of the run.
///
/// # Errors
/// [`RunError`]: no machine can be started, several consecutive starts failed, or the store
/// failed. Saved data are kept.
pub fn run(
    store: &mut Store,
    run: OpenRun,
    environment: &mut Environment<'_>,
) -> Result<Outcome, RunError> {
    let loaded = Loaded::read(store, run.id())?;
    let prediction = loaded.prediction()?;
    let done = store
        .starts(run.id())?
        .into_iter()
        .map(|start| (start.record.slot, start.record))
        .collect();
    let (screening, confirmation) =
        (load_phase(store, run, Phase::Screening)?, load_phase(store, run, Phase::Confirmation)?);
    let work = Starts {
        store,
        run,
        loaded,
        prediction,
        done,
        screening,
        confirmation,
        block: Vec::new(),
        raced: 0,
        total: 0,
    };
    go(&mut Engine::new(work, MAX_FAILURES_IN_A_ROW), environment)
}

fn load_phase(store: &Store, run: OpenRun, phase: Phase) -> Result<Summaries, StoreError> {
    Summaries::load(store, run.id(), phase, u32::MAX)
}

/// The starts of a run, as the [`RunKind`] of the engine.
struct Starts<'a> {
    store: &'a mut Store,
    run: OpenRun,
    loaded: Loaded,
    prediction: Prediction,
    done: BTreeMap<Slot, StartRecord>,
    screening: Summaries,
    confirmation: Summaries,
    /// The current block.
    block: Vec<PlannedStart>,
    /// Number of blocks of the race so far.
    raced: u32,
    /// Number of starts of the whole run, as far as known.
    total: u32,
}

fn go(
    engine: &mut Engine<Starts<'_>>,
    environment: &mut Environment<'_>,
) -> Result<Outcome, RunError> {
    let mut reported = engine.work.course().dropped.len();
    loop {
        let course = engine.work.course();
        engine.work.total = engine.work.total_of(&course);
        engine.work.raced = u32::try_from(course.screening.len()).unwrap_or(u32::MAX);
        for dropped in &course.dropped[reported.min(course.dropped.len())..] {
            engine.work.report_dropped(dropped, &mut *environment.progress);
        }
        reported = course.dropped.len();
        let order = match course.turn {
            NextAction::End => break,
            NextAction::Settle => {
                engine.work.choose_confirmation(&course, &mut *environment.progress)?;
                continue;
            }
            NextAction::Block(Phase::Screening, block) => &course.screening[block as usize],
            NextAction::Block(Phase::Confirmation, block) => &course.confirmation[block as usize],
        };
        if engine.work.ends_before(order)? {
            continue;
        }
        engine.work.block.clone_from(order);
        let starts: Vec<Vec<Slot>> = order.iter().map(|start| vec![start.slot]).collect();
        if engine.block(&starts, environment)? == NextStep::Stop {
            let (done, total) = (engine.work.done.len() as u64, u64::from(engine.work.total));
            return Ok(Outcome::Interrupted { done, total });
        }
    }
    let Starts { store, run, .. } = &mut engine.work;
    store.finish_run(*run, environment.clock.unix_seconds())?;
    Ok(Outcome::Finished)
}

impl Starts<'_> {
    fn course(&self) -> Schedule {
        Schedule::from_facts(&Facts {
            loaded: &self.loaded,
            screening: &self.screening,
            confirmation: &self.confirmation,
            has_time: &|running| self.has_time(running),
        })
    }

    /// Decides which candidates are confirmed.
    fn choose_confirmation(
        &mut self,
        course: &Schedule,
        progress: &mut dyn Progress,
    ) -> Result<(), RunError> {
        let confirm = if course.screening.is_empty() {
            ConfirmPlan {
                kept: self.loaded.distinct.clone(),
                blocks: self.prediction.confirm_blocks,
                observation_s: self.prediction.observation_s,
            }
        } else {
            self.fit_confirmation(&course.running)?
        };
        self.save_confirm(&confirm)?;
        let names =
            confirm.kept.iter().map(|&index| self.loaded.records[index].name.clone()).collect();
        self.report(progress, Event::Kept { names }, 0, "");
        Ok(())
    }

    fn report_dropped(&self, dropped: &Dropped, progress: &mut dyn Progress) {
        let reason = format!(
            "{:.2} times the number of {} over {} blocks ({}, p {:.1e})",
            dropped.ratio,
            dropped.leader,
            dropped.blocks,
            dropped.test.name(),
            dropped.p
        );
        let block = dropped.blocks.saturating_sub(1);
        self.report(progress, Event::Dropped { reason }, block, &dropped.name);
    }

    /// True if the budget allows one more block of the race before the smallest confirmation.
    fn has_time(&self, running: usize) -> bool {
        let config = &self.loaded.config;
        let Some(start_s) = self.mean_start_s(Phase::Screening) else { return false };
        let costs = self.measured_costs();
        let least_s = costs.start(config.load_states.len(), config.observation.min_s);
        let confirmed = u32::try_from(running).unwrap_or(u32::MAX).min(config.keep);
        let block_s = start_s * (running as f64 + 1.0);
        let rest_s = f64::from(config.least_blocks(confirmed)) * f64::from(confirmed + 2) * least_s;
        self.spent_s() + block_s + rest_s <= config.budget_s
    }

    /// The candidates that are confirmed, and the design for the remaining budget, with the
    /// durations measured in the screening.
    fn fit_confirmation(&self, running: &[usize]) -> Result<ConfirmPlan, RunError> {
        let config = &self.loaded.config;
        let kept = choose_kept(config, &self.screening, running);
        if kept.is_empty() {
            return Err(self.none_measured());
        }
        let confirmed = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        let costs = self.measured_costs();
        let config = TuneConfig { costs, ..config.clone() };
        let observation_s = config.observation.min_s;
        let smallest = Prediction {
            screening_starts: 0,
            confirmed,
            confirm_blocks: config.least_blocks(confirmed),
            observation_s,
            start_s: costs.start(config.load_states.len(), observation_s),
            ..self.prediction
        };
        let fitted = grow(&config, smallest, config.budget_s - self.spent_s());
        Ok(ConfirmPlan { kept, blocks: fitted.confirm_blocks, observation_s: fitted.observation_s })
    }

    /// The given costs, with the boot time corrected by the measured durations of the starts so
    /// far.
    fn measured_costs(&self) -> Costs {
        let config = &self.loaded.config;
        let Some(mean_s) = self.mean_start_s(Phase::Screening) else {
            return config.costs;
        };
        let known = Costs { start_s: 0.0, ..config.costs };
        let rest = known.start(config.load_states.len(), self.prediction.observation_s);
        Costs { start_s: (mean_s - rest).max(0.0), ..config.costs }
    }

    /// True if this block would exceed the budget and is not needed for a verdict: then the
    /// confirmation ends before it.
    fn ends_before(&mut self, order: &[PlannedStart]) -> Result<bool, RunError> {
        let Some(Slot { phase: Phase::Confirmation, block, .. }) =
            order.first().map(|start| start.slot)
        else {
            return Ok(false);
        };
        let Some(mut confirm) = self.loaded.confirm.clone() else { return Ok(false) };
        let Some(start_s) = self.mean_start_s(Phase::Confirmation) else { return Ok(false) };
        let confirmed = u32::try_from(confirm.kept.len()).unwrap_or(u32::MAX);
        let begun =
            self.done.keys().any(|slot| slot.phase == Phase::Confirmation && slot.block >= block);
        let block_s = start_s * order.len() as f64;
        let ends = block >= self.loaded.config.least_blocks(confirmed)
            && !begun
            && self.spent_s() + block_s > self.loaded.config.budget_s;
        if ends {
            confirm.blocks = block;
            self.save_confirm(&confirm)?;
        }
        Ok(ends)
    }

    fn save_confirm(&mut self, confirm: &ConfirmPlan) -> Result<(), RunError> {
        let json = serde_json::to_string(confirm)
            .map_err(RunError::document("outcome of the screening"))?;
        self.store.set_confirmation(self.run, &json)?;
        self.loaded.confirm = Some(confirm.clone());
        Ok(())
    }

    /// The error if no candidate was ever measured.
    fn none_measured(&self) -> RunError {
        let failed = self.done.values().filter(|record| record.status == StartStatus::Failed);
        let count = u32::try_from(failed.clone().count()).unwrap_or(u32::MAX);
        let last =
            failed.max_by_key(|record| (record.slot.phase, record.slot.block, record.position));
        let name = |record: &StartRecord| self.loaded.records[record.slot.candidate].name.clone();
        let message = last.and_then(|record| record.error.clone()).unwrap_or_default();
        let name = last.map(name).unwrap_or_default();
        RunError::KeepsFailing { count, what: Self::TRIAL, name, message }
    }

    fn done_starts(&self) -> u32 {
        u32::try_from(self.done.len()).unwrap_or(u32::MAX)
    }

    /// Number of starts of the whole run, if no further candidate is dropped.
    fn total_of(&self, course: &Schedule) -> u32 {
        let raced: usize = course.screening.iter().map(Vec::len).sum();
        let confirmed = match &self.loaded.confirm {
            Some(_) => course.confirmation.iter().map(Vec::len).sum(),
            None => {
                let kept = course.running.len().min(self.loaded.config.keep as usize);
                self.prediction.confirm_blocks as usize * (kept + 2)
            }
        };
        u32::try_from(raced + confirmed).unwrap_or(u32::MAX)
    }

    fn spent_s(&self) -> f64 {
        self.done.values().map(|record| record.duration_ns as f64 / 1e9).sum()
    }

    /// Mean duration of the phase's starts that succeeded at the first attempt.
    fn mean_start_s(&self, phase: Phase) -> Option<f64> {
        let durations: Vec<f64> = self
            .done
            .values()
            .filter(|record| {
                record.slot.phase == phase
                    && record.attempts == 1
                    && record.status == StartStatus::Ok
            })
            .map(|record| record.duration_ns as f64 / 1e9)
            .collect();
        (!durations.is_empty()).then(|| durations.iter().sum::<f64>() / durations.len() as f64)
    }
}

impl RunKind for Starts<'_> {
    type Slot = Slot;
    type Output = Vec<CellResult>;
    type Runner<'r> = dyn Starter + 'r;
    type Request = StartRequest;
    const ACTION: &'static str = "start the virtual machine";
    const TRIAL: &'static str = "start";

    fn has_ended(&self, slot: Slot) -> bool {
        self.done.contains_key(&slot)
    }

    fn place(&self, slot: Slot) -> (u32, String) {
        let block = match slot.phase {
            Phase::Screening => slot.block,
            Phase::Confirmation => self.raced + slot.block,
        };
        (block, self.loaded.records[slot.candidate].name.clone())
    }

    fn request(&self, slots: &[Slot]) -> StartRequest {
        // Each start has a single candidate.
        let mut planned = self.block.iter().filter(|start| slots.contains(&start.slot));
        let slot = slots[0];
        let is_twin = slot.candidate == self.loaded.twin;
        let confirm = self.loaded.confirm.as_ref().filter(|_| slot.phase == Phase::Confirmation);
        StartRequest {
            candidate: if is_twin { self.loaded.baseline } else { slot.candidate },
            phase: slot.phase,
            block: slot.block,
            load_states: planned.next().map(|start| start.load_states.clone()).unwrap_or_default(),
            observation_s: confirm
                .map_or(self.prediction.observation_s, |confirm| confirm.observation_s),
        }
    }

    fn start<'r>(
        starter: &mut Self::Runner<'r>,
        request: &StartRequest,
        reported: &mut Reported<'_, Vec<CellResult>>,
    ) -> Result<(), TrialError> {
        let checked = starter.start(request).and_then(|result| {
            check_result(request, &result).map_err(TrialError::from_message)?;
            Ok(result.cells)
        });
        reported(0, checked);
        Ok(())
    }

    fn save(
        &mut self,
        start: EndedTrial<Slot>,
        output: Option<Vec<CellResult>>,
    ) -> Result<(), RunError> {
        let record = StartRecord {
            slot: start.slot,
            position: start.position,
            status: if output.is_some() { StartStatus::Ok } else { StartStatus::Failed },
            attempts: start.attempts,
            error: start.error,
            began_unix_s: start.began_unix_s,
            duration_ns: start.duration_ns,
        };
        let cells = output.unwrap_or_default();
        self.store.save_start(self.run, &record, &cells)?;
        match record.slot.phase {
            Phase::Screening => self.screening.add(record.clone(), &cells),
            Phase::Confirmation => self.confirmation.add(record.clone(), &cells),
        }
        self.done.insert(record.slot, record);
        Ok(())
    }

    fn report(&self, progress: &mut dyn Progress, event: Event, block: u32, name: &str) {
        let (done, total) = (self.done_starts(), self.total);
        // Measured durations of this phase, else of the race, else the prediction.
        let now = match self.loaded.confirm {
            Some(_) => self.mean_start_s(Phase::Confirmation),
            None => None,
        };
        let start_s =
            now.or_else(|| self.mean_start_s(Phase::Screening)).unwrap_or(self.prediction.start_s);
        let left_s = f64::from(total.saturating_sub(done)) * start_s;
        let (done, total) = (u64::from(done), u64::from(total));
        progress.update(&Update { event, block, name, done, total, left_s });
    }
}

/// The remaining candidates that are confirmed: the best ones that were measured.
pub(super) fn choose_kept(
    config: &TuneConfig,
    screening: &Summaries,
    running: &[usize],
) -> Vec<usize> {
    if screening.starts.is_empty() {
        return running.to_vec();
    }
    let mut kept: Vec<usize> = rank(config, screening, running)
        .into_iter()
        .filter(|standing| screening.count_measured(standing.candidate) > 0)
        .map(|standing| standing.candidate)
        .take(config.keep as usize)
        .collect();
    kept.sort_unstable();
    kept
}

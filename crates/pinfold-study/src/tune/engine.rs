//! The engine: makes the starts that the store does not hold yet, and saves each.
//!
//! The store is the engine's only memory. Going on after an interruption, a crash or a
//! power cut is the same call: the design is rebuilt from the seed, what the store holds
//! is skipped. A failed start is tried once more, then recorded as failed; it is never
//! dropped and never repeated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::Clock;

use super::budget::{Prediction, grow, predict};
use super::config::{Costs, TuneConfig};
use super::course::{Course, Facts, Turn};
use super::create::KIND;
use super::design::PlannedStart;
use super::error::TuneError;
use super::ranking::rank;
use super::starter::{
    Event, Progress, StartError, StartFailure, StartRequest, StartResult, Starter, Update,
};
use super::summary::{Summaries, check_result};
use crate::schema::{self, ConfirmPlan};
use crate::store::{
    CandidateRecord, CandidateRole, CellResult, OpenRun, Phase, RunId, Slot, StartRecord,
    StartStatus, Store, StoreError,
};

/// After this many failed starts in a row the run stops.
pub const MAX_FAILURES_IN_A_ROW: u32 = 4;

/// What the engine needs from outside.
pub struct Environment<'a> {
    /// Starts and measures machines.
    pub starter: &'a mut dyn Starter,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Who watches.
    pub progress: &'a mut dyn Progress,
    /// Set it, and the run ends after the current start; it can be gone on with.
    pub stop: &'a AtomicBool,
}

/// How a call of [`run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All starts are done.
    Finished,
    /// The stop flag was set.
    Interrupted {
        /// Starts that are done.
        done: u32,
        /// Starts of the whole run, as far as it is known.
        total: u32,
    },
}

/// A run's settings and parts, read back from the store.
pub(super) struct Loaded {
    pub config: TuneConfig,
    pub records: Vec<CandidateRecord>,
    pub confirm: Option<ConfirmPlan>,
    pub baseline: usize,
    pub twin: usize,
    /// Candidates besides baseline and twin whose placement is their own.
    pub distinct: Vec<usize>,
}

impl Loaded {
    pub(super) fn read(store: &Store, run: RunId) -> Result<Self, TuneError> {
        let record = store.run(run)?;
        if record.kind != KIND {
            let path = store.path().to_owned();
            let found = record.kind;
            return Err(StoreError::Kind { path, run, found, wanted: KIND }.into());
        }
        let document = |what| move |source| TuneError::Document { what, source };
        let config = schema::config_from_json(&record.config_json).map_err(document("settings"))?;
        let confirm = record.confirm_json.as_deref().map(schema::confirm_from_json);
        let records = store.candidates(run)?;
        let with_role = |role| records.iter().position(|record| record.role == role);
        let baseline = with_role(CandidateRole::Baseline).ok_or(TuneError::NoBaseline)?;
        let twin = with_role(CandidateRole::Twin).ok_or(TuneError::NoBaseline)?;
        let distinct = (0..records.len()).filter(|&index| {
            records[index].role == CandidateRole::Candidate && records[index].same_as.is_none()
        });
        Ok(Self {
            config,
            confirm: confirm.transpose().map_err(document("outcome of the screening"))?,
            baseline,
            twin,
            distinct: distinct.collect(),
            records,
        })
    }

    pub(super) fn prediction(&self) -> Result<Prediction, TuneError> {
        predict(&self.config, u32::try_from(self.distinct.len()).unwrap_or(u32::MAX))
    }
}

/// Makes the run's remaining starts.
///
/// # Errors
/// [`TuneError`]: no machine can be started, start after start failed, or the store
/// failed. What was saved is kept.
pub fn run(
    store: &mut Store,
    run: OpenRun,
    environment: &mut Environment<'_>,
) -> Result<Outcome, TuneError> {
    let loaded = Loaded::read(store, run.id())?;
    let prediction = loaded.prediction()?;
    let done = store
        .starts(run.id())?
        .into_iter()
        .map(|start| (start.record.slot, start.record))
        .collect();
    let of_phase = |phase| Summaries::load(store, run.id(), phase, u32::MAX);
    let (screening, confirmation) = (of_phase(Phase::Screening)?, of_phase(Phase::Confirmation)?);
    let mut engine = Engine {
        store,
        run,
        loaded,
        prediction,
        done,
        screening,
        confirmation,
        dropped: 0,
        total: 0,
        failures_in_a_row: 0,
    };
    engine.go(environment)
}

struct Engine<'a> {
    store: &'a mut Store,
    run: OpenRun,
    loaded: Loaded,
    prediction: Prediction,
    done: BTreeMap<Slot, StartRecord>,
    screening: Summaries,
    confirmation: Summaries,
    /// How many were told to be dropped.
    dropped: usize,
    /// Starts of the whole run, as far as it is known.
    total: u32,
    failures_in_a_row: u32,
}

/// How the one or two attempts at a start went.
struct Attempts {
    count: u32,
    /// What was measured; `None` if both failed.
    cells: Option<Vec<CellResult>>,
    /// Message of the last failure, if any.
    error: Option<String>,
}

/// Whether to go on after a start.
enum Next {
    GoOn,
    Stop,
}

impl Engine<'_> {
    fn go(&mut self, environment: &mut Environment<'_>) -> Result<Outcome, TuneError> {
        self.dropped = self.course().dropped.len();
        loop {
            let course = self.course();
            self.total = self.total_of(&course);
            self.tell_dropped(&course, environment);
            match course.turn {
                Turn::End => break,
                Turn::Settle => self.settle(&course, environment)?,
                Turn::Block(Phase::Screening, block) => {
                    let observation_s = self.prediction.observation_s;
                    let order = &course.screening[block as usize];
                    if let Next::Stop = self.block(order, observation_s, environment)? {
                        return Ok(self.interrupted());
                    }
                }
                Turn::Block(Phase::Confirmation, block) => {
                    let order = &course.confirmation[block as usize];
                    let Some(mut confirm) = self.loaded.confirm.clone() else { break };
                    if self.is_out_of_time(order) {
                        confirm.blocks = block;
                        self.save_confirm(&confirm)?;
                    } else if let Next::Stop =
                        self.block(order, confirm.observation_s, environment)?
                    {
                        return Ok(self.interrupted());
                    }
                }
            }
        }
        self.store.finish_run(self.run, environment.clock.unix_seconds())?;
        Ok(Outcome::Finished)
    }

    fn course(&self) -> Course {
        Course::of(&Facts {
            loaded: &self.loaded,
            screening: &self.screening,
            confirmation: &self.confirmation,
            has_time: &|running| self.has_time(running),
        })
    }

    /// Settles who is confirmed.
    fn settle(
        &mut self,
        course: &Course,
        environment: &mut Environment<'_>,
    ) -> Result<(), TuneError> {
        let confirm = if course.screening.is_empty() {
            ConfirmPlan {
                kept: self.loaded.distinct.clone(),
                blocks: self.prediction.confirm_blocks,
                observation_s: self.prediction.observation_s,
            }
        } else {
            self.fitted(&course.running)?
        };
        self.save_confirm(&confirm)?;
        let name = |&index: &usize| self.loaded.records[index].name.clone();
        let names = confirm.kept.iter().map(name).collect();
        self.tell(environment, Event::Kept { names }, (Phase::Screening, 0), "");
        Ok(())
    }

    fn tell_dropped(&mut self, course: &Course, environment: &mut Environment<'_>) {
        for dropped in course.dropped.iter().skip(self.dropped) {
            let name = |index: usize| self.loaded.records[index].name.as_str();
            let event =
                Event::Dropped { leader: name(dropped.leader).to_owned(), ratio: dropped.ratio };
            let at = (dropped.phase, dropped.block);
            self.tell(environment, event, at, name(dropped.candidate));
        }
        self.dropped = course.dropped.len();
    }

    /// Whether the budget allows one more block of the race before the smallest confirmation.
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

    /// Who is confirmed, and what the rest of the budget allows, with the durations that
    /// the screening has shown instead of those that were guessed.
    fn fitted(&self, running: &[usize]) -> Result<ConfirmPlan, TuneError> {
        let config = &self.loaded.config;
        let kept = kept_of(config, &self.screening, running);
        if kept.is_empty() {
            return Err(self.keeps_failing());
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

    /// The given costs, with the boot time corrected by what the starts so far took.
    fn measured_costs(&self) -> Costs {
        let config = &self.loaded.config;
        let Some(mean_s) = self.mean_start_s(Phase::Screening) else {
            return config.costs;
        };
        let known = Costs { start_s: 0.0, ..config.costs };
        let rest = known.start(config.load_states.len(), self.prediction.observation_s);
        Costs { start_s: (mean_s - rest).max(0.0), ..config.costs }
    }

    /// True if a further block would exceed the budget and is not needed for a verdict.
    fn is_out_of_time(&self, order: &[PlannedStart]) -> bool {
        let Some(Slot { block, .. }) = order.first().map(|start| start.slot) else { return false };
        let kept = self.loaded.confirm.as_ref().map_or(0, |confirm| confirm.kept.len());
        let confirmed = u32::try_from(kept).unwrap_or(u32::MAX);
        let begun =
            self.done.keys().any(|slot| slot.phase == Phase::Confirmation && slot.block >= block);
        let Some(start_s) = self.mean_start_s(Phase::Confirmation) else {
            return false;
        };
        let block_s = start_s * order.len() as f64;
        block >= self.loaded.config.least_blocks(confirmed)
            && !begun
            && self.spent_s() + block_s > self.loaded.config.budget_s
    }

    fn block(
        &mut self,
        order: &[PlannedStart],
        observation_s: f64,
        environment: &mut Environment<'_>,
    ) -> Result<Next, TuneError> {
        for planned in order {
            if self.done.contains_key(&planned.slot) {
                continue;
            }
            if environment.stop.load(Ordering::SeqCst) {
                return Ok(Next::Stop);
            }
            if let Next::Stop = self.start(planned, observation_s, environment)? {
                return Ok(Next::Stop);
            }
        }
        Ok(Next::GoOn)
    }

    fn start(
        &mut self,
        planned: &PlannedStart,
        observation_s: f64,
        environment: &mut Environment<'_>,
    ) -> Result<Next, TuneError> {
        let slot = planned.slot;
        let is_twin = slot.candidate == self.loaded.twin;
        let request = StartRequest {
            candidate: if is_twin { self.loaded.baseline } else { slot.candidate },
            phase: slot.phase,
            block: slot.block,
            load_states: planned.load_states.clone(),
            observation_s,
        };
        let name = self.loaded.records[slot.candidate].name.clone();
        let at = (slot.phase, slot.block);
        self.tell(environment, Event::Begins, at, &name);
        let began_unix_s = environment.clock.unix_seconds();
        let began_ns = environment.clock.now_ns();
        let Some(attempts) = self.attempts(&request, environment, &name)? else {
            return Ok(Next::Stop);
        };
        let record = StartRecord {
            slot,
            position: planned.position,
            status: if attempts.cells.is_some() { StartStatus::Ok } else { StartStatus::Failed },
            attempts: attempts.count,
            error: attempts.error.clone(),
            began_unix_s,
            duration_ns: environment.clock.now_ns().saturating_sub(began_ns),
        };
        self.save(record, attempts.cells.as_deref().unwrap_or_default())?;
        let event = match attempts {
            Attempts { cells: None, error: Some(message), .. } => Event::Failed { message },
            Attempts { .. } => Event::Done,
        };
        self.tell(environment, event, at, &name);
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW {
            return Err(self.keeps_failing());
        }
        Ok(Next::GoOn)
    }

    /// Tries once, and once more if that failed; `None` if the run is to stop.
    fn attempts(
        &self,
        request: &StartRequest,
        environment: &mut Environment<'_>,
        name: &str,
    ) -> Result<Option<Attempts>, TuneError> {
        let mut error = None;
        for count in 1..=2 {
            match attempt(environment.starter, request) {
                Ok(StartResult { cells }) => {
                    return Ok(Some(Attempts { count, cells: Some(cells), error }));
                }
                Err(failure) if self.must_stop(environment, &failure)? => return Ok(None),
                Err(StartError { message, .. }) if count == 1 => {
                    let event = Event::Retries { message: message.clone() };
                    self.tell(environment, event, (request.phase, request.block), name);
                    error = Some(message);
                }
                Err(StartError { message, .. }) => error = Some(message),
            }
        }
        Ok(Some(Attempts { count: 2, cells: None, error }))
    }

    /// True if the failure came with the stop signal: then the start says nothing about
    /// the candidate and is made again when the run goes on.
    fn must_stop(
        &self,
        environment: &Environment<'_>,
        error: &StartError,
    ) -> Result<bool, TuneError> {
        if environment.stop.load(Ordering::SeqCst) {
            return Ok(true);
        }
        match error.failure {
            StartFailure::Failed => Ok(false),
            StartFailure::Fatal => {
                Err(TuneError::Starter { message: error.message.clone(), hint: error.hint.clone() })
            }
        }
    }

    fn save(&mut self, record: StartRecord, cells: &[CellResult]) -> Result<(), TuneError> {
        self.store.save_start(self.run, &record, cells)?;
        match record.slot.phase {
            Phase::Screening => self.screening.add(record.clone(), cells),
            Phase::Confirmation => self.confirmation.add(record.clone(), cells),
        }
        self.failures_in_a_row = match record.status {
            StartStatus::Ok => 0,
            StartStatus::Failed => self.failures_in_a_row + 1,
        };
        self.done.insert(record.slot, record);
        Ok(())
    }

    fn save_confirm(&mut self, confirm: &ConfirmPlan) -> Result<(), TuneError> {
        let json = schema::confirm_to_json(confirm)
            .map_err(|source| TuneError::Document { what: "outcome of the screening", source })?;
        self.store.set_confirmation(self.run, &json)?;
        self.loaded.confirm = Some(confirm.clone());
        Ok(())
    }

    fn keeps_failing(&self) -> TuneError {
        let last = self
            .done
            .values()
            .filter(|record| record.status == StartStatus::Failed)
            .max_by_key(|record| (record.slot.phase, record.slot.block, record.position));
        let name = |record: &StartRecord| self.loaded.records[record.slot.candidate].name.clone();
        TuneError::KeepsFailing {
            count: self.failures_in_a_row,
            name: last.map(name).unwrap_or_default(),
            message: last.and_then(|record| record.error.clone()).unwrap_or_default(),
        }
    }

    fn interrupted(&self) -> Outcome {
        Outcome::Interrupted { done: self.done_starts(), total: self.total }
    }

    fn done_starts(&self) -> u32 {
        u32::try_from(self.done.len()).unwrap_or(u32::MAX)
    }

    /// Starts of the whole run, if nobody is dropped any more.
    fn total_of(&self, course: &Course) -> u32 {
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

    /// Mean duration of the phase's starts that went well at once.
    fn mean_start_s(&self, phase: Phase) -> Option<f64> {
        let smooth = |record: &&StartRecord| {
            record.slot.phase == phase && record.attempts == 1 && record.status == StartStatus::Ok
        };
        let durations: Vec<f64> = self
            .done
            .values()
            .filter(smooth)
            .map(|record| record.duration_ns as f64 / 1e9)
            .collect();
        (!durations.is_empty()).then(|| durations.iter().sum::<f64>() / durations.len() as f64)
    }

    fn tell(
        &self,
        environment: &mut Environment<'_>,
        event: Event,
        (phase, block): (Phase, u32),
        name: &str,
    ) {
        let (done, total) = (self.done_starts(), self.total);
        // What the phase has shown, else the other phase, else what was predicted.
        let start_s = self
            .mean_start_s(phase)
            .or_else(|| self.mean_start_s(Phase::Screening))
            .unwrap_or(self.prediction.start_s);
        let left_s = f64::from(total.saturating_sub(done)) * start_s;
        environment.progress.update(&Update { event, phase, block, name, done, total, left_s });
    }
}

/// Who of those that are left is confirmed: the best that were measured at all.
pub(super) fn kept_of(config: &TuneConfig, screening: &Summaries, running: &[usize]) -> Vec<usize> {
    if screening.starts.is_empty() {
        return running.to_vec();
    }
    let mut kept: Vec<usize> = rank(config, screening, running)
        .into_iter()
        .filter(|standing| screening.measured(standing.candidate) > 0)
        .map(|standing| standing.candidate)
        .take(config.keep as usize)
        .collect();
    kept.sort_unstable();
    kept
}

/// One attempt, its result checked.
fn attempt(starter: &mut dyn Starter, request: &StartRequest) -> Result<StartResult, StartError> {
    let result = starter.start(request)?;
    check_result(request, &result).map_err(StartError::failed)?;
    Ok(result)
}

//! What a tuning run found, as values. Rendering is done elsewhere.

use pinfold_model::{Finding, LoadState, Metric, Origin};

use super::config::TuneConfig;
use super::design::PlannedStart;
use super::ranking::Standing;
use crate::schema::ConfirmPlan;
use crate::stats::{Interval, PValue, RaceTest, Tail, Verdict};
use crate::store::{Phase, RunId};

/// The comparison of one candidate with the baseline, in one metric and load state.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Blocks in which both were measured.
    pub pairs: u32,
    /// Ratio candidate / baseline; `None` with fewer than two pairs.
    pub interval: Option<Interval>,
    /// p-value of the paired sign-flip test.
    pub p: Option<PValue>,
    /// The same after Holm's correction over the confirmed candidates.
    pub p_holm: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// One metric of one candidate in one load state, over the confirmation's blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct CellReport {
    /// The load state.
    pub load: LoadState,
    /// The metric.
    pub metric: Metric,
    /// The number of each block: worst gap, 99 % quantile of wake-ups, median rate or
    /// median I/O latency, in the metric's unit.
    pub blocks: Vec<f64>,
    /// Median over the blocks.
    pub median: f64,
    /// The worst block: the largest time, the smallest rate.
    pub worst: f64,
    /// All samples of all blocks together; `None` for rates.
    pub tail: Option<Tail>,
    /// Against the baseline; `None` for the baseline itself.
    pub against_baseline: Option<Contrast>,
}

/// One line of the ranking, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct RankingRow {
    /// Index of the candidate in the run.
    pub candidate: usize,
    /// Its name.
    pub name: String,
    /// Other candidates with the same placement, which were not started.
    pub same_as: Vec<String>,
    /// Its plan, in the plan's own JSON.
    pub plan_json: String,
    /// True for `none`.
    pub is_baseline: bool,
    /// Score, constraint, failures.
    pub standing: Standing,
    /// The goal's number: a gap in ns or a rate per second.
    pub score: Option<f64>,
    /// Confirmation blocks in which it was measured.
    pub blocks: u32,
    /// True if it was dropped in the confirmation: it stands behind all who were not.
    pub dropped: bool,
    /// Every metric and load state that was measured.
    pub cells: Vec<CellReport>,
}

impl RankingRow {
    /// The numbers of one metric in one load state.
    #[must_use]
    pub fn cell(&self, metric: Metric, load: LoadState) -> Option<&CellReport> {
        self.cells.iter().find(|cell| cell.metric == metric && cell.load == load)
    }
}

/// The baseline against itself, in one metric and load state: the noise floor.
#[derive(Clone, Debug, PartialEq)]
pub struct AaRow {
    /// The load state.
    pub load: LoadState,
    /// The metric.
    pub metric: Metric,
    /// The twin against the baseline. Its p-value is not corrected.
    pub contrast: Contrast,
}

/// One line of the screening, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct ScreeningRow {
    /// Its name.
    pub name: String,
    /// Score, constraint, failures. Three blocks give no verdict.
    pub standing: Standing,
    /// The goal's number.
    pub score: Option<f64>,
    /// Blocks in which it was measured.
    pub blocks: u32,
    /// True if it was confirmed. Who was not and is not among [`TuneReport::dropped`] was left out
    /// without proof, because no more are confirmed.
    pub kept: bool,
}

/// The winner against the candidate behind it. An interval only: the two were picked
/// because of these very data, so that a test would promise too much.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerUp {
    /// Its name.
    pub name: String,
    /// Ratio winner / runner-up in the goal's metric.
    pub interval: Option<Interval>,
}

/// The best candidate, and how sure that is.
#[derive(Clone, Debug, PartialEq)]
pub struct Winner {
    /// Index of the candidate in the run.
    pub candidate: usize,
    /// Its name.
    pub name: String,
    /// Its plan, in the plan's own JSON.
    pub plan_json: String,
    /// The metric that the goal is judged by.
    pub metric: Metric,
    /// The load state that it is judged in.
    pub load: LoadState,
    /// Against `none`; `None` if `none` itself is the best.
    pub against_baseline: Option<Contrast>,
    /// True if the ratio lies within the A/A pair's interval.
    pub within_noise: bool,
    /// The candidate behind it.
    pub runner_up: Option<RunnerUp>,
}

/// A candidate that was dropped because it could not win any more.
#[derive(Clone, Debug, PartialEq)]
pub struct DroppedRow {
    /// Its name.
    pub name: String,
    /// Name of the one that it could not beat.
    pub leader: String,
    /// After a block of this phase.
    pub phase: Phase,
    /// The block, from 0.
    pub block: u32,
    /// Blocks that it took part in, of both phases.
    pub blocks: u32,
    /// Median ratio to the leader's number, in the goal's metric.
    pub ratio: f64,
    /// By which test.
    pub test: RaceTest,
    /// p-value of "it is better than the leader by more than the margin".
    pub p: f64,
    /// What it had to be at most.
    pub level: f64,
}

/// A start that failed at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Part of the run.
    pub phase: Phase,
    /// Block, from 0.
    pub block: u32,
    /// The candidate's name.
    pub name: String,
    /// The message.
    pub message: String,
    /// True if the second attempt succeeded.
    pub recovered: bool,
}

/// The design as it was carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// Seed of all orders.
    pub seed: u64,
    /// The screening's blocks, each in its order; empty if it was not needed.
    pub screening: Vec<Vec<PlannedStart>>,
    /// Observation time of the screening, per load state (seconds).
    pub screening_observation_s: f64,
    /// What the screening settled; `None` before it ended.
    pub confirm: Option<ConfirmPlan>,
    /// The confirmation's blocks, each in its order.
    pub confirmation: Vec<Vec<PlannedStart>>,
    /// Starts that have ended.
    pub done: u32,
    /// Starts of the design; if it is not done, as if nobody were dropped any more.
    pub planned: u32,
    /// Starts that the full matrix has: everybody in every block of the confirmation.
    pub full: u32,
    /// Time that all starts took (seconds).
    pub spent_s: f64,
}

/// Everything that a tuning run found.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneReport {
    /// Number of the run in its store.
    pub run: RunId,
    /// When it began (seconds since 1970).
    pub created_unix_s: u64,
    /// True if all starts are done.
    pub finished: bool,
    /// Where and with what it was measured.
    pub origin: Origin,
    /// What was asked.
    pub config: TuneConfig,
    /// The load state that the goal is judged in.
    pub goal_load: LoadState,
    /// The candidates that were confirmed, and `none`, best first. Empty before the
    /// confirmation.
    pub ranking: Vec<RankingRow>,
    /// The best one; `None` before the confirmation.
    pub winner: Option<Winner>,
    /// The baseline against itself.
    pub aa: Vec<AaRow>,
    /// The screening, best first; empty if it was not needed.
    pub screening: Vec<ScreeningRow>,
    /// Who was dropped in the race, in order. The chance that the best is among them is at most
    /// [`TuneConfig::race`].
    pub dropped: Vec<DroppedRow>,
    /// Candidates with the placement of another: name, and whose.
    pub same_as: Vec<(String, String)>,
    /// Every start that failed, also those that succeeded on the second attempt.
    pub failures: Vec<Failure>,
    /// What one should know.
    pub findings: Vec<Finding>,
    /// How it was done.
    pub design: Design,
}

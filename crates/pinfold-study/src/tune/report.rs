//! The result of a tuning run, as values. It is rendered elsewhere.

use pinfold_model::{Finding, LoadState, Metric, Origin};
use pinfold_stats::{Interval, Verdict};

use super::config::{ConfirmPlan, TuneConfig};
use super::design::PlannedStart;
use super::ranking::RankEntry;
use super::schedule::Dropped;
use crate::store::{Phase, RunId};

/// The comparison of one candidate with the baseline, in one metric and load state.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Number of blocks in which both were measured.
    pub pairs: u32,
    /// Ratio candidate / baseline; `None` with fewer than two pairs.
    pub interval: Option<Interval>,
    /// p-value of the paired sign-flip test after Holm's correction over the confirmed candidates.
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
    /// The value of each block: longest stall, 99 % quantile of wake-ups, median rate or median I/O
    /// latency, in the metric's unit.
    pub blocks: Vec<f64>,
    /// Median over the blocks.
    pub median: f64,
    /// The worst block: the largest time or the smallest rate.
    pub worst: f64,
    /// Number of samples that were dropped.
    pub dropped: u64,
    /// The comparison with the baseline; `None` for the baseline itself.
    pub against_baseline: Option<Contrast>,
}

/// One row of the ranking, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct RankingRow {
    /// Index of the candidate in the run.
    pub candidate: usize,
    /// Name of the candidate.
    pub name: String,
    /// True for `none`.
    pub is_baseline: bool,
    /// Its score, constraint and failures.
    pub standing: RankEntry,
    /// The value that the goal optimises: a stall in ns or a rate per second.
    pub score: Option<f64>,
    /// Number of confirmation blocks in which it was measured.
    pub blocks: u32,
    /// True if it was dropped in the confirmation; it then ranks below all that were not.
    pub dropped: bool,
    /// One entry for each metric and load state that was measured.
    pub cells: Vec<CellReport>,
}

impl RankingRow {
    /// The entry of one metric in one load state.
    pub fn cell(&self, metric: Metric, load: LoadState) -> Option<&CellReport> {
        self.cells.iter().find(|cell| cell.metric == metric && cell.load == load)
    }
}

/// The comparison of the baseline with its twin, in one metric and load state: the noise floor.
#[derive(Clone, Debug, PartialEq)]
pub struct AaRow {
    /// The load state.
    pub load: LoadState,
    /// The metric.
    pub metric: Metric,
    /// The twin against the baseline. Its p-value is not corrected.
    pub contrast: Contrast,
}

/// One row of the screening, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct ScreeningRow {
    /// Name of the candidate.
    pub name: String,
    /// Its score, constraint and failures. Three blocks give no verdict.
    pub standing: RankEntry,
    /// Median over blocks of the ratio of this value to the baseline's of the same block.
    pub ratio: Option<f64>,
    /// Number of blocks in which it was measured.
    pub blocks: u32,
    /// True if it was confirmed. A candidate that was neither confirmed nor is among
    /// [`TuneReport::dropped`] was left out without a test, because the number of confirmed
    /// candidates is limited.
    pub kept: bool,
}

/// The best candidate, with its uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub struct Winner {
    /// Index of the candidate in the run.
    pub candidate: usize,
    /// Name of the candidate.
    pub name: String,
    /// The comparison with `none`; `None` if `none` itself is the best.
    pub against_baseline: Option<Contrast>,
    /// True if the ratio is within the A/A pair's interval.
    pub within_noise: bool,
}

/// A start that failed at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Phase of the run.
    pub phase: Phase,
    /// Block, from 0.
    pub block: u32,
    /// Name of the candidate.
    pub name: String,
    /// The error message.
    pub message: String,
    /// True if the second attempt succeeded.
    pub recovered: bool,
}

/// The design as it was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// The blocks of the screening, each in its order; empty without a screening.
    pub screening: Vec<Vec<PlannedStart>>,
    /// Observation time of the screening, per load state (seconds).
    pub screening_observation_s: f64,
    /// Result of the screening; `None` before its end.
    pub confirm: Option<ConfirmPlan>,
    /// The blocks of the confirmation, each in its order.
    pub confirmation: Vec<Vec<PlannedStart>>,
    /// Number of starts that have ended.
    pub done: u32,
    /// Number of starts of the design; for an unfinished run, assuming that no further candidate is
    /// dropped.
    pub planned: u32,
    /// Number of starts of the full matrix: all candidates in every block of the confirmation.
    pub full: u32,
    /// Duration of all starts together (seconds).
    pub spent_s: f64,
}

/// The result of a tuning run.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneReport {
    /// Number of the run in its store.
    pub run: RunId,
    /// True if all starts are done.
    pub finished: bool,
    /// Host and software of the measurement.
    pub origin: Origin,
    /// Settings of the run.
    pub config: TuneConfig,
    /// The load state in which the goal is evaluated.
    pub goal_load: LoadState,
    /// The confirmed candidates and `none`, best first. Empty before the confirmation.
    pub ranking: Vec<RankingRow>,
    /// The best candidate; `None` before the confirmation.
    pub winner: Option<Winner>,
    /// The comparison of the baseline with its twin.
    pub aa: Vec<AaRow>,
    /// The screening, best first; empty without a screening.
    pub screening: Vec<ScreeningRow>,
    /// The candidates that were dropped in the race, in order. The probability that the best one is
    /// among them is at most [`TuneConfig::race`].
    pub dropped: Vec<Dropped>,
    /// Candidates with the placement of another one: the name, and the name of the other.
    pub same_as: Vec<(String, String)>,
    /// Every start that failed, including those whose second attempt succeeded.
    pub failures: Vec<Failure>,
    /// Findings that limit the conclusions.
    pub findings: Vec<Finding>,
    /// The design as it was run.
    pub design: Design,
}

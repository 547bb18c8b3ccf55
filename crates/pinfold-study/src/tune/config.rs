//! Settings of a tuning run, as they are in the store, and their validation. The formats are stable;
//! the golden texts in the tests below must not change.

use pinfold_model::{LoadState, Metric};
use pinfold_stats::{LEAST_BLOCKS, blocks_needed};
use serde::{Deserialize, Serialize};

use crate::error::RunError;

/// The quantity that is optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Smallest longest stall (median over blocks) under the heaviest load state.
    Latency,
    /// Largest median compute rate under the heaviest load state.
    Throughput,
    /// Smallest longest stall among the candidates that keep at least [`BALANCED_SHARE`] of the
    /// best compute rate.
    Balanced,
}

/// Share of the best candidate's compute rate that [`Goal::Balanced`] requires.
pub const BALANCED_SHARE: f64 = 0.95;

/// Default probability that the best candidate is dropped in a race.
pub const RACE_ALPHA: f64 = 0.05;

/// Maximum number of blocks of a race before the confirmation, independent of the time.
pub const MOST_RACE_BLOCKS: u32 = 8;

impl Goal {
    /// Stable name, used in the store and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Goal::Latency => "latency",
            Goal::Throughput => "throughput",
            Goal::Balanced => "balanced",
        }
    }
}

/// Bounds of the observation time per load state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservationRange {
    /// Shortest observation (seconds); shorter ones say too little.
    #[serde(rename = "observation_min_s")]
    pub min_s: f64,
    /// Longest observation (seconds); more blocks are a better use of further time.
    #[serde(rename = "observation_max_s")]
    pub max_s: f64,
}

/// Bounds of the number of confirmation blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRange {
    /// Minimum, at least [`LEAST_BLOCKS`].
    #[serde(rename = "confirm_blocks_min")]
    pub min: u32,
    /// Maximum, independent of the budget.
    #[serde(rename = "confirm_blocks_max")]
    pub max: u32,
}

/// Time that a start takes in addition to the observation, from experience or from one trial start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Boot, placement and shutdown of one start (seconds).
    #[serde(rename = "start_cost_s")]
    pub start_s: f64,
    /// Settling time of one load state (seconds).
    #[serde(rename = "state_cost_s")]
    pub state_s: f64,
    /// Seconds per observed second: 1 if all benchmarks run at the same time, their number if they
    /// run in sequence.
    #[serde(rename = "cost_per_observed_s")]
    pub per_observed_s: f64,
}

impl Costs {
    /// Duration of one start (seconds).
    pub fn start(&self, load_states: usize, observation_s: f64) -> f64 {
        self.start_s + load_states as f64 * (self.state_s + self.per_observed_s * observation_s)
    }
}

/// Settings of a tuning run, as they are stored. [`TuneConfig::new`] returns the defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneConfig {
    /// The quantity to optimise.
    pub goal: Goal,
    /// Maximum stall (ns): a candidate that exceeds it in any confirmation block violates the
    /// constraint.
    pub max_gap_ns: Option<u64>,
    /// Time for the whole run (seconds).
    pub budget_s: f64,
    /// Bounds of the observation time.
    #[serde(flatten)]
    pub observation: ObservationRange,
    /// Number of blocks of the race (the screening phase), if it does not end earlier. It has more
    /// blocks while a candidate that would be left out may still be the best, and there is time.
    pub screening_blocks: u32,
    /// Bounds of the confirmation's blocks.
    #[serde(flatten)]
    pub confirm_blocks: BlockRange,
    /// Maximum number of candidates besides the baseline that are confirmed.
    pub keep: u32,
    /// Seed of all random orders.
    pub seed: u64,
    /// Load states of every start.
    pub load_states: Vec<LoadState>,
    /// Costs of a start.
    #[serde(flatten)]
    pub costs: Costs,
    /// Level of the verdicts.
    pub alpha: f64,
    /// Ratios within `1 ± margin` are the same.
    pub margin: f64,
    /// Maximum probability that the best candidate is among those dropped in the race, which drops
    /// candidates as soon as they cannot win any more; `None`: no candidate is dropped by a test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub race: Option<f64>,
    /// The metric of stalls: [`Metric::SpinGap`], or [`Metric::RunDelay`] for a guest that is
    /// observed only from the host.
    pub gap_metric: Metric,
    /// Data of the caller that are stored with the run; opaque, returned by [`super::analyse`].
    pub context: String,
}

impl TuneConfig {
    /// The defaults: all four load states, a race of 2 blocks or more, the best 3 confirmed in 8 to
    /// 16 blocks, 1 to 5 observed seconds per load state.
    pub fn new(goal: Goal, budget_s: f64, seed: u64, costs: Costs) -> Self {
        Self {
            goal,
            max_gap_ns: None,
            budget_s,
            observation: ObservationRange { min_s: 1.0, max_s: 5.0 },
            screening_blocks: 2,
            confirm_blocks: BlockRange { min: LEAST_BLOCKS, max: 16 },
            keep: 3,
            seed,
            load_states: LoadState::ALL.to_vec(),
            costs,
            alpha: 0.05,
            race: Some(RACE_ALPHA),
            margin: 0.02,
            gap_metric: Metric::SpinGap,
            context: String::new(),
        }
    }

    /// The metric that decides the winner.
    pub fn metric(&self) -> Metric {
        match self.goal {
            Goal::Latency | Goal::Balanced => self.gap_metric,
            Goal::Throughput => Metric::ComputeRate,
        }
    }

    /// The load state in which the goal is evaluated: the heaviest that is measured, and among
    /// equal ones that with a loaded host.
    pub fn goal_load(&self) -> LoadState {
        self.load_states
            .iter()
            .max_by_key(|load: &&LoadState| {
                (u8::from(load.host) + u8::from(load.guest), u8::from(load.host))
            })
            .copied()
            .unwrap_or(LoadState::BOTH)
    }

    /// Minimum number of blocks of a confirmation of this number of candidates besides the
    /// baseline.
    pub fn least_blocks(&self, candidates: u32) -> u32 {
        self.confirm_blocks.min.max(blocks_needed(candidates, self.alpha))
    }

    /// The same settings for the full matrix: no candidate is dropped, all are confirmed.
    #[must_use]
    pub fn without_race(self) -> Self {
        Self { race: None, keep: u32::MAX, ..self }
    }

    /// Maximum number of blocks of a race before the confirmation.
    pub fn most_race_blocks(&self) -> u32 {
        self.screening_blocks.max(MOST_RACE_BLOCKS)
    }

    /// Number of interim analyses of a race, over both phases; fixed before the first start.
    #[must_use]
    pub fn interim_analysis_count(&self) -> u32 {
        self.screening_blocks.saturating_add(self.confirm_blocks.min)
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// [`RunError::Refused`] names the first invalid setting.
    pub fn check(&self) -> Result<(), RunError> {
        let fail = |setting: &str, why: &str| {
            Err(RunError::Refused { message: format!("the setting {setting} {why}"), hint: None })
        };
        if !positive(self.budget_s) {
            return fail("budget", "is not a positive time");
        }
        let ObservationRange { min_s, max_s } = self.observation;
        if !positive(min_s) || !positive(max_s) || min_s > max_s {
            return fail("observation", "is not a range of positive times");
        }
        if self.screening_blocks == 0 {
            return fail("screening blocks", "must be at least 1");
        }
        if self.confirm_blocks.min < LEAST_BLOCKS {
            return fail("confirmation blocks", "must be at least 8: fewer give no verdict");
        }
        if self.confirm_blocks.max < self.confirm_blocks.min {
            return fail("confirmation blocks", "have a maximum below their minimum");
        }
        if self.keep == 0 {
            return fail("keep", "must be at least 1");
        }
        if self.load_states.is_empty() {
            return fail("load states", "are empty");
        }
        let loads = &self.load_states;
        if loads.iter().enumerate().any(|(index, load)| loads[..index].contains(load)) {
            return fail("load states", "name one state twice");
        }
        let Costs { start_s, state_s, per_observed_s } = self.costs;
        if !not_negative(start_s) || !not_negative(state_s) || !positive(per_observed_s) {
            return fail("costs", "are not times");
        }
        if !(positive(self.alpha) && self.alpha < 1.0) {
            return fail("alpha", "is not between 0 and 1");
        }
        if self.race.is_some_and(|alpha| !(positive(alpha) && alpha < 1.0)) {
            return fail("race", "is not between 0 and 1");
        }
        if !(not_negative(self.margin) && self.margin < 1.0) {
            return fail("margin", "is not between 0 and 1");
        }
        Ok(())
    }
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn not_negative(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Result of the screening: the candidates of the confirmation, with number of blocks and
/// observation time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfirmPlan {
    /// Indexes of the candidates besides baseline and twin, ascending.
    pub kept: Vec<usize>,
    /// Number of blocks.
    pub blocks: u32,
    /// Observation time per load state (seconds).
    pub observation_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"goal":"latency","max_gap_ns":1000000,"budget_s":360.0,"observation_min_s":1.0,"observation_max_s":5.0,"screening_blocks":3,"confirm_blocks_min":8,"confirm_blocks_max":16,"keep":3,"seed":7,"load_states":[{"host":false,"guest":false},{"host":true,"guest":false},{"host":false,"guest":true},{"host":true,"guest":true}],"start_cost_s":2.5,"state_cost_s":0.1,"cost_per_observed_s":1.0,"alpha":0.05,"margin":0.02,"gap_metric":"spin-gap","context":""}"#;

    const CONFIRM: &str = r#"{"kept":[1,4],"blocks":9,"observation_s":1.5}"#;

    fn read(text: &str) -> Result<TuneConfig, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn write(config: &TuneConfig) -> String {
        serde_json::to_string(config).unwrap()
    }

    #[test]
    fn golden_documents_are_read_and_written_unchanged() {
        let config = read(CONFIG).unwrap();
        let costs = Costs { start_s: 2.5, state_s: 0.1, per_observed_s: 1.0 };
        let usual = TuneConfig::new(Goal::Latency, 360.0, 7, costs);
        let usual = TuneConfig { max_gap_ns: Some(1_000_000), screening_blocks: 3, ..usual };
        assert_eq!(config, TuneConfig { race: None, ..usual.clone() });
        assert_eq!(write(&config), CONFIG);
        let racing = CONFIG.replace(r#""gap_metric""#, r#""race":0.05,"gap_metric""#);
        assert_eq!(read(&racing).unwrap(), usual);
        assert_eq!(write(&usual), racing);
        assert_eq!(
            serde_json::to_string(&serde_json::from_str::<ConfirmPlan>(CONFIRM).unwrap()).unwrap(),
            CONFIRM
        );
    }

    #[test]
    fn unknown_words_are_named() {
        fn check(text: &str, expected: &str) {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }

        check(&CONFIG.replace("latency", "fame"), "unknown variant `fame`");
        check(&CONFIG.replace("spin-gap", "mood"), "unknown variant `mood`");
        check("{", "EOF");
    }
}

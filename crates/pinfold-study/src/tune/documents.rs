//! The JSON documents of a tuning run in the store, version 1. The formats are stable.
//!
//! A change of meaning needs a new store version; the golden texts in the tests below must not
//! change.

use pinfold_model::{LoadState, Metric};
use serde::{Deserialize, Serialize};

use super::config::{BlockRange, Costs, Goal, ObservationRange, TuneConfig};
use crate::schema::SchemaError;

#[derive(Serialize, Deserialize)]
struct ConfigV1 {
    goal: String,
    max_gap_ns: Option<u64>,
    budget_s: f64,
    observation_min_s: f64,
    observation_max_s: f64,
    screening_blocks: u32,
    confirm_blocks_min: u32,
    confirm_blocks_max: u32,
    keep: u32,
    seed: u64,
    load_states: Vec<LoadState>,
    start_cost_s: f64,
    state_cost_s: f64,
    cost_per_observed_s: f64,
    alpha: f64,
    margin: f64,
    /// Missing in runs that were started before races existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    race: Option<f64>,
    gap_metric: Metric,
    context: String,
}

/// Result of the screening: the candidates of the confirmation, with number of blocks and
/// observation time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfirmPlan {
    /// Indexes of the candidates besides baseline and document, ascending.
    pub kept: Vec<usize>,
    /// Number of blocks.
    pub blocks: u32,
    /// Observation time per load state (seconds).
    pub observation_s: f64,
}

pub(super) fn config_to_json(config: &TuneConfig) -> Result<String, SchemaError> {
    let document = ConfigV1 {
        goal: config.goal.name().to_owned(),
        max_gap_ns: config.max_gap_ns,
        budget_s: config.budget_s,
        observation_min_s: config.observation.min_s,
        observation_max_s: config.observation.max_s,
        screening_blocks: config.screening_blocks,
        confirm_blocks_min: config.confirm_blocks.min,
        confirm_blocks_max: config.confirm_blocks.max,
        keep: config.keep,
        seed: config.seed,
        load_states: config.load_states.clone(),
        start_cost_s: config.costs.start_s,
        state_cost_s: config.costs.state_s,
        cost_per_observed_s: config.costs.per_observed_s,
        alpha: config.alpha,
        margin: config.margin,
        race: config.race,
        gap_metric: config.gap_metric,
        context: config.context.clone(),
    };
    Ok(serde_json::to_string(&document)?)
}

pub(super) fn config_from_json(text: &str) -> Result<TuneConfig, SchemaError> {
    let document: ConfigV1 = serde_json::from_str(text)?;
    let goal = Goal::from_name(&document.goal)
        .ok_or_else(|| SchemaError::Word { what: "goal", word: document.goal.clone() })?;
    Ok(TuneConfig {
        goal,
        max_gap_ns: document.max_gap_ns,
        budget_s: document.budget_s,
        observation: ObservationRange {
            min_s: document.observation_min_s,
            max_s: document.observation_max_s,
        },
        screening_blocks: document.screening_blocks,
        confirm_blocks: BlockRange {
            min: document.confirm_blocks_min,
            max: document.confirm_blocks_max,
        },
        keep: document.keep,
        seed: document.seed,
        load_states: document.load_states,
        costs: Costs {
            start_s: document.start_cost_s,
            state_s: document.state_cost_s,
            per_observed_s: document.cost_per_observed_s,
        },
        alpha: document.alpha,
        margin: document.margin,
        race: document.race,
        gap_metric: document.gap_metric,
        context: document.context,
    })
}

pub(super) fn confirm_to_json(plan: &ConfirmPlan) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(plan)?)
}

pub(super) fn confirm_from_json(text: &str) -> Result<ConfirmPlan, SchemaError> {
    Ok(serde_json::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"goal":"latency","max_gap_ns":1000000,"budget_s":360.0,"observation_min_s":1.0,"observation_max_s":5.0,"screening_blocks":3,"confirm_blocks_min":8,"confirm_blocks_max":16,"keep":3,"seed":7,"load_states":[{"host":false,"guest":false},{"host":true,"guest":false},{"host":false,"guest":true},{"host":true,"guest":true}],"start_cost_s":2.5,"state_cost_s":0.1,"cost_per_observed_s":1.0,"alpha":0.05,"margin":0.02,"gap_metric":"spin-gap","context":""}"#;

    const CONFIRM: &str = r#"{"kept":[1,4],"blocks":9,"observation_s":1.5}"#;

    #[test]
    fn golden_documents_are_read_and_written_unchanged() {
        let config = config_from_json(CONFIG).unwrap();
        let costs = Costs { start_s: 2.5, state_s: 0.1, per_observed_s: 1.0 };
        let usual = TuneConfig::new(Goal::Latency, 360.0, 7, costs);
        let usual = TuneConfig { max_gap_ns: Some(1_000_000), screening_blocks: 3, ..usual };
        assert_eq!(config, TuneConfig { race: None, ..usual.clone() });
        assert_eq!(config_to_json(&config).unwrap(), CONFIG);
        let racing = CONFIG.replace(r#""gap_metric""#, r#""race":0.05,"gap_metric""#);
        assert_eq!(config_from_json(&racing).unwrap(), usual);
        assert_eq!(config_to_json(&usual).unwrap(), racing);
        assert_eq!(confirm_to_json(&confirm_from_json(CONFIRM).unwrap()).unwrap(), CONFIRM);
    }

    #[test]
    fn unknown_words_are_named() {
        let check = |found: Result<(), SchemaError>, expected: &str| {
            assert_eq!(found.unwrap_err().to_string(), expected);
        };
        let fame = CONFIG.replace("latency", "fame");
        check(config_from_json(&fame).map(drop), r#"goal "fame" is unknown"#);
        check(config_from_json("{").map(drop), "is not a document of this version");
    }
}

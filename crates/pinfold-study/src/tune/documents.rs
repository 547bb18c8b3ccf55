//! The JSON documents of a tuning run in the store, version 1. The formats are stable.
//!
//! A change of meaning needs a new store version; the golden texts in the tests below must not
//! change.

use serde::{Deserialize, Serialize};

use super::config::TuneConfig;
use crate::schema::SchemaError;

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

pub(super) fn config_to_json(config: &TuneConfig) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(config)?)
}

pub(super) fn config_from_json(text: &str) -> Result<TuneConfig, SchemaError> {
    Ok(serde_json::from_str(text)?)
}

pub(super) fn confirm_to_json(plan: &ConfirmPlan) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(plan)?)
}

pub(super) fn confirm_from_json(text: &str) -> Result<ConfirmPlan, SchemaError> {
    Ok(serde_json::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use super::super::config::{Costs, Goal};
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
        let check = |text: &str, expected: &str| {
            let error = config_from_json(text).unwrap_err();
            assert_eq!(error.to_string(), "is not a document of this version");
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(expected), "{cause}");
        };
        check(&CONFIG.replace("latency", "fame"), "unknown variant `fame`");
        check(&CONFIG.replace("spin-gap", "mood"), "metric \"mood\" is unknown");
        check("{", "EOF");
    }
}

//! The JSON of the table of strategies, `pinfold-strategies/1`.

use serde::Serialize;

use crate::strategies;

/// Name of the format.
const FORMAT: &str = "pinfold-strategies/1";

/// All strategies, the baseline first.
#[derive(Clone, Debug, Serialize)]
pub struct StrategyList {
    format: &'static str,
    strategies: Vec<StrategyEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct StrategyEntry {
    strategy: &'static str,
    summary: &'static str,
    source: &'static str,
}

impl StrategyList {
    /// The list of this version.
    pub fn new() -> Self {
        let strategies = strategies::strategies();
        Self {
            format: FORMAT,
            strategies: strategies
                .iter()
                .map(|one| StrategyEntry {
                    strategy: one.name,
                    summary: one.summary,
                    source: one.source,
                })
                .collect(),
        }
    }
}

impl Default for StrategyList {
    fn default() -> Self {
        Self::new()
    }
}

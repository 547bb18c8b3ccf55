//! The figures of one probe, block by block, with their origin.
//!
//! `pinfold measure --save` writes them and `pinfold compare` reads them. Only raw samples are
//! stored, so that a later version can compute other statistics.

mod schema;
mod steal_time;
#[cfg(test)]
mod tests;

use pinfold_model::{Figure, Origin, SystemNoise};
use serde::{Deserialize, Serialize};

pub use schema::{FORMAT, check_finite, from_json, to_json};
pub use steal_time::StealTime;

/// One measurement: a probe with fixed settings, in one or more blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the probe.
    pub probe: String,
    /// The command that measured, as arguments.
    pub command: Vec<String>,
    /// Where it was measured: `CPU 1, fifo:80`, `in a guest`.
    pub place: String,
    /// The tool that measured: `pinload 0.1.0`, `fio-3.33`.
    pub tool: String,
    /// The machine on which it was measured.
    pub origin: Origin,
    /// Start of the measurement (seconds since 1970).
    pub unix_seconds: u64,
    /// The blocks, in the order of measurement; never empty.
    pub blocks: Vec<MeasuredBlock>,
}

/// One block: one start of the probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredBlock {
    /// Interference during the block.
    #[serde(flatten)]
    pub surroundings: SystemNoise,
    /// Its figures; never empty.
    pub figures: Vec<Figure>,
}

/// Why a text is not a measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// The text is not the JSON of this version.
    #[error("is not a measurement: {0}")]
    Json(#[from] serde_json::Error),
    /// The text has another format.
    #[error("has the format {}, not {FORMAT:?}", .0.as_ref().map_or_else(|| "missing".to_owned(), |found| format!("{found:?}")))]
    Format(Option<String>),
    /// It contains an invalid value.
    #[error("{field} {why}")]
    Value {
        /// The location: `blocks[2].figures[0].samples`.
        field: String,
        /// What is wrong with the value.
        why: String,
    },
}

impl MeasuredError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            MeasuredError::Json(_) | MeasuredError::Format(_) => {
                Some("a measurement is written by `pinfold measure PROBE --save FILE`".to_owned())
            }
            MeasuredError::Value { .. } => None,
        }
    }
}

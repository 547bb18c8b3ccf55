//! One probe's figures, block by block, with where they came from.
//!
//! What `pinfold measure --save` writes and `pinfold compare` reads: raw samples, never what was
//! made of them, so that a later version can sum them up anew.

mod schema;
mod steal_time;
#[cfg(test)]
mod tests;

use pinfold_model::{Figure, Origin, SystemNoise};

pub(crate) use schema::FigureV1;
pub use schema::{FORMAT, from_json, to_json};
pub use steal_time::Stolen;

/// One measurement: a probe, in one place, in one or more blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Name of the probe.
    pub probe: String,
    /// The command that measured, in words.
    pub command: Vec<String>,
    /// Where it was measured: `PU 1, fifo:80`, `in a guest`.
    pub place: String,
    /// What measured: `pinload 0.1.0`, `fio-3.33`.
    pub tool: String,
    /// The machine.
    pub origin: Origin,
    /// When it began (seconds since 1970).
    pub unix_seconds: u64,
    /// The blocks, in the order in which they were measured; never empty.
    pub blocks: Vec<MeasuredBlock>,
}

/// One block: the probe was started once.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredBlock {
    /// What it gave; never empty.
    pub figures: Vec<Figure>,
    /// What else the machine did meanwhile.
    pub surroundings: SystemNoise,
}

/// Why a text is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// The text is not the JSON that this version writes.
    #[error("is not a measurement: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another format.
    #[error("has the format {}, not {FORMAT:?}", .0.as_ref().map_or_else(|| "missing".to_owned(), |found| format!("{found:?}")))]
    Format(Option<String>),
    /// A value in it cannot be.
    #[error("{field} {why}")]
    Value {
        /// Where: `blocks[2].figures[0].samples`.
        field: String,
        /// What is wrong.
        why: String,
    },
}

impl MeasuredError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            MeasuredError::Json(_) | MeasuredError::Format(_) => {
                Some("a measurement is written by `pinfold measure PROBE --save FILE`".to_owned())
            }
            MeasuredError::Value { .. } => None,
        }
    }
}

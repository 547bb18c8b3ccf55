//! Memory: `pinload`'s bandwidth, STREAM and pointer chase beside likwid-bench and plain code.

use super::Measured;
use crate::{Arguments, Failure};

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    Ok(Measured {
        conditions: format!("seed {}", arguments.seed),
        rows: Vec::new(),
        notes: Vec::new(),
    })
}

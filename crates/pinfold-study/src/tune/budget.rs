//! Fits the design into the budget: observation time and number of confirmation blocks.
//!
//! The smallest design has the shortest observation and the fewest blocks that can give a verdict.
//! If it does not fit, the run is refused with the time that it needs. Remaining time is used for
//! longer observations first, because the longest stall of a short observation says little, and
//! then for more blocks.

use super::config::{ObservationRange, TuneConfig};
use crate::error::RunError;

/// Tolerance for rounding: sums that equal the budget except for rounding errors fit.
const SLACK: f64 = 1.0 + 1e-9;

/// The size and duration of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Number of candidates besides the baseline, with different placements.
    pub candidates: u32,
    /// Number of starts of the screening; 0 if all candidates can be confirmed.
    pub screening_starts: u32,
    /// Number of candidates besides the baseline that are confirmed.
    pub confirmed: u32,
    /// Number of blocks of the confirmation.
    pub confirm_blocks: u32,
    /// Observation time per load state (seconds).
    pub observation_s: f64,
    /// Duration of one start (seconds).
    pub start_s: f64,
}

impl Prediction {
    /// Number of starts of one confirmation block: the candidates, the baseline and its twin.
    pub fn block_starts(&self) -> u32 {
        self.confirmed + 2
    }

    /// Number of starts of the whole run.
    #[must_use]
    pub fn starts(&self) -> u32 {
        self.screening_starts + self.confirm_blocks * self.block_starts()
    }

    /// Duration of the whole run (seconds), if no start has to be repeated.
    pub fn seconds(&self) -> f64 {
        f64::from(self.starts()) * self.start_s
    }
}

/// Fits a run with this number of candidates besides the baseline, with different placements, into
/// the budget.
///
/// # Errors
/// [`RunError::Budget`] with the time needed, or [`RunError::Refused`].
pub fn predict(config: &TuneConfig, candidates: u32) -> Result<Prediction, RunError> {
    config.check()?;
    let confirmed = candidates.min(config.keep);
    // No candidate can be dropped: the time is better used for the confirmation.
    let screens = candidates > config.keep;
    let screening_starts = if screens { config.screening_blocks * (candidates + 1) } else { 0 };
    let smallest = Prediction {
        candidates,
        screening_starts,
        confirmed,
        confirm_blocks: config.least_blocks(confirmed),
        observation_s: config.observation.min_s,
        start_s: config.costs.start(config.load_states.len(), config.observation.min_s),
    };
    if smallest.seconds() > config.budget_s * SLACK {
        return Err(RunError::Budget {
            budget_s: config.budget_s,
            needed_s: smallest.seconds(),
            starts: smallest.starts(),
            start_s: smallest.start_s,
        });
    }
    Ok(grow(config, smallest, config.budget_s))
}

/// The same design, enlarged to `seconds`: longer observations first, then more blocks. Never less
/// than the shortest observation, even if the time does not suffice.
pub(super) fn grow(config: &TuneConfig, smallest: Prediction, seconds: f64) -> Prediction {
    let states = config.load_states.len();
    let per_start = seconds / f64::from(smallest.starts().max(1));
    let observed = per_start - config.costs.start(states, 0.0);
    let ObservationRange { min_s, max_s } = config.observation;
    let fitting = observed / (states as f64 * config.costs.per_observed_s);
    // Rounded down to hundredths: readable, and the sum fits.
    let observation_s = ((fitting * SLACK * 100.0).floor() / 100.0).clamp(min_s, max_s);
    let start_s = config.costs.start(states, observation_s);
    let mut design = Prediction { observation_s, start_s, ..smallest };
    let most = config.confirm_blocks.max.max(design.confirm_blocks);
    while design.confirm_blocks < most {
        let next = Prediction { confirm_blocks: design.confirm_blocks + 1, ..design };
        if next.seconds() > seconds * SLACK {
            break;
        }
        design = next;
    }
    design
}

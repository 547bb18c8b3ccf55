//! Statistics of measured numbers, with their uncertainty. Pure and deterministic.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! There are two families of metrics with different estimators. *Capacity* (compute rate,
//! bandwidth) is described by the best window, the tenth percentile and the median ([`Capacity`]),
//! after the warm-up is separated from the steady state ([`steady`]). *Tails* (stalls, wake-ups)
//! keep all samples, because the rare large values are what matters: no trimming, no winsorising,
//! maxima with their observation time.
//!
//! The unit of replication is the start of a virtual machine, one per candidate and block. A
//! verdict needs both the exact paired test ([`sign_flip`], corrected by [`holm`]) and the
//! bootstrap interval ([`ratio_interval`]). Three starts are never enough for a verdict.
//!
//! [`compare`] applies all of this to two sets of figures. All randomness comes from a recorded
//! seed through [`random::Pcg32`].

mod bootstrap;
mod capacity;
pub mod compare;
mod coordinated_omission;
mod mean;
mod prediction;
mod quantile;
mod race;
pub mod random;
mod sign_flip;
mod steady;
mod student;
mod tail;
mod verdict;

pub use bootstrap::{
    BOOTSTRAP_DRAWS, BOOTSTRAP_SEED, Block, Interval, median_interval, ratio_interval,
};
pub use capacity::{CONTENDED_SHARE, Capacity, of_samples};
pub use coordinated_omission::RandomArrival;
pub use mean::Mean;
pub use prediction::{predict_further_ratio, predict_next_ratio, widen};
pub use quantile::{median, quantile, quantile_sorted};
pub use race::{Elimination, ParticipantResults, RaceRule, RaceTest, residuals};
pub use sign_flip::{
    EXACT_BLOCKS, LEAST_BLOCKS, MONTE_CARLO_DRAWS, blocks_needed, holm, sign_flip,
    sign_flip_blocks, smallest_p,
};
pub use steady::{STEADY_SAMPLES, SteadyState, steady};
pub use student::student_tail;
pub use tail::{
    EXCEEDANCE_LIMITS_NS, Exceedance, GapPoint, P999_SAMPLES, QuantilePoint, Tail, gap_curve,
    quantile_curve,
};
pub use verdict::{Direction, Evidence, Rule, Verdict};

#[cfg(test)]
mod tests;

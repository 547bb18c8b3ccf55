//! Verdicts: better, same, worse, or unknown with the number of blocks needed.
//!
//! - *unknown*, before anything else, if there are fewer blocks than any verdict needs;
//! - *same* if the whole interval is within the margin around 1 (2 % by default);
//! - *better* or *worse* if the corrected p-value is at most the level **and** the interval is on
//!   that side of 1, because a verdict that contradicts its own interval is not credible;
//! - *unknown* otherwise: the blocks do not decide it.

use pinfold_model::text::{count_noun, select_verb};
use std::fmt;

use super::bootstrap::Interval;

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A smaller value is better: times.
    LowerIsBetter,
    /// A larger value is better: rates.
    HigherIsBetter,
}

impl Direction {
    /// Higher, or lower.
    pub fn new(is_higher_better: bool) -> Self {
        if is_higher_better { Self::HigherIsBetter } else { Self::LowerIsBetter }
    }
}

/// The thresholds of a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Level: the probability of a false better or worse in one family of candidates.
    pub alpha: f64,
    /// Ratios within `1 ± margin` count as the same.
    pub margin: f64,
    /// Minimum number of blocks for a verdict.
    pub blocks_needed: u32,
}

/// The data for a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Number of complete blocks: both sides were measured.
    pub blocks: u32,
    /// Ratio to the baseline.
    pub interval: Interval,
    /// p-value after Holm's correction.
    pub p_holm: f64,
}

/// The verdict on one candidate against the baseline, in one metric and load state.
///
/// ```
/// use pinfold_stats::{Block, Direction, Evidence, Rule, Verdict, ratio_interval};
///
/// let blocks: Vec<Block> = (1..=8).map(|n| Block::pair(80.0 + f64::from(n), 100.0)).collect();
/// let interval = ratio_interval(&blocks).expect("enough blocks");
/// let evidence = Evidence { blocks: 8, interval, p_holm: 0.008 };
/// let rule = Rule { margin: 0.02, alpha: 0.05, blocks_needed: 6 };
/// let verdict = Verdict::from_evidence(&evidence, Direction::LowerIsBetter, &rule);
/// assert_eq!(verdict, Verdict::Better);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Significantly better.
    Better,
    /// The difference is shown to be less than the margin.
    Same,
    /// Significantly worse.
    Worse,
    /// Not decided. If `have < need`, there are too few complete blocks for any verdict; otherwise
    /// the blocks do not decide it.
    Unknown {
        /// Number of complete blocks.
        have: u32,
        /// Number of blocks from which a verdict is possible.
        need: u32,
    },
}

impl Verdict {
    /// Computes the verdict.
    pub fn from_evidence(evidence: &Evidence, direction: Direction, rule: &Rule) -> Verdict {
        let unknown = Verdict::Unknown { have: evidence.blocks, need: rule.blocks_needed };
        if evidence.blocks < rule.blocks_needed {
            return unknown;
        }
        let Interval { low, high, .. } = evidence.interval;
        if low >= 1.0 - rule.margin && high <= 1.0 + rule.margin {
            return Verdict::Same;
        }
        if evidence.p_holm > rule.alpha {
            return unknown;
        }
        match direction {
            Direction::LowerIsBetter if high < 1.0 => Verdict::Better,
            Direction::LowerIsBetter if low > 1.0 => Verdict::Worse,
            Direction::HigherIsBetter if low > 1.0 => Verdict::Better,
            Direction::HigherIsBetter if high < 1.0 => Verdict::Worse,
            Direction::LowerIsBetter | Direction::HigherIsBetter => unknown,
        }
    }

    /// The verdict as one word, for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Same => "same",
            Verdict::Worse => "worse",
            Verdict::Unknown { .. } => "unknown",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Unknown { have, need } if have < need => {
                write!(f, "unknown: {}, {need} needed", count_noun(*have, "block"))
            }
            Verdict::Unknown { have, .. } => {
                let verb = select_verb(*have, "is", "are");
                write!(f, "unknown: {} {verb} not enough for a verdict", count_noun(*have, "block"))
            }
            Verdict::Better | Verdict::Same | Verdict::Worse => f.write_str(self.word()),
        }
    }
}

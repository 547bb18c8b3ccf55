//! Verdicts: better, same, worse, or unknown with what it would take.
//!
//! - *unknown*, first of all, while there are fewer blocks than any verdict needs;
//! - *same* if the whole interval lies within the margin around 1 (2 % by default);
//! - *better* or *worse* if the corrected p-value is at most the level **and** the
//!   interval lies on that side of 1: a verdict that its own interval contradicts
//!   would be hard to believe;
//! - *unknown* otherwise: the blocks do not settle it.

use pinfold_model::text::{agree, counted};
use std::fmt;

use super::bootstrap::Interval;

/// Which way a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A smaller value is better: times.
    LowerIsBetter,
    /// A larger value is better: rates.
    HigherIsBetter,
}

/// The thresholds of a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Level: the chance of a false better or worse in one family of candidates.
    pub alpha: f64,
    /// Ratios within `1 ± margin` count as the same.
    pub margin: f64,
    /// Blocks below which there is no verdict.
    pub blocks_needed: u32,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Complete blocks: both sides were measured.
    pub blocks: u32,
    /// Ratio to the baseline.
    pub interval: Interval,
    /// p-value after Holm's correction.
    pub p_holm: f64,
}

/// The answer for one candidate, metric and load state against the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Shown to be better.
    Better,
    /// Shown to differ by less than the margin.
    Same,
    /// Shown to be worse.
    Worse,
    /// Not shown. If `have < need` there are too few complete blocks for any verdict;
    /// otherwise the blocks do not settle it.
    Unknown {
        /// Complete blocks.
        have: u32,
        /// Blocks from which a verdict is possible.
        need: u32,
    },
}

impl Verdict {
    /// Weighs the evidence.
    #[must_use]
    pub fn of(evidence: &Evidence, direction: Direction, rule: &Rule) -> Verdict {
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

    /// One word, for tables.
    #[must_use]
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
                write!(f, "unknown: {}, {need} needed", counted(*have, "block"))
            }
            Verdict::Unknown { have, .. } => {
                let verb = agree(*have, "does", "do");
                write!(f, "unknown: {} {verb} not settle it", counted(*have, "block"))
            }
            Verdict::Better | Verdict::Same | Verdict::Worse => f.write_str(self.word()),
        }
    }
}

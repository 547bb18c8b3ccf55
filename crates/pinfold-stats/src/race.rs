//! Racing: after each complete block, drops the candidates that cannot be the best any more.
//!
//! A candidate is dropped when it is shown not to be better than the leader by more than the
//! margin. The error to control is dropping the candidate that is better than all others by more
//! than the margin; its probability is at most [`RaceRule::alpha`], over all interim analyses and
//! candidates together:
//!
//! - The best candidate may be compared with any other, because the leader is selected by the
//!   same data. So each comparison gets the level of its analysis divided by the number of rivals
//!   (Bonferroni's bound over rivals; Holm's step would make it depend on which candidates were
//!   dropped before).
//! - Each analysis has its own level, and the levels of all analyses add up to α (alpha spending;
//!   elimination at each step as in Paulson 1964, Maron and Moore 1994, and Birattari's F-Race
//!   2002).
//! - Dropping other candidates is not an error in this sense: the only claim about them is that
//!   they are not the best. So the cost grows only with the logarithm of the number of candidates.
//!
//! Two tests share α, half each:
//!
//! - *Exact*: the one-sided sign-flip test of the log ratios to the leader. It assumes only
//!   symmetry, and cannot reject before 2⁻ⁿ is below its level: with twelve candidates after nine
//!   or ten blocks. It is used from that block on.
//! - *Spread*: with fewer blocks, Student's t test with the residual variance of all candidates
//!   after removal of block and candidate effects (two-way layout; Dunnett 1955, Hsu 1984). It
//!   assumes that the logarithms of the candidates are roughly normal with roughly equal variances;
//!   if the variance of the pair itself is larger, that one is used. Its levels are α/2 ·
//!   1/(n(n−1)) after block n = 2, 3, …, which add up to α/2. Its error rate where the assumption
//!   is violated is measured by the tests in this module; on recorded data it was measured in
//!   `docs/figures.md`, *race*.

use super::quantile::median;
use super::sign_flip::{EXACT_BLOCKS, sign_flip, smallest_p};
use super::student::student_tail;

/// Minimum number of degrees of freedom for an estimate of the variance.
const LEAST_FREEDOM: u32 = 4;

/// The thresholds of a race.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RaceRule {
    /// Probability that the best candidate is dropped, over all analyses and candidates.
    pub alpha: f64,
    /// Improvements below this share do not count.
    pub margin: f64,
    /// Number of blocks of the whole race: the exact test divides its half of α among the blocks in
    /// which it can reject.
    pub blocks: u32,
}

/// Results of one participant so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ParticipantResults {
    /// Natural logarithm of its value in each block, smaller is better; `None` where its start
    /// failed. A dropped participant has no further entries.
    pub blocks: Vec<Option<f64>>,
    /// True if it may be dropped now: it is still in the race, and is not the baseline.
    pub may_go: bool,
}

/// The test that dropped a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaceTest {
    /// The exact sign-flip test.
    Exact,
    /// Student's t test with the residual variance of all candidates.
    Spread,
}

impl RaceTest {
    /// Name for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RaceTest::Exact => "sign-flip test",
            RaceTest::Spread => "spread of all",
        }
    }
}

/// A candidate that cannot be the best any more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elimination {
    /// Index of its lane.
    pub lane: usize,
    /// Median ratio of its value to the leader's, above 1 if it is worse.
    pub ratio: f64,
    /// The test that dropped it.
    pub test: RaceTest,
    /// One-sided p-value of "it is better than the leader by more than the margin".
    pub p: f64,
    /// Upper limit of the p-value for dropping.
    pub level: f64,
}

impl RaceRule {
    /// Level of one comparison of the spread test after this number of blocks.
    pub fn spread_level(&self, blocks: u32, rivals: u32) -> f64 {
        if blocks < 2 {
            return 0.0;
        }
        let blocks = f64::from(blocks);
        self.alpha / 2.0 / (blocks * (blocks - 1.0)) / f64::from(rivals.max(1))
    }

    /// Level of one comparison of the exact test after this number of blocks; 0 before the first
    /// block in which it can drop a candidate.
    pub fn exact_level(&self, blocks: u32, rivals: u32) -> f64 {
        let last = self.blocks.min(u32::try_from(EXACT_BLOCKS).unwrap_or(u32::MAX));
        match (1..=last).find(|first| smallest_p(*first) / 2.0 <= self.level(last, rivals, *first))
        {
            Some(first) if (first..=last).contains(&blocks) => self.level(last, rivals, first),
            Some(_) | None => 0.0,
        }
    }

    fn level(&self, last: u32, rivals: u32, first: u32) -> f64 {
        self.alpha / 2.0 / f64::from(last - first + 1) / f64::from(rivals.max(1))
    }

    /// The candidates that are dropped after a block, given the leader, in the order of the lanes.
    pub fn find_eliminations(
        &self,
        lanes: &[ParticipantResults],
        leader: usize,
    ) -> Vec<Elimination> {
        let rivals = u32::try_from(lanes.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let blocks = u32::try_from(lanes[leader].blocks.len()).unwrap_or(u32::MAX);
        let others = (0..lanes.len()).filter(|&lane| lane != leader && lanes[lane].may_go);
        others
            .filter_map(|lane| {
                let pair = differences(&lanes[lane], &lanes[leader]);
                let by = |test, p, level| (p <= level).then_some((test, p, level));
                let level = self.spread_level(blocks, rivals);
                let (test, p, level) =
                    by(RaceTest::Spread, self.p_value(lanes, lane, leader)?, level).or_else(
                        || {
                            let level = self.exact_level(blocks, rivals);
                            by(RaceTest::Exact, exact_p(&self.shift(&pair), level), level)
                        },
                    )?;
                Some(Elimination { lane, ratio: median(&pair)?.exp(), test, p, level })
            })
            .collect()
    }

    /// One-sided p-value of "it is better than the leader by more than the margin", with the
    /// residual variance of all candidates and without correction; `None` with fewer than two
    /// blocks.
    pub fn p_value(&self, lanes: &[ParticipantResults], lane: usize, leader: usize) -> Option<f64> {
        let pair = differences(&lanes[lane], &lanes[leader]);
        if pair.len() < 2 {
            return None;
        }
        spread_p(&self.shift(&pair), spread_of(lanes))
    }

    fn shift(&self, pair: &[f64]) -> Vec<f64> {
        let shift = self.margin.ln_1p();
        pair.iter().map(|difference| difference + shift).collect()
    }
}

/// Log ratios of the blocks that both lanes have.
fn differences(one: &ParticipantResults, other: &ParticipantResults) -> Vec<f64> {
    let pairs = one.blocks.iter().zip(&other.blocks);
    pairs.filter_map(|(one, other)| Some((*one)? - (*other)?)).collect()
}

/// One-sided exact p-value; 1 where it cannot be as small as the level.
fn exact_p(shifted: &[f64], level: f64) -> f64 {
    let sum: f64 = shifted.iter().sum();
    // Each sign choice that flips only negative values is at least as extreme.
    let negative = shifted.iter().filter(|value| **value < 0.0).count();
    let turned = i32::try_from(shifted.len() - negative).unwrap_or(i32::MAX);
    if sum <= 0.0 || 0.5_f64.powi(turned) > level {
        return 1.0;
    }
    // The choices are symmetric: half of the two-sided value is on this side.
    sign_flip(shifted).map_or(1.0, |p| p / 2.0)
}

/// One-sided p-value of Student's t test with the larger of the common variance and the variance of
/// the pair; 1 if there is no common one, `None` if a value is not finite.
fn spread_p(shifted: &[f64], spread: Option<(f64, u32)>) -> Option<f64> {
    let count = shifted.len() as f64;
    let mean = shifted.iter().sum::<f64>() / count;
    if !mean.is_finite() {
        return None;
    }
    let Some((variance, freedom)) = spread else { return Some(1.0) };
    let own = shifted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = (f64::max(2.0 * variance, own) / count).sqrt();
    Some(if error > 0.0 {
        student_tail(mean / error, freedom)
    } else if mean > 0.0 {
        0.0
    } else {
        1.0
    })
}

/// Residual variance of a single value after removal of block and candidate effects, and its
/// degrees of freedom. Candidates that left after the same block form a rectangle with its own
/// block effects.
fn spread_of(lanes: &[ParticipantResults]) -> Option<(f64, u32)> {
    let mut lengths: Vec<usize> = lanes.iter().map(|lane| lane.blocks.len()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let (mut squares, mut freedom) = (0.0, 0);
    for length in lengths {
        let group: Vec<&ParticipantResults> =
            lanes.iter().filter(|lane| lane.blocks.len() == length).collect();
        let complete: Vec<Vec<f64>> = (0..length)
            .filter_map(|block| group.iter().map(|lane| lane.blocks[block]).collect())
            .collect();
        if complete.len() < 2 || group.len() < 2 {
            continue;
        }
        squares += residual_squares(&complete);
        freedom += (complete.len() - 1) * (group.len() - 1);
    }
    let freedom = u32::try_from(freedom).unwrap_or(u32::MAX);
    (freedom >= LEAST_FREEDOM).then(|| (squares / f64::from(freedom), freedom))
}

/// Residual sum of squares after removal of block (row) and candidate (column) effects.
fn residual_squares(rows: &[Vec<f64>]) -> f64 {
    residuals(rows).iter().flatten().map(|rest| rest * rest).sum()
}

/// Residuals after removal of block (row) and candidate (column) effects; all rows have the same
/// length.
pub fn residuals(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let of_rows: Vec<f64> = rows.iter().map(|row| mean(row)).collect();
    let all = mean(&of_rows);
    let columns = 0..rows.first().map_or(0, Vec::len);
    let levels: Vec<f64> = columns
        .map(|column| mean(&rows.iter().map(|row| row[column]).collect::<Vec<f64>>()))
        .collect();
    rows.iter()
        .zip(&of_rows)
        .map(|(row, of_row)| {
            row.iter().zip(&levels).map(|(own, level)| own - level - of_row + all).collect()
        })
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests;

//! Confidence interval of a candidate's ratio to the baseline, by hierarchical paired bootstrap.
//!
//! Each block gives one ratio: the median over the candidate's starts in the block, divided by the
//! median over the baseline's. The estimate is the median of these ratios. Its interval comes from
//! 10,000 draws that resample blocks with replacement and, inside each drawn block, the starts of
//! either side: the levels of random variation (Kalibera and Jones 2013). With one start per block,
//! as in tuning, the second level has no effect. The result is the 95 % percentile interval, with a
//! fixed seed: the same data give the same interval on every machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::quantile::{median, quantile_sorted};
use crate::random::Pcg32;

/// Number of bootstrap draws.
pub const BOOTSTRAP_DRAWS: u32 = 10_000;

/// Seed of the bootstrap's generator: the ASCII letters `pinfold`.
pub const BOOTSTRAP_SEED: u64 = 0x0070_696e_666f_6c64;

/// One block: one summary value per start, for both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Values of the candidate's starts.
    pub candidate: Vec<f64>,
    /// Values of the baseline's starts.
    pub baseline: Vec<f64>,
}

impl Block {
    /// A block with one start of each side.
    pub fn pair(candidate: f64, baseline: f64) -> Self {
        Self { candidate: vec![candidate], baseline: vec![baseline] }
    }

    /// Ratio of the medians; `None` unless both are positive and finite.
    pub fn ratio(&self) -> Option<f64> {
        let ratio = median(&self.candidate)? / median(&self.baseline)?;
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

/// A ratio with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The estimate: the median of the blocks' ratios.
    pub ratio: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// True if the value lies in the interval, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The median of the blocks' ratios with its interval. `None` with fewer than two blocks, or if a
/// block lacks a side or has a ratio that is not positive.
///
/// ```
/// use pinfold_stats::{Block, ratio_interval};
///
/// let blocks: Vec<Block> = (1..=8).map(|n| Block::pair(80.0 + f64::from(n), 100.0)).collect();
/// let interval = ratio_interval(&blocks).expect("enough blocks");
/// assert!(interval.high < 1.0 && interval.contains(interval.ratio));
/// ```
pub fn ratio_interval(blocks: &[Block]) -> Option<Interval> {
    ratio_interval_of(blocks, BOOTSTRAP_DRAWS)
}

/// The 95 % interval of the median of values of any sign, from the same draws. `None` with fewer
/// than two values.
#[must_use]
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let mut drawn = draw_blocks(&sorted, BOOTSTRAP_DRAWS);
    drawn.sort_unstable_by(f64::total_cmp);
    quantile_sorted(&drawn, 0.025).zip(quantile_sorted(&drawn, 0.975))
}

pub(super) fn ratio_interval_of(blocks: &[Block], draws: u32) -> Option<Interval> {
    let mut ratios: Vec<f64> = blocks.iter().map(Block::ratio).collect::<Option<_>>()?;
    if ratios.len() < 2 {
        return None;
    }
    let estimate = median(&ratios)?;
    let mut drawn =
        if blocks.iter().all(|block| block.candidate.len() == 1 && block.baseline.len() == 1) {
            ratios.sort_unstable_by(f64::total_cmp);
            draw_blocks(&ratios, draws)
        } else {
            draw_starts(blocks, &ratios, draws)?
        };
    drawn.sort_unstable_by(f64::total_cmp);
    Some(Interval {
        ratio: estimate,
        low: quantile_sorted(&drawn, 0.025)?,
        high: quantile_sorted(&drawn, 0.975)?,
    })
}

/// Medians of resampled blocks, in nearly ascending order. With sorted ratios, the median follows
/// from the number of times that each index was drawn: no draw needs sorting, and the order of
/// blocks does not matter.
fn draw_blocks(sorted: &[f64], draws: u32) -> Vec<f64> {
    middles(sorted.len(), draws)
        .iter()
        .map(|[low, high]: &[usize; 2]| f64::midpoint(sorted[*low], sorted[*high]))
        .collect()
}

/// For each draw of a given number of indexes, the indexes of its two middle ranks.
type MedianRanks = Rc<Vec<[usize; 2]>>;

thread_local! {
    /// Cached draws, by number of indexes and of draws. The seed is fixed, so the draws do not
    /// depend on the values; a study has thousands of intervals over equally many blocks.
    static DRAWN: RefCell<BTreeMap<(usize, u32), MedianRanks>> = const { RefCell::new(BTreeMap::new()) };
}

/// Maximum number of cached entries.
const MOST_DRAWN: usize = 64;

fn middles(places: usize, draws: u32) -> MedianRanks {
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.len() > MOST_DRAWN {
            drawn.clear();
        }
        let known = drawn.entry((places, draws)).or_insert_with(|| draw_middles(places, draws));
        Rc::clone(known)
    })
}

fn draw_middles(places: usize, draws: u32) -> MedianRanks {
    let mut generator = Pcg32::new(BOOTSTRAP_SEED, 0);
    let mut times = vec![0_usize; places];
    let ranks = [(places - 1) / 2, places / 2];
    let mut middles = Vec::new();
    for _ in 0..draws {
        times.fill(0);
        for _ in 0..places {
            times[generator.index(places)] += 1;
        }
        middles.push(ranks.map(|rank| place(&times, rank)));
    }
    // Nearly the order of the medians, which are sorted next.
    middles.sort_unstable_by_key(|[low, high]| low + high);
    Rc::new(middles)
}

/// The index with this rank in a draw, given the number of times that each index was drawn.
fn place(times: &[usize], rank: usize) -> usize {
    let mut before = 0;
    for (place, count) in times.iter().enumerate() {
        before += count;
        if before > rank {
            return place;
        }
    }
    times.len() - 1
}

/// Medians of resampled blocks whose starts are resampled too.
fn draw_starts(blocks: &[Block], ratios: &[f64], draws: u32) -> Option<Vec<f64>> {
    let mut generator = Pcg32::new(BOOTSTRAP_SEED, 0);
    let mut drawn = vec![0.0; ratios.len()];
    let mut medians = Vec::new();
    for _ in 0..draws {
        for slot in &mut drawn {
            let index = generator.index(ratios.len());
            *slot = resampled_ratio(&blocks[index], ratios[index], &mut generator)?;
        }
        drawn.sort_unstable_by(f64::total_cmp);
        medians.push(quantile_sorted(&drawn, 0.5)?);
    }
    Some(medians)
}

/// The block's ratio with its starts resampled; unchanged with one start per side.
fn resampled_ratio(block: &Block, ratio: f64, generator: &mut Pcg32) -> Option<f64> {
    if block.candidate.len() == 1 && block.baseline.len() == 1 {
        return Some(ratio);
    }
    let redrawn = Block {
        candidate: resample(generator, &block.candidate),
        baseline: resample(generator, &block.baseline),
    };
    redrawn.ratio()
}

fn resample(generator: &mut Pcg32, starts: &[f64]) -> Vec<f64> {
    starts.iter().map(|_| starts[generator.index(starts.len())]).collect()
}

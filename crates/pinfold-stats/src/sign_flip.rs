//! The exact paired test on log ratios per block, and the correction for multiple tests.
//!
//! If a candidate does not differ from the baseline, each block's log ratio could equally have the
//! opposite sign. The p-value is the share of all 2ⁿ sign choices whose sum is at least as far from
//! zero as the observed sum (Fisher 1935). The test needs no assumption about the distribution. Its
//! smallest possible value for n blocks is 2^-(n-1): with few blocks no data can give a verdict,
//! and [`blocks_needed`] is the number that is needed.

use crate::bootstrap::Block;
use crate::random::Pcg32;

/// Up to this number of blocks, all sign choices are counted.
pub const EXACT_BLOCKS: usize = 20;

/// Number of sign choices that are drawn if there are more blocks than [`EXACT_BLOCKS`].
pub const MONTE_CARLO_DRAWS: u32 = 100_000;

const MONTE_CARLO_SEED: u64 = 0x7069_6e66_6f6c_6400;

/// Two-sided paired sign-flip test of the hypothesis that the log ratios, one per block, are
/// symmetric about zero; never 0. `None` without blocks or if a value is not finite.
///
/// ```
/// // Eight blocks, each faster than the baseline: 2 of 256 choices of signs are as far from zero.
/// let log_ratios = [0.11, 0.09, 0.12, 0.10, 0.08, 0.13, 0.10, 0.09].map(|ratio: f64| -ratio);
/// assert_eq!(pinfold_stats::sign_flip(&log_ratios), Some(2.0 / 256.0));
/// assert_eq!(pinfold_stats::sign_flip(&[]), None);
/// ```
pub fn sign_flip(log_ratios: &[f64]) -> Option<f64> {
    if log_ratios.is_empty() || !log_ratios.iter().all(|value| value.is_finite()) {
        return None;
    }
    // The signs of the values do not change the set of all choices. Large values first: their
    // partial sums decide early.
    let mut sizes: Vec<f64> = log_ratios.iter().map(|value| value.abs()).collect();
    sizes.sort_unstable_by(|a, b| b.total_cmp(a));
    let total: f64 = sizes.iter().sum();
    // Sums of the same numbers in another order differ by rounding errors; ties must count.
    let seen = log_ratios.iter().sum::<f64>().abs() - total * 1e-12;
    Some(if sizes.len() <= EXACT_BLOCKS {
        // Flipping all signs gives the same distance, so the first sign is fixed.
        let count = count_at_least(&sizes[1..], sizes[0], total - sizes[0], seen);
        let choices = (1_u64 << (sizes.len() - 1)) as f64;
        count as f64 / choices
    } else {
        monte_carlo(&sizes, seen)
    })
}

/// The test of the ratios of these blocks. `None` also if a ratio is not a positive number.
pub fn sign_flip_blocks(blocks: &[Block]) -> Option<f64> {
    let logs: Option<Vec<f64>> = blocks.iter().map(|block| block.ratio().map(f64::ln)).collect();
    sign_flip(&logs?)
}

/// Number of sign choices for `rest` whose sum with `sum` is at least `seen` away from zero.
fn count_at_least(rest: &[f64], sum: f64, rest_total: f64, seen: f64) -> u64 {
    if sum.abs() - rest_total >= seen {
        return 1 << rest.len();
    }
    let Some((&next, after)) = rest.split_first() else {
        return u64::from(sum.abs() >= seen);
    };
    let margin = (sum.abs() + rest_total) * 1e-12;
    if sum.abs() + rest_total + margin < seen {
        return 0;
    }
    let after_total = rest_total - next;
    count_at_least(after, sum + next, after_total, seen)
        + count_at_least(after, sum - next, after_total, seen)
}

fn monte_carlo(sizes: &[f64], seen: f64) -> f64 {
    let tables: Vec<[f64; 256]> = sizes.chunks(8).map(signed_sums).collect();
    let mut generator = Pcg32::new(MONTE_CARLO_SEED, 0);
    let mut count = 0_u32;
    for _ in 0..MONTE_CARLO_DRAWS {
        let mut sum = 0.0;
        for group in tables.chunks(4) {
            let signs = generator.next_u32().to_le_bytes();
            sum +=
                group.iter().zip(signs).map(|(sums, eight)| sums[usize::from(eight)]).sum::<f64>();
        }
        count += u32::from(f64::abs(sum) >= seen);
    }
    // The observed choice counts as one of the draws, so a p-value is never 0.
    (f64::from(count) + 1.0) / (f64::from(MONTE_CARLO_DRAWS) + 1.0)
}

/// The sums of up to eight sizes for all sign choices: a set bit is a minus.
fn signed_sums(sizes: &[f64]) -> [f64; 256] {
    std::array::from_fn(|signs| {
        let signed = sizes.iter().enumerate();
        signed.map(|(place, size)| if signs >> place & 1 == 0 { *size } else { -size }).sum()
    })
}

/// The smallest p-value that any data with this number of blocks can reach.
#[must_use]
pub fn smallest_p(blocks: u32) -> f64 {
    0.5_f64.powi(i32::try_from(blocks.saturating_sub(1)).unwrap_or(i32::MAX))
}

/// Minimum number of blocks for a verdict, even for a single comparison.
///
/// Six blocks can reach p = 0.031, but only if all six agree: a single block reversed by a
/// disturbance would make every verdict impossible. With eight blocks, one small value to the
/// contrary still gives p = 0.016, and up to six comparisons can keep a verdict under Holm's
/// correction.
pub const LEAST_BLOCKS: u32 = 8;

/// The number of blocks from which a verdict is possible at level `alpha` if `family` comparisons
/// are tested together under Holm's correction: [`LEAST_BLOCKS`], and one more each time that the
/// number of comparisons doubles. `tune`, studies and `compare` all use this rule.
pub fn blocks_needed(family: u32, alpha: f64) -> u32 {
    let tests = f64::from(family.max(1));
    (LEAST_BLOCKS..1_100).find(|&blocks| smallest_p(blocks) * tests <= alpha).unwrap_or(u32::MAX)
}

/// Holm's step-down correction: adjusted p-values in the given order. Comparing them with a level
/// bounds the probability of any false verdict in the family by that level.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut floor = 0.0_f64;
    for (rank, &index) in order.iter().enumerate() {
        let tests_left = (p_values.len() - rank) as f64;
        floor = floor.max((p_values[index] * tests_left).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

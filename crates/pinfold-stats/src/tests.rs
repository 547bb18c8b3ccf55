//! Tests of `stats`, as tables.

use proptest::prelude::*;

use super::bootstrap::ratio_interval_of;
use super::*;
use crate::random::Pcg32;

fn close(found: f64, expected: f64) {
    let scale = expected.abs().max(1e-300);
    assert!((found - expected).abs() / scale < 1e-9, "found {found}, expected {expected}");
}

/// A standard normal number (Box and Muller).
fn normal(generator: &mut Pcg32) -> f64 {
    let radius = (-2.0 * (1.0 - generator.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * generator.unit()).cos()
}

#[test]
fn quantiles_are_those_of_r() {
    fn check(samples: &[f64], p: f64, expected: f64) {
        close(quantile(samples, p).unwrap(), expected)
    }

    // quantile(c(15, 20, 35, 40, 50), p, type = 7)
    let samples = [40.0, 15.0, 50.0, 35.0, 20.0];
    check(&samples, 0.0, 15.0);
    check(&samples, 0.05, 16.0);
    check(&samples, 0.3, 23.0);
    check(&samples, 0.4, 29.0);
    check(&samples, 0.5, 35.0);
    check(&samples, 0.99, 49.6);
    check(&samples, 1.0, 50.0);
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[3.0]), Some(3.0));
    assert_eq!(median(&[3.0, 5.0]), Some(4.0));
}

#[test]
fn sign_flip_gives_known_exact_values() {
    fn check(log_ratios: &[f64], expected: f64) {
        close(sign_flip(log_ratios).unwrap(), expected);
    }
    check(&[0.5], 1.0);
    check(&[0.0, 0.0, 0.0], 1.0);
    check(&[-1.0; 3], 0.25);
    check(&[1.0; 5], 0.0625);
    check(&[1.0; 8], 0.007_812_5);
    // One of eight has the opposite sign: 2·(1 + 8) of 256 choices are at least as extreme.
    check(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0], 18.0 / 256.0);
    // Fisher's and Darwin's maize, in eighths of an inch: 1726 of 32768 (Fisher 1935, §21).
    let maize =
        [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];
    check(&maize, 1726.0 / 32768.0);
}

#[test]
fn sign_flip_refuses_what_it_cannot_judge() {
    assert_eq!(sign_flip(&[]), None);
    assert_eq!(sign_flip(&[0.1, f64::NAN]), None);
    assert_eq!(sign_flip(&[0.1, f64::INFINITY]), None);
}

#[test]
fn beyond_twenty_blocks_the_value_is_estimated() {
    let values: Vec<f64> = (0..24).map(|index| if index < 17 { 1.0 } else { -1.0 }).collect();
    let p = sign_flip(&values).unwrap();
    // Two-sided binomial: P(at least 17 of 24 with the same sign) = 0.06391466…
    assert!((p - 0.063_914_66).abs() < 0.004, "{p:?}");
    assert_eq!(sign_flip(&values), Some(p), "the seed is fixed");
    assert!(sign_flip(&[1.0; 40]).unwrap() > 0.0);
}

/// Compares the table lookup with the direct computation: the same draws, one addition each.
#[test]
fn random_signs_are_those_of_the_plain_loop() {
    let mut generator = Pcg32::new(5, 5);
    for count in [21, 32, 33, 40, 71] {
        let values: Vec<f64> = (0..count).map(|_| 0.25 + normal(&mut generator)).collect();
        let mut sizes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
        sizes.sort_unstable_by(|a, b| b.total_cmp(a));
        let seen = values.iter().sum::<f64>().abs() - sizes.iter().sum::<f64>() * 1e-12;
        let mut signs = Pcg32::new(0x7069_6e66_6f6c_6400, 0);
        let mut far = 0_u32;
        for _ in 0..MONTE_CARLO_DRAWS {
            let mut sum = 0.0;
            for chunk in sizes.chunks(32) {
                let drawn = signs.next_u32();
                for (bit, size) in chunk.iter().enumerate() {
                    sum += if drawn >> bit & 1 == 0 { *size } else { -size };
                }
            }
            far += u32::from(f64::abs(sum) >= seen);
        }
        let plain = (f64::from(far) + 1.0) / (f64::from(MONTE_CARLO_DRAWS) + 1.0);
        close(sign_flip(&values).unwrap(), plain);
    }
}

/// Compares the lookup by index with the direct computation: values are drawn and sorted.
#[test]
fn drawn_medians_are_those_of_the_plain_loop() {
    let mut values = Pcg32::new(6, 6);
    for count in [2, 7, 8, 40] {
        let mut sorted: Vec<f64> = (0..count).map(|_| normal(&mut values)).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        // Twice: the second time the draws are cached.
        for shift in [0.0, 1.0] {
            let shifted: Vec<f64> = sorted.iter().map(|value| value + shift).collect();
            let mut generator = Pcg32::new(BOOTSTRAP_SEED, 0);
            let draw = |_| {
                let drawn: Vec<f64> = (0..count).map(|_| shifted[generator.index(count)]).collect();
                median(&drawn).unwrap()
            };
            let medians: Vec<f64> = (0..BOOTSTRAP_DRAWS).map(draw).collect();
            let (low, high) = median_interval(&shifted).unwrap();
            close(low, quantile(&medians, 0.025).unwrap());
            close(high, quantile(&medians, 0.975).unwrap());
        }
    }
}

#[test]
fn holm_steps_down() {
    fn check(p_values: &[f64], expected: &[f64]) {
        let found = holm(p_values);
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected).for_each(|(&found, &expected)| close(found, expected));
    }
    check(&[], &[]);
    check(&[0.03], &[0.03]);
    // p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    check(&[0.01, 0.04, 0.03, 0.005], &[0.03, 0.06, 0.06, 0.02]);
    check(&[0.9, 0.8], &[1.0, 1.0]);
}

#[test]
fn blocks_needed_follow_from_the_smallest_p() {
    fn check(family: u32, expected: u32) {
        assert_eq!(blocks_needed(family, 0.05), expected, "family of {family}");
    }
    close(smallest_p(3), 0.25);
    close(smallest_p(5), 0.0625);
    close(smallest_p(8), 0.007_812_5);
    check(0, 8);
    check(1, 8);
    check(3, 8);
    check(6, 8);
    check(7, 9);
}

#[test]
fn interval_is_paired_and_of_medians() {
    // The levels of the blocks differ widely, their ratios do not.
    let blocks: Vec<Block> = [1.0, 1000.0, 3.0, 70.0, 5.0, 400.0, 2.0, 9.0]
        .map(|level| Block::pair(level * 0.5, level))
        .to_vec();
    assert_eq!(ratio_interval(&blocks), Some(Interval { ratio: 0.5, low: 0.5, high: 0.5 }));
    // Several starts in a block: their median counts.
    let block = Block { candidate: vec![2.0, 4.0, 90.0], baseline: vec![8.0, 8.0, 1.0] };
    close(block.ratio().unwrap(), 0.5);
    let interval = ratio_interval(&vec![block; 4]).unwrap();
    assert!(interval.low < 0.5 && interval.high > 0.5, "{interval:?}");
}

#[test]
fn interval_needs_two_sound_blocks() {
    let sound = Block::pair(1.0, 2.0);
    let unsound = [
        Block::pair(0.0, 1.0),
        Block::pair(1.0, 0.0),
        Block::pair(f64::NAN, 1.0),
        Block { candidate: vec![], baseline: vec![1.0] },
    ];
    assert_eq!(ratio_interval(std::slice::from_ref(&sound)), None);
    for block in unsound {
        assert_eq!(ratio_interval(&[sound.clone(), sound.clone(), block]), None);
    }
}

const LOWER: Direction = Direction::LowerIsBetter;
const HIGHER: Direction = Direction::HigherIsBetter;

#[test]
fn verdicts_need_blocks_then_both_instruments() {
    fn check(blocks: u32, bounds: (f64, f64), p_holm: f64, direction: Direction, expected: &str) {
        let (low, high) = bounds;
        let interval = Interval { ratio: f64::midpoint(low, high), low, high };
        let rule = Rule { alpha: 0.05, margin: 0.02, blocks_needed: 8 };
        let verdict =
            Verdict::from_evidence(&Evidence { blocks, interval, p_holm }, direction, &rule);
        assert_eq!(verdict.to_string(), expected);
    }
    check(3, (0.1, 0.2), 0.001, LOWER, "unknown: 3 blocks, 8 needed");
    check(3, (0.99, 1.01), 1.0, LOWER, "unknown: 3 blocks, 8 needed");
    check(8, (0.1, 0.2), 0.01, LOWER, "better");
    check(8, (0.1, 0.2), 0.01, HIGHER, "worse");
    check(8, (1.3, 1.4), 0.01, LOWER, "worse");
    check(8, (1.3, 1.4), 0.01, HIGHER, "better");
    check(8, (0.1, 0.2), 0.06, LOWER, "unknown: 8 blocks are not enough for a verdict");
    check(8, (0.5, 1.1), 0.01, LOWER, "unknown: 8 blocks are not enough for a verdict");
    check(8, (0.981, 1.019), 0.9, LOWER, "same");
    check(8, (0.981, 0.999), 0.01, LOWER, "same");
    check(8, (0.97, 1.01), 0.9, LOWER, "unknown: 8 blocks are not enough for a verdict");
}

#[test]
fn tails_keep_everything_and_bound_what_was_not_seen() {
    let quiet = Tail::new(vec![1_000.0; 600], 2_000_000_000, 0);
    assert_eq!((quiet.max_ns, quiet.p999_ns), (Some(1_000.0), None));
    for exceedance in &quiet.exceedances {
        assert_eq!((exceedance.count, exceedance.upper_bound), (0, Some(0.005)));
    }
    let mut samples = vec![2_000.0; 9_990];
    samples.extend([100_000.0, 100_001.0, 600_000.0, 700_000.0]);
    samples.extend([2e6; 6]);
    let loud = Tail::new(samples, 1, 3);
    let counts: Vec<usize> = loud.exceedances.iter().map(|over| over.count).collect();
    assert_eq!(counts, [9, 8, 6]);
    assert!(loud.exceedances.iter().all(|over| over.upper_bound.is_none()));
    assert_eq!((loud.max_ns, loud.dropped), (Some(2e6), 3));
    assert!(loud.p999_ns.is_some());
    let empty = Tail::new(Vec::new(), 5, 0);
    assert_eq!((empty.max_ns, empty.p50_ns), (None, None));
    assert!(empty.exceedances.iter().all(|over| over.upper_bound.is_none()));
}

#[test]
fn gap_curve_agrees_with_the_definition() {
    let gaps = [5_000.0, 40_000.0, 2_000_000.0, 300_000.0, 1_500.0];
    let curve = gap_curve(&gaps, 1_000_000_000, 1_000.0, 40);
    assert_eq!(curve.len(), 40);
    close(curve[0].wait_ns, 1_000.0);
    assert_eq!(curve[39].wait_ns, 2_000_000.0);
    for point in &curve {
        let wait = gaps.iter().map(|gap| (gap - point.wait_ns).max(0.0)).sum::<f64>() / 1e9;
        assert!((point.arrival_probability - wait).abs() < 1e-12);
    }
    assert!(gap_curve(&[], 1, 1_000.0, 10).is_empty());
    assert!(gap_curve(&[500.0], 1, 1_000.0, 10).is_empty());
    assert!(gap_curve(&gaps, 0, 1_000.0, 10).is_empty());
}

#[test]
fn quantile_curve_goes_as_far_as_the_samples_carry() {
    let samples: Vec<f64> = (0..1_000).map(f64::from).collect();
    let curve = quantile_curve(&samples);
    assert_eq!(curve.first().map(|point| point.value), Some(0.0));
    assert_eq!(curve.last(), Some(&QuantilePoint { quantile: 1.0, value: 999.0 }));
    let beyond = 1.0 - curve[curve.len() - 2].quantile;
    assert!((beyond - 0.001).abs() < 1e-9, "{beyond}");
    assert!(quantile_curve(&[]).is_empty());
}

/// Log-normal blocks with a common level per block; the ratio's true median is `ratio`.
fn simulate(generator: &mut Pcg32, count: usize, ratio: f64, spread: f64) -> Vec<Block> {
    (0..count)
        .map(|_| {
            let level = (2.0 * normal(generator)).exp();
            Block::pair(level * ratio * draw(spread, generator), level * draw(spread, generator))
        })
        .collect()
}

fn draw(spread: f64, generator: &mut Pcg32) -> f64 {
    (spread * normal(generator)).exp()
}

fn log_ratios(blocks: &[Block]) -> Vec<f64> {
    blocks.iter().map(|block| block.ratio().unwrap().ln()).collect()
}

#[test]
fn equal_layouts_seldom_get_a_false_verdict() {
    const FAMILIES: u32 = 1_500;
    let mut generator = Pcg32::new(2_024, 1);
    let rule = Rule { alpha: 0.05, margin: 0.02, blocks_needed: 8 };
    let mut false_families = 0_u32;
    for _ in 0..FAMILIES {
        let family: Vec<Vec<Block>> =
            (0..3).map(|_| simulate(&mut generator, 8, 1.0, 0.4)).collect();
        let raw: Vec<f64> =
            family.iter().map(|blocks| sign_flip(&log_ratios(blocks)).unwrap()).collect();
        let wrong = family.iter().zip(holm(&raw)).any(|(blocks, p_holm)| {
            let interval = ratio_interval_of(blocks, 200).unwrap();
            let evidence = Evidence { blocks: 8, interval, p_holm };
            let verdict = Verdict::from_evidence(&evidence, LOWER, &rule);
            matches!(verdict, Verdict::Better | Verdict::Worse)
        });
        false_families += u32::from(wrong);
    }
    let rate = f64::from(false_families) / f64::from(FAMILIES);
    assert!(rate < 0.05, "false verdicts in {rate} of the families");
    assert!(rate > 0.005, "the test must have been able to err: {rate}");
}

#[test]
fn single_aa_pairs_seldom_differ() {
    const PAIRS: u32 = 2_000;
    let mut generator = Pcg32::new(7, 2);
    let rule = Rule { alpha: 0.05, margin: 0.02, blocks_needed: 8 };
    let mut wrong = 0_u32;
    for _ in 0..PAIRS {
        let blocks = simulate(&mut generator, 8, 1.0, 0.4);
        let p = sign_flip(&log_ratios(&blocks)).unwrap();
        let interval = ratio_interval_of(&blocks, 200).unwrap();
        let verdict =
            Verdict::from_evidence(&Evidence { blocks: 8, interval, p_holm: p }, HIGHER, &rule);
        wrong += u32::from(matches!(verdict, Verdict::Better | Verdict::Worse));
    }
    assert!(f64::from(wrong) / f64::from(PAIRS) < 0.05, "{wrong} of {PAIRS}");
}

#[test]
fn intervals_cover_the_true_ratio() {
    const RUNS: u32 = 600;
    let mut generator = Pcg32::new(99, 3);
    for (blocks, least) in [(8, 0.89), (12, 0.9), (20, 0.9)] {
        let mut covered = 0_u32;
        for _ in 0..RUNS {
            let blocks = simulate(&mut generator, blocks, 0.25, 0.3);
            covered += u32::from(ratio_interval_of(&blocks, 300).unwrap().contains(0.25));
        }
        let rate = f64::from(covered) / f64::from(RUNS);
        assert!(rate >= least, "{blocks} blocks: covered {rate}");
    }
}

#[test]
fn a_tenfold_gap_is_found_in_eight_blocks() {
    let mut generator = Pcg32::new(5, 4);
    let blocks = simulate(&mut generator, 8, 0.1, 0.3);
    let p_holm = 3.0 * sign_flip(&log_ratios(&blocks)).unwrap();
    let interval = ratio_interval(&blocks).unwrap();
    assert!(interval.contains(0.1), "{interval:?}");
    let rule = Rule { alpha: 0.05, margin: 0.02, blocks_needed: 8 };
    let verdict = Verdict::from_evidence(&Evidence { blocks: 8, interval, p_holm }, LOWER, &rule);
    assert_eq!(verdict, Verdict::Better);
}

/// All 2ⁿ sums by enumeration: slow and simple.
fn sign_flip_oracle(values: &[f64]) -> f64 {
    let seen = values.iter().sum::<f64>().abs();
    let total: f64 = values.iter().map(|value| value.abs()).sum();
    let choices = 1_u32 << values.len();
    let far = (0..choices).filter(|choice| {
        let signed = values.iter().enumerate();
        let sum: f64 =
            signed.map(|(bit, value)| if choice >> bit & 1 == 0 { *value } else { -value }).sum();
        sum.abs() >= seen - total * 1e-12
    });
    far.count() as f64 / f64::from(choices)
}

proptest! {
    #[test]
    fn sign_flip_equals_full_enumeration(values in prop::collection::vec(-3.0..3.0_f64, 1..11)) {
        let found = sign_flip(&values).unwrap();
        prop_assert!((found - sign_flip_oracle(&values)).abs() < 1e-12);
    }

    #[test]
    fn sign_flip_with_ties_equals_full_enumeration(
        values in prop::collection::vec(-3..4_i32, 1..11),
    ) {
        let values: Vec<f64> = values.into_iter().map(|value| f64::from(value) * 0.1).collect();
        let found = sign_flip(&values).unwrap();
        prop_assert!((found - sign_flip_oracle(&values)).abs() < 1e-12);
    }

    #[test]
    fn sign_flip_ignores_order_and_direction(
        values in prop::collection::vec(-3.0..3.0_f64, 1..15),
    ) {
        let found = sign_flip(&values);
        let turned: Vec<f64> = values.iter().rev().map(|value| -value).collect();
        prop_assert_eq!(found, sign_flip(&turned));
        let blocks = u32::try_from(values.len()).unwrap();
        prop_assert!(found.unwrap() >= smallest_p(blocks));
    }

    #[test]
    fn quantiles_lie_within_and_ascend(
        samples in prop::collection::vec(-1e9..1e9_f64, 1..60),
        low in 0.0..1.0_f64,
        step in 0.0..1.0_f64,
    ) {
        let high = low + (1.0 - low) * step;
        let (left, right) = (quantile(&samples, low).unwrap(), quantile(&samples, high).unwrap());
        prop_assert!(left <= right);
        prop_assert!(quantile(&samples, 0.0).unwrap() <= left);
        prop_assert!(right <= quantile(&samples, 1.0).unwrap());
    }

    #[test]
    fn holm_lies_between_raw_and_bonferroni(
        p_values in prop::collection::vec(0.0001..1.0_f64, 1..12),
    ) {
        for (adjusted, raw) in holm(&p_values).iter().zip(&p_values) {
            prop_assert!(*adjusted >= *raw);
            prop_assert!(*adjusted <= (raw * p_values.len() as f64).min(1.0) + 1e-15);
        }
    }

    #[test]
    fn interval_contains_its_estimate_and_scales(
        ratios in prop::collection::vec(0.01..100.0_f64, 2..12),
    ) {
        let blocks: Vec<Block> = ratios.iter().map(|&ratio| Block::pair(ratio, 1.0)).collect();
        let interval = ratio_interval_of(&blocks, 100).unwrap();
        prop_assert!(interval.low <= interval.high);
        let turned: Vec<Block> = blocks.iter().rev().cloned().collect();
        prop_assert_eq!(ratio_interval_of(&turned, 100), Some(interval));
        // Two equal starts on one side take the other code path to nearly the same interval.
        let double: Vec<Block> = ratios
            .iter()
            .map(|&ratio| Block { candidate: vec![ratio; 2], baseline: vec![1.0] })
            .collect();
        let double = ratio_interval_of(&double, 100).unwrap();
        prop_assert_eq!(double.ratio, interval.ratio);
        prop_assert!(double.low <= interval.high && interval.low <= double.high);
        let scaled: Vec<Block> = ratios.iter().map(|&ratio| Block::pair(ratio * 8.0, 4.0)).collect();
        let twice = ratio_interval_of(&scaled, 100).unwrap();
        prop_assert!((twice.low / interval.low - 2.0).abs() < 1e-9);
        prop_assert!((twice.high / interval.high - 2.0).abs() < 1e-9);
    }
}

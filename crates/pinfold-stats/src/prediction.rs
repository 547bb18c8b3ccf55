//! Prediction intervals: where the next value lies, not where the mean of all values lies.
//!
//! All values are ratios or rates, so that their logarithms are taken to be normal.

use crate::bootstrap::Interval;
use crate::{median, student_tail};

/// The ratio of one further sample of `ours` to one of `theirs`, from the samples of both: the
/// quotient of the medians, and the interval that has the next quotient with this probability.
///
/// `None` with fewer than two samples on a side, or with one that is not above zero.
#[must_use]
pub fn predict_next_ratio(theirs: &[f64], ours: &[f64], probability: f64) -> Option<Interval> {
    let (their_logs, our_logs) = (logs(theirs)?, logs(ours)?);
    let middle = median(&their_logs)? - median(&our_logs)?;
    let variance = next_variance(&their_logs) + next_variance(&our_logs);
    let freedom = their_logs.len() + our_logs.len() - 2;
    Some(around(middle, variance.sqrt() * student_quantile(probability, freedom)))
}

/// Another ratio of the population from which these come: their geometric mean, and the interval
/// that has the next one with this probability.
///
/// `None` with fewer than two ratios, or with one that is not above zero.
#[must_use]
pub fn predict_further_ratio(ratios: &[f64], probability: f64) -> Option<Interval> {
    let logs = logs(ratios)?;
    let half = next_variance(&logs).sqrt() * student_quantile(probability, logs.len() - 1);
    Some(around(mean(&logs), half))
}

/// An interval for the next value of one that also varies from repetition to repetition, as those
/// with these intervals do, of the same probability: independent parts add up by their squares.
#[must_use]
pub fn widen(interval: Interval, repetitions: &[Interval]) -> Interval {
    let squares = repetitions.iter().map(|one| half_width(one).powi(2)).sum::<f64>();
    let mean = squares / repetitions.len().max(1) as f64;
    around(interval.ratio.ln(), half_width(&interval).hypot(mean.sqrt()))
}

/// In logarithms.
fn half_width(interval: &Interval) -> f64 {
    (interval.high / interval.low).ln() / 2.0
}

fn around(middle: f64, half: f64) -> Interval {
    Interval { ratio: middle.exp(), low: (middle - half).exp(), high: (middle + half).exp() }
}

fn logs(values: &[f64]) -> Option<Vec<f64>> {
    (values.len() > 1 && values.iter().all(|value| value.is_finite() && *value > 0.0))
        .then(|| values.iter().map(|value| value.ln()).collect())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Variance of the difference between the mean of these values and the next value.
fn next_variance(values: &[f64]) -> f64 {
    let (count, mean) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / (count - 1.0) * (1.0 + 1.0 / count)
}

/// The t between whose negative and itself a value lies with this probability, by bisection.
fn student_quantile(probability: f64, freedom: usize) -> f64 {
    let freedom = u32::try_from(freedom).unwrap_or(u32::MAX).min(10_000);
    let (mut low, mut high) = (0.0, 1000.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if student_tail(middle, freedom) > (1.0 - probability) / 2.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Pcg32;

    #[test]
    fn quantiles_agree_with_tables() {
        for (freedom, expected) in [(1, 6.3138), (4, 2.1318), (9, 1.8331), (30, 1.6973)] {
            let found = student_quantile(0.9, freedom);
            assert!((found / expected - 1.0).abs() < 1e-4, "{freedom}: {found}");
        }
    }

    #[test]
    fn intervals_agree_with_the_formula() {
        // Logarithms 0, 1, 2: mean 1, variance 1, times 4/3; t(0.9, 2) is 2.9200.
        let found = predict_further_ratio(&[1.0, 1_f64.exp(), 2_f64.exp()], 0.9).unwrap();
        let half = 2.92 * (4_f64 / 3.0).sqrt();
        assert!((found.ratio.ln() - 1.0).abs() < 1e-12);
        assert!((found.low.ln() - (1.0 - half)).abs() < 1e-3, "{found:?}");
        assert!((found.high.ln() - (1.0 + half)).abs() < 1e-3, "{found:?}");
        let even = predict_next_ratio(&[4.0, 4.0, 4.0], &[8.0, 8.0], 0.9).unwrap();
        assert!((even.ratio - 0.5).abs() < 1e-12 && (even.high - even.low).abs() < 1e-12);
        for bad in [vec![], vec![1.0], vec![1.0, 0.0], vec![1.0, f64::NAN]] {
            assert_eq!(predict_further_ratio(&bad, 0.9), None);
            assert_eq!(predict_next_ratio(&[1.0, 2.0], &bad, 0.9), None);
        }
    }

    #[test]
    fn a_wider_interval_has_the_squares_of_all_parts() {
        fn check(half: f64, repetitions: &[f64], expected: f64) {
            let repetitions: Vec<Interval> =
                repetitions.iter().map(|half| around(2.0, *half)).collect();
            let found = widen(around(-1.0, half), &repetitions);
            assert!((found.ratio.ln() + 1.0).abs() < 1e-12, "{found:?}");
            assert!((found.low.ln() - (-1.0 - expected)).abs() < 1e-12, "{found:?}");
            assert!((found.high.ln() - (-1.0 + expected)).abs() < 1e-12, "{found:?}");
        }

        check(0.3, &[0.4], 0.5);
        check(0.3, &[0.0, 0.4 * 2_f64.sqrt()], 0.5);
        check(0.0, &[0.1, 0.1, 0.1], 0.1);
        check(0.3, &[], 0.3);
    }

    #[test]
    fn the_next_ratio_is_inside_as_often_as_it_says() {
        let mut random = Pcg32::new(7, 7);
        let mut inside = 0;
        for _ in 0..2000 {
            // Sums of twelve uniform numbers are close to normal.
            let mut ratios = [0.0; 10];
            for ratio in &mut ratios {
                let sum: f64 =
                    (0..12).map(|_| f64::from(random.draw_below(1 << 16)) / 65536.0).sum();
                *ratio = ((sum - 6.0) / 10.0).exp();
            }
            let [known @ .., next] = &ratios;
            inside += u32::from(predict_further_ratio(known, 0.9).unwrap().contains(*next));
        }
        assert!((1740..=1860).contains(&inside), "{inside} of 2000");
    }
}

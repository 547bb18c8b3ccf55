//! Percentile curves from samples.
//!
//! The tail matters most, so the points are evenly spaced on the scale `-log10(1 - share)`: as many
//! between 99 % and 99.9 % as between 0 and 90 %. A percentile with fewer than ten samples beyond
//! it is unreliable, so the curve ends there, and the largest sample is stored separately.

use crate::page::{CandidateId, Curve, Quantile};

/// Number of intervals between the points of a curve.
const INTERVALS: u32 = 60;
/// Number of samples that must lie beyond the last point.
const BEYOND: f64 = 10.0;
/// With fewer samples there is no curve, only a maximum.
const FEWEST: usize = 20;

impl Curve {
    /// The curve of a set of samples; values that are not finite are left out.
    pub fn from_samples(candidate: CandidateId, samples: &[f64]) -> Self {
        let mut sorted: Vec<f64> =
            samples.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let max = sorted.last().copied();
        let points = if sorted.len() < FEWEST { Vec::new() } else { points_of(&sorted) };
        Self { candidate, points, max, samples: sorted.len() as u64 }
    }

    /// The curve of arrivals at random times: how long the slowest share of them waits. `points`
    /// are (wait in ns, probability of a longer wait), ascending; `longest` is the longest stall
    /// (ns); `moments` is the number of times that the observation can distinguish: its length
    /// divided by the shortest recorded stall.
    pub fn from_arrivals(
        candidate: CandidateId,
        points: impl IntoIterator<Item = (f64, f64)>,
        longest: Option<f64>,
        moments: u64,
    ) -> Self {
        // Beyond one time in `moments`, there is only the longest stall.
        let least = 1.0 / moments.max(1) as f64;
        let points = points
            .into_iter()
            .filter(|(_, longer)| *longer > least)
            .map(|(value, longer)| Quantile { share: 1.0 - longer, value })
            .collect();
        Self { candidate, points, max: longest, samples: moments }
    }
}

/// One pass over the samples; each point is the smallest sample with at least its share of all
/// samples at or below it (nearest rank).
fn points_of(sorted: &[f64]) -> Vec<Quantile> {
    let count = sorted.len() as f64;
    let end = (count / BEYOND).log10();
    let mut ranked = (1_u32..).zip(sorted).peekable();
    let mut points: Vec<Quantile> = Vec::new();
    for step in 0..=INTERVALS {
        let share = 1.0 - 10_f64.powf(-end * f64::from(step) / f64::from(INTERVALS));
        // A millionth of a sample compensates the rounding of the power.
        while ranked.next_if(|(rank, _)| f64::from(*rank) < share * count - 1e-6).is_some() {}
        if let Some((_, value)) = ranked.peek() {
            points.push(Quantile { share, value: **value });
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_give_a_maximum_only() {
        check(&[], None, 0);
        check(&[5.0], Some(5.0), 1);
        check(&[f64::NAN, f64::INFINITY, 2.0, 1.0], Some(2.0), 2);
    }

    fn check(samples: &[f64], max: Option<f64>, count: u64) {
        let curve = Curve::from_samples(CandidateId(0), samples);
        assert_eq!((curve.points.len(), curve.max, curve.samples), (0, max, count));
    }

    #[test]
    fn arrivals_end_where_moments_end() {
        let points = [(1e3, 0.01), (1e6, 1e-4), (2e6, 1e-9), (3e6, 0.0)];
        let curve = Curve::from_arrivals(CandidateId(0), points, Some(3e6), 1_000_000);
        let shares: Vec<f64> = curve.points.iter().map(|point| point.share).collect();
        assert_eq!(shares, [0.99, 1.0 - 1e-4]);
        assert_eq!((curve.max, curve.samples), (Some(3e6), 1_000_000));
    }

    #[test]
    fn points_follow_the_samples_up_to_ten_from_the_end() {
        let samples: Vec<f64> = (1..=10_000).rev().map(f64::from).collect();
        let curve = Curve::from_samples(CandidateId(0), &samples);
        assert_eq!(curve.points.len(), 61);
        assert_eq!(value_at(&curve, 0.0), Some(1.0));
        assert_eq!(value_at(&curve, 0.9), Some(9_000.0));
        assert_eq!(value_at(&curve, 0.99), Some(9_900.0));
        assert_eq!(value_at(&curve, 0.999), Some(9_990.0));
        assert_eq!(curve.max, Some(10_000.0));
    }

    fn value_at(curve: &Curve, share: f64) -> Option<f64> {
        curve
            .points
            .iter()
            .find(|point| (point.share - share).abs() < 1e-9)
            .map(|point| point.value)
    }
}

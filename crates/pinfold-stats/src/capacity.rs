//! Capacities: bandwidth, memory latency, compute rate. Their noise is one-sided.
//!
//! Other tasks, interrupts or the hypervisor can only make a window worse. So the best window
//! estimates the capability of the machine (Chen and Revels, arXiv 1608.04295), and the median is
//! what a user gets. Both are reported, with the tenth percentile. Disturbed windows may be left
//! out, and they are counted: if they are more than a fifth, the machine was *contended*, and there
//! is no verdict.

use pinfold_model::Statistic;

use super::quantile::quantile_sorted;
use super::tail::P999_SAMPLES;
use super::verdict::Direction;

/// Share of windows left out above which a capacity gives no verdict.
pub const CONTENDED_SHARE: f64 = 0.2;

/// Summary of a capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Number of windows in the summary.
    pub windows: usize,
    /// Number of windows that were left out because they were disturbed.
    pub disturbed: u64,
    /// The best window: the largest rate or the smallest time.
    pub best: f64,
    /// The value that the best tenth of the windows reach.
    pub p10: f64,
    /// The median window.
    pub median: f64,
}

impl Capacity {
    /// Summarises windows in any order; `None` if there are none.
    pub fn new(samples: &[f64], disturbed: u64, direction: Direction) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self {
            windows: sorted.len(),
            disturbed,
            best: quantile_from_best(direction, &sorted, 0.0)?,
            p10: quantile_from_best(direction, &sorted, 0.1)?,
            median: quantile_from_best(direction, &sorted, 0.5)?,
        })
    }

    /// Share of all windows that was left out, 0 to 1.
    pub fn excluded_share(&self) -> f64 {
        self.disturbed as f64 / (self.windows as f64 + self.disturbed as f64)
    }

    /// True if too many windows were disturbed for a verdict.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.excluded_share() > CONTENDED_SHARE
    }
}

fn quantile_from_best(direction: Direction, sorted: &[f64], part: f64) -> Option<f64> {
    match direction {
        Direction::LowerIsBetter => quantile_sorted(sorted, part),
        Direction::HigherIsBetter => quantile_sorted(sorted, 1.0 - part),
    }
}

/// One statistic of samples in any order; `None` without samples, and for the 99.9 % quantile with
/// fewer than [`P999_SAMPLES`].
pub fn of_samples(samples: &[f64], statistic: Statistic, direction: Direction) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match statistic {
        Statistic::Best => match direction {
            Direction::LowerIsBetter => sorted.first().copied(),
            Direction::HigherIsBetter => sorted.last().copied(),
        },
        Statistic::Median => quantile_sorted(&sorted, 0.5),
        Statistic::Mean if sorted.is_empty() => None,
        Statistic::Mean => Some(sorted.iter().sum::<f64>() / sorted.len() as f64),
        Statistic::P999 if sorted.len() < P999_SAMPLES => None,
        Statistic::P999 => quantile_sorted(&sorted, 0.999),
        Statistic::Max => sorted.last().copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOWER: Direction = Direction::LowerIsBetter;
    const HIGHER: Direction = Direction::HigherIsBetter;

    #[test]
    fn best_is_on_the_side_that_noise_is_not() {
        let windows: Vec<f64> = (0..=100).map(f64::from).collect();
        let times = Capacity::new(&windows, 0, LOWER).unwrap();
        assert_eq!((times.best, times.p10, times.median), (0.0, 10.0, 50.0));
        let rates = Capacity::new(&windows, 0, HIGHER).unwrap();
        assert_eq!((rates.best, rates.p10, rates.median), (100.0, 90.0, 50.0));
        assert_eq!(Capacity::new(&[], 7, LOWER), None);
    }

    #[test]
    fn more_than_a_fifth_left_out_is_contended() {
        check(80, 20, false);
        check(79, 21, true);
        check(1, 0, false);
    }

    fn check(kept: usize, disturbed: u64, contended: bool) {
        let found = Capacity::new(&vec![1.0; kept], disturbed, LOWER).unwrap();
        assert_eq!(found.is_contended(), contended, "{kept} kept, {disturbed} left out");
    }

    #[test]
    fn statistics_of_nothing_are_nothing() {
        for statistic in Statistic::ALL {
            assert_eq!(of_samples(&[], statistic, LOWER), None, "{}", statistic.name());
        }
        let samples = [4.0, 1.0, 1.0];
        assert_eq!(capacity_of(&samples, Statistic::Best), Some(1.0));
        assert_eq!(capacity_of(&samples, Statistic::Mean), Some(2.0));
        assert_eq!(capacity_of(&samples, Statistic::Max), Some(4.0));
        assert_eq!(
            capacity_of(&samples, Statistic::P999),
            None,
            "three samples carry no such quantile"
        );
        assert_eq!(of_samples(&samples, Statistic::Best, HIGHER), Some(4.0));
        let many: Vec<f64> = (0..P999_SAMPLES).map(|n| n as f64).collect();
        assert!(of_samples(&many, Statistic::P999, LOWER).is_some());
    }

    fn capacity_of(samples: &[f64], statistic: Statistic) -> Option<f64> {
        of_samples(samples, statistic, LOWER)
    }
}

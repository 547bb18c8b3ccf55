//! Scheduling stalls as seen by arrivals at random times.
//!
//! Stalls and waits are different populations: a stall of 10 ms every second is one event in
//! thousands, but one arrival in a hundred falls into it. With the stalls g of an observation of
//! length T, an arrival at a random time waits longer than x with the probability P(wait > x) = Σ
//! max(0, g − x) / T, and the mean wait is Σ g² / 2T. Benchmarks that wake by a timer measure these
//! waits, so tools are compared in this view.

/// Distribution of the waits of arrivals at random times.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomArrival {
    /// The stalls (ns), ascending.
    gaps: Vec<f64>,
    /// Sums of the stalls from each index to the end; one entry more than `gaps`.
    sums: Vec<f64>,
    observed_ns: f64,
}

impl RandomArrival {
    /// The distribution for these stalls (ns, in any order); `None` if the observed time is zero or
    /// less than the sum of the stalls.
    pub fn new(mut gaps: Vec<f64>, observed_ns: u64) -> Option<Self> {
        gaps.sort_unstable_by(f64::total_cmp);
        let mut sums = vec![0.0; gaps.len() + 1];
        for index in (0..gaps.len()).rev() {
            sums[index] = sums[index + 1] + gaps[index];
        }
        let observed_ns = observed_ns as f64;
        let sound = gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0);
        (observed_ns > 0.0 && sound && sums[0] <= observed_ns).then_some(Self {
            gaps,
            sums,
            observed_ns,
        })
    }

    /// P(wait > `wait_ns`).
    pub fn exceedance_probability(&self, wait_ns: f64) -> f64 {
        let first = self.gaps.partition_point(|&gap| gap <= wait_ns);
        let longer = (self.gaps.len() - first) as f64;
        ((self.sums[first] - longer * wait_ns) / self.observed_ns).clamp(0.0, 1.0)
    }

    /// Share of the time in stalls: the probability that an arrival waits at all.
    #[must_use]
    pub fn wait_probability(&self) -> f64 {
        self.exceedance_probability(0.0)
    }

    /// Mean wait (ns) over all arrivals, including those that do not wait.
    pub fn mean_ns(&self) -> f64 {
        self.gaps.iter().map(|gap| gap * gap).sum::<f64>() / (2.0 * self.observed_ns)
    }

    /// The longest possible wait (ns), which is the longest stall; 0 without stalls.
    #[must_use]
    pub fn max_ns(&self) -> f64 {
        self.gaps.last().copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, {expected}");
    }

    #[test]
    fn arrivals_meet_long_gaps_more_often() {
        let arrivals = RandomArrival::new(vec![1e6, 10e6, 1e6], SECOND).unwrap();
        close(arrivals.wait_probability(), 0.012);
        close(arrivals.exceedance_probability(1e6), 0.009);
        close(arrivals.exceedance_probability(9e6), 0.001);
        close(arrivals.exceedance_probability(10e6), 0.0);
        close(arrivals.mean_ns(), (100e12 + 2e12) / 2e9);
        close(arrivals.max_ns(), 10e6);
    }

    #[test]
    fn nothing_taken_and_nothing_observed() {
        let quiet = RandomArrival::new(Vec::new(), SECOND).unwrap();
        assert_eq!((quiet.max_ns(), quiet.mean_ns(), quiet.wait_probability()), (0.0, 0.0, 0.0));
        assert_eq!(RandomArrival::new(vec![1.0], 0), None);
        assert_eq!(RandomArrival::new(vec![2.0], 1), None);
        assert_eq!(RandomArrival::new(vec![f64::NAN], SECOND), None);
        assert_eq!(RandomArrival::new(vec![-1.0], SECOND), None);
        // Stalled all the time: half of the arrivals wait for more than half of it.
        close(RandomArrival::new(vec![1e9], SECOND).unwrap().exceedance_probability(0.5e9), 0.5);
    }

    proptest! {
        #[test]
        fn the_share_beyond_a_wait_is_that_of_the_definition(
            gaps in prop::collection::vec(1.0..1e6_f64, 1..40),
            wait in 0.0..1e6_f64,
        ) {
            let arrivals = RandomArrival::new(gaps.clone(), 50_000_000).unwrap();
            let expected = gaps.iter().map(|gap| (gap - wait).max(0.0)).sum::<f64>() / 50e6;
            prop_assert!((arrivals.exceedance_probability(wait) - expected).abs() < 1e-9);
        }
    }
}

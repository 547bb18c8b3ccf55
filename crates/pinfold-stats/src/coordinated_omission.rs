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
    #[must_use]
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
    #[must_use]
    pub fn beyond(&self, wait_ns: f64) -> f64 {
        let first = self.gaps.partition_point(|&gap| gap <= wait_ns);
        let longer = (self.gaps.len() - first) as f64;
        ((self.sums[first] - longer * wait_ns) / self.observed_ns).clamp(0.0, 1.0)
    }

    /// Number of stalls longer than `wait_ns`.
    #[must_use]
    pub fn gaps_beyond(&self, wait_ns: f64) -> usize {
        self.gaps.len() - self.gaps.partition_point(|&gap| gap <= wait_ns)
    }

    /// Share of the time in stalls: the probability that an arrival waits at all.
    #[must_use]
    pub fn taken_share(&self) -> f64 {
        self.beyond(0.0)
    }

    /// Mean wait (ns) over all arrivals, including those that do not wait.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.gaps.iter().map(|gap| gap * gap).sum::<f64>() / (2.0 * self.observed_ns)
    }

    /// The longest possible wait (ns), which is the longest stall; 0 without stalls.
    #[must_use]
    pub fn max_ns(&self) -> f64 {
        self.gaps.last().copied().unwrap_or(0.0)
    }

    /// The wait (ns) that the share `p` (0 to 1) of all arrivals does not exceed. It is exact,
    /// because the probability is linear in the wait between two stall lengths.
    ///
    /// # Panics
    /// If `p` is outside 0 to 1.
    #[must_use]
    pub fn quantile_ns(&self, p: f64) -> f64 {
        assert!((0.0..=1.0).contains(&p), "a quantile lies between 0 and 1, not at {p}");
        let time = (1.0 - p) * self.observed_ns;
        // The time lost beyond a wait as long as stall i decreases with i; find the first that is
        // at most `time`.
        let lost =
            |index: usize| self.sums[index] - (self.gaps.len() - index) as f64 * self.gaps[index];
        let (mut low, mut high) = (0, self.gaps.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if lost(middle) <= time { high = middle } else { low = middle + 1 }
        }
        let longer = (self.gaps.len() - low) as f64;
        if longer > 0.0 { ((self.sums[low] - time) / longer).max(0.0) } else { 0.0 }
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
        close(arrivals.taken_share(), 0.012);
        close(arrivals.beyond(1e6), 0.009);
        close(arrivals.beyond(9e6), 0.001);
        close(arrivals.beyond(10e6), 0.0);
        close(arrivals.mean_ns(), (100e12 + 2e12) / 2e9);
        close(arrivals.max_ns(), 10e6);
        assert_eq!((arrivals.gaps_beyond(1e6), arrivals.gaps_beyond(0.0)), (1, 3));
        close(arrivals.quantile_ns(0.5), 0.0);
        close(arrivals.quantile_ns(0.988), 0.0);
        close(arrivals.quantile_ns(0.991), 1e6);
        close(arrivals.quantile_ns(0.999), 9e6);
        close(arrivals.quantile_ns(1.0), 10e6);
        // Between the two: three stalls are longer than 0.5 ms, by 10.5 ms in total.
        close(arrivals.quantile_ns(1.0 - 0.0105), 0.5e6);
    }

    #[test]
    fn nothing_taken_and_nothing_observed() {
        let quiet = RandomArrival::new(Vec::new(), SECOND).unwrap();
        assert_eq!((quiet.max_ns(), quiet.mean_ns(), quiet.taken_share()), (0.0, 0.0, 0.0));
        assert_eq!((quiet.quantile_ns(0.5), quiet.quantile_ns(1.0)), (0.0, 0.0));
        assert_eq!(RandomArrival::new(vec![1.0], 0), None);
        assert_eq!(RandomArrival::new(vec![2.0], 1), None);
        assert_eq!(RandomArrival::new(vec![f64::NAN], SECOND), None);
        assert_eq!(RandomArrival::new(vec![-1.0], SECOND), None);
        // Stalled all the time: half of the arrivals wait for more than half of it.
        close(RandomArrival::new(vec![1e9], SECOND).unwrap().quantile_ns(0.5), 0.5e9);
    }

    proptest! {
        #[test]
        fn a_quantile_leaves_its_share_beyond_it(
            gaps in prop::collection::vec(1.0..1e6_f64, 1..40),
            p in 0.0..1.0_f64,
        ) {
            let arrivals = RandomArrival::new(gaps.clone(), 50_000_000).unwrap();
            let wait = arrivals.quantile_ns(p);
            let by_definition = |wait: f64| {
                gaps.iter().map(|gap| (gap - wait).max(0.0)).sum::<f64>() / 50e6
            };
            prop_assert!((arrivals.beyond(wait) - by_definition(wait)).abs() < 1e-9);
            // Exactly the share beyond it, unless fewer arrivals than that wait at all.
            let expected = (1.0 - p).min(arrivals.taken_share());
            prop_assert!((by_definition(wait) - expected).abs() < 1e-9, "{wait}");
        }
    }
}

//! Histograms of durations, and the statistics that can be computed from their buckets.
//!
//! There are sixteen buckets per power of two: a reported duration is at most 1/16 too large. A
//! percentile is given as the bounds of its bucket, and only if enough samples lie beyond it;
//! count, sum and maximum are exact.

use pinfold_host::WAIT_BUCKETS;

/// A histogram of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u64,
    max_ns: Option<u64>,
}

/// Bounds of a percentile, both inclusive (ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Shortest duration of the bucket (ns).
    pub at_least_ns: u64,
    /// Longest duration of the bucket, or the maximum (ns).
    pub at_most_ns: u64,
}

/// A percentile that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentile {
    /// Name of the percentile.
    pub name: &'static str,
    /// Its share of the samples, in thousandths.
    pub thousandths: u64,
    /// Minimum number of samples: ten beyond the percentile, one for the median.
    pub needs: u64,
}

/// The percentiles that are reported.
pub const PERCENTILES: [Percentile; 4] = [
    Percentile { name: "p50", thousandths: 500, needs: 1 },
    Percentile { name: "p90", thousandths: 900, needs: 100 },
    Percentile { name: "p99", thousandths: 990, needs: 1_000 },
    Percentile { name: "p99.9", thousandths: 999, needs: 10_000 },
];

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; WAIT_BUCKETS], count: 0, sum_ns: 0, max_ns: None }
    }
}

impl Histogram {
    /// Adds the counts of another histogram with the same buckets; `max_ns` is ignored if `count`
    /// is 0.
    pub fn add(&mut self, buckets: &[u64], count: u64, sum_ns: u64, max_ns: u64) {
        for (mine, other) in self.buckets.iter_mut().zip(buckets) {
            *mine += other;
        }
        self.count += count;
        self.sum_ns += sum_ns;
        if count > 0 {
            self.max_ns = self.max_ns.max(Some(max_ns));
        }
    }

    /// Adds all durations of another histogram.
    pub fn join(&mut self, other: &Histogram) {
        self.add(&other.buckets, other.count, other.sum_ns, other.max_ns.unwrap_or(0));
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the durations (ns).
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest duration (ns); `None` if there is none.
    pub fn max_ns(&self) -> Option<u64> {
        self.max_ns
    }

    /// Mean (ns); `None` if there is no duration.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// The buckets that are not empty: bounds and count, in ascending order.
    pub fn filled_buckets(&self) -> impl Iterator<Item = (Bounds, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(index, count)| (self.bounds(index), *count))
    }

    /// Bounds of a percentile; `None` if there are too few durations.
    pub fn percentile(&self, percentile: Percentile) -> Option<Bounds> {
        if self.count < percentile.needs {
            return None;
        }
        // The smallest duration that at least this share of all durations does not exceed.
        let rank = (u128::from(self.count) * u128::from(percentile.thousandths)).div_ceil(1_000);
        let mut below: u128 = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += u128::from(*count);
            if below >= rank.max(1) {
                return Some(self.bounds(index));
            }
        }
        None
    }

    fn bounds(&self, index: usize) -> Bounds {
        let first = first_of(index);
        let last = first_of(index + 1) - 1;
        let max = self.max_ns.unwrap_or(last);
        // The last bucket has no upper bound.
        let open = index + 1 == self.buckets.len();
        Bounds { at_least_ns: first, at_most_ns: if open { max } else { last.min(max) } }
    }
}

/// Shortest duration of a bucket (ns).
fn first_of(index: usize) -> u64 {
    let index = index as u64;
    if index < 16 {
        return index;
    }
    let power = index / 16 + 3;
    (16 + index % 16) << (power - 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_durations(durations: impl IntoIterator<Item = (u64, u64)>) -> Histogram {
        let mut all = Histogram::default();
        for (ns, times) in durations {
            let mut buckets = vec![0; WAIT_BUCKETS];
            let index = (0..WAIT_BUCKETS).rev().find(|index| first_of(*index) <= ns).unwrap();
            buckets[index] = times;
            all.add(&buckets, times, ns * times, ns);
        }
        all
    }

    #[test]
    fn buckets_join_and_are_a_sixteenth_wide() {
        for index in 0..WAIT_BUCKETS {
            let (first, next) = (first_of(index), first_of(index + 1));
            assert!(next > first);
            assert!(next - first <= (first / 16).max(1), "{index}: {first}..{next}");
        }
        assert_eq!(first_of(16), 16);
        assert_eq!(first_of(32), 32);
        assert_eq!(first_of(33), 34);
    }

    #[test]
    fn percentiles_lie_in_their_buckets() {
        let all = count_durations([(1_000, 989), (5_000, 10), (1_000_000, 1)]);
        let p50 = all.percentile(PERCENTILES[0]).unwrap();
        assert!(p50.at_least_ns <= 1_000 && p50.at_most_ns >= 1_000);
        let p99 = all.percentile(PERCENTILES[2]).unwrap();
        assert!(p99.at_least_ns <= 5_000 && p99.at_most_ns >= 5_000);
        // 1,000 samples are too few for the 99.9th percentile.
        assert_eq!(all.percentile(PERCENTILES[3]), None);
        assert_eq!((all.count(), all.max_ns()), (1_000, Some(1_000_000)));
        assert_eq!(all.filled_buckets().map(|(_, count)| count).collect::<Vec<_>>(), [989, 10, 1]);
        let mut twice = all.clone();
        twice.join(&all);
        assert_eq!((twice.count(), twice.max_ns()), (2_000, Some(1_000_000)));
    }

    #[test]
    fn one_in_a_thousand_needs_ten_thousand() {
        let all = count_durations([(100, 9_989), (70_000, 11)]);
        let bounds = all.percentile(PERCENTILES[3]).unwrap();
        assert!(bounds.at_least_ns <= 70_000 && bounds.at_most_ns == 70_000, "{bounds:?}");
        assert_eq!(count_durations([(100, 9_999)]).percentile(PERCENTILES[3]), None);
    }

    #[test]
    fn nothing_says_nothing() {
        let mut none = Histogram::default();
        none.join(&Histogram::default());
        assert_eq!((none.max_ns(), none.mean_ns()), (None, None));
        assert!(PERCENTILES.iter().all(|percentile| none.percentile(*percentile).is_none()));
        assert_eq!(none.filled_buckets().count(), 0);
    }

    #[test]
    fn the_last_bucket_ends_at_the_maximum() {
        let all = count_durations([(u64::MAX / 4, 2)]);
        let bounds = all.percentile(PERCENTILES[0]).unwrap();
        assert_eq!(bounds.at_most_ns, u64::MAX / 4);
    }
}

//! Tails: statistics of rare large values. Nothing is trimmed.
//!
//! Stalls and waits are different populations ([`RandomArrival`]); [`gap_curve`] gives both views.
//! If 0 of n samples exceed a limit, the upper bound of their share is 3/n (95 %, the rule of
//! three).

use super::coordinated_omission::RandomArrival;
use super::quantile::quantile_sorted;

/// Limits for the counts of stalls and waits (ns): 100, 500 and 1000 µs.
pub const EXCEEDANCE_LIMITS_NS: [f64; 3] = [100_000.0, 500_000.0, 1_000_000.0];

/// Minimum number of samples for a 99.9 % quantile: at least ten lie beyond it.
pub const P999_SAMPLES: usize = 10_000;

/// Number of samples above a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exceedance {
    /// The limit (ns).
    pub limit_ns: f64,
    /// Number of samples above it.
    pub count: usize,
    /// Total number of samples.
    pub samples: usize,
    /// If no sample exceeded the limit: upper bound of the share (95 %).
    pub upper_bound: Option<f64>,
}

/// Summary of a tail.
#[derive(Clone, Debug, PartialEq)]
pub struct Tail {
    /// Number of samples.
    pub samples: usize,
    /// Observation time (ns), summed over all observations.
    pub observed_ns: u64,
    /// Number of samples that did not fit in memory: the maximum may be too small.
    pub dropped: u64,
    /// The largest sample (ns).
    pub max_ns: Option<f64>,
    /// Median (ns).
    pub p50_ns: Option<f64>,
    /// 99 % quantile (ns).
    pub p99_ns: Option<f64>,
    /// 99.9 % quantile (ns), only with at least [`P999_SAMPLES`] samples.
    pub p999_ns: Option<f64>,
    /// Counts over [`EXCEEDANCE_LIMITS_NS`].
    pub exceedances: Vec<Exceedance>,
}

impl Tail {
    /// Summarises samples in any order.
    pub fn new(mut samples: Vec<f64>, observed_ns: u64, dropped: u64) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let enough = samples.len() >= P999_SAMPLES;
        Self {
            samples: samples.len(),
            observed_ns,
            dropped,
            max_ns: samples.last().copied(),
            p50_ns: quantile_sorted(&samples, 0.5),
            p99_ns: quantile_sorted(&samples, 0.99),
            p999_ns: enough.then(|| quantile_sorted(&samples, 0.999)).flatten(),
            exceedances: EXCEEDANCE_LIMITS_NS
                .map(|limit_ns| {
                    let count =
                        samples.len() - samples.partition_point(|&sample| sample <= limit_ns);
                    let none = count == 0 && !samples.is_empty();
                    Exceedance {
                        limit_ns,
                        count,
                        samples: samples.len(),
                        upper_bound: none.then(|| (3.0 / samples.len() as f64).min(1.0)),
                    }
                })
                .to_vec(),
        }
    }
}

/// One point of a stall curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GapPoint {
    /// The length (ns).
    pub wait_ns: f64,
    /// Probability that an arrival at a random time waits longer.
    pub arrival_probability: f64,
}

/// The waits of arrivals at `points` lengths, evenly spaced on a log scale from `floor_ns` to
/// the longest stall. Empty without stalls longer than the floor or without observed time.
pub fn gap_curve(gaps: &[f64], observed_ns: u64, floor_ns: f64, points: usize) -> Vec<GapPoint> {
    let Some(arrivals) = RandomArrival::new(gaps.to_vec(), observed_ns) else { return Vec::new() };
    let longest = arrivals.max_ns();
    if longest <= floor_ns || floor_ns <= 0.0 {
        return Vec::new();
    }
    let last = points.max(2) - 1;
    let ratio = longest / floor_ns;
    (0..=last)
        .map(|step| {
            let exact = floor_ns * ratio.powf(step as f64 / last as f64);
            let wait_ns = if step == last { longest } else { exact };
            GapPoint { wait_ns, arrival_probability: arrivals.exceedance_probability(wait_ns) }
        })
        .collect()
}

/// One point of a percentile plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantilePoint {
    /// The quantile, 0 to 1.
    pub quantile: f64,
    /// The sample at this quantile.
    pub value: f64,
}

/// The quantiles of a percentile plot with the x axis −log10(1 − p): ten points per decade of
/// `1 − p`, as far as the number of samples permits, then the maximum.
pub fn quantile_curve(samples: &[f64]) -> Vec<QuantilePoint> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let mut points = Vec::new();
    for step in 0_u32.. {
        let beyond = 10_f64.powf(-f64::from(step) / 10.0);
        if beyond * count < 1.0 {
            break;
        }
        let quantile = 1.0 - beyond;
        points.extend(
            quantile_sorted(&sorted, quantile).map(|value| QuantilePoint { quantile, value }),
        );
    }
    points.extend(sorted.last().map(|&value| QuantilePoint { quantile: 1.0, value }));
    points
}

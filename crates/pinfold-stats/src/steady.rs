//! Detects whether a run reached a steady state, and from which sample on.
//!
//! The samples, in the order in which they were taken, are divided into windows. The first window
//! is dropped (warm-up), and the medians of the others are searched for changes of their level with
//! PELT (Killick, Fearnhead and Eckley 2012) with squared deviations as cost. The last segment is
//! the steady state if it covers at least half of the run; otherwise there is none (Barrett et al.,
//! arXiv 1602.00602: many programs never reach one). The method does not run until the values stop
//! falling, because that would stop at a random moment.

use super::quantile::median;

/// Minimum number of samples for the detection; shorter runs need no steady state.
pub const STEADY_SAMPLES: usize = 30;

const MOST_WINDOWS: usize = 60;
/// Minimum length of a segment (windows).
const SHORTEST: usize = 3;
/// Share of the run that the last segment must cover.
const LAST_PART: f64 = 0.5;
/// Lower bound of the noise estimate, as a share of the level: smaller changes of level are
/// ignored.
const LEAST_SPREAD: f64 = 0.005;
/// Penalty per change, times the logarithm of the number of windows.
const PENALTY: f64 = 4.0;

/// Result of the detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteadyState {
    /// Too few samples.
    TooFew,
    /// Steady from this sample on.
    From(usize),
    /// The level kept changing.
    No {
        /// Number of segments with one level each.
        stretches: usize,
    },
}

impl SteadyState {
    /// The samples of the steady state; all samples where there is none.
    pub fn of_samples<'s>(&self, samples: &'s [f64]) -> &'s [f64] {
        match self {
            SteadyState::From(first) => samples.get(*first..).unwrap_or(samples),
            SteadyState::TooFew | SteadyState::No { .. } => samples,
        }
    }
}

/// Detects the steady state of samples in the order in which they were taken.
pub fn steady(samples: &[f64]) -> SteadyState {
    if samples.len() < STEADY_SAMPLES {
        return SteadyState::TooFew;
    }
    let length = samples.len().div_ceil(MOST_WINDOWS);
    let medians: Vec<f64> = samples.chunks(length).filter_map(median).skip(1).collect();
    let changes = changes(&medians);
    let last = changes.last().copied().unwrap_or(0);
    let rest = (medians.len() - last) as f64;
    if rest >= LAST_PART * (medians.len() + 1) as f64 {
        SteadyState::From((last + 1) * length)
    } else {
        SteadyState::No { stretches: changes.len() + 1 }
    }
}

/// Indexes at which a new level starts, ascending.
fn changes(values: &[f64]) -> Vec<usize> {
    let variance = spread(values).powi(2);
    if values.len() < 2 * SHORTEST || variance <= 0.0 {
        return Vec::new();
    }
    let penalty = PENALTY * (values.len() as f64).ln();
    let sums = Sums::from_values(values);
    // best[end]: lowest cost of values[..end]; from[end]: start of its last segment.
    let mut best = vec![f64::INFINITY; values.len() + 1];
    let mut from = vec![0; values.len() + 1];
    best[0] = -penalty;
    let mut open = vec![0];
    for end in SHORTEST..=values.len() {
        let (start, least) = open
            .iter()
            .filter(|start| end - **start >= SHORTEST)
            .map(|start| (*start, best[*start] + sums.cost(*start, end) / variance))
            .min_by(|one, other| one.1.total_cmp(&other.1))
            .unwrap_or((0, f64::INFINITY));
        // A start that costs more even without the penalty can never be optimal later.
        open.retain(|start| {
            end - start < SHORTEST
                || best[*start] + sums.cost(*start, end) / variance <= least + penalty
        });
        (best[end], from[end]) = (least + penalty, start);
        let next = end + 1 - SHORTEST;
        if next >= SHORTEST {
            open.push(next);
        }
    }
    let mut found = Vec::new();
    let mut end = from[values.len()];
    while end > 0 {
        found.push(end);
        end = from[end];
    }
    found.reverse();
    found
}

/// Standard deviation inside a segment, from the differences of neighbours, which a change of level
/// hardly affects.
fn spread(values: &[f64]) -> f64 {
    let steps: Vec<f64> = values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    let level = median(values).unwrap_or(0.0).abs();
    // For normal noise, the median of |a - b| is 0.6745 · √2 of its standard deviation.
    let noise = median(&steps).unwrap_or(0.0) / (0.6745 * std::f64::consts::SQRT_2);
    noise.max(LEAST_SPREAD * level)
}

/// Prefix sums, so that the cost of a segment needs no loop.
struct Sums {
    values: Vec<f64>,
    squares: Vec<f64>,
}

impl Sums {
    fn from_values(values: &[f64]) -> Self {
        // Deviations from the median: squares of large numbers would lose the small differences.
        let middle = median(values).unwrap_or(0.0);
        let mut sums = Self { values: vec![0.0], squares: vec![0.0] };
        let (mut value, mut square) = (0.0, 0.0);
        for one in values {
            value += one - middle;
            square += (one - middle).powi(2);
            sums.values.push(value);
            sums.squares.push(square);
        }
        sums
    }

    /// Sum of squared deviations of `values[start..end]` from their mean.
    fn cost(&self, start: usize, end: usize) -> f64 {
        let sum = self.values[end] - self.values[start];
        let squares = self.squares[end] - self.squares[start];
        (squares - sum * sum / (end - start) as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Pcg32;

    fn noise(generator: &mut Pcg32) -> f64 {
        (0..12).map(|_| generator.unit()).sum::<f64>() - 6.0
    }

    /// `(part of the run, level)`, with a standard deviation of 1 % of the level.
    fn run(generator: &mut Pcg32, count: usize, levels: &[(f64, f64)]) -> Vec<f64> {
        (0..count)
            .map(|index| {
                let part = index as f64 / count as f64;
                let level = levels.iter().find(|(end, _)| part < *end).unwrap().1;
                level * (1.0 + 0.01 * noise(generator))
            })
            .collect()
    }

    #[test]
    fn a_level_run_is_steady_after_its_first_window() {
        let mut generator = Pcg32::new(1, 1);
        let mut wrong = 0;
        for _ in 0..400 {
            let samples = run(&mut generator, 600, &[(1.0, 100.0)]);
            wrong += u32::from(steady(&samples) != SteadyState::From(10));
        }
        assert!(wrong <= 20, "{wrong} of 400 level runs were torn apart");
    }

    #[test]
    fn a_warm_up_is_left_out_and_a_late_change_is_no_steady_state() {
        let mut generator = Pcg32::new(2, 1);
        for _ in 0..50 {
            let warm = run(&mut generator, 600, &[(0.3, 70.0), (1.0, 100.0)]);
            match steady(&warm) {
                SteadyState::From(first) => assert!((170..=210).contains(&first), "{first}"),
                other @ (SteadyState::TooFew | SteadyState::No { .. }) => panic!("{other:?}"),
            }
            let late = run(&mut generator, 600, &[(0.7, 100.0), (1.0, 90.0)]);
            assert!(matches!(steady(&late), SteadyState::No { stretches: 2.. }));
        }
    }

    #[test]
    fn single_bad_windows_are_no_change_of_level() {
        let mut generator = Pcg32::new(3, 1);
        let mut samples = run(&mut generator, 600, &[(1.0, 100.0)]);
        samples[300] = 500.0;
        samples[301] = 400.0;
        assert_eq!(steady(&samples), SteadyState::From(10));
    }

    #[test]
    fn what_cannot_be_known_is_stated() {
        assert_eq!(steady(&[]), SteadyState::TooFew);
        assert_eq!(steady(&[1.0; STEADY_SAMPLES - 1]), SteadyState::TooFew);
        assert_eq!(steady(&[1.0; STEADY_SAMPLES]), SteadyState::From(1));
        assert_eq!(steady(&[0.0; 100]), SteadyState::From(2));
        let samples = [1.0, 2.0, 3.0];
        assert_eq!(SteadyState::From(1).of_samples(&samples), &samples[1..]);
        assert_eq!(SteadyState::TooFew.of_samples(&samples), &samples);
    }
}

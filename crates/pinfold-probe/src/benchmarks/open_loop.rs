//! Wake-ups with and without the periods that were skipped while a thread was late.
//!
//! The wake-up benchmark has an open-loop schedule: when a thread wakes after more than one period,
//! each skipped period is a sample too, with the lateness that a wake-up in that period would have
//! had (the correction for coordinated omission of G. Tene's `HdrHistogram`). Tools such as
//! cyclictest omit the skipped periods, so a stall of one second is one sample among thousands.
//! Both views are needed: the first gives the latency of arrivals at fixed times, the second can be
//! compared with cyclictest.

use pinfold_model::{Family, Figure, Series, Unit};

/// Wake-ups in both views.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenLoop {
    /// Lateness of the wake-ups that happened (ns), as cyclictest reports it.
    pub woken: Vec<f64>,
    /// Periods that passed without a wake-up.
    pub skipped: usize,
    /// Lateness of all periods (ns), with the skipped ones.
    pub every_period: Vec<f64>,
}

/// Why the samples cannot come from the wake-up benchmark.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenLoopError {
    /// This number of samples was dropped, so the skipped periods cannot be determined.
    #[error("{0} wake-ups did not fit into the benchmark's memory; raise its number of samples")]
    Dropped(u64),
    /// A sample after a late wake-up does not have the value that the period requires.
    #[error("sample {place}: expected {expected} ns after a late wake-up, found {found} ns")]
    Sample {
        /// Index of the sample.
        place: usize,
        /// Its value (ns).
        found: String,
        /// The required value (ns).
        expected: String,
    },
}

impl OpenLoop {
    /// Separates the wake-ups of a series from the skipped periods: a lateness L is followed by ⌊L
    /// / period⌋ samples, each one period less than the one before, or fewer at the end of the
    /// series.
    ///
    /// # Errors
    /// [`OpenLoopError`].
    pub fn new(series: &Series, period_us: u32) -> Result<Self, OpenLoopError> {
        if series.dropped > 0 {
            return Err(OpenLoopError::Dropped(series.dropped));
        }
        let period_ns = f64::from(period_us) * 1e3;
        let mut woken = Vec::new();
        let mut place = 0;
        while let Some(late) = series.samples.get(place) {
            woken.push(*late);
            place += 1;
            let mut rest = late - period_ns;
            while rest >= 0.0
                && let Some(found) = series.samples.get(place)
            {
                if (found - rest).abs() > 0.5 {
                    return Err(OpenLoopError::Sample {
                        place,
                        found: found.to_string(),
                        expected: rest.to_string(),
                    });
                }
                place += 1;
                rest -= period_ns;
            }
        }
        let skipped = series.samples.len() - woken.len();
        Ok(Self { woken, skipped, every_period: series.samples.clone() })
    }

    /// Both views as figures of the probe `wakeup`, distinguished by the label `periods`: `woken`
    /// (raw) and `every` (with the skipped periods).
    #[must_use]
    pub fn figures(self, series: &Series) -> [Figure; 2] {
        let mut flags = series.flags.clone();
        if self.skipped > 0 {
            flags.push(format!("skipped {}", self.skipped));
        }
        [("woken", self.woken), ("every", self.every_period)].map(|(periods, samples)| Figure {
            probe: "wakeup".to_owned(),
            labels: [("periods".to_owned(), periods.to_owned())].into(),
            unit: Unit::Nanoseconds,
            family: Family::Tail,
            cpu: Some(series.cpu),
            duration_ns: series.observed_ns,
            samples,
            dropped: 0,
            disturbed: 0,
            flags: flags.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::Metric;

    use super::*;

    fn series(samples: &[f64]) -> Series {
        Series {
            metric: Metric::Wakeup,
            cpu: 3,
            duration_ns: 1_000_000,
            observed_ns: 900_000,
            dropped: 0,
            samples: samples.to_vec(),
            flags: vec!["migrated".to_owned()],
        }
    }

    #[test]
    fn skipped_periods_are_distinguished_from_wake_ups() {
        // A period of 100 µs: 230 µs late means that two periods were skipped.
        let late = series(&[5_000.0, 230_000.0, 130_000.0, 30_000.0, 7_000.0, 100_000.0, 0.0]);
        let apart = OpenLoop::new(&late, 100).unwrap();
        assert_eq!(apart.woken, [5_000.0, 230_000.0, 7_000.0, 100_000.0]);
        assert_eq!(apart.skipped, 3);
        assert_eq!(apart.every_period, late.samples);
        let [raw, all] = apart.figures(&late);
        assert_eq!((raw.labels["periods"].as_str(), raw.samples.len()), ("woken", 4));
        assert_eq!((all.labels["periods"].as_str(), all.samples.len()), ("every", 7));
        assert_eq!(raw.flags, ["migrated", "skipped 3"]);
        assert_eq!((all.cpu, all.duration_ns), (Some(3), 900_000));
    }

    #[test]
    fn the_end_of_the_series_cuts_the_periods_off() {
        let apart = OpenLoop::new(&series(&[1.0, 900_000.0, 800_000.0]), 100).unwrap();
        assert_eq!((apart.woken.as_slice(), apart.skipped), ([1.0, 900_000.0].as_slice(), 1));
        let none = OpenLoop::new(&series(&[1.0, 99_999.0, 2.0]), 100).unwrap();
        assert_eq!((none.woken.len(), none.skipped), (3, 0));
        assert!(none.figures(&series(&[]))[0].flags.iter().all(|flag| flag == "migrated"));
    }

    #[test]
    fn what_is_not_of_the_schedule_is_reported() {
        assert_eq!(
            report(&series(&[150_000.0, 60_000.0])),
            "sample 1: expected 50000 ns after a late wake-up, found 60000 ns"
        );
        let mut lost = series(&[1.0]);
        lost.dropped = 4;
        assert!(report(&lost).starts_with("4 wake-ups did not fit"));
    }

    fn report(series: &Series) -> String {
        OpenLoop::new(series, 100).unwrap_err().to_string()
    }
}

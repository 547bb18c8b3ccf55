//! Speed inside short bursts of work, each after a sleep.
//!
//! The caller chooses the number of units: [`super::MicroOutcome::per_second`] of an unthrottled
//! [`super::MicroKind::Cpu`] times the wanted length. The length of a burst at full speed is the
//! result of this benchmark without emulation.

use serde::Deserialize;

use super::{SpeedBenchmark, WORK_LIMIT_NS, argv, line, timeout_ns};
use crate::benchmarks::{BenchmarkError, seconds};

/// The settings of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Units of work in a burst, 1 to 100000000000.
    pub units: u64,
    /// Sleep before each burst (µs), 1 to 60000000.
    pub sleep_us: u32,
    /// Duration (ns), 10 ms to one day; the last burst is always completed, and there is at least
    /// one.
    pub duration_ns: u64,
    /// Number of bursts for which memory is reserved, 1 to 10000000; further ones are counted as
    /// dropped.
    pub max_samples: u32,
}

impl Burst {
    /// Settings with memory for 200000 bursts.
    pub fn new(units: u64, sleep_us: u32, duration_ns: u64) -> Self {
        Self { units, sleep_us, duration_ns, max_samples: 200_000 }
    }

    fn check(&self, line: Line) -> Result<BurstOutcome, String> {
        let sleep_ns = u64::from(self.sleep_us) * 1_000;
        line::something_done(line.units, line.elapsed_ns)?;
        if line.units != self.units || line.sleep_ns != sleep_ns {
            let (units, sleep) = (line.units, line.sleep_ns);
            return Err(format!("is of bursts of {units} units after {sleep} ns"));
        }
        if line.burst_ns.is_empty() || line.burst_ns.len() != line.late_ns.len() {
            let (bursts, starts) = (line.burst_ns.len(), line.late_ns.len());
            return Err(format!("reports {bursts} bursts and {starts} starts"));
        }
        let parts = line.burst_ns.iter().chain(&line.late_ns).map(|ns| u128::from(*ns));
        let asleep = u128::from(sleep_ns) * line.burst_ns.len() as u128;
        let sum = parts.sum::<u128>() + asleep;
        if sum > u128::from(line.elapsed_ns) || line.burst_ns.contains(&0) {
            return Err(format!("holds {sum} ns of bursts and sleeps in {} ns", line.elapsed_ns));
        }
        let pairs = line.burst_ns.into_iter().zip(line.late_ns);
        Ok(BurstOutcome {
            elapsed_ns: line.elapsed_ns,
            cpu_ns: line.cpu_ns,
            bursts: pairs.map(|(burst_ns, late_ns)| BurstSample { burst_ns, late_ns }).collect(),
            dropped: line.dropped,
        })
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstOutcome {
    /// From the start of the first sleep to the end of the last burst (ns).
    pub elapsed_ns: u64,
    /// CPU time (ns), with a resolution of 1 µs.
    pub cpu_ns: u64,
    /// The bursts; at least one.
    pub bursts: Vec<BurstSample>,
    /// Number of bursts for which there was no memory.
    pub dropped: u64,
}

/// One burst.
///
/// A task that occupies the CPU at the end of the sleep delays the start; this delay is not part of
/// the burst. For methods that take the CPU at intervals, the sum of both is what a slower CPU
/// would have taken: a burst that always starts right after such an interval looks too fast by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstSample {
    /// From the first instruction of the burst to the last (ns).
    pub burst_ns: u64,
    /// From the requested end of the sleep to the first instruction (ns).
    pub late_ns: u64,
}

#[derive(Deserialize)]
struct Line {
    units: u64,
    sleep_ns: u64,
    elapsed_ns: u64,
    cpu_ns: u64,
    dropped: u64,
    burst_ns: Vec<u64>,
    late_ns: Vec<u64>,
}

impl SpeedBenchmark for Burst {
    type Outcome = BurstOutcome;

    fn probe(&self) -> &'static str {
        "burst"
    }

    fn argv(&self) -> Vec<String> {
        argv(
            &["burst"],
            [
                ("--seconds", seconds(self.duration_ns)),
                ("--units", self.units.to_string()),
                ("--sleep-us", self.sleep_us.to_string()),
                ("--max-samples", self.max_samples.to_string()),
            ],
        )
    }

    fn timeout_ns(&self) -> u64 {
        timeout_ns(self.duration_ns.saturating_add(WORK_LIMIT_NS))
    }

    fn parse(&self, output: &str) -> Result<BurstOutcome, BenchmarkError> {
        line::read(self.probe(), output, |line| self.check(line))
    }
}

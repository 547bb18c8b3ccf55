//! The loads on the CPUs, and the readings of their speed.

use pinfold_probe::benchmarks::BenchmarkError;
use pinfold_probe::cpu_speed::{
    Burst, BurstSample, Churn, ChurnKind, Progress, ProgressOutcome, SpeedBenchmark, Stop, Workers,
};

/// Timeout of a run: at the lowest speed, including its start.
pub const PATIENCE_NS: u64 = 60_000_000_000;
/// The first part of a run does not count: a tool that controls a process needs time to find it.
pub const LEAD_MS: u32 = 200;
const MS: u64 = 1_000_000;

/// A run of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Workers that spin for this number of milliseconds, not pinned.
    Work(Workers, u32),
    /// Bursts of work, each after a sleep as long as the burst at full speed.
    Bursts {
        /// Number of units of a burst.
        units: u64,
        /// Its length at full speed (µs).
        length_us: u32,
        /// Duration (ms).
        ms: u32,
    },
    /// Short-lived or alternating processes, for this number of milliseconds.
    Churn(ChurnKind, u32),
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Units per second; for bursts, per second inside them.
    pub rate: f64,
    /// For bursts: the same including the delay of each start.
    pub rate_with_wait: Option<f64>,
    /// Units of all workers in each counted millisecond.
    pub windows: Vec<u64>,
    /// Start of the counted time in the run (ns).
    pub begin_ns: u64,
    /// Stops of all workers that start in the counted time.
    pub stops: Vec<Stop>,
}

impl Load {
    /// Its name in tables.
    pub fn name(self) -> String {
        match self {
            Load::Work(Workers::Threads(1), _) => "one thread".to_owned(),
            Load::Work(Workers::Threads(count), _) => format!("{count} threads"),
            Load::Work(Workers::Processes(count), _) => format!("{count} processes"),
            Load::Bursts { length_us, .. } => format!("bursts of {} ms", in_ms(length_us)),
            Load::Churn(ChurnKind::Fork, _) => "fork".to_owned(),
            Load::Churn(ChurnKind::Pipe, _) => "pipe".to_owned(),
            Load::Churn(ChurnKind::Spawn, _) => "spawn".to_owned(),
        }
    }

    /// True if it works in several processes.
    pub fn has_children(self) -> bool {
        matches!(self, Load::Work(Workers::Processes(_), _) | Load::Churn(..))
    }

    /// A shorter load for runs at full speed, of which there are two for each slowed one.
    pub fn shorten(self) -> Self {
        fn half(ms: u32) -> u32 {
            LEAD_MS + ms.saturating_sub(LEAD_MS) * 35 / 100
        }
        match self {
            Load::Work(workers, ms) => Load::Work(workers, half(ms)),
            Load::Churn(kind, ms) => Load::Churn(kind, half(ms)),
            // There are few bursts already.
            Load::Bursts { .. } => self,
        }
    }

    /// The arguments of `pinload`.
    pub fn argv(self) -> Vec<String> {
        match self {
            Load::Work(workers, ms) => Progress::new(workers, ms).argv(),
            Load::Bursts { .. } => self.burst().argv(),
            Load::Churn(kind, ms) => Churn::new(kind, u64::from(ms) * MS).argv(),
        }
    }

    fn burst(self) -> Burst {
        match self {
            Load::Bursts { units, length_us, ms } => {
                Burst::new(units, length_us, u64::from(ms) * MS)
            }
            Load::Work(..) | Load::Churn(..) => Burst::new(1, 1, MS),
        }
    }

    /// The same load with this additional time before the counted part.
    pub fn after(self, more_ms: u32) -> Self {
        match self {
            Load::Work(workers, ms) => Load::Work(workers, ms + more_ms),
            Load::Bursts { units, length_us, ms } => {
                Load::Bursts { units, length_us, ms: ms + more_ms }
            }
            // Has no parts that could be left out.
            Load::Churn(..) => self,
        }
    }

    /// Parses its output.
    pub fn read(self, text: &str) -> Result<Reading, BenchmarkError> {
        self.read_after(text, 0)
    }

    /// Parses the output of a load with [`Load::after`].
    pub fn read_after(self, text: &str, more_ms: u32) -> Result<Reading, BenchmarkError> {
        match self {
            Load::Work(workers, ms) => {
                Ok(of_progress(&Progress::new(workers, ms).parse(text)?, LEAD_MS + more_ms))
            }
            Load::Bursts { units, length_us, .. } => Ok(of_bursts(
                &self.burst().parse(text)?.bursts,
                units,
                length_us,
                LEAD_MS + more_ms,
            )),
            Load::Churn(kind, ms) => {
                let outcome = Churn::new(kind, u64::from(ms) * MS).parse(text)?;
                Ok(Reading { rate: outcome.per_second(), ..Reading::default() })
            }
        }
    }
}

/// `0.5`, `200`.
pub fn in_ms(us: u32) -> String {
    (f64::from(us) / 1e3).to_string()
}

fn of_progress(outcome: &ProgressOutcome, lead_ms: u32) -> Reading {
    let lead = usize::try_from(lead_ms).unwrap_or(0);
    let longest = outcome.workers.iter().map(|worker| worker.windows.len()).max().unwrap_or(0);
    let mut windows = vec![0; longest.saturating_sub(lead)];
    let mut stops = Vec::new();
    for worker in &outcome.workers {
        for (sum, units) in windows.iter_mut().zip(worker.windows.iter().skip(lead)) {
            *sum += u64::from(*units);
        }
        stops.extend(
            worker.stops.iter().filter(|stop| stop.start_ns >= u64::from(lead_ms) * MS).copied(),
        );
    }
    let units: u64 = windows.iter().sum();
    let rate = units as f64 * 1e3 / windows.len().max(1) as f64;
    let begin_ns = u64::from(lead_ms) * MS;
    Reading { rate, rate_with_wait: None, windows, begin_ns, stops }
}

fn of_bursts(bursts: &[BurstSample], units: u64, sleep_us: u32, lead_ms: u32) -> Reading {
    let mut at = 0;
    let early = bursts.iter().take_while(|burst| {
        at += burst.burst_ns + burst.late_ns + u64::from(sleep_us) * 1_000;
        at <= u64::from(lead_ms) * MS
    });
    // If all started early, all count, because there are no others.
    let skipped = Some(early.count()).filter(|count| *count < bursts.len()).unwrap_or(0);
    let counted = bursts.iter().skip(skipped);
    let number = bursts.len() - skipped;
    let (inside, waited) = counted
        .fold((0, 0), |(inside, waited), burst| (inside + burst.burst_ns, waited + burst.late_ns));
    let per_second = |ns: u64| (units as f64 * number as f64) * 1e9 / ns.max(1) as f64;
    Reading {
        rate: per_second(inside),
        rate_with_wait: Some(per_second(inside + waited)),
        ..Reading::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_bursts_do_not_count() {
        // 100 ms each: the first two are in the lead, which is fast; then half speed, and late by a
        // quarter.
        let early = BurstSample { burst_ns: 50 * MS, late_ns: 0 };
        let late = BurstSample { burst_ns: 100 * MS, late_ns: 25 * MS };
        let reading = of_bursts(&[early, early, late, late], 1_000, 50_000, 200);
        assert_eq!(reading.rate, 10_000.0);
        assert_eq!(reading.rate_with_wait, Some(8_000.0));
        let only = of_bursts(&[early], 1_000, 50_000, 200);
        assert_eq!(only.rate, 20_000.0);
    }

    #[test]
    fn windows_and_stops_after_the_lead_count() {
        let mut windows = vec!["100"; 200];
        windows.extend(["3"; 10]);
        let units = 200 * 100 + 30;
        let text = format!(
            "{{\"probe\":\"progress\",\"kind\":\"threads\",\"start_ns\":7,\"window_ns\":1000000,\"unit_ns\":600,\"elapsed_ns\":210000000,\"units\":{units},\"cpu_ns\":1,\"workers\":[{{\"cpu\":null,\"units\":{units},\"cpu_ns\":1,\"late_ns\":0,\"dropped\":0,\"windows\":[{}],\"stops\":[[5000000,30000],[201000000,40000]]}}]}}\n",
            windows.join(",")
        );
        let reading = Load::Work(Workers::Threads(1), 210).read(&text).unwrap();
        assert_eq!((reading.rate, reading.windows), (3_000.0, vec![3; 10]));
        assert_eq!(reading.stops, [Stop { start_ns: 201_000_000, length_ns: 40_000 }]);
    }
}

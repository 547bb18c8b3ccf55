//! The six micro-benchmarks of Buchert, Nussbaum and Gustedt, "Methods for Emulation of
//! Multi-Core CPU Performance", HPCC 2011: result = work over elapsed time; and one of a program
//! whose data a cache holds.

use serde::Deserialize;

use super::{SpeedBenchmark, WORK_LIMIT_NS, argv, line, per_second, timeout_ns};
use crate::benchmarks::{BenchmarkError, seconds};

const SECOND: u64 = 1_000_000_000;

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroKind {
    /// Units of integer work.
    Cpu,
    /// UDP datagrams of 1 KiB to an address that no host has, in a network namespace of its own.
    Udp,
    /// Integer work, a sleep, integer work.
    Sleep {
        /// Length of the sleep (ns), 1 ms to one hour.
        sleep_ns: u64,
    },
    /// Streams through memory, in blocks of 96 KiB.
    Memory {
        /// Size of all arrays together (MiB), 1 to 65536; a flag reports if they fit in the
        /// last-level cache.
        mib: u32,
    },
    /// Integer work in processes, until the last has been reaped.
    Processes(
        /// Number of processes, 1 to 1024.
        u32,
    ),
    /// Integer work in threads, until the last has been joined.
    Threads(
        /// Number of threads, 1 to 1024.
        u32,
    ),
    /// Loads in random order, each of which waits for the one before it; a unit is 1024 loads.
    Cache {
        /// Size of the data (KiB), 4 to 1048576.
        kib: u32,
    },
}

/// Amount of work of each phase (`sleep` has two phases).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As much as can be done in this time (ns), 10 ms to one hour; takes the same time at every
    /// speed.
    Time(u64),
    /// This number of units for each worker; takes longer on a slower CPU, at most one hour.
    Units(u64),
}

/// The settings of one micro-benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBenchmark {
    /// The kind of work.
    pub kind: MicroKind,
    /// The amount of work.
    pub amount: Amount,
}

/// Result of a micro-benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroOutcome {
    /// Units of all workers.
    pub units: u64,
    /// From before the first worker was created until after the last was joined (ns).
    pub elapsed_ns: u64,
    /// `elapsed_ns` without the sleep.
    pub working_ns: u64,
    /// CPU time of all workers (ns), with a resolution of 1 µs.
    pub cpu_ns: u64,
    /// Units of each worker; one entry, except for processes and threads.
    pub worker_units: Vec<u64>,
    /// Limitations of the result: `fits-in-last-cache 128 of 480 MiB`.
    pub flags: Vec<String>,
}

impl MicroOutcome {
    /// Units per second of elapsed time.
    pub fn per_second(&self) -> f64 {
        per_second(self.units, self.elapsed_ns)
    }
}

impl MicroBenchmark {
    /// The six benchmarks with the durations of the paper: 3 s for CPU, else 1 s; five workers.
    pub fn all_of_the_paper() -> [Self; 6] {
        let lasting = |kind, ns| Self { kind, amount: Amount::Time(ns) };
        [
            lasting(MicroKind::Cpu, 3 * SECOND),
            lasting(MicroKind::Udp, SECOND),
            lasting(MicroKind::Sleep { sleep_ns: SECOND }, SECOND),
            lasting(MicroKind::Memory { mib: 128 }, SECOND),
            lasting(MicroKind::Processes(5), SECOND),
            lasting(MicroKind::Threads(5), SECOND),
        ]
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        match self.kind {
            MicroKind::Cpu
            | MicroKind::Udp
            | MicroKind::Sleep { .. }
            | MicroKind::Memory { .. }
            | MicroKind::Cache { .. } => 1,
            MicroKind::Processes(count) | MicroKind::Threads(count) => count,
        }
    }

    /// Number of phases of each worker.
    fn phases_per_worker(&self) -> u64 {
        match self.kind {
            MicroKind::Sleep { .. } => 2,
            MicroKind::Cpu
            | MicroKind::Udp
            | MicroKind::Memory { .. }
            | MicroKind::Processes(_)
            | MicroKind::Threads(_)
            | MicroKind::Cache { .. } => 1,
        }
    }

    fn check(&self, line: Line) -> Result<MicroOutcome, String> {
        line::something_done(line.units, line.elapsed_ns)?;
        line::adds_up("units", line.units, line.workers.iter().copied())?;
        if line.working_ns == 0 || line.working_ns > line.elapsed_ns {
            return Err(format!("worked for {} of {} ns", line.working_ns, line.elapsed_ns));
        }
        if u32::try_from(line.workers.len()) != Ok(self.workers()) {
            let (there, wanted) = (line.workers.len(), self.workers());
            return Err(format!("reports {there} workers instead of {wanted}"));
        }
        if let Amount::Units(units) = self.amount {
            let wanted = units.saturating_mul(self.phases_per_worker());
            if let Some(done) = line.workers.iter().find(|done| **done != wanted) {
                return Err(format!("reports {done} units of a worker instead of {wanted}"));
            }
        }
        Ok(MicroOutcome {
            units: line.units,
            elapsed_ns: line.elapsed_ns,
            working_ns: line.working_ns,
            cpu_ns: line.cpu_ns,
            worker_units: line.workers,
            flags: line.flags,
        })
    }
}

#[derive(Deserialize)]
struct Line {
    units: u64,
    elapsed_ns: u64,
    working_ns: u64,
    cpu_ns: u64,
    workers: Vec<u64>,
    #[serde(default)]
    flags: Vec<String>,
}

impl SpeedBenchmark for MicroBenchmark {
    type Outcome = MicroOutcome;

    fn probe(&self) -> &'static str {
        match self.kind {
            MicroKind::Cpu => "micro-cpu",
            MicroKind::Udp => "micro-udp",
            MicroKind::Sleep { .. } => "micro-sleep",
            MicroKind::Memory { .. } => "micro-memory",
            MicroKind::Processes(_) => "micro-processes",
            MicroKind::Threads(_) => "micro-threads",
            MicroKind::Cache { .. } => "micro-cache",
        }
    }

    fn argv(&self) -> Vec<String> {
        let kind = self.probe().trim_start_matches("micro-");
        let amount = match self.amount {
            Amount::Time(ns) => ("--seconds", seconds(ns)),
            Amount::Units(units) => ("--units", units.to_string()),
        };
        let own = match self.kind {
            MicroKind::Cpu | MicroKind::Udp => return argv(&["micro", kind], [amount]),
            MicroKind::Sleep { sleep_ns } => ("--sleep-seconds", seconds(sleep_ns)),
            MicroKind::Memory { mib } => ("--memory-mib", mib.to_string()),
            MicroKind::Cache { kib } => ("--cache-kib", kib.to_string()),
            MicroKind::Processes(count) | MicroKind::Threads(count) => {
                ("--workers", count.to_string())
            }
        };
        argv(&["micro", kind], [amount, own])
    }

    fn timeout_ns(&self) -> u64 {
        let asleep = match self.kind {
            MicroKind::Sleep { sleep_ns } => sleep_ns,
            MicroKind::Cpu
            | MicroKind::Udp
            | MicroKind::Memory { .. }
            | MicroKind::Processes(_)
            | MicroKind::Threads(_)
            | MicroKind::Cache { .. } => 0,
        };
        match self.amount {
            Amount::Time(ns) => timeout_ns(ns.saturating_mul(2).saturating_add(asleep)),
            Amount::Units(_) => timeout_ns(WORK_LIMIT_NS.saturating_add(asleep)),
        }
    }

    fn parse(&self, output: &str) -> Result<MicroOutcome, BenchmarkError> {
        line::read(self.probe(), output, |line| self.check(line))
    }
}

//! The six micro-benchmarks of Buchert, Nussbaum and Gustedt, "Methods for Emulation of
//! Multi-Core CPU Performance", HPCC 2011: result = work over elapsed time.

use serde::Deserialize;

use super::{SpeedBenchmark, WORK_LIMIT_NS, argv, line, per_second, timeout_ns};
use crate::benchmarks::{BenchmarkError, seconds};

const SECOND: u64 = 1_000_000_000;

/// What works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroKind {
    /// Units of integer work.
    Cpu,
    /// UDP datagrams of 1 KiB that nobody reads.
    Udp,
    /// Integer work, a sleep, integer work.
    Sleep {
        /// Length of the sleep, 1 ms to an hour.
        sleep_ns: u64,
    },
    /// Blocks of 96 KiB of a stream through memory.
    Memory {
        /// MiB of all arrays together, 1 to 65536; where the last cache holds them a flag says so.
        mib: u32,
    },
    /// Integer work in processes, until the last has been waited for.
    Processes(
        /// How many, 1 to 1024.
        u32,
    ),
    /// Integer work in threads, until the last has been joined.
    Threads(
        /// How many, 1 to 1024.
        u32,
    ),
}

/// How much each stretch of work is (of which `sleep` has two).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As much as can be done in this time (ns), 10 ms to an hour: takes as long at every speed.
    Time(u64),
    /// So many units, by each worker: takes the longer the slower the CPU is, at most an hour.
    Units(u64),
}

/// One micro-benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBenchmark {
    /// What works.
    pub kind: MicroKind,
    /// How much.
    pub amount: Amount,
}

/// What a micro-benchmark did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroOutcome {
    /// Units of all workers.
    pub units: u64,
    /// From before the first worker was made until after the last was joined.
    pub elapsed_ns: u64,
    /// The same without the sleep.
    pub working_ns: u64,
    /// CPU time of all workers, to the microsecond.
    pub cpu_ns: u64,
    /// Units of each worker; one, except for processes and threads.
    pub worker_units: Vec<u64>,
    /// What limits it: `fits-in-last-cache 128 of 480 MiB`.
    pub flags: Vec<String>,
}

impl MicroOutcome {
    /// Units per second of elapsed time.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        per_second(self.units, self.elapsed_ns)
    }

    /// Units per second of the time that was not slept.
    #[must_use]
    pub fn per_working_second(&self) -> f64 {
        per_second(self.units, self.working_ns)
    }
}

impl MicroBenchmark {
    /// The six with the lengths of the paper: 3 s of CPU, else 1 s; five workers.
    #[must_use]
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
    #[must_use]
    pub fn workers(&self) -> u32 {
        match self.kind {
            MicroKind::Cpu
            | MicroKind::Udp
            | MicroKind::Sleep { .. }
            | MicroKind::Memory { .. } => 1,
            MicroKind::Processes(count) | MicroKind::Threads(count) => count,
        }
    }

    /// How often each worker does the amount.
    fn stretches(&self) -> u64 {
        match self.kind {
            MicroKind::Sleep { .. } => 2,
            MicroKind::Cpu
            | MicroKind::Udp
            | MicroKind::Memory { .. }
            | MicroKind::Processes(_)
            | MicroKind::Threads(_) => 1,
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
            let wanted = units.saturating_mul(self.stretches());
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
            | MicroKind::Threads(_) => 0,
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

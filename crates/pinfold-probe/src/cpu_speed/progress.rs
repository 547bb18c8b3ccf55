//! Evenness of progress: units of work in each millisecond, and every stop.

use pinfold_model::{CpuSet, PuId};
use serde::Deserialize;

use super::{SpeedBenchmark, argv, line, timeout_ns};
use crate::benchmarks::{BenchmarkError, seconds};

const MS: u64 = 1_000_000;

/// Concurrent workers, 1 to 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Threads of one process.
    Threads(u32),
    /// Processes.
    Processes(u32),
}

impl Workers {
    /// Number of workers.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Workers::Threads(count) | Workers::Processes(count) => count,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Workers::Threads(_) => "threads",
            Workers::Processes(_) => "processes",
        }
    }
}

/// The settings of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The workers.
    pub workers: Workers,
    /// One CPU for each worker, in order; `None`: not pinned.
    pub pinned: Option<CpuSet>,
    /// Duration (ms), 10 to 600000; the result has one window per millisecond.
    pub duration_ms: u32,
    /// Stops shorter than this (ns), or than four units of work, are not recorded; 1000 to
    /// 1000000000. A unit takes about 600 ns.
    pub gap_min_ns: u64,
    /// Number of stops per worker for which memory is reserved, 1 to 10000000; further ones are
    /// counted as dropped.
    pub max_stops: u32,
}

impl Progress {
    /// Settings without pinning, with stops from 20 µs and memory for 100000 of them.
    pub fn new(workers: Workers, duration_ms: u32) -> Self {
        Self { workers, pinned: None, duration_ms, gap_min_ns: 20_000, max_stops: 100_000 }
    }

    fn check(&self, line: Line) -> Result<ProgressOutcome, String> {
        line::something_done(line.units, line.elapsed_ns)?;
        line::adds_up("units", line.units, line.workers.iter().map(|worker| worker.units))?;
        line::adds_up("ns of CPU time", line.cpu_ns, line.workers.iter().map(|w| w.cpu_ns))?;
        if line.kind != self.workers.name() || line.window_ns != MS {
            return Err(format!("is of {:?} in windows of {} ns", line.kind, line.window_ns));
        }
        if line.elapsed_ns != u64::from(self.duration_ms) * MS {
            return Err(format!(
                "lasted {} ns instead of {} ms",
                line.elapsed_ns, self.duration_ms
            ));
        }
        if u32::try_from(line.workers.len()) != Ok(self.workers.count()) {
            let (there, wanted) = (line.workers.len(), self.workers.count());
            return Err(format!("reports {there} workers instead of {wanted}"));
        }
        let workers = line.workers.into_iter().map(|worker| self.check_worker(worker));
        Ok(ProgressOutcome {
            start_ns: line.start_ns,
            unit_ns: line.unit_ns,
            units: line.units,
            elapsed_ns: line.elapsed_ns,
            cpu_ns: line.cpu_ns,
            workers: workers.collect::<Result<_, String>>()?,
        })
    }

    fn check_worker(&self, worker: Worker) -> Result<WorkerProgress, String> {
        line::adds_up("units", worker.units, worker.windows.iter().copied().map(u64::from))?;
        if u32::try_from(worker.windows.len()) != Ok(self.duration_ms) {
            let (there, wanted) = (worker.windows.len(), self.duration_ms);
            return Err(format!("reports {there} windows instead of {wanted}"));
        }
        let cpu = worker.cpu.map(PuId);
        let right_cpu = match (&self.pinned, cpu) {
            (Some(set), Some(cpu)) => set.contains(cpu),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !right_cpu {
            return Err(format!("reports a worker on the CPU {cpu:?}"));
        }
        let mut free_from = 0;
        for (start_ns, length_ns) in &worker.stops {
            let end = start_ns.checked_add(*length_ns);
            let inside = *start_ns >= free_from && *start_ns < u64::from(self.duration_ms) * MS;
            match end {
                Some(end) if inside && *length_ns >= self.gap_min_ns => free_from = end,
                Some(_) | None => {
                    return Err(format!("holds a stop of {length_ns} ns at {start_ns} ns"));
                }
            }
        }
        Ok(WorkerProgress {
            cpu,
            units: worker.units,
            cpu_ns: worker.cpu_ns,
            late_ns: worker.late_ns,
            windows: worker.windows,
            stops: worker
                .stops
                .into_iter()
                .map(|(start_ns, length_ns)| Stop { start_ns, length_ns })
                .collect(),
            dropped_stops: worker.dropped,
        })
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressOutcome {
    /// `CLOCK_MONOTONIC` at the common start (ns).
    pub start_ns: u64,
    /// Duration of a unit of work without a stop, measured before the start (ns).
    pub unit_ns: u64,
    /// Units of all workers that were completed in time.
    pub units: u64,
    /// The requested duration, from the common start (ns).
    pub elapsed_ns: u64,
    /// CPU time of all workers during the measurement (ns).
    pub cpu_ns: u64,
    /// The result of each worker.
    pub workers: Vec<WorkerProgress>,
}

/// Result of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProgress {
    /// The CPU that it was pinned to.
    pub cpu: Option<PuId>,
    /// Units that were completed in time.
    pub units: u64,
    /// CPU time during the measurement (ns).
    pub cpu_ns: u64,
    /// Delay of its start after the common start (ns).
    pub late_ns: u64,
    /// Units completed in each millisecond since the common start.
    pub windows: Vec<u32>,
    /// Its stops, in order.
    pub stops: Vec<Stop>,
    /// Number of stops for which there was no memory. If there are any, [`WorkerProgress::stops`]
    /// is incomplete at the end.
    pub dropped_stops: u64,
}

/// A long interval between two readings of the clock, before and after one unit of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Start, since the common start (ns).
    pub start_ns: u64,
    /// Length, including the unit of work (ns).
    pub length_ns: u64,
}

impl WorkerProgress {
    /// Time (ns) in which the worker ran between two points since the common start: the interval
    /// minus the stops, plus the unit of work in each stop that ends there. `None` where stops are
    /// missing.
    ///
    /// This gives the time taken from the worker with an accuracy of a fraction of a microsecond
    /// per stop. The number of units also depends on the speed of the CPU, which varies by some
    /// percent between intervals of 10 ms.
    pub fn own_ns(&self, unit_ns: u64, from_ns: u64, to_ns: u64) -> Option<u64> {
        let mut own_ns = to_ns.saturating_sub(from_ns);
        for stop in &self.stops {
            let end_ns = stop.start_ns.saturating_add(stop.length_ns);
            let inside_ns = end_ns.min(to_ns).saturating_sub(stop.start_ns.max(from_ns));
            own_ns = own_ns.saturating_sub(inside_ns);
            if from_ns < end_ns && end_ns <= to_ns {
                own_ns = own_ns.saturating_add(unit_ns);
            }
        }
        (self.dropped_stops == 0).then_some(own_ns)
    }
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    start_ns: u64,
    window_ns: u64,
    unit_ns: u64,
    elapsed_ns: u64,
    units: u64,
    cpu_ns: u64,
    workers: Vec<Worker>,
}

#[derive(Deserialize)]
struct Worker {
    cpu: Option<u32>,
    units: u64,
    cpu_ns: u64,
    late_ns: u64,
    dropped: u64,
    windows: Vec<u32>,
    stops: Vec<(u64, u64)>,
}

impl SpeedBenchmark for Progress {
    type Outcome = ProgressOutcome;

    fn probe(&self) -> &'static str {
        "progress"
    }

    fn argv(&self) -> Vec<String> {
        let count = self.workers.count().to_string();
        let workers = match self.workers {
            Workers::Threads(_) => ("--threads", count),
            Workers::Processes(_) => ("--processes", count),
        };
        let mut argv = argv(
            &["progress"],
            [
                ("--seconds", seconds(u64::from(self.duration_ms) * MS)),
                workers,
                ("--gap-min-ns", self.gap_min_ns.to_string()),
                ("--max-stops", self.max_stops.to_string()),
            ],
        );
        if let Some(set) = &self.pinned {
            argv.extend(["--cpus".to_owned(), set.to_string()]);
        }
        argv
    }

    fn timeout_ns(&self) -> u64 {
        timeout_ns(u64::from(self.duration_ms) * MS)
    }

    fn parse(&self, output: &str) -> Result<ProgressOutcome, BenchmarkError> {
        line::read(self.probe(), output, |line| self.check(line))
    }
}

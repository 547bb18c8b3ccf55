//! Work of short-lived and of alternating processes, one of which works at a time.

use serde::Deserialize;

use super::{SpeedBenchmark, WORK_LIMIT_NS, argv, line, per_second, timeout_ns};
use crate::benchmarks::{BenchmarkError, seconds};

/// The kind of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChurnKind {
    /// Children, one after the other; each works and exits.
    Fork,
    /// As `Fork`, and each child first executes a new program.
    Spawn,
    /// Two processes pass a byte back and forth, and each works in its turn.
    Pipe,
}

/// The settings of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Churn {
    /// The kind of processes.
    pub kind: ChurnKind,
    /// Units of work per child or turn, 1 to 100000000000; 1500 take a little less than 1 ms.
    pub units: u64,
    /// Duration (ns), 10 ms to one hour; the last child or turn is always completed.
    pub duration_ns: u64,
}

impl Churn {
    /// Settings with 1500 units per child or turn.
    pub fn new(kind: ChurnKind, duration_ns: u64) -> Self {
        Self { kind, units: 1_500, duration_ns }
    }

    fn check(&self, line: Line) -> Result<ChurnOutcome, String> {
        line::something_done(line.units, line.elapsed_ns)?;
        let (turns, children) = match self.kind {
            ChurnKind::Fork | ChurnKind::Spawn => (1, line.rounds),
            ChurnKind::Pipe => (2, 1),
        };
        let done = u128::from(line.rounds) * u128::from(self.units) * turns;
        if u128::from(line.units) != done || line.children != children {
            let Line { units, rounds, children, .. } = line;
            return Err(format!("reports {units} units in {rounds} rounds of {children} children"));
        }
        Ok(ChurnOutcome {
            units: line.units,
            elapsed_ns: line.elapsed_ns,
            cpu_ns: line.cpu_ns,
            rounds: line.rounds,
            children: line.children,
        })
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChurnOutcome {
    /// Units of all processes.
    pub units: u64,
    /// From before the first child was created until after the last was reaped (ns).
    pub elapsed_ns: u64,
    /// CPU time of all processes (ns), with a resolution of 1 µs.
    pub cpu_ns: u64,
    /// Number of children in sequence, or of turns of each of the two processes.
    pub rounds: u64,
    /// Number of children that were reaped.
    pub children: u64,
}

impl ChurnOutcome {
    /// Units per second of elapsed time.
    pub fn per_second(&self) -> f64 {
        per_second(self.units, self.elapsed_ns)
    }
}

#[derive(Deserialize)]
struct Line {
    units: u64,
    elapsed_ns: u64,
    cpu_ns: u64,
    rounds: u64,
    children: u64,
}

impl SpeedBenchmark for Churn {
    type Outcome = ChurnOutcome;

    fn probe(&self) -> &'static str {
        match self.kind {
            ChurnKind::Fork => "churn-fork",
            ChurnKind::Spawn => "churn-spawn",
            ChurnKind::Pipe => "churn-pipe",
        }
    }

    fn argv(&self) -> Vec<String> {
        argv(
            &["churn", self.probe().trim_start_matches("churn-")],
            [("--seconds", seconds(self.duration_ns)), ("--units", self.units.to_string())],
        )
    }

    fn timeout_ns(&self) -> u64 {
        timeout_ns(self.duration_ns.saturating_add(WORK_LIMIT_NS))
    }

    fn parse(&self, output: &str) -> Result<ChurnOutcome, BenchmarkError> {
        line::read(self.probe(), output, |line| self.check(line))
    }
}

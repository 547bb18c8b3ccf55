//! Work of short-lived and of alternating processes, of which one works at a time.

use serde::Deserialize;

use super::{SpeedBenchmark, WORK_LIMIT_NS, argv, line, per_second, timeout_ns};
use crate::benchmarks::{BenchmarkError, seconds};

/// Who works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChurnKind {
    /// A child at a time works and ends.
    Fork,
    /// The same, and each child first becomes a new program.
    Spawn,
    /// Two processes hand a byte to and fro, and each works in its turn.
    Pipe,
}

/// One use of the ruler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Churn {
    /// Who works.
    pub kind: ChurnKind,
    /// Units of work of each child or turn, 1 to 100000000000; 1500 are somewhat below 1 ms.
    pub units: u64,
    /// For how long, 10 ms to an hour; a child or turn that has begun is ended.
    pub duration_ns: u64,
}

impl Churn {
    /// With 1500 units to each child or turn.
    #[must_use]
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

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChurnOutcome {
    /// Units of all processes.
    pub units: u64,
    /// From before the first child was made until after the last was waited for.
    pub elapsed_ns: u64,
    /// CPU time of all processes, to the microsecond.
    pub cpu_ns: u64,
    /// Children one after the other, or turns of each of the two.
    pub rounds: u64,
    /// Children that were waited for.
    pub children: u64,
}

impl ChurnOutcome {
    /// Units per second of elapsed time.
    #[must_use]
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

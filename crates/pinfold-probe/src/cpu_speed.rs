//! Rulers of an emulated CPU's speed: what a workload sees of it, raw.
//!
//! [`MicroBenchmark`] is work over elapsed time, [`Progress`] how evenly it is done and every stop,
//! [`Burst`] the speed inside short bursts, [`Churn`] that of short-lived processes. Each runs
//! `pinload` inside the virtual node and gives counts and times; the speed is the quotient of
//! the same ruler's results with and without emulation, and is the caller's to form. No ruler knows
//! what emulates, nor whether anything does.
//!
//! One line comes back, for example:
//!
//! ```text
//! {"probe":"micro-cpu","units":5221000,"elapsed_ns":3000000557,"working_ns":3000000557,
//!  "cpu_ns":2999501000,"workers":[5221000]}
//! ```
//!
//! Nothing is believed: a line of another ruler, a total that is not the sum of its parts, a
//! missing worker or time that adds up to more than elapsed is an error that names it.

mod burst;
mod churn;
mod line;
mod micro;
mod progress;
#[cfg(test)]
mod tests;

use pinfold_host::process::{self, Spawn};

pub use burst::{Burst, BurstOutcome, BurstSample};
pub use churn::{Churn, ChurnKind, ChurnOutcome};
pub use micro::{Amount, MicroBenchmark, MicroKind, MicroOutcome};
pub use progress::{Progress, ProgressOutcome, Stop, WorkerProgress, Workers};

use crate::agent::{Agent, Output};
use crate::benchmarks::BenchmarkError;
use crate::loads::Placement;
use crate::pinload::Pinload;

/// What all rulers of speed have in common.
pub trait SpeedBenchmark {
    /// What it gives.
    type Outcome;

    /// Its name, as in its output.
    fn probe(&self) -> &'static str;

    /// The arguments of `pinload`, beginning with the subcommand.
    fn argv(&self) -> Vec<String>;

    /// How long to wait for it: a slow CPU may take long to start and to end it.
    fn timeout_ns(&self) -> u64;

    /// Reads its output.
    ///
    /// # Errors
    /// [`BenchmarkError::Line`] or [`BenchmarkError::Output`].
    fn parse(&self, output: &str) -> Result<Self::Outcome, BenchmarkError>;

    /// Runs it on the host, in these cgroups and on these PUs.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    fn run_on_host(
        &self,
        pinload: &Pinload,
        placement: &Placement,
    ) -> Result<Self::Outcome, BenchmarkError> {
        let mut spawn = Spawn::new(&pinload.path())
            .args(self.argv())
            .cgroup_files(placement.cgroup_files.clone());
        if let Some(mask) = &placement.affinity {
            spawn = spawn.affinity(mask.clone());
        }
        let output = spawn.capture(self.timeout_ns())?;
        if !output.status.success() {
            let how = process::describe(output.status);
            return Err(failed(self.probe(), how, &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    /// Runs it in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    fn run_in_guest(&self, agent: &Agent) -> Result<Self::Outcome, BenchmarkError> {
        self.read(&agent.run(&self.argv(), self.timeout_ns())?)
    }

    /// Reads what it gave in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError::Failed`] if it ended with an error, else as [`SpeedBenchmark::parse`].
    fn read(&self, output: &Output) -> Result<Self::Outcome, BenchmarkError> {
        if !output.success() {
            return Err(failed(self.probe(), output.exit.to_string(), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }
}

fn failed(probe: &'static str, how: String, message: &str) -> BenchmarkError {
    BenchmarkError::Failed { probe, how, message: message.trim().to_owned() }
}

/// `pinload` ends a fixed amount of work after this time (an hour), however slow the CPU is.
const WORK_LIMIT_NS: u64 = 3_600_000_000_000;

/// Patience for a ruler that lasts this long by its own clock.
fn timeout_ns(duration_ns: u64) -> u64 {
    duration_ns.saturating_mul(2).saturating_add(60_000_000_000)
}

/// Arguments of `pinload`, with values.
fn argv<const N: usize>(words: &[&str], values: [(&str, String); N]) -> Vec<String> {
    let mut argv: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    argv.extend(values.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    argv
}

/// Work per second.
fn per_second(units: u64, ns: u64) -> f64 {
    units as f64 * 1e9 / ns as f64
}

//! Benchmarks of the speed of an emulated CPU, as a workload sees it.
//!
//! [`MicroBenchmark`] measures work over elapsed time, [`Progress`] how evenly the work is done and
//! every stop, [`Burst`] the speed inside short bursts, [`Churn`] the speed of short-lived
//! processes. Each runs `pinload` inside the virtual node and returns counts and times. The caller
//! computes the speed as the quotient of the results of the same benchmark with and without
//! emulation. The benchmarks do not depend on the method of emulation.
//!
//! The output is one line, for example:
//!
//! ```text
//! {"probe":"micro-cpu","units":5221000,"elapsed_ns":3000000557,"working_ns":3000000557,
//!  "cpu_ns":2999501000,"workers":[5221000]}
//! ```
//!
//! All output is validated. Each of these is an error that names it: a line of another benchmark, a
//! total that is not the sum of its parts, a missing worker, or times that add up to more than the
//! elapsed time.

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

/// Common interface of the benchmarks of speed.
pub trait SpeedBenchmark {
    /// Type of the result.
    type Outcome;

    /// Name of the benchmark, as in its output.
    fn probe(&self) -> &'static str;

    /// The arguments of `pinload`, starting with the subcommand.
    fn argv(&self) -> Vec<String>;

    /// Timeout (ns). It leaves time for a slow CPU to start and end the program.
    fn timeout_ns(&self) -> u64;

    /// Parses the output.
    ///
    /// # Errors
    /// [`BenchmarkError::Line`] or [`BenchmarkError::Output`].
    fn parse(&self, output: &str) -> Result<Self::Outcome, BenchmarkError>;

    /// Runs the benchmark on the host, in the cgroups and on the CPUs of `placement`.
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
            return Err(fail(self.probe(), how, &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    /// Runs the benchmark in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    fn run_in_guest(&self, agent: &Agent) -> Result<Self::Outcome, BenchmarkError> {
        self.read(&agent.run(&self.argv(), self.timeout_ns())?)
    }

    /// Parses the output of a run in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError::Failed`] if the program ended with an error, else as
    /// [`SpeedBenchmark::parse`].
    fn read(&self, output: &Output) -> Result<Self::Outcome, BenchmarkError> {
        if !output.success() {
            return Err(fail(self.probe(), output.exit.to_string(), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }
}

fn fail(probe: &'static str, how: String, message: &str) -> BenchmarkError {
    BenchmarkError::Failed { probe, how, message: message.trim().to_owned() }
}

/// `pinload` ends a fixed amount of work after this time (one hour), even on a slow CPU.
const WORK_LIMIT_NS: u64 = 3_600_000_000_000;

/// Timeout (ns) of a benchmark that lasts this long by its own clock.
fn timeout_ns(duration_ns: u64) -> u64 {
    duration_ns.saturating_mul(2).saturating_add(60_000_000_000)
}

/// Arguments of `pinload`: the words, then the options with values.
fn argv<const N: usize>(words: &[&str], values: [(&str, String); N]) -> Vec<String> {
    let mut argv: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    argv.extend(values.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    argv
}

/// Units of work per second.
fn per_second(units: u64, ns: u64) -> f64 {
    units as f64 * 1e9 / ns as f64
}

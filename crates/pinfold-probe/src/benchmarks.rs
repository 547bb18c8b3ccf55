//! Rulers: typed settings in, `pinload` arguments out; JSON lines in, series out.
//!
//! One line per CPU comes back:
//!
//! ```text
//! {"probe":"spin-gap","cpu":0,"duration_ns":1000,"observed_ns":500,"unit":"ns",
//!  "floor_ns":100,"dropped":0,"flags":["preempted 2"],"samples":[120,340], …}
//! ```
//!
//! Nothing is believed: a line of the wrong probe or unit, a CPU too many or too few, an
//! observation longer than its duration, gaps that add up to more than was observed, or a
//! sample that is no finite number at or above zero is an error that names it.

mod open_loop;
mod parse;
#[cfg(test)]
mod tests;

use pinfold_host::{HostError, process};
use pinfold_model::{CpuSet, GAP_FLOOR_NS, Metric, Series};

pub use open_loop::{OpenLoop, OpenLoopError};
pub(crate) use parse::Observation;

use crate::agent::{Agent, AgentError, Output};
use crate::pinload::Pinload;

const NS_PER_S: u64 = 1_000_000_000;

/// What a ruler does, with the settings that only it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Spins and records every gap.
    SpinGap {
        /// Percent of each period spent spinning, 1 to 100.
        duty_percent: u8,
        /// Period of spinning and sleeping, 1000 to 10000.
        period_us: u32,
        /// Gaps below this are not recorded.
        floor_ns: u64,
    },
    /// Sleeps until absolute times and records how late it woke.
    Wakeup {
        /// Time between two wake-ups.
        period_us: u32,
    },
    /// Counts rounds of an integer kernel.
    Compute {
        /// Length of one window.
        window_ms: u32,
    },
    /// Reads random blocks.
    IoLatency {
        /// Which of the two disks it is: decides the metric.
        disk: Disk,
        /// Block device or file, as the ruler sees it.
        target: IoTarget,
        /// Bytes per read, a multiple of 512.
        block: u32,
        /// Of the sequence of places.
        seed: u64,
    },
}

/// The disk that an I/O ruler reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Emulated by QEMU's AHCI controller.
    Ahci,
    /// Paravirtual.
    Virtio,
}

/// What an I/O ruler opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoTarget {
    /// A block device such as `/dev/sda`.
    Device(String),
    /// A file.
    File(String),
}

/// The CPUs of a ruler: one thread on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// All that the ruler's process may use.
    All,
    /// These.
    These(CpuSet),
    /// One thread, not pinned; for I/O only.
    Any,
}

/// The policy of a ruler's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedPolicy {
    /// Normal.
    Other,
    /// Real-time with this priority, 1 to 99. Where the kernel refuses it the ruler goes on at
    /// normal priority and sets the flag `fifo-refused`.
    Fifo(u8),
}

/// One use of one ruler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// What it does.
    pub kind: Kind,
    /// For how long.
    pub duration_ns: u64,
    /// Where.
    pub cpus: Cpus,
    /// Under which policy.
    pub policy: SchedPolicy,
    /// Memory for samples, per CPU; what does not fit is counted as dropped.
    pub max_samples: u32,
    /// Spin-gap and wake-up: keep all CPUs of the machine out of deep sleep states meanwhile, as
    /// cyclictest does (`cpu_dma_latency`). The flag `dma-latency-0` or `dma-latency-refused`
    /// comes back.
    pub dma_latency: bool,
}

/// Time that was taken from a thread that spins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// When it began, by the monotonic clock (ns).
    pub start_ns: u64,
    /// For how long (ns).
    pub length_ns: f64,
}

/// Why a ruler gave no series.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// A line of its output is not what a ruler writes.
    #[error("line {line} of the output of {probe} {why}")]
    Line {
        /// The ruler.
        probe: &'static str,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The output as a whole is wrong.
    #[error("the output of {probe} {why}")]
    Output {
        /// The ruler.
        probe: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The ruler ended with an error.
    #[error("{probe} failed ({how}): {message}")]
    Failed {
        /// The ruler.
        probe: &'static str,
        /// Exit code or signal.
        how: String,
        /// What it said.
        message: String,
    },
    /// It could not be run on the host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It could not be run in the guest.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl BenchmarkError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            BenchmarkError::Line { .. } | BenchmarkError::Output { .. } => Some(
                "repeat the measurement; if it stays, the pinload in the guest is of another version"
                    .to_owned(),
            ),
            BenchmarkError::Failed { .. } | BenchmarkError::Host(_) => None,
            BenchmarkError::Agent(error) => error.hint(),
        }
    }
}

impl Benchmark {
    /// Spin-gap at 50 % duty in periods of 10 ms, gaps from 1 µs.
    #[must_use]
    pub fn spin_gap(duration_ns: u64) -> Self {
        let kind = Kind::SpinGap { duty_percent: 50, period_us: 10_000, floor_ns: GAP_FLOOR_NS };
        Self::new(kind, duration_ns, Cpus::All)
    }

    /// Wake-up each millisecond.
    #[must_use]
    pub fn wakeup(duration_ns: u64) -> Self {
        Self::new(Kind::Wakeup { period_us: 1_000 }, duration_ns, Cpus::All)
    }

    /// Compute rate in windows of 5 ms.
    #[must_use]
    pub fn compute(duration_ns: u64) -> Self {
        Self::new(Kind::Compute { window_ms: 5 }, duration_ns, Cpus::All)
    }

    /// Random reads of 4 KiB past the page cache.
    #[must_use]
    pub fn io_latency(disk: Disk, target: IoTarget, duration_ns: u64) -> Self {
        Self::new(Kind::IoLatency { disk, target, block: 4096, seed: 1 }, duration_ns, Cpus::Any)
    }

    fn new(kind: Kind, duration_ns: u64, cpus: Cpus) -> Self {
        Self {
            kind,
            duration_ns,
            cpus,
            policy: SchedPolicy::Other,
            max_samples: 200_000,
            dma_latency: false,
        }
    }

    /// The same on other CPUs.
    #[must_use]
    pub fn on(mut self, cpus: Cpus) -> Self {
        self.cpus = cpus;
        self
    }

    /// The same under another policy.
    #[must_use]
    pub fn under(mut self, policy: SchedPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The same with all CPUs kept out of deep sleep states; for spin-gap and wake-up only, which
    /// sleep.
    #[must_use]
    pub fn kept_awake(mut self) -> Self {
        self.dma_latency = true;
        self
    }

    /// Name of the `pinload` subcommand.
    #[must_use]
    pub fn probe(&self) -> &'static str {
        match self.kind {
            Kind::SpinGap { .. } => "spin-gap",
            Kind::Wakeup { .. } => "wakeup",
            Kind::Compute { .. } => "compute",
            Kind::IoLatency { .. } => "io-latency",
        }
    }

    /// What it measures.
    #[must_use]
    pub fn metric(&self) -> Metric {
        match self.kind {
            Kind::SpinGap { .. } => Metric::SpinGap,
            Kind::Wakeup { .. } => Metric::Wakeup,
            Kind::Compute { .. } => Metric::ComputeRate,
            Kind::IoLatency { disk: Disk::Ahci, .. } => Metric::IoAhci,
            Kind::IoLatency { disk: Disk::Virtio, .. } => Metric::IoVirtio,
        }
    }

    /// The arguments of `pinload`, beginning with the subcommand.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        let mut argv = vec![self.probe().to_owned()];
        let mut add = |name: &str, value: String| argv.extend([name.to_owned(), value]);
        add("--seconds", seconds(self.duration_ns));
        match &self.cpus {
            Cpus::All => add("--cpus", "all".to_owned()),
            Cpus::These(set) => add("--cpus", set.to_string()),
            Cpus::Any => {}
        }
        add(
            "--policy",
            match self.policy {
                SchedPolicy::Other => "other".to_owned(),
                SchedPolicy::Fifo(priority) => format!("fifo:{priority}"),
            },
        );
        add("--max-samples", self.max_samples.to_string());
        match &self.kind {
            Kind::SpinGap { duty_percent, period_us, floor_ns } => {
                add("--duty", duty_percent.to_string());
                add("--period-us", period_us.to_string());
                add("--floor-ns", floor_ns.to_string());
            }
            Kind::Wakeup { period_us } => add("--period-us", period_us.to_string()),
            Kind::Compute { window_ms } => add("--window-ms", window_ms.to_string()),
            Kind::IoLatency { target, block, seed, .. } => {
                match target {
                    IoTarget::Device(path) => add("--device", path.clone()),
                    IoTarget::File(path) => add("--file", path.clone()),
                }
                add("--block", block.to_string());
                add("--seed", seed.to_string());
                argv.push("--direct".to_owned());
            }
        }
        if self.dma_latency {
            argv.push("--dma-latency".to_owned());
        }
        argv
    }

    /// How long to wait for it: a crowded machine may take long to start and to end it.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.duration_ns.saturating_mul(2).saturating_add(30 * NS_PER_S)
    }

    /// Reads its output: one series per CPU, by ascending CPU.
    ///
    /// No sample at all is an error, except for spin-gap, where it is the best of all results:
    /// no gap reached the floor.
    ///
    /// # Errors
    /// [`BenchmarkError::Line`] or [`BenchmarkError::Output`].
    pub fn parse(&self, output: &str) -> Result<Vec<Series>, BenchmarkError> {
        let observations = self.observations(output)?;
        Ok(observations.into_iter().map(|one| one.series).collect())
    }

    /// The gaps of a spin-gap ruler with the moments at which they began, of all CPUs.
    ///
    /// # Errors
    /// As [`Benchmark::parse`], and [`BenchmarkError::Output`] if it does not tell when they began.
    pub fn gaps(&self, output: &str) -> Result<Vec<Gap>, BenchmarkError> {
        let mut gaps = Vec::new();
        for one in self.observations(output)? {
            let starts = one.starts_ns.ok_or_else(|| BenchmarkError::Output {
                probe: self.probe(),
                why: "does not report when its samples began".to_owned(),
            })?;
            let pairs = starts.into_iter().zip(one.series.samples);
            gaps.extend(pairs.map(|(start_ns, length_ns)| Gap { start_ns, length_ns }));
        }
        Ok(gaps)
    }

    /// What [`Benchmark::parse`] reads, with all else that a line holds.
    pub(crate) fn observations(&self, output: &str) -> Result<Vec<Observation>, BenchmarkError> {
        parse::observations(self, output)
    }

    /// Runs it in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_in_guest(&self, agent: &Agent) -> Result<Vec<Series>, BenchmarkError> {
        self.read(&agent.run(&self.argv(), self.timeout_ns())?)
    }

    /// Reads what it gave in a guest; for rulers that were started beside others with
    /// [`Agent::start`] and waited for with [`Agent::wait`].
    ///
    /// # Errors
    /// [`BenchmarkError::Failed`] if it ended with an error, else as [`Benchmark::parse`].
    pub fn read(&self, output: &Output) -> Result<Vec<Series>, BenchmarkError> {
        if !output.success() {
            return Err(self.failed(output.exit.to_string(), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    /// Runs it on the host.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_on_host(&self, pinload: &Pinload) -> Result<Vec<Series>, BenchmarkError> {
        let output = process::capture(&pinload.path(), self.argv(), self.timeout_ns())?;
        if !output.status.success() {
            return Err(self.failed(process::describe(output.status), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    fn failed(&self, how: String, message: &str) -> BenchmarkError {
        let message = message.trim().to_owned();
        BenchmarkError::Failed { probe: self.probe(), how, message }
    }
}

/// Seconds with nine decimals: exact, and never in exponent form.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / NS_PER_S, ns % NS_PER_S)
}

//! Benchmarks: turns typed settings into `pinload` arguments, and JSON lines into series.
//!
//! A benchmark prints one line per CPU:
//!
//! ```text
//! {"probe":"spin-gap","cpu":0,"duration_ns":1000,"observed_ns":500,"unit":"ns",
//!  "floor_ns":100,"dropped":0,"flags":["preempted 2"],"samples":[120,340], …}
//! ```
//!
//! All output is validated. Each of these is an error that names it: a line with the wrong probe or
//! unit, too many or too few CPUs, an observation longer than its duration, stalls that add up to
//! more than the observed time, or a sample that is negative or not finite.

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

/// The kind of a benchmark, with the settings that only this kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Spins and records every scheduling stall.
    SpinGap {
        /// Percent of each period spent spinning, 1 to 100.
        duty_percent: u8,
        /// Period of spinning and sleeping (µs), 1000 to 10000.
        period_us: u32,
        /// Stalls below this length (ns) are not recorded.
        floor_ns: u64,
    },
    /// Sleeps until absolute times and records how late each wake-up is.
    Wakeup {
        /// Time between two wake-ups (µs).
        period_us: u32,
    },
    /// Counts iterations of an integer kernel.
    Compute {
        /// Length of one window (ms).
        window_ms: u32,
    },
    /// Reads random blocks.
    IoLatency {
        /// The emulated disk that is read; it decides the metric.
        disk: Disk,
        /// Block device or file, by its path where the benchmark runs.
        target: IoTarget,
        /// Bytes per read, a multiple of 512.
        block: u32,
        /// Seed of the sequence of offsets.
        seed: u64,
    },
}

/// The disk that an I/O benchmark reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Emulated by QEMU's AHCI controller.
    Ahci,
    /// Paravirtual disk (virtio).
    Virtio,
}

/// What an I/O benchmark opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoTarget {
    /// Path of a block device such as `/dev/sda`.
    Device(String),
    /// Path of a file.
    File(String),
}

/// The CPUs of a benchmark, with one thread on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// All CPUs that the benchmark's process may use.
    All,
    /// The CPUs of this set.
    These(CpuSet),
    /// One thread that is not pinned; only for I/O.
    Any,
}

/// Scheduling policy of a benchmark's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedPolicy {
    /// `SCHED_OTHER`.
    Other,
    /// `SCHED_FIFO` with this priority, 1 to 99. If the kernel refuses it, the benchmark continues
    /// at normal priority and sets the flag `fifo-refused`.
    Fifo(u8),
}

/// The settings of one run of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// What the benchmark does.
    pub kind: Kind,
    /// Duration (ns).
    pub duration_ns: u64,
    /// CPUs of its threads.
    pub cpus: Cpus,
    /// Scheduling policy of its threads.
    pub policy: SchedPolicy,
    /// Number of samples per CPU for which memory is reserved; further samples are counted as
    /// dropped.
    pub max_samples: u32,
    /// Only for spin-gap and wake-up: keep all CPUs of the machine out of deep idle states during
    /// the run, as cyclictest does (`cpu_dma_latency`). The result then has the flag
    /// `dma-latency-0` or `dma-latency-refused`.
    pub dma_latency: bool,
}

/// A scheduling stall: an interval in which a spinning thread did not run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Start, by the monotonic clock (ns).
    pub start_ns: u64,
    /// Length (ns).
    pub length_ns: f64,
}

/// Why a benchmark gave no series.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// A line of the output is malformed.
    #[error("line {line} of the output of {probe} {why}")]
    Line {
        /// Name of the benchmark.
        probe: &'static str,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with the line.
        why: String,
    },
    /// The output as a whole is malformed.
    #[error("the output of {probe} {why}")]
    Output {
        /// Name of the benchmark.
        probe: &'static str,
        /// What is wrong with the output.
        why: String,
    },
    /// The benchmark ended with an error.
    #[error("{probe} failed ({how}): {message}")]
    Failed {
        /// Name of the benchmark.
        probe: &'static str,
        /// Exit code or signal.
        how: String,
        /// Its error message.
        message: String,
    },
    /// The benchmark could not be run on the host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The benchmark could not be run in the guest.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl BenchmarkError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            BenchmarkError::Line { .. } | BenchmarkError::Output { .. } => Some(
                "repeat the measurement; if the error persists, the pinload in the guest is \
                 another version"
                    .to_owned(),
            ),
            BenchmarkError::Failed { .. } | BenchmarkError::Host(_) => None,
            BenchmarkError::Agent(error) => error.hint(),
        }
    }
}

impl Benchmark {
    /// Spin-gap with a duty cycle of 50 % in periods of 10 ms, stalls from 1 µs.
    pub fn spin_gap(duration_ns: u64) -> Self {
        let kind = Kind::SpinGap { duty_percent: 50, period_us: 10_000, floor_ns: GAP_FLOOR_NS };
        Self::new(kind, duration_ns, Cpus::All)
    }

    /// Wake-up latency with a period of 1 ms.
    pub fn wakeup(duration_ns: u64) -> Self {
        Self::new(Kind::Wakeup { period_us: 1_000 }, duration_ns, Cpus::All)
    }

    /// Compute rate in windows of 5 ms.
    pub fn compute(duration_ns: u64) -> Self {
        Self::new(Kind::Compute { window_ms: 5 }, duration_ns, Cpus::All)
    }

    /// Random reads of 4 KiB that bypass the page cache.
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

    /// Sets the CPUs.
    #[must_use]
    pub fn on(mut self, cpus: Cpus) -> Self {
        self.cpus = cpus;
        self
    }

    /// Sets the scheduling policy.
    #[must_use]
    pub fn under(mut self, policy: SchedPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Keeps all CPUs out of deep idle states; only for spin-gap and wake-up, which sleep.
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

    /// The metric that the benchmark measures.
    pub fn metric(&self) -> Metric {
        match self.kind {
            Kind::SpinGap { .. } => Metric::SpinGap,
            Kind::Wakeup { .. } => Metric::Wakeup,
            Kind::Compute { .. } => Metric::ComputeRate,
            Kind::IoLatency { disk: Disk::Ahci, .. } => Metric::IoAhci,
            Kind::IoLatency { disk: Disk::Virtio, .. } => Metric::IoVirtio,
        }
    }

    /// The arguments of `pinload`, starting with the subcommand.
    pub fn argv(&self) -> Vec<String> {
        let mut argv = vec![self.probe().to_owned()];
        add("--seconds", seconds(self.duration_ns), &mut argv);
        match &self.cpus {
            Cpus::All => add("--cpus", "all".to_owned(), &mut argv),
            Cpus::These(set) => add("--cpus", set.to_string(), &mut argv),
            Cpus::Any => {}
        }
        add(
            "--policy",
            match self.policy {
                SchedPolicy::Other => "other".to_owned(),
                SchedPolicy::Fifo(priority) => format!("fifo:{priority}"),
            },
            &mut argv,
        );
        add("--max-samples", self.max_samples.to_string(), &mut argv);
        match &self.kind {
            Kind::SpinGap { duty_percent, period_us, floor_ns } => {
                add("--duty", duty_percent.to_string(), &mut argv);
                add("--period-us", period_us.to_string(), &mut argv);
                add("--floor-ns", floor_ns.to_string(), &mut argv);
            }
            Kind::Wakeup { period_us } => add("--period-us", period_us.to_string(), &mut argv),
            Kind::Compute { window_ms } => add("--window-ms", window_ms.to_string(), &mut argv),
            Kind::IoLatency { target, block, seed, .. } => {
                match target {
                    IoTarget::Device(path) => add("--device", path.clone(), &mut argv),
                    IoTarget::File(path) => add("--file", path.clone(), &mut argv),
                }
                add("--block", block.to_string(), &mut argv);
                add("--seed", seed.to_string(), &mut argv);
                argv.push("--direct".to_owned());
            }
        }
        if self.dma_latency {
            argv.push("--dma-latency".to_owned());
        }
        argv
    }

    /// Timeout (ns). It leaves time for a heavily loaded machine to start and end the program.
    pub fn timeout_ns(&self) -> u64 {
        self.duration_ns.saturating_mul(2).saturating_add(30 * NS_PER_S)
    }

    /// Parses the output: one series per CPU, by ascending CPU.
    ///
    /// A series without samples is an error, except for spin-gap, where it is the best result: no
    /// stall reached the floor.
    ///
    /// # Errors
    /// [`BenchmarkError::Line`] or [`BenchmarkError::Output`].
    pub fn parse(&self, output: &str) -> Result<Vec<Series>, BenchmarkError> {
        let observations = self.observations(output)?;
        Ok(observations.into_iter().map(|one| one.series).collect())
    }

    /// The stalls that a spin-gap benchmark recorded on all CPUs, with their start times.
    ///
    /// # Errors
    /// As [`Benchmark::parse`], and [`BenchmarkError::Output`] if the output has no start times.
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

    /// As [`Benchmark::parse`], with the other members of each line.
    pub(crate) fn observations(&self, output: &str) -> Result<Vec<Observation>, BenchmarkError> {
        parse::observations(self, output)
    }

    /// Runs the benchmark in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_in_guest(&self, agent: &Agent) -> Result<Vec<Series>, BenchmarkError> {
        self.read(&agent.run(&self.argv(), self.timeout_ns())?)
    }

    /// Parses the output of a run in a guest, for benchmarks that were started with
    /// [`Agent::start`] and awaited with [`Agent::wait`].
    ///
    /// # Errors
    /// [`BenchmarkError::Failed`] if the program ended with an error, else as [`Benchmark::parse`].
    pub fn read(&self, output: &Output) -> Result<Vec<Series>, BenchmarkError> {
        if !output.success() {
            return Err(self.fail(output.exit.to_string(), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    /// Runs the benchmark on the host.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_on_host(&self, pinload: &Pinload) -> Result<Vec<Series>, BenchmarkError> {
        let output = process::capture(&pinload.path(), self.argv(), self.timeout_ns())?;
        if !output.status.success() {
            return Err(self.fail(process::describe(output.status), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    fn fail(&self, how: String, message: &str) -> BenchmarkError {
        let message = message.trim().to_owned();
        BenchmarkError::Failed { probe: self.probe(), how, message }
    }
}

fn add(name: &str, value: String, argv: &mut Vec<String>) {
    argv.extend([name.to_owned(), value])
}

/// Seconds with nine decimals: exact, and never in exponent form.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / NS_PER_S, ns % NS_PER_S)
}

//! The settings of one run of a probe.

use pinfold_model::CpuSet;

use crate::benchmarks::{IoTarget, SchedPolicy};

/// The settings of one run of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Duration (ns).
    pub duration_ns: u64,
    /// The CPUs. A probe with a thread per CPU runs on each of them; any other runs anywhere on
    /// them.
    pub cpus: CpuSet,
    /// Scheduling policy of the probe's threads.
    pub policy: SchedPolicy,
    /// Period between two wake-ups, or of spinning and sleeping (µs); `None` for the probe's
    /// default.
    pub period_us: Option<u32>,
    /// Percent of its period for which the spin-gap benchmark spins; `None` for its default.
    pub duty_percent: Option<u8>,
    /// If true, all CPUs are kept out of deep idle states (`cpu_dma_latency` 0) during the run.
    pub keep_awake: bool,
    /// The file or device that the I/O probe reads.
    pub target: Option<IoTarget>,
    /// Further arguments, passed to the `pinload` command unchanged.
    pub more: Vec<String>,
}

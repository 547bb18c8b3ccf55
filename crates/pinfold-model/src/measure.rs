//! Measurements: metrics, series of raw samples and their origin.

use std::fmt;

use crate::Role;

/// What executes a guest's instructions. TCG results do not carry over to KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translator (TCG), one host thread per vCPU.
    TcgMulti,
    /// QEMU's translator (TCG), all vCPUs in one host thread.
    TcgSingle,
    /// No guest: measured on the host.
    Native,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerator::Kvm => "KVM",
            Accelerator::TcgMulti => "TCG (thread=multi)",
            Accelerator::TcgSingle => "TCG (thread=single)",
            Accelerator::Native => "native",
        })
    }
}

/// Which sides are under load during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LoadState {
    /// The host runs background loads.
    pub host: bool,
    /// The guest runs background loads.
    pub guest: bool,
}

impl LoadState {
    /// The four states of Lindroth (2017), idle first.
    pub const ALL: [LoadState; 4] = [
        LoadState { host: false, guest: false },
        LoadState { host: true, guest: false },
        LoadState { host: false, guest: true },
        LoadState { host: true, guest: true },
    ];

    /// Both sides under load: the state that shows the value of a placement.
    pub const BOTH: LoadState = LoadState { host: true, guest: true };
}

impl fmt::Display for LoadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "host {}, guest {}",
            if self.host { "loaded" } else { "idle" },
            if self.guest { "loaded" } else { "idle" }
        )
    }
}

/// Unit of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Unit {
    /// Nanoseconds.
    #[cfg_attr(feature = "serde", serde(rename = "ns"))]
    Nanoseconds,
    /// Work items per second.
    PerSecond,
    /// Work items per second and MHz of the CPU's clock, that is, per million cycles.
    PerSecondPerMhz,
    /// Bytes per second.
    BytesPerSecond,
    /// Bytes.
    Bytes,
    /// A plain count.
    Count,
    /// A share of the whole, 0 to 1.
    Share,
}

impl Unit {
    /// All units.
    pub const ALL: [Unit; 7] = [
        Unit::Nanoseconds,
        Unit::PerSecond,
        Unit::PerSecondPerMhz,
        Unit::BytesPerSecond,
        Unit::Bytes,
        Unit::Count,
        Unit::Share,
    ];

    /// Stable name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::PerSecond => "per-second",
            Unit::PerSecondPerMhz => "per-second-per-mhz",
            Unit::BytesPerSecond => "bytes-per-second",
            Unit::Bytes => "bytes",
            Unit::Count => "count",
            Unit::Share => "share",
        }
    }

    /// The unit with this name.
    pub fn from_name(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// `Some(true)` for rates, `Some(false)` for durations, `None` for counts and shares.
    #[must_use]
    pub fn higher_is_better(self) -> Option<bool> {
        match self {
            Unit::PerSecond | Unit::PerSecondPerMhz | Unit::BytesPerSecond => Some(true),
            Unit::Nanoseconds => Some(false),
            Unit::Bytes | Unit::Count | Unit::Share => None,
        }
    }
}

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Metric {
    /// Scheduling stalls: time for which a spinning thread did not run, one sample per stall (ns).
    SpinGap,
    /// Delay of a timer wake-up, one sample per period (ns).
    Wakeup,
    /// Rate of a fixed integer kernel, one sample per window.
    ComputeRate,
    /// Duration of one block read on the emulated AHCI disk (ns).
    IoAhci,
    /// Duration of one block read on the virtio disk (ns).
    IoVirtio,
    /// Time for which a vCPU's thread was runnable but had no CPU, one sample per window (ns).
    /// Measured on the host: the only latency that is available for a guest without an agent.
    RunDelay,
}

impl Metric {
    /// All metrics, in table order.
    pub const ALL: [Metric; 6] = [
        Metric::SpinGap,
        Metric::Wakeup,
        Metric::ComputeRate,
        Metric::IoAhci,
        Metric::IoVirtio,
        Metric::RunDelay,
    ];

    /// Stable name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Metric::SpinGap => "spin-gap",
            Metric::Wakeup => "wakeup",
            Metric::ComputeRate => "compute-rate",
            Metric::IoAhci => "io-ahci",
            Metric::IoVirtio => "io-virtio",
            Metric::RunDelay => "run-delay",
        }
    }

    /// The metric with this name.
    pub fn from_name(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Unit of the metric's samples.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Metric::ComputeRate => Unit::PerSecond,
            Metric::SpinGap
            | Metric::Wakeup
            | Metric::IoAhci
            | Metric::IoVirtio
            | Metric::RunDelay => Unit::Nanoseconds,
        }
    }

    /// True if larger values are better.
    #[must_use]
    pub fn higher_is_better(self) -> bool {
        self.unit().higher_is_better() == Some(true)
    }

    /// True for times without a CPU, of which the longest one counts.
    #[must_use]
    pub fn is_gap(self) -> bool {
        match self {
            Metric::SpinGap | Metric::RunDelay => true,
            Metric::Wakeup | Metric::ComputeRate | Metric::IoAhci | Metric::IoVirtio => false,
        }
    }
}

/// Raw samples of one metric, taken during one observation.
///
/// ```
/// use pinfold_model::{Metric, Series};
///
/// let series = Series::new(Metric::SpinGap, 1_000_000_000, vec![900.0, 1_200.0]);
/// assert_eq!(series.observed_ns, series.duration_ns);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The metric.
    pub metric: Metric,
    /// vCPU (on the host: CPU) on which the benchmark ran.
    pub cpu: u32,
    /// Observation time in nanoseconds.
    pub duration_ns: u64,
    /// Part of `duration_ns` during which the benchmark measured (spin-gap at 50 % duty: half).
    pub observed_ns: u64,
    /// Number of samples that were counted but not kept, because the buffer was full.
    pub dropped: u64,
    /// The samples in [`Metric::unit`]. For stalls and wake-ups: all above the benchmark's floor.
    pub samples: Vec<f64>,
    /// What disturbed the measurement: `migrated`, `fifo-refused`, `preempted 12`.
    pub flags: Vec<String>,
}

impl Series {
    /// A complete series of CPU 0: measured during the whole of `duration_ns`, without flags.
    pub fn new(metric: Metric, duration_ns: u64, samples: Vec<f64>) -> Self {
        Self {
            metric,
            cpu: 0,
            duration_ns,
            observed_ns: duration_ns,
            dropped: 0,
            samples,
            flags: Vec::new(),
        }
    }
}

/// The kernel's statistics of all threads of one role over one observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleStats {
    /// The role.
    pub role: Role,
    /// Number of threads included.
    pub threads: u32,
    /// Time on a CPU (ns).
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU (ns): `/proc/PID/task/TID/schedstat` field 2.
    pub run_delay_ns: u64,
    /// Migrations between CPUs; `None` where the kernel does not report them.
    pub migrations: Option<u64>,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Number of threads that exited during the observation; their times are lost.
    pub lost_threads: u32,
}

/// Origin of a measured number. Every number has one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Origin {
    /// Topology fingerprint of the host.
    pub fingerprint: String,
    /// Host kernel release.
    pub kernel: String,
    /// Kernel command line of the host.
    pub cmdline: String,
    /// CPU model.
    pub cpu_model: String,
    /// Hypervisor under the host, if any.
    pub hypervisor: Option<String>,
    /// QEMU version, if a guest was measured.
    pub qemu: Option<String>,
    /// What executed the guest.
    pub accelerator: Accelerator,
    /// Release and SHA-256 of the guest's kernel, if known.
    pub guest_kernel: Option<String>,
    /// Pinfold's version.
    pub pinfold: String,
    /// Seed of the experimental design.
    pub seed: u64,
}

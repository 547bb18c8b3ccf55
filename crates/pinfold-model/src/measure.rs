//! Measurements: roles, metrics, series of raw samples and where each came from.

use std::fmt;

/// The part that a thread plays in a vnode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Virtual CPU with this index.
    Vcpu(u32),
    /// QEMU's main loop, and every thread without a role of its own.
    Emulator,
    /// An `-object iothread` with this id.
    Iothread(String),
    /// A vhost worker, numbered in tid order.
    Vhost(u32),
    /// A thread of QEMU's worker pools.
    Worker,
    /// A thread of a process group.
    Task,
}

impl Role {
    /// True for the role's own name (`vcpu(1)`), and for that of its kind (`vcpu`).
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let own = self.to_string();
        own == name || own.split_once('(').is_some_and(|(kind, _)| kind == name)
    }

    /// Short form for tables: `0`, `emulator`, `io:disk`.
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Role::Vcpu(index) => index.to_string(),
            Role::Emulator => "emulator".to_owned(),
            Role::Iothread(id) => format!("io:{id}"),
            Role::Vhost(index) => format!("vhost:{index}"),
            Role::Worker => "worker".to_owned(),
            Role::Task => "task".to_owned(),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Vcpu(index) => write!(f, "vcpu({index})"),
            Role::Emulator => f.write_str("emulator"),
            Role::Iothread(id) => write!(f, "iothread({id})"),
            Role::Vhost(index) => write!(f, "vhost({index})"),
            Role::Worker => f.write_str("worker"),
            Role::Task => f.write_str("task"),
        }
    }
}

/// What executes a guest's instructions. A number from TCG says nothing about KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translator, one host thread per vCPU.
    TcgMulti,
    /// QEMU's translator, all vCPUs in one host thread.
    TcgSingle,
    /// Not a guest.
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

/// Who is under load while a measurement runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadState {
    /// The host carries loads.
    pub host: bool,
    /// The guest carries loads.
    pub guest: bool,
}

impl LoadState {
    /// The four states of Lindroth 2017, idle first.
    pub const ALL: [LoadState; 4] = [
        LoadState { host: false, guest: false },
        LoadState { host: true, guest: false },
        LoadState { host: false, guest: true },
        LoadState { host: true, guest: true },
    ];

    /// Both sides loaded: the state that shows what a placement is worth.
    pub const BOTH: LoadState = LoadState { host: true, guest: true };
}

impl fmt::Display for LoadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |loaded| if loaded { "loaded" } else { "idle" };
        write!(f, "host {}, guest {}", word(self.host), word(self.guest))
    }
}

/// Unit of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Work items per second.
    PerSecond,
    /// Work items per second and MHz of the CPU's clock: per million of its cycles.
    PerSecondPerMhz,
    /// Bytes per second.
    BytesPerSecond,
    /// Bytes.
    Bytes,
    /// A plain count.
    Count,
    /// A part of the whole, 0 to 1.
    Share,
}

impl Unit {
    /// All of them.
    pub const ALL: [Unit; 7] = [
        Unit::Nanoseconds,
        Unit::PerSecond,
        Unit::PerSecondPerMhz,
        Unit::BytesPerSecond,
        Unit::Bytes,
        Unit::Count,
        Unit::Share,
    ];

    /// Stable name, used in files.
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
    #[must_use]
    pub fn from_name(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// True for rates, where a larger value is a better one; a duration is better when smaller,
    /// and of counts and shares nothing is said.
    #[must_use]
    pub fn higher_is_better(self) -> Option<bool> {
        match self {
            Unit::PerSecond | Unit::PerSecondPerMhz | Unit::BytesPerSecond => Some(true),
            Unit::Nanoseconds => Some(false),
            Unit::Bytes | Unit::Count | Unit::Share => None,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Time for which a spinning thread did not run, one sample per gap (ns).
    SpinGap,
    /// Lateness of a timer wake-up, one sample per period (ns).
    Wakeup,
    /// Work per second of a fixed integer kernel, one sample per window.
    ComputeRate,
    /// Duration of one block read on the emulated AHCI disk (ns).
    IoAhci,
    /// Duration of one block read on the virtio disk (ns).
    IoVirtio,
    /// Time for which a vCPU's thread could have run but had no PU, one sample per window (ns).
    /// Seen from the host: the only latency that a guest without an agent shows.
    RunDelay,
}

impl Metric {
    /// All of them, in the order of tables.
    pub const ALL: [Metric; 6] = [
        Metric::SpinGap,
        Metric::Wakeup,
        Metric::ComputeRate,
        Metric::IoAhci,
        Metric::IoVirtio,
        Metric::RunDelay,
    ];

    /// Stable name, used in files and on the command line.
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
    #[must_use]
    pub fn from_name(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Unit of its samples.
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

    /// True if a larger value is a better one.
    #[must_use]
    pub fn higher_is_better(self) -> bool {
        matches!(self, Metric::ComputeRate)
    }
}

/// Raw samples of one metric, taken during one observation.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What was measured.
    pub metric: Metric,
    /// vCPU (or PU, on the host) on which the ruler ran.
    pub cpu: u32,
    /// Observation time in nanoseconds.
    pub duration_ns: u64,
    /// Part of `duration_ns` during which the ruler looked (spin-gap at 50 % duty: half).
    pub observed_ns: u64,
    /// Samples lost because the recorder was full; they were counted, not kept.
    pub dropped: u64,
    /// The samples, in [`Metric::unit`]. For gaps and wake-ups: all above the ruler's floor.
    pub samples: Vec<f64>,
    /// What disturbed the measurement: `migrated`, `fifo-refused`, `preempted 12`.
    pub flags: Vec<String>,
}

/// Kernel's per-thread statistics of one role over one observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleStats {
    /// The role.
    pub role: Role,
    /// Number of threads that were summed.
    pub threads: u32,
    /// Time on a PU (ns).
    pub run_ns: u64,
    /// Time runnable but waiting for a PU (ns): `/proc/PID/task/TID/schedstat` field 2.
    pub run_delay_ns: u64,
    /// Migrations between PUs; `None` where the kernel does not tell.
    pub migrations: Option<u64>,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Threads that ended during the observation, whose share is lost.
    pub lost_threads: u32,
}

/// Where a number came from. No number without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Topology fingerprint of the host.
    pub fingerprint: String,
    /// Host kernel release.
    pub kernel: String,
    /// Host kernel command line.
    pub cmdline: String,
    /// CPU model.
    pub cpu_model: String,
    /// Hypervisor under the host, if any.
    pub hypervisor: Option<String>,
    /// QEMU version, if a guest was measured.
    pub qemu: Option<String>,
    /// What executed the guest.
    pub accelerator: Accelerator,
    /// Release and SHA-256 of the guest's kernel, if it is known.
    pub guest_kernel: Option<String>,
    /// Pinfold's version.
    pub pinfold: String,
    /// Seed of the design.
    pub seed: u64,
}

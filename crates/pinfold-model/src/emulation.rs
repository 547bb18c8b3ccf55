//! Emulation of slower CPUs: methods and platforms of virtual nodes.

use std::fmt;
use std::ops::RangeInclusive;

use crate::{CpuSet, NodeId, Plan, PuId, Speed};

/// A named way to make CPUs appear slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// A timer event on the vnode's cgroup whose BPF program spins in the interrupt.
    Stall,
    /// A real-time burner per core, all cores synchronised (CPU-Hogs, Buchert 2011 §III.A).
    Hogs,
    /// A burner per core in a sibling cgroup, controlled by weights (Fracas, Buchert 2011 §III.B).
    Fracas,
    /// Alternates between the two hardware frequencies around the requested one; below the lowest
    /// frequency it uses the freezer (CPU-Gov, Buchert 2011 §III.C).
    Gov,
    /// The nearest hardware frequency.
    Freq,
    /// Stops and continues processes by signals (CPU-Lim of Wrekavoc, Buchert 2011 §II).
    Lim,
    /// CFS bandwidth of a cgroup (`cpu.max`, `cpu.cfs_quota_us`).
    Quota,
    /// A recorded load, replayed (after KRASH).
    Inject,
}

impl Method {
    /// All methods, the preferred one first.
    pub const ALL: [Method; 8] = [
        Method::Stall,
        Method::Hogs,
        Method::Fracas,
        Method::Quota,
        Method::Gov,
        Method::Freq,
        Method::Lim,
        Method::Inject,
    ];

    /// Its name in platform files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Stall => "stall",
            Method::Hogs => "hogs",
            Method::Fracas => "fracas",
            Method::Gov => "gov",
            Method::Freq => "freq",
            Method::Lim => "lim",
            Method::Quota => "quota",
            Method::Inject => "inject",
        }
    }

    /// The method with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// True if its start measures the cost of its own turns, which takes seconds.
    #[must_use]
    pub fn measures_own_cost(self) -> bool {
        match self {
            Method::Stall | Method::Hogs => true,
            Method::Fracas
            | Method::Gov
            | Method::Freq
            | Method::Lim
            | Method::Quota
            | Method::Inject => false,
        }
    }

    /// True if it replays a recorded load, which determines the speed.
    #[must_use]
    pub fn replays_load(self) -> bool {
        match self {
            Method::Inject => true,
            Method::Stall
            | Method::Hogs
            | Method::Fracas
            | Method::Gov
            | Method::Freq
            | Method::Lim
            | Method::Quota => false,
        }
    }

    /// Where it sets frequencies and the kernel has no cpufreq driver: `None` if it does not set
    /// any, `Some(true)` if it does without them.
    #[must_use]
    pub fn works_without_frequencies(self) -> Option<bool> {
        match self {
            Method::Gov => Some(true),
            Method::Freq => Some(false),
            Method::Stall
            | Method::Hogs
            | Method::Fracas
            | Method::Lim
            | Method::Quota
            | Method::Inject => None,
        }
    }

    /// Allowed length of a period, in nanoseconds.
    ///
    /// A stall of more than 1 ms delays the interrupts of a CPU, and one of less than 50 µs is
    /// mostly overhead. Burners can be woken every 100 µs. Methods that depend on the scheduler or
    /// on signals need more than a tick, a governor needs longer, and the kernel distributes quota
    /// in slices of 5 ms.
    #[must_use]
    pub fn periods_ns(self) -> RangeInclusive<u64> {
        match self {
            Method::Stall => 50_000..=1_000_000,
            Method::Hogs => 100_000..=1_000_000_000,
            Method::Fracas | Method::Inject => 1_000_000..=100_000_000,
            Method::Quota | Method::Gov => 10_000_000..=1_000_000_000,
            Method::Freq | Method::Lim => 1_000_000..=1_000_000_000,
        }
    }

    /// The variants that it has, the default first.
    #[must_use]
    pub fn variants(self) -> &'static [Variant] {
        match self {
            Method::Stall => &[Variant::Corrected],
            Method::Hogs => &[Variant::Corrected, Variant::AsPublished, Variant::Unsynchronised],
            Method::Fracas => {
                &[Variant::Corrected, Variant::AsPublished, Variant::CommonBurnerGroup]
            }
            Method::Quota | Method::Gov | Method::Freq | Method::Lim | Method::Inject => {
                &[Variant::Corrected, Variant::AsPublished]
            }
        }
    }

    /// True if real-time burners occupy the CPU, so that host tasks there wait as well.
    #[must_use]
    pub fn burns_in_real_time(self) -> bool {
        match self {
            Method::Hogs | Method::Inject => true,
            Method::Stall
            | Method::Fracas
            | Method::Quota
            | Method::Gov
            | Method::Freq
            | Method::Lim => false,
        }
    }

    /// True if it sets the hardware frequency, which several cores may share.
    #[must_use]
    pub fn sets_frequency(self) -> bool {
        match self {
            Method::Gov | Method::Freq => true,
            Method::Stall
            | Method::Hogs
            | Method::Fracas
            | Method::Quota
            | Method::Lim
            | Method::Inject => false,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The requested speed of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedRequest {
    /// As a share of the real core's full speed.
    Share(Speed),
    /// As a frequency; the share depends on the real core's highest frequency.
    Frequency {
        /// Frequency in Hz.
        hertz: u64,
    },
}

/// A share in percent, or a frequency in the largest unit that gives at least 1: `40%`, `2.1 GHz`,
/// `800 MHz`.
impl fmt::Display for SpeedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hertz = match self {
            SpeedRequest::Share(speed) => return speed.fmt(f),
            SpeedRequest::Frequency { hertz } => *hertz,
        };
        let (unit, name, digits) = match hertz {
            1_000_000_000.. => (1_000_000_000, "GHz", 9),
            1_000_000.. => (1_000_000, "MHz", 6),
            1_000.. => (1_000, "kHz", 3),
            0.. => (1, "Hz", 0),
        };
        let rest = match hertz % unit {
            0 => String::new(),
            rest => format!(".{rest:0digits$}"),
        };
        write!(f, "{}{} {name}", hertz / unit, rest.trim_end_matches('0'))
    }
}

/// The form of a method: as published, with Pinfold's corrections, or a form for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// Corrected, so that the speed is right for any number of threads.
    #[default]
    Corrected,
    /// As published, with its known failures, for comparison with the literature.
    AsPublished,
    /// `hogs` without the barrier: the burners of the cores are out of phase (Buchert 2011, the
    /// left half of Fig. 3).
    Unsynchronised,
    /// `fracas` with one group for the burners of all cores instead of one for each.
    CommonBurnerGroup,
}

impl Variant {
    /// All variants.
    pub const ALL: [Variant; 4] = [
        Variant::Corrected,
        Variant::AsPublished,
        Variant::Unsynchronised,
        Variant::CommonBurnerGroup,
    ];

    /// Its name in platform files, study files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Variant::Corrected => "corrected",
            Variant::AsPublished => "as-published",
            Variant::Unsynchronised => "unsynchronised",
            Variant::CommonBurnerGroup => "common-burner-group",
        }
    }

    /// The variant with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }
}

/// An existing group or process that becomes a vnode, instead of newly started processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attach {
    /// A cgroup of a container, slice or service, by its path below the mount:
    /// `/system.slice/web.service`.
    Group(String),
    /// A running process with all its threads and children, such as a virtual machine.
    Process(u32),
    /// What a runtime or network tool calls by a name, before it is looked up.
    Named {
        /// What names it.
        kind: AttachKind,
        /// Its name there.
        name: String,
    },
}

/// What names the processes that become a vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttachKind {
    /// A container runtime: name or ID of a container, a compose service, or a pod.
    Container,
    /// systemd: a unit.
    Unit,
    /// `ip netns`: a network namespace.
    Netns,
    /// mininet: a host of a running topology.
    Mininet,
}

impl AttachKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Container, Self::Unit, Self::Netns, Self::Mininet];

    /// Its word in options and in platform files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Unit => "unit",
            Self::Netns => "netns",
            Self::Mininet => "mininet",
        }
    }
}

/// The profile of a machine whose speed a vnode gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileReference {
    /// File of the profile, made by `pinload profile`.
    pub file: String,
    /// The kind of work whose speed is set; `None` is the mean over all kinds.
    pub kind: Option<String>,
    /// File of this machine's own profile; `None` is the stored one.
    pub own: Option<String>,
}

/// The limit of a disk for a vnode, for reading and for writing separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLimit {
    /// Bytes per second; `None` if they are not limited.
    pub bytes: Option<u64>,
    /// Operations per second; `None` if they are not limited.
    pub operations: Option<u32>,
    /// A folder on the disk; `.` is the working directory.
    pub path: String,
}

/// `50 MB/s`, `500 operations/s`, or both.
impl fmt::Display for DiskLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.map(|bytes| {
            let (unit, name) = match bytes {
                1_000_000_000.. => (1_000_000_000.0, "GB"),
                1_000_000.. => (1_000_000.0, "MB"),
                1_000.. => (1_000.0, "kB"),
                0.. => (1.0, "B"),
            };
            format!("{} {name}/s", bytes as f64 / unit)
        });
        let operations = self.operations.map(|operations| format!("{operations} operations/s"));
        let both: Vec<String> = bytes.into_iter().chain(operations).collect();
        f.write_str(&both.join(" and "))
    }
}

/// One virtual node of a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformVnode {
    /// Its name, unique in the platform.
    pub name: String,
    /// Number of cores.
    pub cores: u32,
    /// Requested speeds: one for all cores, or one per core.
    pub speeds: Vec<SpeedRequest>,
    /// The machine whose speed it gets, instead of `speeds`.
    pub like: Option<ProfileReference>,
    /// The node to which its memory is bound.
    pub memory_node: Option<NodeId>,
    /// The method of slowing; `None` selects the best that the host supports.
    pub method: Option<Method>,
    /// Corrected or as published.
    pub variant: Variant,
    /// Length of a period in nanoseconds; `None` is the method's default.
    pub period_ns: Option<u64>,
    /// For [`Method::Gov`] and [`Method::Freq`]: whether the real speed at each frequency is
    /// measured at the start.
    pub calibrate: bool,
    /// The existing group or process that becomes the vnode.
    pub attach: Option<Attach>,
    /// File of a speed profile, or of a recorded load for [`Method::Inject`].
    pub profile: Option<String>,
    /// The limit of its disk.
    pub disk: Option<DiskLimit>,
}

/// A host divided into virtual nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The vnodes in file order; at least one.
    pub vnodes: Vec<PlatformVnode>,
    /// Whether burners may run on the last housekeeping CPU.
    pub share_housekeeping: bool,
    /// CPUs that no vnode gets.
    pub avoid: CpuSet,
}

/// A vnode of a platform with its CPUs and their speeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedVnode {
    /// Its name, unique in the platform and safe in a directory name.
    pub name: String,
    /// Its CPUs in ascending order, each with its speed; no two vnodes share a CPU.
    pub pus: Vec<(PuId, Speed)>,
    /// The node to which its memory is bound.
    pub memory_node: Option<NodeId>,
    /// True if the host's own tasks only have CPUs of vnodes, including one of this vnode.
    /// Real-time burners do not run there unless the platform allows it.
    pub on_last_housekeeping: bool,
    /// The method of slowing; `None` selects the best that the host supports.
    pub method: Option<Method>,
    /// Corrected or as published.
    pub variant: Variant,
    /// Length of a period in nanoseconds; `None` is the method's default.
    pub period_ns: Option<u64>,
    /// For [`Method::Gov`] and [`Method::Freq`]: whether the real speed at each frequency is
    /// measured at the start.
    pub calibrate: bool,
    /// The existing group or process that becomes the vnode.
    pub attach: Option<Attach>,
    /// File of a speed profile, or of a recorded load for [`Method::Inject`].
    pub profile: Option<String>,
    /// The limit of its disk.
    pub disk: Option<DiskLimit>,
}

impl EmulatedVnode {
    /// Its CPUs.
    pub fn cpus(&self) -> CpuSet {
        self.pus.iter().map(|(pu, _)| *pu).collect()
    }
}

/// A platform placed on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulationPlan {
    /// The vnodes in the platform's order; at least one.
    pub vnodes: Vec<EmulatedVnode>,
    /// The placement as a plan, for code that applies, explains or draws plans. A vnode with
    /// several speeds has the fastest one there. The housekeeping CPUs are those of the platform.
    pub plan: Plan,
    /// Whether real-time burners may run on the last housekeeping CPU.
    pub share_housekeeping: bool,
}

/// A change of speed at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedChange {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// The speed from then on.
    pub speed: SpeedRequest,
    /// Line number in the file.
    pub line: usize,
}

/// Speeds over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeedProfile {
    /// The changes in ascending order of time; at least one.
    pub changes: Vec<SpeedChange>,
}

/// CPU load of a machine since the previous row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRow {
    /// End of the interval in milliseconds since the start; above 0.
    pub at_ms: u64,
    /// Busy time of each CPU in millionths of the interval, 0 to 1,000,000.
    pub busy_millionths: Vec<u32>,
}

/// The load of a machine over time, recorded for replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedLoad {
    /// The recorded CPUs, each once; at least one.
    pub pus: Vec<PuId>,
    /// Rows in ascending order of time, with one entry per CPU; at least one.
    pub rows: Vec<LoadRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new method does not compile here, and fails until `ALL` has it.
    #[test]
    fn all_methods_are_listed() {
        let each = std::iter::successors(Some(Method::Stall), |one| match one {
            Method::Stall => Some(Method::Hogs),
            Method::Hogs => Some(Method::Fracas),
            Method::Fracas => Some(Method::Quota),
            Method::Quota => Some(Method::Gov),
            Method::Gov => Some(Method::Freq),
            Method::Freq => Some(Method::Lim),
            Method::Lim => Some(Method::Inject),
            Method::Inject => None,
        });
        assert_eq!(each.collect::<Vec<_>>(), Method::ALL);
    }

    #[test]
    fn names_are_read_again() {
        for method in Method::ALL {
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
        for variant in Variant::ALL {
            assert_eq!(Variant::from_name(variant.name()), Some(variant));
        }
        assert_eq!(Method::from_name("Stall"), None);
    }

    #[test]
    fn wishes_as_people_write_them() {
        check(2_100_000_000, "2.1 GHz");
        check(2_000_000_000, "2 GHz");
        check(2_926_000_001, "2.926000001 GHz");
        check(800_000_000, "800 MHz");
        check(1_500, "1.5 kHz");
        check(10, "10 Hz");
        assert_eq!(SpeedRequest::Share(Speed::FULL).to_string(), "100%");
    }

    fn text(bytes: Option<u64>, operations: Option<u32>) -> String {
        DiskLimit { bytes, operations, path: ".".to_owned() }.to_string()
    }

    #[test]
    fn disk_limits_as_text() {
        assert_eq!(text(Some(50_000_000), None), "50 MB/s");
        assert_eq!(text(Some(1 << 20), Some(1)), "1.048576 MB/s and 1 operations/s");
        assert_eq!(text(Some(4096), None), "4.096 kB/s");
        assert_eq!(text(None, Some(500)), "500 operations/s");
    }

    fn check(hertz: u64, text: &str) {
        assert_eq!(SpeedRequest::Frequency { hertz }.to_string(), text);
    }
}

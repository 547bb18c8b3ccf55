//! Emulation of slower CPUs: the methods, and platforms of virtual nodes as people ask for them.

use std::fmt;
use std::ops::RangeInclusive;

use crate::{CpuSet, NodeId, Plan, PuId, Speed};

/// A named way to make CPUs appear slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// A timer event of the vnode's cgroup whose BPF program spins in the interrupt.
    Stall,
    /// A real-time burner per core, all cores in step (CPU-Hogs, Buchert 2011 §III.C).
    Hogs,
    /// A burner per core in a sibling cgroup, by weights (Fracas, Buchert 2011 §III.B).
    Fracas,
    /// The two hardware frequencies around the wanted one in turns, below the lowest the
    /// freezer (CPU-Gov, Buchert 2011 §III.D).
    Gov,
    /// The nearest hardware frequency.
    Freq,
    /// Stop and continue by signals (CPU-Lim of Wrekavoc).
    Lim,
    /// Bandwidth of a cgroup (`cpu.max`, `cpu.cfs_quota_us`).
    Quota,
    /// A recorded load, replayed (after KRASH).
    Inject,
}

impl Method {
    /// All of them, the preferred first.
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

    /// Its name, as it is written in platform files and on the command line.
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

    /// The method of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// How long one turn may be, in nanoseconds.
    ///
    /// A stall of more than 1 ms keeps the interrupts of a PU waiting, and one of less than 50 µs is
    /// mostly its own cost; burners are woken from 100 µs on; what waits for the scheduler or for
    /// signals needs a tick and more, a governor longer, and the kernel hands out quotas in slices
    /// of 5 ms.
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

    /// True if real-time burners hold the PU, so that the host's tasks there wait as well.
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

    /// True if it sets the frequency of the hardware, which cores may have in common.
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

/// How fast a core is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedRequest {
    /// As a part of the real core's full speed.
    Share(Speed),
    /// As a frequency; its share depends on the real core's highest.
    Frequency {
        /// Hertz.
        hertz: u64,
    },
}

/// A share in percent, a frequency in the largest unit that it has at least one of: `40%`,
/// `2.1 GHz`, `800 MHz`.
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

/// Whether a method works as its source says, or as Pinfold mends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// So that the speed holds for any number of threads.
    #[default]
    Corrected,
    /// As published, with its known failures, to compare with the literature.
    AsPublished,
}

/// What a vnode is made of, if not of processes that are started in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attach {
    /// A cgroup by its path below the mount, `/system.slice/web.service`: of a container, a
    /// slice or a service.
    Group(String),
    /// A running process with all its threads and children, such as a virtual machine.
    Process(u32),
}

/// One virtual node of a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformVnode {
    /// Its name, unique in the platform.
    pub name: String,
    /// Number of cores.
    pub cores: u32,
    /// How fast they are: one wish for all of them or one for each.
    pub speeds: Vec<SpeedRequest>,
    /// The node that its memory is bound to.
    pub memory_node: Option<NodeId>,
    /// How it is slowed; `None` takes the best that the host can do.
    pub method: Option<Method>,
    /// As published or corrected.
    pub variant: Variant,
    /// Length of one turn in nanoseconds; `None` is the method's usual.
    pub period_ns: Option<u64>,
    /// For [`Method::Gov`] and [`Method::Freq`]: whether what each frequency really gives is
    /// measured at the start.
    pub calibrate: bool,
    /// What exists already and becomes the vnode.
    pub attach: Option<Attach>,
    /// File of a speed profile, or of a recorded load for [`Method::Inject`].
    pub profile: Option<String>,
}

/// A machine divided into virtual nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The vnodes in the file's order; at least one.
    pub vnodes: Vec<PlatformVnode>,
    /// Whether burners may run on the last housekeeping PU.
    pub share_housekeeping: bool,
}

/// Where a vnode of a platform runs, and how fast each of its PUs is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedVnode {
    /// Its name, unique in the platform and safe as part of a directory's name.
    pub name: String,
    /// Its PUs in ascending order, each with its speed; no other vnode has any of them.
    pub pus: Vec<(PuId, Speed)>,
    /// The node that its memory is bound to.
    pub memory_node: Option<NodeId>,
    /// True if the host's own tasks have no PU but those of vnodes, and one of them is this one's.
    /// Real-time burners do not run there unless the platform lets them.
    pub on_last_housekeeping: bool,
    /// How it is slowed; `None` takes the best that the host can do.
    pub method: Option<Method>,
    /// As published or corrected.
    pub variant: Variant,
    /// Length of one turn in nanoseconds; `None` is the method's usual.
    pub period_ns: Option<u64>,
    /// For [`Method::Gov`] and [`Method::Freq`]: whether what each frequency really gives is
    /// measured at the start.
    pub calibrate: bool,
    /// What exists already and becomes the vnode.
    pub attach: Option<Attach>,
    /// File of a speed profile, or of a recorded load for [`Method::Inject`].
    pub profile: Option<String>,
}

impl EmulatedVnode {
    /// Its PUs.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.pus.iter().map(|(pu, _)| *pu).collect()
    }
}

/// A platform with its place on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulationPlan {
    /// The vnodes in the platform's order; at least one.
    pub vnodes: Vec<EmulatedVnode>,
    /// The placement as a plan, for those who apply, explain or draw one; a vnode of several speeds
    /// is there with the fastest. Its housekeeping is that of the platform.
    pub plan: Plan,
    /// Whether real-time burners may run on the last housekeeping PU.
    pub share_housekeeping: bool,
}

/// A speed from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedChange {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// The speed from then on.
    pub speed: SpeedRequest,
    /// Line of the file that says so.
    pub line: usize,
}

/// Speeds over time, to be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeedProfile {
    /// The changes, each later than the one before; at least one.
    pub changes: Vec<SpeedChange>,
}

/// What the PUs of a machine did since the row before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRow {
    /// Milliseconds since the start, above 0: the end of the time that the row tells of.
    pub at_ms: u64,
    /// Millionths of that time in which each PU was busy, 0 to 1,000,000.
    pub busy_millionths: Vec<u32>,
}

/// The load of a machine over time, recorded to be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedLoad {
    /// The PUs that were watched, each once; at least one.
    pub pus: Vec<PuId>,
    /// One entry for each PU in each row; each row is later than the one before; at least one.
    pub rows: Vec<LoadRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_again() {
        for method in Method::ALL {
            assert_eq!(Method::named(method.name()), Some(method));
        }
        assert_eq!(Method::named("Stall"), None);
    }

    #[test]
    fn wishes_as_people_write_them() {
        let check = |hertz: u64, text: &str| {
            assert_eq!(SpeedRequest::Frequency { hertz }.to_string(), text);
        };
        check(2_100_000_000, "2.1 GHz");
        check(2_000_000_000, "2 GHz");
        check(2_926_000_001, "2.926000001 GHz");
        check(800_000_000, "800 MHz");
        check(1_500, "1.5 kHz");
        check(10, "10 Hz");
        assert_eq!(SpeedRequest::Share(Speed::FULL).to_string(), "100%");
    }
}

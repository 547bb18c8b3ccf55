//! Emulation of slower CPUs: the methods, and platforms of virtual nodes as people ask for them.

use std::fmt;

use crate::{NodeId, Speed};

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
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How fast a core is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedWish {
    /// As a part of the real core's full speed.
    Share(Speed),
    /// As a frequency; its share depends on the real core's highest.
    Frequency {
        /// Hertz.
        hertz: u64,
    },
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
    pub speeds: Vec<SpeedWish>,
    /// The node that its memory is bound to.
    pub memory_node: Option<NodeId>,
    /// How it is slowed; `None` takes the best that the host can do.
    pub method: Option<Method>,
    /// As published or corrected.
    pub variant: Variant,
    /// Length of one turn in nanoseconds; `None` is the method's usual.
    pub period_ns: Option<u64>,
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

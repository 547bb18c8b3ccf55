//! A virtual node: its cores with their speeds, and its method.

use pinfold_model::{Attach, CpuSet, DiskLimit, Method, NodeId, PuId, Speed, Variant};

use crate::methods;

/// A row of a speed profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileRow {
    /// Nanoseconds after the start
    pub at_ns: u64,
    /// from which on all cores have this speed.
    pub speed: Speed,
    /// Line number in the profile's file.
    pub line: usize,
}

/// A virtual node with its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The CPUs of its cores, ascending, each with its speed.
    pub cores: Vec<(PuId, Speed)>,
    /// The node to which its memory is bound.
    pub memory_node: Option<NodeId>,
    /// The method of slowing.
    pub method: Method,
    /// Corrected or as published.
    pub variant: Variant,
    /// Period in nanoseconds; `None` is the method's default.
    pub period_ns: Option<u64>,
    /// Speed profile.
    pub profile: Vec<ProfileRow>,
    /// Path of its file, for errors.
    pub profile_file: String,
    /// The existing group or process that becomes the vnode.
    pub attach: Option<Attach>,
    /// The load that [`Method::Inject`] replays: the time since the start in nanoseconds, and from
    /// then on the share to take of each core in millionths, in the order of `cores`.
    pub load: Vec<(u64, Vec<u32>)>,
    /// For [`Method::Gov`] and [`Method::Freq`]: whether the real speed at each advertised
    /// frequency is measured at the start.
    pub calibrate: bool,
    /// The limit of its disk.
    pub disk: Option<DiskLimit>,
}

impl Node {
    /// A vnode with new groups and these cores, slowed by the corrected variant of a method.
    pub fn new(name: &str, method: Method, cores: Vec<(PuId, Speed)>) -> Self {
        Self {
            name: name.to_owned(),
            cores,
            memory_node: None,
            method,
            variant: Variant::Corrected,
            period_ns: None,
            profile: Vec::new(),
            profile_file: String::new(),
            attach: None,
            load: Vec::new(),
            calibrate: false,
            disk: None,
        }
    }

    /// Its CPUs.
    pub fn pus(&self) -> CpuSet {
        self.cores.iter().map(|(pu, _)| *pu).collect()
    }

    /// Period in nanoseconds.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period_ns.unwrap_or(methods::info(self.method).usual_period_ns)
    }

    /// The same vnode with one speed for all cores.
    pub(crate) fn at(&self, speed: Speed) -> Node {
        let cores = self.cores.iter().map(|(pu, _)| (*pu, speed)).collect();
        Node { cores, ..self.clone() }
    }
}

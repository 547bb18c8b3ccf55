//! Requests: what the user wants placed, and what the host keeps.
//!
//! A request holds one or several *vnodes*, each a virtual machine or a process group,
//! and the conditions of the host: what stays free, what is avoided, which interrupts
//! are to be kept near their device. It says nothing of how: that is the strategy's.

use std::fmt;

use crate::{CpuSet, IsolationScope, NodeId, Policy};

/// How many vCPUs a virtual machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuCount {
    /// The strategy chooses.
    Auto,
    /// This many.
    Exactly(u32),
}

/// Whether a guest is shown SMT siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmtRequest {
    /// As the pins have it.
    #[default]
    Auto,
    /// Yes: a plan that cannot is refused.
    Shown,
    /// No: the guest takes its CPUs for whole cores.
    Hidden,
}

/// CPU speed μ of a vnode: emulated frequency divided by full frequency, 0 < μ ≤ 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Speed {
    millionths: u32,
}

impl Speed {
    /// Full speed, μ = 1.
    pub const FULL: Speed = Speed { millionths: 1_000_000 };

    /// A speed in millionths of full speed; `None` outside 1 to 1,000,000.
    #[must_use]
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (1..=1_000_000).contains(&millionths).then_some(Self { millionths })
    }

    /// Millionths of full speed, 1 to 1,000,000.
    #[must_use]
    pub fn millionths(self) -> u32 {
        self.millionths
    }
}

/// Percent of full speed, with as many digits as it has: `75%`, `12.5%`.
impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.millionths / 10_000, self.millionths % 10_000);
        let digits = format!("{rest:04}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            digits => write!(f, "{whole}.{digits}%"),
        }
    }
}

/// A virtual machine to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRequest {
    /// Number of vCPUs.
    pub vcpus: VcpuCount,
    /// Ids of its iothreads.
    pub iothreads: Vec<String>,
    /// Number of its vhost workers: one per queue pair of a vhost device.
    pub vhosts: u32,
    /// Whether the guest is shown siblings.
    pub smt: SmtRequest,
    /// Host NUMA nodes that its vCPUs stay on; empty leaves them to the strategy.
    pub nodes: Vec<NodeId>,
    /// The NUMA nodes that the guest is shown, where they are fixed before the plan (by a domain
    /// file, by `-numa` options); they hold each vCPU once. Empty leaves them to the plan.
    pub cells: Vec<CellRequest>,
}

/// A NUMA node of the guest ("cell" in libvirt's words) that exists before the plan.
///
/// Its vCPUs are placed together, on the host nodes that hold its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellRequest {
    /// Its vCPUs by index; never empty.
    pub vcpus: CpuSet,
    /// The host NUMA nodes of its memory; empty lets the plan choose one.
    pub nodes: Vec<NodeId>,
    /// Its memory in bytes, if known.
    pub bytes: Option<u64>,
}

impl VmRequest {
    /// So many vCPUs and nothing else asked.
    #[must_use]
    pub fn of(vcpus: VcpuCount) -> Self {
        Self {
            vcpus,
            iothreads: Vec::new(),
            vhosts: 0,
            smt: SmtRequest::Auto,
            nodes: Vec::new(),
            cells: Vec::new(),
        }
    }
}

/// What a vnode is, with what its kind needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A virtual machine.
    Vm(VmRequest),
    /// Ordinary processes.
    Processes {
        /// Number of cores.
        cores: u32,
        /// How fast those cores are to appear.
        speed: Speed,
    },
}

/// Memory that a vnode needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Bytes.
    pub bytes: u64,
    /// Size of a huge page in bytes; `None` for ordinary pages.
    pub page_bytes: Option<u64>,
}

/// A device whose place matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// By PCI address with its domain, `0000:01:00.0`; the topology knows its node.
    Pci(String),
    /// Only its node is given.
    Node(NodeId),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Pci(address) => write!(f, "the PCI device {address}"),
            Device::Node(node) => write!(f, "a device of node {node}"),
        }
    }
}

/// A scheduling policy that some threads of a vnode are to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRequest {
    /// A role (`vcpu(1)`) or a kind of roles (`vcpu`); see [`crate::Role::is_called`].
    pub role: String,
    /// The policy.
    pub policy: Policy,
}

/// The PUs that some threads of a vnode are to have, whatever the strategy gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinWish {
    /// A role (`vcpu(1)`) or a kind of roles (`vcpu`); see [`crate::Role::is_called`].
    pub role: String,
    /// The PUs; never empty.
    pub pus: CpuSet,
}

/// One vnode to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodeRequest {
    /// Name, unique among the request's vnodes.
    pub name: String,
    /// What it is.
    pub work: Work,
    /// Memory, if its place is to be planned.
    pub memory: Option<MemoryRequest>,
    /// Devices that it should be near to.
    pub devices: Vec<Device>,
    /// Vnodes of higher priority choose their places first; equals in the request's order.
    pub priority: i32,
    /// Policies of its threads, beside those of the strategy; a later one counts.
    pub policies: Vec<PolicyRequest>,
    /// Pins by hand; those for a role count before those for its kind, then the later ones.
    pub pins: Vec<PinWish>,
}

impl VnodeRequest {
    /// A virtual machine and nothing else asked.
    #[must_use]
    pub fn vm(name: &str, vm: VmRequest) -> Self {
        Self::of(name, Work::Vm(vm))
    }

    /// A process group of so many cores.
    #[must_use]
    pub fn processes(name: &str, cores: u32, speed: Speed) -> Self {
        Self::of(name, Work::Processes { cores, speed })
    }

    fn of(name: &str, work: Work) -> Self {
        Self {
            name: name.to_owned(),
            work,
            memory: None,
            devices: Vec::new(),
            priority: 0,
            policies: Vec::new(),
            pins: Vec::new(),
        }
    }
}

/// PUs that no vnode may use, although the host's tasks may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Free {
    /// At least this many, in whole cores.
    Pus(u32),
    /// At least this part of the PUs that the plan may use, 1 to 99, in whole cores.
    Percent(u32),
    /// These very PUs: where the host's own tasks are to be.
    These(CpuSet),
}

/// Where the emulator runs under a strategy that leaves a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmulatorRequest {
    /// As the strategy has it.
    #[default]
    Usual,
    /// With round-robin priority 1, so that the host's tasks do not delay it.
    RealTime,
    /// The host on one sibling of the host core, the emulator on the others.
    Apart,
}

impl fmt::Display for EmulatorRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EmulatorRequest::Usual => "usual",
            EmulatorRequest::RealTime => "real-time",
            EmulatorRequest::Apart => "apart",
        })
    }
}

/// Which cores are taken first on a machine whose cores or caches are not alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// Not asked: a stacked cache first, else the fastest kind of cores.
    #[default]
    Auto,
    /// The largest L3 cache.
    Cache,
    /// The highest frequency.
    Frequency,
    /// The cores that need the least power.
    Efficiency,
    /// All cores count as alike.
    None,
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Preference::Auto => "auto",
            Preference::Cache => "cache",
            Preference::Frequency => "frequency",
            Preference::Efficiency => "efficiency",
            Preference::None => "none",
        })
    }
}

/// What is to be placed on a host, and under which conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be placed; at least one.
    pub vnodes: Vec<VnodeRequest>,
    /// PUs that nothing of the plan may use.
    pub avoid: CpuSet,
    /// How far other tasks are to be kept off.
    pub isolation: IsolationScope,
    /// PUs that no vnode may use.
    pub free: Option<Free>,
    /// Devices whose interrupts go to PUs near them that carry no vCPU.
    pub interrupts: Vec<Device>,
    /// Where the emulators run, if not as usual.
    pub emulator: EmulatorRequest,
    /// Which cores are taken first where they are not alike.
    pub prefer: Preference,
}

impl Request {
    /// These vnodes and nothing else asked.
    #[must_use]
    pub fn of(vnodes: Vec<VnodeRequest>) -> Self {
        Self {
            vnodes,
            avoid: CpuSet::new(),
            isolation: IsolationScope::None,
            free: None,
            interrupts: Vec::new(),
            emulator: EmulatorRequest::Usual,
            prefer: Preference::Auto,
        }
    }

    /// One virtual machine with `vcpus` vCPUs and nothing else asked.
    #[must_use]
    pub fn vm(name: &str, vcpus: VcpuCount) -> Self {
        Self::of(vec![VnodeRequest::vm(name, VmRequest::of(vcpus))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        let check = |millionths: u32, text: &str| {
            assert_eq!(Speed::from_millionths(millionths).unwrap().to_string(), text);
        };
        check(1_000_000, "100%");
        check(750_000, "75%");
        check(125_000, "12.5%");
        check(333_333, "33.3333%");
        check(1, "0.0001%");
        assert_eq!(Speed::from_millionths(0), None);
        assert_eq!(Speed::from_millionths(1_000_001), None);
    }
}

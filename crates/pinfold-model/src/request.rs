//! Requests: what the user wants to place, and which CPUs the host keeps.
//!
//! A request contains one or several *vnodes*, each a virtual machine or a process group, and the
//! conditions of the host: what stays free, what is avoided, which interrupts are kept near their
//! device. How these are placed is up to the strategy.

use std::fmt;

use crate::{CpuSet, IsolationScope, NodeId, Policy, Role, Speed};

/// Maximum number of vCPUs of any strategy: KVM's own limit (`KVM_MAX_NR_VCPUS`) is at most 4096 on
/// x86.
pub const MAX_VCPUS: u32 = 4096;

/// Number of vCPUs of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuCount {
    /// Chosen by the strategy.
    Auto,
    /// This many.
    Exactly(u32),
}

/// Whether SMT siblings are exposed to a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmtRequest {
    /// Depends on the pins.
    #[default]
    Auto,
    /// Yes; a plan in which that is impossible is refused.
    Shown,
    /// No: the guest sees each CPU as a whole core.
    Hidden,
}

/// A virtual machine to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRequest {
    /// Number of vCPUs.
    pub vcpus: VcpuCount,
    /// IDs of its iothreads.
    pub iothreads: Vec<String>,
    /// Number of its vhost workers: one per queue pair of a vhost device.
    pub vhosts: u32,
    /// Whether SMT siblings are exposed to the guest.
    pub smt: SmtRequest,
    /// Host NUMA nodes for its vCPUs; empty lets the strategy choose.
    pub nodes: Vec<NodeId>,
    /// The guest's NUMA nodes, if they are fixed before the plan (by a domain file, by `-numa`
    /// options); they contain each vCPU exactly once. Empty lets the plan choose.
    pub cells: Vec<CellRequest>,
}

/// A NUMA node of the guest (a "cell" in libvirt) that is fixed before the plan.
///
/// Its vCPUs are placed together, on the host nodes of its memory.
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
    /// The roles of the threads that serve its devices.
    pub fn device_roles(&self) -> impl Iterator<Item = Role> {
        let iothreads = self.iothreads.iter().cloned().map(Role::Iothread);
        iothreads.chain((0..self.vhosts).map(Role::Vhost))
    }

    /// A request with this number of vCPUs and default values.
    pub fn from_vcpus(vcpus: VcpuCount) -> Self {
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

/// Kind of a vnode, with the data that the kind needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A virtual machine.
    Vm(VmRequest),
    /// Ordinary processes.
    Processes {
        /// Number of cores.
        cores: u32,
        /// Emulated speed of those cores.
        speed: Speed,
    },
}

/// Memory of a vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Bytes.
    pub bytes: u64,
    /// Huge page size in bytes; `None` for ordinary pages.
    pub page_bytes: Option<u64>,
}

/// A device near which a vnode or its interrupts are placed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// By PCI address including the domain, `0000:01:00.0`; the topology has its node.
    Pci(String),
    /// By its NUMA node only.
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

/// A requested scheduling policy for some threads of a vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRequest {
    /// A role (`vcpu(1)`) or a kind of roles (`vcpu`); see [`crate::Role::is_called`].
    pub role: String,
    /// The policy.
    pub policy: Policy,
}

/// Requested CPUs for some threads of a vnode, which override the strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// A role (`vcpu(1)`) or a kind of roles (`vcpu`); see [`crate::Role::is_called`].
    pub role: String,
    /// The CPUs; never empty.
    pub pus: CpuSet,
}

/// One vnode to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodeRequest {
    /// Name, unique among the request's vnodes.
    pub name: String,
    /// Its kind.
    pub work: Work,
    /// Memory, if its placement is to be planned.
    pub memory: Option<MemoryRequest>,
    /// Devices to which it should be close.
    pub devices: Vec<Device>,
    /// Vnodes of higher priority are placed first; vnodes of equal priority in the request's order.
    pub priority: i32,
    /// Policies of its threads, which override those of the strategy; the last match counts.
    pub policies: Vec<PolicyRequest>,
    /// Manual pins. Pins of a role override pins of its kind; then the last match counts.
    pub pins: Vec<PinRequest>,
}

impl VnodeRequest {
    /// A virtual machine with default values.
    pub fn vm(name: &str, vm: VmRequest) -> Self {
        Self::new(name, Work::Vm(vm))
    }

    /// A process group with this number of cores.
    #[must_use]
    pub fn processes(name: &str, cores: u32, speed: Speed) -> Self {
        Self::new(name, Work::Processes { cores, speed })
    }

    fn new(name: &str, work: Work) -> Self {
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

/// CPUs that no vnode may use, but the host's tasks may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreeCpus {
    /// At least this many, in whole cores.
    Pus(u32),
    /// At least this percentage of the CPUs that the plan may use, 1 to 99, in whole cores.
    Percent(u32),
    /// Exactly these CPUs, which become the housekeeping CPUs.
    These(CpuSet),
}

/// Where the emulator runs, for strategies that leave a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmulatorRequest {
    /// The strategy's default.
    #[default]
    Usual,
    /// With round-robin priority 1, so that the host's tasks do not delay it.
    RealTime,
    /// The host's tasks on one sibling of the host core, the emulator on the others.
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

/// Which cores are used first on a machine whose cores or caches differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// Default: a stacked cache first, else the fastest kind of cores.
    #[default]
    Auto,
    /// Those with the largest L3 cache.
    Cache,
    /// Those with the highest frequency.
    Frequency,
    /// The cores with the lowest power consumption.
    Efficiency,
    /// No preference.
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

/// What to place on a host, and under which conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The vnodes to place; at least one.
    pub vnodes: Vec<VnodeRequest>,
    /// CPUs that the plan must not use at all.
    pub avoid: CpuSet,
    /// Which other tasks are excluded from the reserved CPUs.
    pub isolation: IsolationScope,
    /// CPUs that no vnode may use.
    pub free: Option<FreeCpus>,
    /// Devices whose interrupts go to nearby CPUs without vCPUs.
    pub interrupts: Vec<Device>,
    /// Where the emulators run.
    pub emulator: EmulatorRequest,
    /// Which cores are used first.
    pub prefer: Preference,
    /// What other machines do on CPUs that they do not keep; strategies that share CPUs go where
    /// there is the least of it.
    pub load: Vec<Load>,
}

/// The load of other machines on some CPUs, spread evenly over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The CPUs over which they float.
    pub cpus: CpuSet,
    /// Their vCPUs in thousandths; those that are known to be idle may count less.
    pub vcpus_milli: u32,
}

impl Request {
    /// A request for these vnodes with default values.
    pub fn from_vnodes(vnodes: Vec<VnodeRequest>) -> Self {
        Self {
            vnodes,
            avoid: CpuSet::new(),
            isolation: IsolationScope::None,
            free: None,
            interrupts: Vec::new(),
            emulator: EmulatorRequest::Usual,
            prefer: Preference::Auto,
            load: Vec::new(),
        }
    }

    /// A request for one virtual machine with `vcpus` vCPUs and default values.
    #[must_use]
    pub fn vm(name: &str, vcpus: VcpuCount) -> Self {
        Self::from_vnodes(vec![VnodeRequest::vm(name, VmRequest::from_vcpus(vcpus))])
    }
}

//! The host's topology: hwloc's tree flattened into tables, plus what hwloc does not say.
//!
//! ```text
//! package ─┬─ NUMA node ─┬─ L3 domain ─┬─ core ─┬─ PU
//! ```
//! NUMA nodes and L3 domains may be larger or smaller than a package; the tables
//! therefore hold sets of PUs instead of a strict tree.

use std::collections::BTreeMap;

use crate::{CoreId, CpuSet, Finding, L3Id, LogicalPu, NodeId, PackageId, PuId};

/// Where a topology came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The running kernel of this machine.
    Live,
    /// A captured tree or an hwloc XML file; the text names the file.
    Captured(String),
    /// An hwloc synthetic description such as `node:4 core:4 pu:2`.
    Synthetic(String),
}

/// What kind of core this is, on machines that mix them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoreKind {
    /// All cores of the machine are alike.
    Uniform,
    /// The fast kind of a hybrid machine (Intel P core, Arm big).
    Performance,
    /// The small kind (Intel E core, Arm LITTLE).
    Efficiency,
    /// Smaller still (Intel low-power E core).
    LowPower,
}

/// State of simultaneous multithreading (`/sys/devices/system/cpu/smt/control`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smt {
    /// At least one core shows more than one PU.
    On,
    /// The CPU could, but it is switched off.
    Off,
    /// The CPU has one PU per core.
    NotSupported,
    /// The source does not tell (synthetic, foreign XML).
    Unknown,
}

/// One processing unit: what Linux calls a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pu {
    /// Number that Linux uses.
    pub os: PuId,
    /// Place in hwloc's order.
    pub logical: LogicalPu,
    /// The core it belongs to.
    pub core: CoreId,
    /// Position among its core's PUs, from 0.
    pub smt_rank: u32,
    /// Its level-3 cache, if any.
    pub l3: Option<L3Id>,
    /// The NUMA node nearest to it, if the source tells one.
    pub node: Option<NodeId>,
    /// Its package.
    pub package: PackageId,
    /// Kind of its core.
    pub kind: CoreKind,
}

/// A core and its PUs (SMT siblings).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Logical index.
    pub id: CoreId,
    /// Its online PUs.
    pub pus: CpuSet,
    /// Its package.
    pub package: PackageId,
    /// Its kind.
    pub kind: CoreKind,
}

/// The PUs that share one level-3 cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L3Domain {
    /// Logical index.
    pub id: L3Id,
    /// Its online PUs.
    pub pus: CpuSet,
    /// Cache size in bytes; 0 when unknown.
    pub size_bytes: u64,
    /// Its ways of associativity; 0 when unknown.
    pub ways: u32,
}

/// A NUMA node; it may have no PUs or no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// OS index.
    pub id: NodeId,
    /// Its online PUs.
    pub pus: CpuSet,
    /// Local memory in bytes.
    pub memory_bytes: u64,
    /// Its huge pages by size; empty if the source does not tell, or the kernel has none.
    pub huge_pages: Vec<HugePages>,
}

/// The huge pages of one size on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Size of one in bytes.
    pub page_bytes: u64,
    /// How many there are.
    pub total: u64,
    /// How many of them nobody uses.
    pub free: u64,
}

/// A package (socket).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Logical index.
    pub id: PackageId,
    /// Its online PUs.
    pub pus: CpuSet,
}

/// A PCI device, as far as placement cares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciDevice {
    /// Address with its domain: `0000:01:00.0`.
    pub address: String,
    /// The NUMA node nearest to it; `None` where the firmware does not tell.
    pub node: Option<NodeId>,
}

/// A machine, as far as placement cares. All tables are in hwloc's logical order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Where it came from.
    pub source: Source,
    /// Hash over everything that placement depends on; a plan names it.
    pub fingerprint: String,
    /// Name of the CPU model, if known.
    pub model: Option<String>,
    /// Name of the hypervisor this machine itself runs on, if any.
    pub hypervisor: Option<String>,
    /// Online PUs.
    pub pus: Vec<Pu>,
    /// Cores with at least one online PU.
    pub cores: Vec<Core>,
    /// Level-3 caches.
    pub l3: Vec<L3Domain>,
    /// NUMA nodes.
    pub nodes: Vec<NumaNode>,
    /// Packages.
    pub packages: Vec<Package>,
    /// SMT state.
    pub smt: Smt,
    /// PUs that are present but offline.
    pub offline: CpuSet,
    /// PUs isolated at boot (`isolcpus`) or by partitions.
    pub isolated: CpuSet,
    /// PUs without a periodic tick (`nohz_full`).
    pub nohz_full: CpuSet,
    /// PUs that this process may use: online and in its cgroup's cpuset. Any process may widen
    /// its affinity mask to all of them.
    pub allowed: CpuSet,
    /// The affinity mask of this process, which what it starts inherits; `None` where the source
    /// does not say.
    pub mask: Option<CpuSet>,
    /// PUs of several cores that share a level-2 cache: an Arm cluster, a module of efficiency
    /// cores. In hwloc's order; a core with a cache of its own is in none.
    pub l2_domains: Vec<CpuSet>,
    /// PUs whose frequency changes together; empty without cpufreq.
    pub frequency_domains: Vec<CpuSet>,
    /// Highest frequency of each online PU in kHz, as its driver states it (`cpuinfo_max_freq`,
    /// with turbo where the driver counts that); PUs of which nobody knows it are left out.
    pub highest_khz: BTreeMap<PuId, u64>,
    /// How much the firmware prefers each online PU's core for single-threaded work: higher is
    /// preferred (AMD's preferred-core ranking, ACPI CPPC's highest performance). The numbers
    /// have no unit and compare only within one machine. Empty where the host does not report
    /// it, and where all cores are equal.
    pub core_ranking: BTreeMap<PuId, u32>,
    /// PCI devices by address; empty where the source does not tell.
    pub devices: Vec<PciDevice>,
    /// The kernel's boot parameters (`/proc/cmdline`) that concern CPUs and memory, word by word;
    /// empty where the source does not report them.
    pub boot_parameters: Vec<String>,
    /// What is odd about this machine.
    pub findings: Vec<Finding>,
}

impl Topology {
    /// The PU with this OS index, if it is online.
    #[must_use]
    pub fn pu(&self, os: PuId) -> Option<&Pu> {
        self.pus.iter().find(|pu| pu.os == os)
    }

    /// The core with this logical index.
    ///
    /// # Panics
    /// If the id belongs to another topology.
    #[must_use]
    pub fn core(&self, id: CoreId) -> &Core {
        &self.cores[id.index()]
    }

    /// All online PUs.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.pus.iter().map(|pu| pu.os).collect()
    }

    /// The PUs on which a process that this one starts runs by itself: the allowed ones of the
    /// mask, or all that are allowed where there is none.
    #[must_use]
    pub fn inherited(&self) -> CpuSet {
        let mask = self.mask.as_ref().map(|mask| self.allowed.intersection(mask));
        mask.filter(|pus| !pus.is_empty()).unwrap_or_else(|| self.allowed.clone())
    }

    /// True if any core has more than one online PU.
    #[must_use]
    pub fn has_smt(&self) -> bool {
        self.cores.iter().any(|core| core.pus.len() > 1)
    }
}

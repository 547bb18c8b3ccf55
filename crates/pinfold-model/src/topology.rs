//! The host's topology: hwloc's tree flattened into tables, plus data that hwloc does not provide.
//!
//! ```text
//! package ─┬─ NUMA node ─┬─ L3 domain ─┬─ core ─┬─ CPU
//! ```
//! NUMA nodes and L3 domains may be larger or smaller than a package, so the tables contain CPU
//! sets instead of a strict tree.

use std::collections::BTreeMap;

use crate::{CoreId, CpuSet, Finding, L3Id, LogicalPu, NodeId, PackageId, PuId};

/// Where a topology came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case", tag = "kind", content = "name"))]
pub enum Source {
    /// The running kernel of this host.
    Live,
    /// A captured tree or an hwloc XML file; the text names the file.
    Captured(String),
    /// An hwloc synthetic description such as `node:4 core:4 pu:2`.
    Synthetic(String),
}

/// Kind of a core, on machines with several kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum CoreKind {
    /// All cores of the machine are of one kind.
    Uniform,
    /// The fast cores of a hybrid machine (Intel P core, Arm big).
    Performance,
    /// The small cores (Intel E core, Arm LITTLE).
    Efficiency,
    /// Even smaller cores (Intel low-power E core).
    LowPower,
}

/// State of simultaneous multithreading (`/sys/devices/system/cpu/smt/control`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Smt {
    /// At least one core has more than one online CPU.
    On,
    /// The processor supports it, but it is switched off.
    Off,
    /// The processor has one CPU per core.
    NotSupported,
    /// The source does not report it (synthetic, foreign XML).
    Unknown,
}

/// One processing unit (CPU) of hwloc: a CPU of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Pu {
    /// OS index (`cpuN`).
    pub os: PuId,
    /// hwloc's logical index.
    pub logical: LogicalPu,
    /// Its core.
    pub core: CoreId,
    /// Position among the CPUs of its core, from 0.
    pub smt_rank: u32,
    /// Its level-3 cache, if any.
    pub l3: Option<L3Id>,
    /// The nearest NUMA node, if the source reports it.
    pub node: Option<NodeId>,
    /// Its package.
    pub package: PackageId,
    /// Kind of its core.
    pub kind: CoreKind,
}

/// A core and its CPUs (SMT siblings).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Core {
    /// Logical index.
    #[cfg_attr(feature = "serde", serde(rename = "logical"))]
    pub id: CoreId,
    /// Its online CPUs.
    pub pus: CpuSet,
    /// Its package.
    pub package: PackageId,
    /// Core kind.
    pub kind: CoreKind,
}

/// The CPUs that share one level-3 cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct L3Domain {
    /// Logical index.
    #[cfg_attr(feature = "serde", serde(rename = "logical"))]
    pub id: L3Id,
    /// Its online CPUs.
    pub pus: CpuSet,
    /// Cache size in bytes; 0 when unknown.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "crate::serde_formats::serialize_nonzero")
    )]
    pub size_bytes: u64,
    /// Associativity (number of ways); 0 when unknown.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub ways: u32,
}

/// A NUMA node; it may have no CPUs or no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NumaNode {
    /// OS index.
    #[cfg_attr(feature = "serde", serde(rename = "os"))]
    pub id: NodeId,
    /// Its online CPUs.
    pub pus: CpuSet,
    /// Local memory in bytes.
    pub memory_bytes: u64,
    /// Memory in bytes that is free now, including the file cache that the kernel can drop; `None`
    /// if the source does not report it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub free_bytes: Option<u64>,
    /// Huge pages by size; empty if the source does not report them or the kernel has none.
    pub huge_pages: Vec<HugePages>,
}

/// The huge pages of one size on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct HugePages {
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Number of pages.
    pub total: u64,
    /// Number of unused pages.
    pub free: u64,
}

/// A package (socket).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Package {
    /// Logical index.
    #[cfg_attr(feature = "serde", serde(rename = "logical"))]
    pub id: PackageId,
    /// Its online CPUs.
    pub pus: CpuSet,
}

/// A PCI device and its NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PciDevice {
    /// Address including the domain: `0000:01:00.0`.
    pub address: String,
    /// The nearest NUMA node; `None` where the firmware does not report it.
    pub node: Option<NodeId>,
}

/// The topology of a machine. All tables are in hwloc's logical order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Where it came from.
    pub source: Source,
    /// Hash over all data that placement depends on; plans store it.
    pub fingerprint: String,
    /// Name of the processor model, if known.
    pub model: Option<String>,
    /// Name of the hypervisor under this machine, if any.
    pub hypervisor: Option<String>,
    /// Online CPUs.
    pub pus: Vec<Pu>,
    /// Cores with at least one online CPU.
    pub cores: Vec<Core>,
    /// Level-3 caches.
    pub l3: Vec<L3Domain>,
    /// NUMA nodes.
    pub nodes: Vec<NumaNode>,
    /// Packages.
    pub packages: Vec<Package>,
    /// SMT state.
    pub smt: Smt,
    /// CPUs that are present but offline.
    pub offline: CpuSet,
    /// CPUs isolated at boot (`isolcpus`) or by partitions.
    pub isolated: CpuSet,
    /// CPUs without a periodic tick (`nohz_full`).
    pub nohz_full: CpuSet,
    /// CPUs that this process may use: online and in its cgroup's cpuset. A process may widen its
    /// affinity mask to all of them.
    pub allowed: CpuSet,
    /// The affinity mask of this process, which its children inherit; `None` where the source does
    /// not report it.
    pub mask: Option<CpuSet>,
    /// CPUs of several cores that share a level-2 cache (an Arm cluster, a module of efficiency
    /// cores), in hwloc's order. A core with a private level-2 cache is not listed.
    pub l2_domains: Vec<CpuSet>,
    /// CPUs whose frequency changes together; empty without cpufreq.
    pub frequency_domains: Vec<CpuSet>,
    /// Highest frequency of each online CPU in kHz, as its driver reports it (`cpuinfo_max_freq`,
    /// with turbo where the driver includes that). CPUs with unknown frequency are left out.
    pub highest_khz: BTreeMap<PuId, u64>,
    /// How much the firmware prefers each online CPU's core for single-threaded work: higher is
    /// preferred (AMD's preferred-core ranking, ACPI CPPC's highest performance). The numbers
    /// have no unit and compare only within one machine. Empty where the host does not report
    /// it, and where all cores are equal.
    pub core_ranking: BTreeMap<PuId, u32>,
    /// PCI devices by address; empty where the source does not report them.
    pub devices: Vec<PciDevice>,
    /// The kernel's boot parameters (`/proc/cmdline`) that concern CPUs and memory, one per entry;
    /// empty where the source does not report them.
    pub boot_parameters: Vec<String>,
    /// Unusual properties of this machine.
    pub findings: Vec<Finding>,
}

impl Topology {
    /// The CPU with this OS index, if it is online.
    pub fn pu(&self, os: PuId) -> Option<&Pu> {
        self.pus.iter().find(|pu| pu.os == os)
    }

    /// The same machine without data on free memory: a machine that runs has its memory already, so
    /// what is free besides does not decide its node.
    #[must_use]
    pub fn without_free_memory(mut self) -> Self {
        self.nodes.iter_mut().for_each(|node| node.free_bytes = None);
        self
    }

    /// The core with this logical index.
    ///
    /// # Panics
    /// If the ID belongs to another topology.
    pub fn core(&self, id: CoreId) -> &Core {
        &self.cores[id.index()]
    }

    /// All online CPUs.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.pus.iter().map(|pu| pu.os).collect()
    }

    /// The CPUs on which a child of this process runs by default: the allowed CPUs in the affinity
    /// mask, or all allowed CPUs if the mask is unknown or contains none of them.
    pub fn inherited_cpus(&self) -> CpuSet {
        let mask = self.mask.as_ref().map(|mask| self.allowed.intersection(mask));
        mask.filter(|pus| !pus.is_empty()).unwrap_or_else(|| self.allowed.clone())
    }

    /// True if any core has more than one online CPU.
    #[must_use]
    pub fn has_smt(&self) -> bool {
        self.cores.iter().any(|core| core.pus.len() > 1)
    }
}

//! Host tunables that a plan sets, in addition to the placement of tasks.
//!
//! An absent field leaves its tunable unchanged. Interrupts of single devices and memory nodes have
//! their own parts of the plan.

use std::fmt;

use crate::{CpuSet, NodeId};

/// When the kernel uses transparent huge pages
/// (<https://docs.kernel.org/admin-guide/mm/transhuge.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentHugePages {
    /// For all mappings.
    Always,
    /// For mappings with `madvise(MADV_HUGEPAGE)`.
    Madvise,
    /// For no mapping.
    Never,
}

impl TransparentHugePages {
    /// All values, in the kernel's order.
    pub const ALL: [Self; 3] = [Self::Always, Self::Madvise, Self::Never];

    /// The value that the kernel file takes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }
}

/// What kernel samepage merging does (<https://docs.kernel.org/admin-guide/mm/ksm.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamePageMerging {
    /// Do not merge; pages that are merged stay merged.
    Stop,
    /// Merge.
    Run,
    /// Do not merge, and unmerge all merged pages.
    Unmerge,
}

impl SamePageMerging {
    /// All values, in the order of the kernel's numbers.
    pub const ALL: [Self; 3] = [Self::Stop, Self::Run, Self::Unmerge];

    /// Its name in plans.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Run => "run",
            Self::Unmerge => "unmerge",
        }
    }
}

/// How a cgroup v2 partition, which excludes other tasks from its CPUs, schedules on them
/// (<https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// With load balancing among its CPUs.
    Root,
    /// Without load balancing or unbound kernel work: each thread has to be pinned to its own CPU.
    Isolated,
}

impl Partition {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Root, Self::Isolated];

    /// The value that `cpuset.cpus.partition` takes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Isolated => "isolated",
        }
    }
}

/// The requested size of a node's pool of huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePagePool {
    /// The node.
    pub node: NodeId,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Number of pages in the pool, including those in use.
    pub pages: u64,
}

/// A CFS bandwidth limit of a machine's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Run time of all its threads together per period, in microseconds.
    pub quota_us: u64,
    /// The period in microseconds, 1,000 to 1,000,000.
    pub period_us: u64,
}

/// A share of a cache or of memory bandwidth in the schemata format of resctrl: `L3:0=ff0`
/// (<https://docs.kernel.org/filesystems/resctrl.html>).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceShare {
    /// `L3`, `L3CODE`, `L3DATA`, `L2`, `L2CODE`, `L2DATA`, `MB` or `SMBA`.
    pub resource: String,
    /// Number of the cache or memory controller (the domain ID of resctrl).
    pub domain: u32,
    /// For a cache, a mask of its ways. For bandwidth, percent (Intel) or units of 1/8 GB/s (AMD).
    pub amount: u64,
}

impl ResourceShare {
    /// The names of all resources.
    pub const RESOURCES: [&'static str; 8] =
        ["L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA", "MB", "SMBA"];

    /// True for a cache, whose shares are masks.
    #[must_use]
    pub fn is_cache(&self) -> bool {
        self.resource.starts_with('L')
    }

    /// Parses one share: `L3:0=ff0`, `MB:1=50`; `None` if the text is not valid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (resource, rest) = text.trim().split_once(':')?;
        let (domain, amount) = rest.split_once('=')?;
        let known = Self::RESOURCES.into_iter().find(|known| *known == resource.trim())?;
        let domain = domain.trim().parse().ok()?;
        let mut share = Self { resource: known.to_owned(), domain, amount: 0 };
        let amount = amount.trim();
        share.amount = match share.is_cache() {
            true => u64::from_str_radix(amount.trim_start_matches("0x"), 16).ok()?,
            false => amount.parse().ok()?,
        };
        (share.amount > 0).then_some(share)
    }
}

/// The share in the kernel's format.
impl fmt::Display for ResourceShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, domain, amount } = self;
        match self.is_cache() {
            true => write!(f, "{resource}:{domain}={amount:x}"),
            false => write!(f, "{resource}:{domain}={amount}"),
        }
    }
}

/// The tunables that a plan sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// CPUs for interrupts that are set up later (`default_smp_affinity`).
    pub new_irqs: Option<CpuSet>,
    /// CPUs on which unbound kernel work runs.
    pub workqueues: Option<CpuSet>,
    /// Whether automatic NUMA balancing migrates pages.
    pub numa_balancing: Option<bool>,
    /// Transparent huge pages.
    pub transparent_huge_pages: Option<TransparentHugePages>,
    /// Kernel samepage merging.
    pub same_page_merging: Option<SamePageMerging>,
    /// Longest wake-up latency from an idle state that the plan's CPUs may have, in microseconds; 0
    /// disables all idle states.
    pub wake_up_us: Option<u32>,
    /// cpufreq governor of the plan's CPUs.
    pub governor: Option<String>,
    /// Lowest frequency of the plan's CPUs in kHz.
    pub min_khz: Option<u64>,
    /// Highest frequency of the plan's CPUs in kHz.
    pub max_khz: Option<u64>,
    /// Whether real-time throttling is on (`sched_rt_runtime_us`); `Some(false)` removes that
    /// safety net.
    pub real_time_throttle: Option<bool>,
    /// Cache and bandwidth shares that all threads of the machine use together.
    pub shares: Vec<ResourceShare>,
    /// Huge page pools.
    pub huge_pages: Vec<HugePagePool>,
    /// CPU weight of the machine's cgroup relative to its siblings, 1 to 10,000; the default is
    /// 100.
    pub cpu_weight: Option<u32>,
    /// CPU bandwidth limit of the machine's cgroup.
    pub cpu_quota: Option<CpuQuota>,
    /// Partition type of the machine's exclusive CPUs, which hold the threads that run there.
    pub partition: Option<Partition>,
    /// Whether all threads of a core are in use, or only the first one.
    pub smt: Option<bool>,
    /// CPUs to take offline.
    pub offline: Option<CpuSet>,
    /// Whether the plan is not applied if the host lacks or refuses a tunable.
    pub required: bool,
}

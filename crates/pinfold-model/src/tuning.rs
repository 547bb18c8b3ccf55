//! What a plan asks of the host's own knobs, beside where tasks run.
//!
//! A field that is absent leaves its knob as it is. Interrupts of single devices and the
//! memory's nodes are parts of the plan of their own.

use std::fmt;

use crate::{CpuSet, NodeId};

/// When the kernel gives huge pages unasked
/// (<https://docs.kernel.org/admin-guide/mm/transhuge.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentHugePages {
    /// To everybody.
    Always,
    /// To who asks by `madvise(2)`.
    Madvise,
    /// To nobody.
    Never,
}

impl TransparentHugePages {
    /// All, in the kernel's order.
    pub const ALL: [Self; 3] = [Self::Always, Self::Madvise, Self::Never];

    /// The kernel's word.
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
    /// It stops; what is merged stays so.
    Stop,
    /// It runs.
    Run,
    /// It stops, and what was merged is taken apart.
    Unmerge,
}

impl SamePageMerging {
    /// All, in the order of the kernel's numbers.
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

/// What a cgroup v2 partition does with its PUs beside keeping others off
/// (<https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// The scheduler balances threads among them.
    Root,
    /// It does not, and unbound kernel work stays away: each thread needs a PU of its own.
    Isolated,
}

impl Partition {
    /// All.
    pub const ALL: [Self; 2] = [Self::Root, Self::Isolated];

    /// The kernel's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Isolated => "isolated",
        }
    }
}

/// Huge pages of one size that a node's pool is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePagePool {
    /// The node.
    pub node: NodeId,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// How many pages the pool has, the used ones among them.
    pub pages: u64,
}

/// A part of the processor's time that a machine's group may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Run time of all its threads together per period, in microseconds.
    pub quota_us: u64,
    /// The period in microseconds, 1,000 to 1,000,000.
    pub period_us: u64,
}

/// A share of a cache or of memory bandwidth, in the kernel's own words: `L3:0=ff0`
/// (<https://docs.kernel.org/filesystems/resctrl.html>).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceShare {
    /// `L3`, `L3CODE`, `L3DATA`, `L2`, `L2CODE`, `L2DATA`, `MB` or `SMBA`.
    pub resource: String,
    /// The cache's or controller's number.
    pub domain: u32,
    /// A mask of a cache's ways; of bandwidth percent (Intel) or eighths of a GB/s (AMD).
    pub amount: u64,
}

impl ResourceShare {
    /// What resources there are.
    pub const RESOURCES: [&'static str; 8] =
        ["L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA", "MB", "SMBA"];

    /// True for a cache, whose shares are masks.
    #[must_use]
    pub fn is_cache(&self) -> bool {
        self.resource.starts_with('L')
    }

    /// Reads one: `L3:0=ff0`, `MB:1=50`.
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

/// As the kernel takes it.
impl fmt::Display for ResourceShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, domain, amount } = self;
        match self.is_cache() {
            true => write!(f, "{resource}:{domain}={amount:x}"),
            false => write!(f, "{resource}:{domain}={amount}"),
        }
    }
}

/// The knobs that a plan sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// PUs that take interrupts which are set up later (`default_smp_affinity`).
    pub new_irqs: Option<CpuSet>,
    /// PUs on which unbound kernel work runs.
    pub workqueues: Option<CpuSet>,
    /// Whether the kernel moves pages after their users by itself.
    pub numa_balancing: Option<bool>,
    /// Huge pages unasked.
    pub transparent_huge_pages: Option<TransparentHugePages>,
    /// Merging of equal pages.
    pub same_page_merging: Option<SamePageMerging>,
    /// Longest time that the plan's PUs may take to wake from an idle state, in
    /// microseconds; 0 keeps them out of all of them.
    pub wake_up_us: Option<u32>,
    /// Governor of the plan's PUs' frequency.
    pub governor: Option<String>,
    /// Lowest frequency of the plan's PUs in kHz.
    pub min_khz: Option<u64>,
    /// Highest frequency of the plan's PUs in kHz.
    pub max_khz: Option<u64>,
    /// Whether real-time threads leave others a part of each second; `Some(false)` takes the
    /// safety net away.
    pub real_time_throttle: Option<bool>,
    /// Shares of caches and bandwidth that the machine's threads have together.
    pub shares: Vec<ResourceShare>,
    /// Pools of huge pages.
    pub huge_pages: Vec<HugePagePool>,
    /// Weight of the machine's group against its neighbours, 1 to 10,000; 100 is usual.
    pub cpu_weight: Option<u32>,
    /// The most that the machine's group may run.
    pub cpu_quota: Option<CpuQuota>,
    /// Partition of the PUs that are kept for the machine, with its threads that run there.
    pub partition: Option<Partition>,
    /// Whether all threads of a core are in use, or the first alone.
    pub smt: Option<bool>,
    /// PUs that are taken offline.
    pub offline: Option<CpuSet>,
    /// Whether a knob that this host lacks or refuses is a reason not to apply the plan.
    pub required: bool,
}

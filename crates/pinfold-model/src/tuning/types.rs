//! Values of tunables that have several parts: pools of huge pages, limits and shares.

use std::fmt;

use crate::NodeId;

/// The requested size of a node's pool of huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct HugePagePool {
    /// The node.
    pub node: NodeId,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Number of pages in the pool, including those in use.
    pub pages: u64,
}

/// Longest run time per period that the kernel accepts, in microseconds: `MAX_BW` in
/// `kernel/sched/sched.h`, 44 bits.
const MAX_QUOTA_US: u64 = (1 << 44) - 1;

/// A CFS bandwidth limit of a machine's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct CpuQuota {
    /// Run time of all its threads together per period, in microseconds, 1,000 to 2^44 - 1.
    pub quota_us: u64,
    /// The period in microseconds, 1,000 to 1,000,000.
    pub period_us: u64,
}

impl CpuQuota {
    /// The part that no kernel accepts, and why.
    pub(super) fn fault(self) -> Option<(&'static str, String)> {
        let Self { quota_us, period_us } = self;
        if !(1_000..=1_000_000).contains(&period_us) {
            return Some(("period_us", format!("{period_us} is out of range (1000 to 1000000)")));
        }
        if !(1_000..=MAX_QUOTA_US).contains(&quota_us) {
            return Some((
                "quota_us",
                format!("{quota_us} is out of range (1000 to {MAX_QUOTA_US})"),
            ));
        }
        None
    }
}

/// A share of a cache or of memory bandwidth in the schemata format of resctrl: `L3:0=ff0`.
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
        share.amount = if share.is_cache() {
            u64::from_str_radix(amount.trim_start_matches("0x"), 16).ok()?
        } else {
            amount.parse().ok()?
        };
        (share.amount > 0).then_some(share)
    }
}

/// The share in the kernel's format.
impl fmt::Display for ResourceShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, domain, amount } = self;
        if self.is_cache() {
            write!(f, "{resource}:{domain}={amount:x}")
        } else {
            write!(f, "{resource}:{domain}={amount}")
        }
    }
}

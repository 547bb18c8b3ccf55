//! The table of kinds of owners.
//!
//! A new kind is a file here, its row, and its names on the pages that `docs/changes.md` lists. The
//! order matters: a machine that one row has found is left out by the later ones, and so are
//! containers and partitions whose manager was found.

pub mod boot;
pub mod busy_threads;
pub mod cpusets;
pub mod dpdk;
pub mod hypervisors;
pub mod irqbalance;
pub mod kubelet;
pub mod libvirt;
pub mod nova;
pub mod openvswitch;
pub mod placements;

use crate::claim::Kind;
use crate::claim_set::Claims;
use crate::context::Context;

/// How owners of some kinds are found.
pub struct Row {
    /// The kinds of owners that it finds.
    pub kinds: &'static [&'static Kind],
    /// What it reads, for documentation.
    pub reads: &'static str,
    /// Adds their claims.
    pub read: fn(&Context<'_>, &mut Claims),
}

/// All kinds of owners, in the order in which they are read.
///
/// ```
/// use pinfold_claims::{Claims, owners::OWNERS};
///
/// let kinds = OWNERS.iter().flat_map(|row| row.kinds);
/// assert!(kinds.map(|kind| kind.name).any(|name| name == "kubelet"));
/// ```
pub const OWNERS: &[Row] = &[
    Row { kinds: placements::KINDS, reads: "journals of Pinfold", read: placements::read },
    Row { kinds: &[&libvirt::KIND], reads: libvirt::READS, read: libvirt::read },
    Row {
        kinds: &[&kubelet::CONTAINER, &kubelet::POOL],
        reads: kubelet::READS,
        read: kubelet::read,
    },
    Row { kinds: &[&nova::KIND], reads: nova::READS, read: nova::read },
    Row { kinds: &[&hypervisors::KIND], reads: hypervisors::READS, read: hypervisors::read },
    Row { kinds: &[&openvswitch::KIND], reads: openvswitch::READS, read: openvswitch::read },
    Row { kinds: &[&dpdk::KIND], reads: dpdk::READS, read: dpdk::read },
    Row {
        kinds: &[&cpusets::PARTITION, &cpusets::UNIT, &cpusets::UNREADABLE],
        reads: cpusets::READS,
        read: cpusets::read,
    },
    Row { kinds: &[&boot::KIND], reads: boot::READS, read: boot::read },
    Row { kinds: &[&irqbalance::KIND], reads: irqbalance::READS, read: irqbalance::read },
    Row { kinds: &[&busy_threads::KIND], reads: busy_threads::READS, read: busy_threads::read },
];

/// The kind with a name.
#[must_use]
pub fn kind(name: &str) -> Option<&'static Kind> {
    let kinds = OWNERS.iter().flat_map(|row| row.kinds);
    kinds.copied().find(|kind| kind.name == name)
}

#[cfg(test)]
pub(crate) mod tests;

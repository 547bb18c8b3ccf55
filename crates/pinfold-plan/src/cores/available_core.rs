//! The part of one core that a plan may use.

use pinfold_model::{CoreId, CoreKind, CpuSet, L3Id, NodeId, PackageId, PuId};

/// The part of one core that the plan may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AvailableCore {
    pub id: CoreId,
    /// Its usable CPUs in hwloc's order; never empty.
    pub pus: Vec<PuId>,
    pub kind: CoreKind,
    /// The cache that it shares with other cores, by its index in the topology's table.
    pub l2: Option<u32>,
    pub l3: Option<L3Id>,
    pub node: Option<NodeId>,
    pub package: PackageId,
    /// True if all its usable CPUs are isolated.
    pub isolated: bool,
    /// The part of the machine to which it belongs; 0 is the preferred one, see [`crate::parts`].
    pub part: u32,
    /// Its speed if the request prefers fast cores; else 0.
    pub speed: u64,
    /// True if its node has no memory although other nodes have.
    pub memoryless: bool,
    /// True if the plan may not use some of its online CPUs: what runs there slows it.
    pub is_partial: bool,
    /// True for the core on which the kernel boots, if the host's tasks are elsewhere.
    pub boots: bool,
    /// Those of its CPUs to which an emulator or another helper is pinned by hand.
    pub of_helpers: CpuSet,
}

impl AvailableCore {
    /// The CPUs as a set.
    pub fn set(&self) -> CpuSet {
        self.pus.iter().copied().collect()
    }

    /// Its first CPUs for `count` vCPUs, in hwloc's order; without those of helpers pinned by hand
    /// while others are left.
    pub fn for_vcpus(&self, count: usize) -> Vec<PuId> {
        let others = self.pus.iter().copied().filter(|pu| !self.of_helpers.contains(*pu));
        let others: Vec<PuId> = others.take(count).collect();
        if others.len() == count { others } else { self.pus.iter().copied().take(count).collect() }
    }
}

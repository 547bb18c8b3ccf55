//! The ground to plan on: what of a topology a request may use, core by core.
//!
//! A plan stands only on PUs that are online, allowed and not avoided. Isolated
//! PUs (`isolcpus`, partitions) carry vCPUs but never the host's own tasks.
//! Siblings come from the topology's tables, never from arithmetic on PU numbers:
//! 0 and 4 are siblings on one machine, 0 and 1 on the next.

use std::collections::BTreeMap;

use pinfold_model::{
    CoreId, CoreKind, CpuSet, L3Id, NodeId, PackageId, Pu, PuId, Request, Topology,
};

use crate::PlanError;

/// One core, as far as the plan may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub core: CoreId,
    /// Its usable PUs in hwloc's order; never empty.
    pub pus: Vec<PuId>,
    pub kind: CoreKind,
    pub l3: Option<L3Id>,
    pub node: Option<NodeId>,
    pub package: PackageId,
    /// True if all its usable PUs are isolated.
    pub isolated: bool,
}

impl Spot {
    /// The PUs as a set.
    pub fn set(&self) -> CpuSet {
        self.pus.iter().copied().collect()
    }
}

/// What a plan may use.
pub(crate) struct Ground<'a> {
    pub topology: &'a Topology,
    /// Online, allowed and not avoided.
    pub usable: CpuSet,
    /// The usable PUs that the host's own tasks may have: those that are not isolated.
    pub hostable: CpuSet,
    /// The usable cores in hwloc's order.
    pub cores: Vec<Spot>,
    /// PUs that the request avoids although they are not there to be used.
    pub avoided_in_vain: CpuSet,
    pus: BTreeMap<PuId, &'a Pu>,
}

impl<'a> Ground<'a> {
    /// What `request` may use of `topology`.
    ///
    /// # Errors
    /// [`PlanError::NoPus`] or [`PlanError::NoHousekeeping`] if nothing is left.
    pub fn new(topology: &'a Topology, request: &Request) -> Result<Self, PlanError> {
        let online = topology.online();
        let usable = topology.allowed.intersection(&online).difference(&request.avoid);
        if usable.is_empty() {
            let (allowed, avoid) = (topology.allowed.clone(), request.avoid.clone());
            return Err(PlanError::NoPus { allowed, avoid });
        }
        let hostable = usable.difference(&topology.isolated);
        if hostable.is_empty() {
            return Err(PlanError::NoHousekeeping { usable });
        }
        let cores = spots(topology, &usable);
        let pus = topology.pus.iter().map(|pu| (pu.os, pu)).collect();
        let avoided_in_vain = request.avoid.difference(&online);
        Ok(Self { topology, usable, hostable, cores, avoided_in_vain, pus })
    }

    /// The usable PUs in hwloc's order.
    pub fn order(&self) -> Vec<PuId> {
        self.cores.iter().flat_map(|spot| spot.pus.iter().copied()).collect()
    }

    /// The PU's entry in the topology.
    pub fn pu(&self, os: PuId) -> Option<&'a Pu> {
        self.pus.get(&os).copied()
    }

    /// The core of a usable PU.
    pub fn spot_of(&self, os: PuId) -> Option<&Spot> {
        let core = self.pu(os)?.core;
        self.cores.iter().find(|spot| spot.core == core)
    }

    /// All online siblings of a PU, usable or not, without itself.
    pub fn siblings(&self, os: PuId) -> CpuSet {
        let Some(core) = self.pu(os).map(|pu| pu.core) else {
            return CpuSet::new();
        };
        self.pus.values().filter(|pu| pu.core == core && pu.os != os).map(|pu| pu.os).collect()
    }

    /// The core that the host keeps: that of the lowest-numbered PU that may carry the
    /// host's tasks. Linux boots on PU 0, cannot move everything off it, and sends
    /// interrupts there by default; so it is the worst PU for a vCPU and the best for the host.
    ///
    /// On a hybrid machine that is mostly a fast core, which the host then costs the vCPUs.
    /// An efficiency core instead would not free it: the boot PU's own work stays, and would
    /// hit a vCPU there. The efficiency cores go to the host as well, as long as no vCPU
    /// needs them.
    pub fn host(&self) -> HostShare {
        let first = self.hostable.first();
        let spot = first.and_then(|pu| self.spot_of(pu));
        let core = spot.map(|spot| spot.core);
        let pus = spot.map(Spot::set).unwrap_or_default().intersection(&self.hostable);
        let boot = first == self.topology.online().first();
        let why = match first {
            Some(pu) if boot => format!("it holds PU {pu}, on which the kernel boots"),
            Some(pu) => format!("it holds PU {pu}, the lowest that the host's tasks may use here"),
            None => String::new(),
        };
        HostShare { core, pus, why }
    }

    /// The usable cores that the host does not keep.
    pub fn without(&self, host: &HostShare) -> Vec<Spot> {
        self.cores.iter().filter(|spot| Some(spot.core) != host.core).cloned().collect()
    }

    /// Why the host has what it has when `exclusive` is kept from it.
    pub fn host_reason(&self, host: &HostShare, exclusive: &CpuSet) -> String {
        let left = self.hostable.difference(exclusive).difference(&host.pus);
        let mut reason = format!("the host keeps core {}, because {}", host.name(), host.why);
        if !left.is_empty() {
            reason.push_str(&format!(", and {left}, which no role of the plan needs"));
        }
        if self.cores.iter().any(|spot| spot.kind != CoreKind::Uniform) {
            reason.push_str(
                "; the kinds of cores do not change that: what the kernel binds to the PU on which \
                 it boots cannot be sent to a slower core",
            );
        }
        reason
    }

    /// Where a PU is: `core 1, L3 0, node 0, package 0`.
    pub fn place(&self, os: PuId) -> String {
        let Some(pu) = self.pu(os) else {
            return "not in this topology".to_owned();
        };
        let mut place = format!("core {}", pu.core);
        if let Some(l3) = pu.l3 {
            place.push_str(&format!(", L3 {l3}"));
        }
        if let Some(node) = pu.node {
            place.push_str(&format!(", node {node}"));
        }
        place.push_str(&format!(", package {}", pu.package));
        place
    }
}

/// The core that stays with the host.
#[derive(Clone, Debug)]
pub(crate) struct HostShare {
    pub core: Option<CoreId>,
    /// Its PUs that the host's tasks may use; never empty on a [`Ground`].
    pub pus: CpuSet,
    /// Why this core.
    pub why: String,
}

impl HostShare {
    /// The core's number for texts.
    pub fn name(&self) -> String {
        self.core.map_or_else(|| "of the host".to_owned(), |core| core.to_string())
    }
}

fn spots(topology: &Topology, usable: &CpuSet) -> Vec<Spot> {
    let mut pus: Vec<&Pu> = topology.pus.iter().filter(|pu| usable.contains(pu.os)).collect();
    pus.sort_by_key(|pu| pu.logical);
    let mut spots: Vec<Spot> = Vec::new();
    let mut index: BTreeMap<CoreId, usize> = BTreeMap::new();
    for pu in pus {
        let isolated = topology.isolated.contains(pu.os);
        let place = *index.entry(pu.core).or_insert(spots.len());
        if let Some(spot) = spots.get_mut(place) {
            spot.pus.push(pu.os);
            spot.isolated &= isolated;
        } else {
            spots.push(Spot {
                core: pu.core,
                pus: vec![pu.os],
                kind: pu.kind,
                l3: pu.l3,
                node: pu.node,
                package: pu.package,
                isolated,
            });
        }
    }
    spots
}

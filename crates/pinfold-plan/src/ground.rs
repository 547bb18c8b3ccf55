//! The ground to plan on: what of a topology a request may use, core by core.
//!
//! A plan stands only on PUs that are online, allowed and not avoided. Isolated
//! PUs (`isolcpus`, partitions) carry vCPUs but never the host's own tasks.
//! Siblings come from the topology's tables, never from arithmetic on PU numbers:
//! 0 and 4 are siblings on one machine, 0 and 1 on the next.

use std::collections::BTreeMap;

use pinfold_model::{
    CoreId, CoreKind, CpuSet, Free, L3Id, NodeId, PackageId, Pu, PuId, Request, Topology,
};

use crate::PlanError;

/// One core, as far as the plan may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub core: CoreId,
    /// Its usable PUs in hwloc's order; never empty.
    pub pus: Vec<PuId>,
    pub kind: CoreKind,
    /// The cache that it shares with other cores, by its place in the topology's table.
    pub l2: Option<u32>,
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

/// The PUs of a topology by OS index.
pub(crate) struct Index<'a> {
    pub topology: &'a Topology,
    /// Place in the topology's table; `usize::MAX` where there is no such PU.
    places: Vec<usize>,
}

impl<'a> Index<'a> {
    /// The index of a topology.
    pub fn of(topology: &'a Topology) -> Self {
        let most = topology.pus.iter().map(|pu| pu.os.index() + 1).max().unwrap_or(0);
        let mut places = vec![usize::MAX; most];
        for (place, pu) in topology.pus.iter().enumerate() {
            if let Some(entry) = places.get_mut(pu.os.index()) {
                *entry = place;
            }
        }
        Self { topology, places }
    }

    /// The PU's entry in the topology.
    pub fn pu(&self, os: PuId) -> Option<&'a Pu> {
        self.topology.pus.get(*self.places.get(os.index())?)
    }

    /// All online siblings of a PU, usable or not, without itself.
    pub fn siblings(&self, os: PuId) -> CpuSet {
        let core = self.pu(os).and_then(|pu| self.topology.cores.get(pu.core.index()));
        let mut siblings = core.map(|core| core.pus.clone()).unwrap_or_default();
        siblings.remove(os);
        siblings
    }
}

/// What a plan may use.
pub(crate) struct Ground<'a> {
    pub topology: &'a Topology,
    /// Online, allowed, not avoided and not to stay free.
    pub usable: CpuSet,
    /// The PUs that the host's own tasks may have: allowed and not isolated.
    pub hostable: CpuSet,
    /// The PUs that are to stay free of vnodes; empty if the request asks for none.
    pub free: CpuSet,
    /// The usable cores in hwloc's order.
    pub cores: Vec<Spot>,
    /// PUs that the request avoids although they are not there to be used.
    pub avoided_in_vain: CpuSet,
    index: Index<'a>,
    /// Place among `cores` by core; `usize::MAX` for those that are not usable.
    spots: Vec<usize>,
}

impl<'a> Ground<'a> {
    /// What `request` may use of `topology`.
    ///
    /// # Errors
    /// [`PlanError::NoPus`], [`PlanError::NoHousekeeping`] or [`PlanError::Free`] if nothing
    /// is left.
    pub fn new(topology: &'a Topology, request: &Request) -> Result<Self, PlanError> {
        let online = topology.online();
        let allowed = topology.allowed.intersection(&online).difference(&request.avoid);
        if allowed.is_empty() {
            let (allowed, avoid) = (topology.allowed.clone(), request.avoid.clone());
            return Err(PlanError::NoPus { allowed, avoid });
        }
        let hostable = allowed.difference(&topology.isolated);
        if hostable.is_empty() {
            return Err(PlanError::NoHousekeeping { usable: allowed });
        }
        let index = Index::of(topology);
        let free = match &request.free {
            None => CpuSet::new(),
            Some(wish) => free(&index, (&allowed, &hostable), wish)?,
        };
        let usable = allowed.difference(&free);
        let cores = spots(topology, &usable);
        let mut places = vec![usize::MAX; topology.cores.len()];
        for (place, spot) in cores.iter().enumerate() {
            if let Some(entry) = places.get_mut(spot.core.index()) {
                *entry = place;
            }
        }
        let avoided_in_vain = request.avoid.difference(&online);
        Ok(Self { topology, usable, hostable, free, cores, avoided_in_vain, index, spots: places })
    }

    /// The usable PUs in hwloc's order.
    pub fn order(&self) -> Vec<PuId> {
        self.cores.iter().flat_map(|spot| spot.pus.iter().copied()).collect()
    }

    /// The PUs by OS index.
    pub fn index(&self) -> &Index<'a> {
        &self.index
    }

    /// The PU's entry in the topology.
    pub fn pu(&self, os: PuId) -> Option<&'a Pu> {
        self.index.pu(os)
    }

    /// The core of a usable PU.
    pub fn spot_of(&self, os: PuId) -> Option<&Spot> {
        let core = self.pu(os)?.core;
        self.cores.get(*self.spots.get(core.index())?)
    }

    /// All online siblings of a PU, usable or not, without itself.
    pub fn siblings(&self, os: PuId) -> CpuSet {
        self.index.siblings(os)
    }

    /// The core that the host keeps: that of the lowest-numbered PU that may carry the
    /// host's tasks. Linux boots on PU 0, cannot move everything off it, and sends
    /// interrupts there by default; so it is the worst PU for a vCPU and the best for the host.
    ///
    /// On a hybrid machine that is mostly a fast core, which the host then costs the vCPUs.
    /// An efficiency core instead would not free it: the boot PU's own work stays, and would
    /// hit a vCPU there. The efficiency cores go to the host as well, as long as no vCPU
    /// needs them.
    ///
    /// PUs that the request keeps free are the host's before any other.
    pub fn host(&self) -> HostShare {
        let first = if self.free.is_empty() { self.hostable.first() } else { self.free.first() };
        let boot = first == self.topology.online().first();
        let why = match first {
            Some(_) if !self.free.is_empty() => {
                format!("the request keeps {} free for it", self.free)
            }
            Some(pu) if boot => format!("it holds PU {pu}, on which the kernel boots"),
            Some(pu) => format!("it holds PU {pu}, the lowest that the host's tasks may use here"),
            None => String::new(),
        };
        self.share(first, why)
    }

    /// The core that the host keeps where its tasks are to be away from the first package:
    /// the first core of the last package; that of [`Self::host`] where there is only one.
    pub fn host_on_the_last_package(&self) -> HostShare {
        let usual = self.host();
        let first = usual.pus.first().and_then(|pu| self.pu(pu)).map(|pu| pu.package);
        let hosts = |spot: &&Spot| spot.pus.iter().any(|pu| self.hostable.contains(*pu));
        let last = self.cores.iter().filter(hosts).map(|spot| spot.package).max();
        if !self.free.is_empty() || last.is_none() || last <= first {
            return usual;
        }
        let mut there = self.cores.iter().filter(hosts).filter(|spot| Some(spot.package) == last);
        let spot = there.next();
        let pu = spot.and_then(|spot| spot.pus.iter().find(|pu| self.hostable.contains(**pu)));
        let package = last.map_or_else(String::new, |package| package.to_string());
        self.share(
            pu.copied(),
            format!(
                "it is the first of package {package}, the last one, and leaves the others whole"
            ),
        )
    }

    fn share(&self, first: Option<PuId>, why: String) -> HostShare {
        let at = first.and_then(|pu| self.pu(pu));
        let whole = at.and_then(|pu| self.topology.cores.get(pu.core.index()));
        let pus = match self.free.is_empty() {
            true => whole
                .map(|core| core.pus.intersection(&self.hostable).intersection(&self.usable))
                .unwrap_or_default(),
            false => self.free.clone(),
        };
        HostShare {
            core: at.map(|pu| pu.core),
            l2: first.and_then(|pu| self.l2(pu)),
            l3: at.and_then(|pu| pu.l3),
            node: at.and_then(|pu| pu.node),
            package: at.map(|pu| pu.package),
            pus,
            why,
        }
    }

    /// The usable cores that the host does not keep.
    pub fn without(&self, host: &HostShare) -> Vec<Spot> {
        // Of a core of which one sibling is the host's no other is for vnodes.
        let whole = |spot: &&Spot| {
            let core = self.topology.cores.get(spot.core.index());
            core.is_some_and(|core| core.pus.is_disjoint(&host.pus))
        };
        self.cores.iter().filter(whole).cloned().collect()
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

    /// The level-2 cache that a PU shares with other cores.
    fn l2(&self, os: PuId) -> Option<u32> {
        let place = self.topology.l2_domains.iter().position(|domain| domain.contains(os))?;
        u32::try_from(place).ok()
    }

    /// Where a PU is: `core 1, L3 0, node 0, package 0`.
    pub fn place(&self, os: PuId) -> String {
        let Some(pu) = self.pu(os) else {
            return "not in this topology".to_owned();
        };
        let mut place = format!("core {}", pu.core);
        if let Some(l2) = self.spot_of(os).and_then(|spot| spot.l2) {
            place.push_str(&format!(", L2 {l2}"));
        }
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
    /// The level-2 cache that it shares with other cores.
    pub l2: Option<u32>,
    /// The L3 domain of that core.
    pub l3: Option<L3Id>,
    /// The NUMA node of that core.
    pub node: Option<NodeId>,
    /// The package of that core.
    pub package: Option<PackageId>,
    /// The PUs that are the host's: of that core, or all that the request keeps free; never
    /// empty on a [`Ground`].
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

/// The PUs that stay free: those that are named, or whole cores near the one that the host
/// keeps anyway, until there are enough.
fn free(
    index: &Index<'_>,
    (allowed, hostable): (&CpuSet, &CpuSet),
    wish: &Free,
) -> Result<CpuSet, PlanError> {
    let fail = |asked: String, why: String| Err(PlanError::Free { asked, why });
    let count = match wish {
        Free::These(pus) => {
            let missing = pus.difference(hostable);
            return match (missing.is_empty(), pus.is_empty(), allowed.is_subset(pus)) {
                (false, _, _) => fail(
                    format!("the PUs {pus}"),
                    format!(
                        "{missing} of them cannot run the host's tasks: they are offline, isolated, \
                         avoided or not allowed"
                    ),
                ),
                (true, true, _) => {
                    fail("no PU".to_owned(), "an empty list keeps nothing".to_owned())
                }
                (true, false, true) => {
                    fail(format!("the PUs {pus}"), "nothing would be left to place on".to_owned())
                }
                (true, false, false) => Ok(pus.clone()),
            };
        }
        Free::Pus(count) => *count as usize,
        Free::Percent(percent) => (allowed.len() * *percent as usize).div_ceil(100),
    };
    let asked = match wish {
        Free::Percent(percent) => format!("{percent} percent, {count} of {} PUs,", allowed.len()),
        Free::Pus(_) | Free::These(_) => format!("{count} PUs"),
    };
    let mut free = CpuSet::new();
    for core in cores_near_the_host(index, hostable) {
        if free.len() >= count {
            break;
        }
        free.add(&core);
    }
    if free.len() < count {
        return fail(
            asked,
            format!("only {} can run the host's tasks, {} too few", free.len(), count - free.len()),
        );
    }
    if allowed.is_subset(&free) {
        return fail(
            asked,
            format!("in whole cores that is all of {allowed}: nothing would be left to place on"),
        );
    }
    Ok(free)
}

/// The parts of the cores that the host's tasks may use, nearest to the host's core first.
fn cores_near_the_host(index: &Index<'_>, hostable: &CpuSet) -> Vec<CpuSet> {
    let Some(host) = hostable.first().and_then(|pu| index.pu(pu)) else {
        return Vec::new();
    };
    let mut cores: Vec<_> = index
        .topology
        .cores
        .iter()
        .filter_map(|core| {
            let pus = core.pus.intersection(hostable);
            let at = index.pu(pus.first()?)?;
            let away = (at.package != host.package, at.node != host.node, at.l3 != host.l3);
            Some(((at.core != host.core, away, at.logical), pus))
        })
        .collect();
    cores.sort_by_key(|(key, _)| *key);
    cores.into_iter().map(|(_, pus)| pus).collect()
}

/// The shared level-2 cache of each PU that has one, by its place in the topology's table.
fn l2_domains(topology: &Topology) -> BTreeMap<PuId, u32> {
    let numbered = (0_u32..).zip(&topology.l2_domains);
    numbered.flat_map(|(number, pus)| pus.iter().map(move |pu| (pu, number))).collect()
}

fn spots(topology: &Topology, usable: &CpuSet) -> Vec<Spot> {
    let mut pus: Vec<&Pu> = topology.pus.iter().filter(|pu| usable.contains(pu.os)).collect();
    pus.sort_by_key(|pu| pu.logical);
    let l2_of = l2_domains(topology);
    let mut spots: Vec<Spot> = Vec::new();
    let mut places = vec![usize::MAX; topology.cores.len()];
    for pu in pus {
        let isolated = topology.isolated.contains(pu.os);
        let Some(place) = places.get_mut(pu.core.index()) else {
            continue;
        };
        if let Some(spot) = spots.get_mut(*place) {
            spot.pus.push(pu.os);
            spot.isolated &= isolated;
        } else {
            *place = spots.len();
            spots.push(Spot {
                core: pu.core,
                pus: vec![pu.os],
                kind: pu.kind,
                l2: l2_of.get(&pu.os).copied(),
                l3: pu.l3,
                node: pu.node,
                package: pu.package,
                isolated,
            });
        }
    }
    spots
}

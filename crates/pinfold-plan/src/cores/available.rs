//! Available CPUs: the part of a topology that a request may use, core by core.
//!
//! A plan uses only CPUs that are online, in the process's own cpuset and not avoided; the
//! process's own affinity mask is ignored. Isolated CPUs (`isolcpus`, partitions) can carry vCPUs
//! but never the host's own tasks. Siblings come from the topology's tables, never from arithmetic
//! on CPU numbers: 0 and 4 are siblings on one machine, 0 and 1 on another.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::text::{count_noun, cpus_text, pus_text};
use pinfold_model::{
    CoreId, CpuSet, FreeCpus, L3Domain, NodeId, NumaNode, Pu, PuId, Request, Topology,
};

use crate::cores::available_core::AvailableCore;
use crate::cores::host_share::HostShare;
use crate::cores::parts::Parts;
use crate::cores::request_check::{self, nodes_to_stay_on};
use crate::error::PlanError;
use crate::text::mib;

/// The CPUs of a topology by OS index.
pub struct Index<'a> {
    pub(crate) topology: &'a Topology,
    /// Index in the topology's table by OS index; `usize::MAX` if there is no such CPU.
    places: Vec<usize>,
    /// The largest number of CPUs per core.
    pub(crate) widest_core: usize,
    /// The CPUs of each node; `None` for CPUs without a node.
    nodes: BTreeMap<Option<NodeId>, CpuSet>,
    /// True if all cores are of one kind.
    pub(crate) has_one_kind: bool,
    /// The online and allowed CPUs that the kernel balances.
    pub(crate) balanced: CpuSet,
    /// Index in the topology's table of L3 domains, and in that of nodes, by OS index.
    tables: [Vec<Option<usize>>; 2],
}

/// The place of each CPU in a table, whose rows are sets of CPUs.
fn rows_by_pu<'s>(rows: impl Iterator<Item = &'s CpuSet>) -> Vec<Option<usize>> {
    let mut found = Vec::new();
    for (row, pus) in rows.enumerate() {
        for pu in pus.iter() {
            if found.len() <= pu.index() {
                found.resize(pu.index() + 1, None);
            }
            found[pu.index()] = Some(row);
        }
    }
    found
}

/// The rows of some CPUs, ascending.
fn rows_of(rows: &[Option<usize>], pus: &CpuSet) -> Vec<usize> {
    distinct(pus.iter().filter_map(|pu| rows.get(pu.index()).copied().flatten()))
}

/// The distinct values, ascending.
pub(crate) fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

impl<'a> Index<'a> {
    /// The index of a topology.
    pub fn from_topology(topology: &'a Topology) -> Self {
        let most = topology.pus.iter().map(|pu| pu.os.index() + 1).max().unwrap_or(0);
        let mut places = vec![usize::MAX; most];
        for (place, pu) in topology.pus.iter().enumerate() {
            if let Some(entry) = places.get_mut(pu.os.index()) {
                *entry = place;
            }
        }
        let mut nodes: BTreeMap<_, CpuSet> = BTreeMap::new();
        for run in topology.pus.chunk_by(|one, next| one.node == next.node) {
            let pus = run.iter().map(|pu| pu.os).collect::<CpuSet>();
            nodes.entry(run.first().and_then(|pu| pu.node)).or_default().add(&pus);
        }
        let widest_core = topology.cores.iter().map(|core| core.pus.len()).max().unwrap_or(0);
        let l3s = rows_by_pu(topology.l3.iter().map(|domain| &domain.pus));
        let tables = [l3s, rows_by_pu(topology.nodes.iter().map(|node| &node.pus))];
        let has_one_kind = topology.pus.windows(2).all(|pair| pair[0].kind == pair[1].kind);
        let usable = topology.online().intersection(&topology.allowed);
        let balanced = usable.difference(&topology.isolated);
        Self { topology, places, widest_core, nodes, has_one_kind, balanced, tables }
    }

    /// The L3 domains of some CPUs, in the topology's order.
    pub(crate) fn l3s_of(&self, pus: &CpuSet) -> impl Iterator<Item = &'a L3Domain> {
        let [l3s, _] = &self.tables;
        rows_of(l3s, pus).into_iter().filter_map(|row| self.topology.l3.get(row))
    }

    /// The nodes of some CPUs, in the topology's order.
    pub(crate) fn node_tables(&self, pus: &CpuSet) -> impl Iterator<Item = &'a NumaNode> {
        let [_, nodes] = &self.tables;
        rows_of(nodes, pus).into_iter().filter_map(|row| self.topology.nodes.get(row))
    }

    /// The nodes of some CPUs.
    pub fn nodes_of(&self, pus: &CpuSet) -> BTreeSet<NodeId> {
        if pus.len() < self.nodes.len() {
            return self.pus(pus).filter_map(|pu| pu.node).collect();
        }
        let used = self.nodes.iter().filter(|(_, of_node)| !of_node.is_disjoint(pus));
        used.filter_map(|(node, _)| *node).collect()
    }

    /// Those of the CPUs that are on one of the nodes, or on no node; all if no node is named.
    pub(crate) fn cpus_on_nodes(&self, pus: &CpuSet, nodes: &BTreeSet<NodeId>) -> CpuSet {
        if nodes.is_empty() {
            return pus.clone();
        }
        let keys = nodes.iter().copied().map(Some).chain([None]);
        let near = keys.filter_map(|node| self.nodes.get(&node)).collect::<CpuSet>();
        near.intersection(pus)
    }

    /// All CPUs of the packages of some CPUs.
    pub(crate) fn packages_of(&self, pus: &CpuSet) -> CpuSet {
        let packages = distinct(self.pus(pus).map(|pu| pu.package));
        let tables = packages
            .iter()
            .filter_map(|id| self.topology.packages.iter().find(|package| package.id == *id));
        tables.map(|package| &package.pus).collect::<CpuSet>()
    }

    /// The CPU's entry in the topology.
    pub fn pu(&self, os: PuId) -> Option<&'a Pu> {
        self.topology.pus.get(*self.places.get(os.index())?)
    }

    /// The entries of those of some CPUs that the topology has.
    pub(crate) fn pus(&self, pus: &CpuSet) -> impl Iterator<Item = &'a Pu> {
        pus.iter().filter_map(|pu| self.pu(pu))
    }

    /// All online siblings of a CPU, usable or not, without the CPU itself.
    pub(crate) fn siblings(&self, os: PuId) -> CpuSet {
        let core = self.pu(os).and_then(|pu| self.topology.cores.get(pu.core.index()));
        let mut siblings = core.map(|core| core.pus.clone()).unwrap_or_default();
        siblings.remove(os);
        siblings
    }
}

/// The first CPU of a core that the host's tasks may use.
fn hostable_of(core: &AvailableCore, hostable: &CpuSet) -> Option<PuId> {
    core.pus.iter().copied().find(|pu| hostable.contains(*pu))
}

/// The weakest part that can carry the host's tasks, if there are several.
fn weakest_part(cores: &[AvailableCore], hostable: &CpuSet) -> Option<u32> {
    let hosts = cores.iter().filter(|core| hostable_of(core, hostable).is_some());
    let last = hosts.map(|core| core.part).max()?;
    cores.iter().any(|core| core.part < last).then_some(last)
}

/// The CPUs that the vCPUs of a request may use; `None` if none are left for them or for the host.
pub fn usable_for_vcpus(topology: &Topology, request: &Request) -> Option<CpuSet> {
    AvailableCpus::new(topology, request).ok().map(|available| available.usable)
}

/// The CPUs and cores that a plan may use.
pub(crate) struct AvailableCpus<'a> {
    pub topology: &'a Topology,
    /// CPUs that are online, allowed, not avoided and not kept free.
    pub usable: CpuSet,
    /// The CPUs that the host's own tasks may use: allowed and not isolated.
    pub hostable: CpuSet,
    /// The CPUs kept free of vnodes; empty if the request names none.
    pub free: CpuSet,
    /// The usable cores in hwloc's order.
    pub cores: Vec<AvailableCore>,
    /// CPUs that the request avoids although they are not available anyway.
    pub already_unavailable: CpuSet,
    pub parts: Parts<'a>,
    /// The CPUs of the cores to which vCPUs and tasks are pinned by hand.
    by_hand: CpuSet,
    index: Index<'a>,
    /// Index in `cores` by core; `usize::MAX` for cores that are not usable.
    place_of_core: Vec<usize>,
    /// The weakest part that can carry the host's tasks, if the machine has several.
    pub weakest: Option<u32>,
    /// The description of each core's position, written when it is first needed.
    places: Vec<OnceCell<String>>,
}

impl<'a> AvailableCpus<'a> {
    /// The CPUs of `topology` that `request` may use.
    ///
    /// # Errors
    /// [`PlanError::NoPus`], [`PlanError::NoHousekeeping`] or [`PlanError::Free`] if nothing is
    /// left.
    pub fn new(topology: &'a Topology, request: &Request) -> Result<Self, PlanError> {
        Self::with_free(topology, request, FreeFrom::Weakest)
    }

    /// The same, with the part from which free CPUs are taken first if the request gives only their
    /// number.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_free(
        topology: &'a Topology,
        request: &Request,
        from: FreeFrom,
    ) -> Result<Self, PlanError> {
        let online = topology.online();
        let allowed = allowed_cpus(topology, &request.avoid);
        if allowed.is_empty() {
            let (allowed, avoid) = (topology.allowed.clone(), request.avoid.clone());
            return Err(PlanError::NoPus { allowed, avoid });
        }
        let hostable = allowed.difference(&topology.isolated);
        if hostable.is_empty() {
            return Err(PlanError::NoHousekeeping { usable: allowed });
        }
        let index = Index::from_topology(topology);
        let parts = Parts::from_topology(topology);
        let mut all = cores(topology, &allowed);
        parts.number(&mut all, request.prefer);
        let free = free(&index, &all, request, &hostable, from)?;
        let usable = match nodes_pus(topology, request) {
            None => allowed.difference(&free),
            Some(pus) => allowed.difference(&free).intersection(&pus),
        };
        if usable.is_empty() {
            return Err(no_pus_there(request));
        }
        let mut cores: Vec<AvailableCore> = all
            .into_iter()
            .filter_map(|mut core: AvailableCore| {
                core.pus.retain(|pu| usable.contains(*pu));
                (!core.pus.is_empty()).then(|| AvailableCore {
                    isolated: core.pus.iter().all(|pu| topology.isolated.contains(*pu)),
                    is_partial: core.pus.len() < topology.core(core.id).pus.len(),
                    ..core
                })
            })
            .collect();
        let boot = online.first();
        let has_parts =
            cores.iter().any(|core| Some(core.part) != cores.first().map(|first| first.part));
        for core in cores.iter_mut().filter(|_| has_parts) {
            core.boots = boot.is_some_and(|boot| core.pus.contains(&boot));
        }
        let helpers = of_helpers(&index, &usable, request);
        for core in cores.iter_mut().filter(|_| !helpers.is_empty()) {
            core.of_helpers = helpers.intersection(&core.set());
        }
        let places = places_of(topology, &cores);
        Ok(Self {
            topology,
            weakest: weakest_part(&cores, &hostable),
            usable,
            hostable,
            free,
            cores,
            already_unavailable: request.avoid.difference(&online),
            parts,
            by_hand: cores_of(topology, &request_check::pinned_cpus(request)),
            index,
            place_of_core: places,
            places: vec![OnceCell::new(); topology.cores.len()],
        })
    }

    /// The usable CPUs in hwloc's order.
    pub fn order(&self) -> Vec<PuId> {
        self.cores.iter().flat_map(|core| core.pus.iter().copied()).collect()
    }

    /// The CPUs by OS index.
    pub fn index(&self) -> &Index<'a> {
        &self.index
    }

    /// The CPU's entry in the topology.
    pub fn pu(&self, os: PuId) -> Option<&'a Pu> {
        self.index.pu(os)
    }

    /// The CPUs for floating threads: the kernel does not balance threads over isolated CPUs.
    pub fn floating(&self) -> CpuSet {
        let balanced = self.usable.difference(&self.topology.isolated);
        if balanced.is_empty() { self.usable.clone() } else { balanced }
    }

    /// The core of a usable CPU.
    pub fn available_core(&self, os: PuId) -> Option<&AvailableCore> {
        let core = self.pu(os)?.core;
        self.cores.get(*self.place_of_core.get(core.index())?)
    }

    /// All online siblings of a CPU, usable or not, without the CPU itself.
    pub(crate) fn siblings(&self, os: PuId) -> CpuSet {
        self.index.siblings(os)
    }

    /// The core that is reserved for the host.
    ///
    /// If the machine has parts of unequal value, it is a core of the weakest part. The kernel
    /// boots on CPU 0 and some of its work stays there, but that is little compared with the host's
    /// tasks. Otherwise it is [`Self::boot_host`]. CPUs that the request keeps free are used for
    /// the host first.
    pub fn host(&self) -> HostShare {
        let boot = self.boot_core();
        let Some(weakest) = self.weakest.filter(|_| self.free.is_empty()) else {
            return boot;
        };
        let within = |core: &&AvailableCore| {
            core.part == weakest
                && self.hostable_of(core).is_some()
                && core.pus.iter().all(|pu| !self.by_hand.contains(*pu))
        };
        let of_boot = boot.pus.first().and_then(|pu| self.available_core(pu)).filter(|s| within(s));
        let Some(core) = of_boot.or_else(|| self.cores.iter().find(within)) else { return boot };
        if boot.core == Some(core.id) {
            return boot;
        }
        let name = self.part_name(weakest..=weakest);
        let why = format!("it is one of {name}, which this placement needs least");
        self.share(self.hostable_of(core), why)
    }

    /// The core of the lowest-numbered CPU that the host's tasks may use. Linux boots on CPU 0,
    /// cannot move everything off it, and sends interrupts there by default. So among equal cores
    /// it is the worst for a vCPU and the best for the host.
    pub fn boot_host(&self) -> HostShare {
        self.lowest_of(&self.hostable)
    }

    /// The same, but preferring cores to which no vCPU is pinned by hand.
    pub fn boot_core(&self) -> HostShare {
        let others = self.hostable.difference(&self.by_hand);
        self.lowest_of(if others.is_empty() { &self.hostable } else { &others })
    }

    fn lowest_of(&self, hostable: &CpuSet) -> HostShare {
        let first = if self.free.is_empty() { hostable.first() } else { self.free.first() };
        let boot = first == self.topology.online().first();
        let why = match first {
            Some(_) if !self.free.is_empty() => {
                format!("the request keeps {} free for it", self.free)
            }
            Some(pu) if boot => format!("it holds CPU {pu}, on which the kernel boots"),
            Some(pu) => format!("it holds CPU {pu}, the lowest that the host's tasks may use here"),
            None => String::new(),
        };
        self.share(first, why)
    }

    /// A core for the host on a node that does not suit what is placed.
    pub fn host_without(&self, suits: impl Fn(NodeId) -> bool) -> Option<HostShare> {
        let mut hostable = self.hostable.iter().filter(|_| self.free.is_empty());
        let first = hostable.find(|pu| self.node_of(*pu).is_some_and(|node| !suits(node)))?;
        let node = self.node_of(first)?;
        let why = if crate::cores::capacity::is_empty_node(self.topology, node) {
            "its node has no memory, and this placement needs the other nodes"
        } else {
            "its node does not have the requested memory"
        };
        Some(self.share(Some(first), why.to_owned()))
    }

    fn node_of(&self, pu: PuId) -> Option<NodeId> {
        self.pu(pu).and_then(|pu| pu.node)
    }

    /// The first CPU of a core that the host's tasks may use.
    fn hostable_of(&self, core: &AvailableCore) -> Option<PuId> {
        hostable_of(core, &self.hostable)
    }

    /// Description of the cores of some CPUs.
    pub fn parts_of(&self, pus: &[PuId]) -> String {
        self.parts.name(pus.iter().filter_map(|pu| self.available_core(*pu)))
    }

    /// Description of the cores of some parts.
    pub fn part_name(&self, parts: std::ops::RangeInclusive<u32>) -> String {
        self.parts.name(self.cores.iter().filter(|core| parts.contains(&core.part)))
    }

    /// The host's core if its tasks are to be away from the first package: the first core of the
    /// last package, or that of [`Self::host`] if there is only one package.
    pub fn host_on_the_last_package(&self) -> HostShare {
        let usual = self.host();
        let first = usual.pus.first().and_then(|pu| self.pu(pu)).map(|pu| pu.package);
        // A machine that stays on some nodes leaves the others to the host as well.
        let left = self.hostable.difference(&self.by_hand);
        let hosts = || self.topology.pus.iter().filter(|pu| left.contains(pu.os));
        let last = hosts().map(|pu| pu.package).max();
        if !self.free.is_empty() || last.is_none() || last <= first {
            return usual;
        }
        let pu = hosts().find(|pu| Some(pu.package) == last).map(|pu| pu.os);
        let package = last.map_or_else(String::new, |package| package.to_string());
        self.share(
            pu,
            format!(
                "it is the first core of package {package}, the last package, so the other \
                 packages stay whole"
            ),
        )
    }

    /// A core for the host that vCPUs cannot have exclusively, because the plan may not use some of
    /// its CPUs.
    pub fn host_on_a_shared_core(&self) -> Option<HostShare> {
        let mut shared = self.cores.iter().filter(|core| self.is_shared(core));
        let first = shared.find_map(|core| self.hostable_of(core));
        let why = "vCPUs need whole cores, and this plan may not use some of its CPUs".to_owned();
        first.filter(|_| self.free.is_empty()).map(|first| self.share(Some(first), why))
    }

    /// True if a core has online CPUs that the plan may not use, and no vCPU is pinned to it by
    /// hand.
    pub fn is_shared(&self, core: &AvailableCore) -> bool {
        !self.siblings_of_others(core).is_empty() && self.by_hand.is_disjoint(&core.set())
    }

    /// The online CPUs of a core that the plan may not use.
    pub fn siblings_of_others(&self, core: &AvailableCore) -> CpuSet {
        let whole = self.topology.cores.get(core.id.index());
        whole.map(|whole| whole.pus.difference(&core.set())).unwrap_or_default()
    }

    fn share(&self, first: Option<PuId>, why: String) -> HostShare {
        let at = first.and_then(|pu| self.pu(pu));
        let whole = at.and_then(|pu| self.topology.cores.get(pu.core.index()));
        let pus = if self.free.is_empty() {
            whole.map(|core| core.pus.intersection(&self.hostable)).unwrap_or_default()
        } else {
            self.free.clone()
        };
        HostShare {
            core: at.map(|pu| pu.core),
            l2: first.and_then(|pu| self.l2(pu)),
            l3: at.and_then(|pu| pu.l3),
            node: at.and_then(|pu| pu.node),
            package: at.map(|pu| pu.package),
            pus,
            asked: !self.free.is_empty(),
            why,
        }
    }

    /// The usable cores that are not the host's.
    pub fn without(&self, host: &HostShare) -> Vec<AvailableCore> {
        self.cores_without(host).cloned().collect()
    }

    /// The same, borrowed.
    pub fn cores_without<'s>(
        &'s self,
        host: &HostShare,
    ) -> impl Iterator<Item = &'s AvailableCore> {
        // If one sibling of a core is the host's, vnodes get none of its CPUs.
        self.cores.iter().filter(|core| {
            let whole = self.topology.cores.get(core.id.index());
            whole.is_some_and(|whole| whole.pus.is_disjoint(&host.pus))
        })
    }

    /// The reason for the host's CPUs when `exclusive` is reserved for vnodes.
    pub fn host_reason(&self, host: &HostShare, exclusive: &CpuSet) -> String {
        let left = self.hostable.difference(exclusive).difference(&host.pus);
        let mut reason = format!("the host keeps {}, because {}", host.name(), host.why);
        if !left.is_empty() {
            reason.push_str(&format!(", and {left}, which no role of the plan needs"));
        }
        reason
    }

    /// The level-2 cache that a CPU shares with other cores.
    fn l2(&self, os: PuId) -> Option<u32> {
        let place = self.topology.l2_domains.iter().position(|domain| domain.contains(os))?;
        u32::try_from(place).ok()
    }

    /// Position of a CPU: `core 1, L3 0, node 0, package 0`.
    pub fn place(&self, os: PuId) -> &str {
        let cell = self.pu(os).and_then(|pu| Some((pu, self.places.get(pu.core.index())?)));
        match cell {
            Some((pu, place)) => place.get_or_init(|| self.describe(pu)),
            None => "not in this topology",
        }
    }

    fn describe(&self, pu: &Pu) -> String {
        let mut place = format!("core {}", pu.core);
        if let Some(l2) = self.available_core(pu.os).and_then(|core| core.l2) {
            place.push_str(&format!(", L2 {l2}"));
        }
        if let Some(l3) = pu.l3 {
            place.push_str(&format!(", L3 {l3}"));
            let mut domains = self.topology.l3.iter().filter(|_| self.parts.sizes_differ);
            if let Some(domain) = domains.find(|domain| domain.id == l3) {
                place.push_str(&format!(", {}", mib(domain.size_bytes)));
            }
        }
        if let Some(node) = pu.node {
            place.push_str(&format!(", node {node}"));
        }
        place.push_str(&format!(", package {}", pu.package));
        place
    }
}

/// The place of each core of the topology among the available ones; `usize::MAX` for others.
fn places_of(topology: &Topology, cores: &[AvailableCore]) -> Vec<usize> {
    let mut places = vec![usize::MAX; topology.cores.len()];
    for (place, core) in cores.iter().enumerate() {
        if let Some(entry) = places.get_mut(core.id.index()) {
            *entry = place;
        }
    }
    places
}

/// The CPUs of all cores that a set intersects.
fn cores_of(topology: &Topology, pus: &CpuSet) -> CpuSet {
    if pus.is_empty() {
        return CpuSet::new();
    }
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(pus));
    cores.map(|core| &core.pus).collect::<CpuSet>()
}

/// The CPUs to which helpers are pinned by hand, without pins that leave less than half of their
/// nodes to vCPUs: such helpers have CPUs without one all the same.
fn of_helpers(index: &Index<'_>, usable: &CpuSet, request: &Request) -> CpuSet {
    request_check::pins_of_helpers(request)
        .filter(|pus| {
            let near = index.cpus_on_nodes(usable, &index.nodes_of(pus));
            2 * pus.len() <= near.len()
        })
        .collect()
}

/// The CPUs of the nodes to which every vnode is restricted; `None` if a vnode may be anywhere.
fn nodes_pus(topology: &Topology, request: &Request) -> Option<CpuSet> {
    let mut pus = CpuSet::new();
    if request.vnodes.is_empty() {
        return None;
    }
    for vnode in &request.vnodes {
        let nodes = nodes_to_stay_on(vnode);
        if nodes.is_empty() {
            return None;
        }
        let there = topology.nodes.iter().filter(|node| nodes.contains(&node.id));
        there.for_each(|node| pus.add(&node.pus));
    }
    Some(pus)
}

/// The error if the request's nodes have no CPU that a plan may use.
fn no_pus_there(request: &Request) -> PlanError {
    let vnode = request.vnodes.first();
    PlanError::Nodes {
        vnode: vnode.map(|vnode| vnode.name.clone()).unwrap_or_default(),
        nodes: vnode.map(|vnode| nodes_to_stay_on(vnode).to_vec()).unwrap_or_default(),
        why: "the plan may not use any of their CPUs".to_owned(),
    }
}

/// The part of the machine from which free CPUs are taken first, if a request gives only their
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeFrom {
    /// The weakest part.
    Weakest,
    /// The part on which the kernel boots.
    Boot,
}

/// The CPUs kept free by name.
fn named_free(
    pus: &CpuSet,
    offline: &CpuSet,
    allowed: &CpuSet,
    hostable: &CpuSet,
) -> Result<CpuSet, PlanError> {
    let fail = |why: String| Err(PlanError::Free { asked: pus_text(pus), why });
    let offline = pus.intersection(offline);
    let missing = pus.difference(hostable);
    if !offline.is_empty() {
        return fail(crate::cores::online::usable_once(&offline));
    }
    if !missing.is_empty() {
        return fail(format!(
            "{} cannot run the host's tasks: not present on this host, isolated, avoided, or \
             not in the cpuset of this process",
            cpus_text(&missing)
        ));
    }
    if pus.is_empty() {
        let (asked, why) = ("an empty list of CPUs".to_owned(), "the list names no CPU".to_owned());
        return Err(PlanError::Free { asked, why });
    }
    if allowed.is_subset(pus) {
        return fail("no CPU would be left for the placement".to_owned());
    }
    Ok(pus.clone())
}

/// The CPUs kept free: the named ones, or whole cores near the host's core until there are enough.
fn free(
    index: &Index<'_>,
    cores: &[AvailableCore],
    request: &Request,
    hostable: &CpuSet,
    from: FreeFrom,
) -> Result<CpuSet, PlanError> {
    let Some(free_request) = &request.free else { return Ok(CpuSet::new()) };
    let allowed = &allowed_cpus(index.topology, &request.avoid);
    let fail = |asked: String, why: String| Err(PlanError::Free { asked, why });
    let count = match free_request {
        FreeCpus::These(pus) => return named_free(pus, &index.topology.offline, allowed, hostable),
        FreeCpus::Pus(count) => *count as usize,
        FreeCpus::Percent(percent) => (allowed.len() * *percent as usize).div_ceil(100),
    };
    let asked = match free_request {
        FreeCpus::Percent(percent) => {
            format!("{percent} percent, {count} of {} CPUs,", allowed.len())
        }
        FreeCpus::Pus(_) | FreeCpus::These(_) => count_noun(count, "CPU"),
    };
    let mut free = CpuSet::new();
    for core in cores_near_the_host(index, cores, hostable, from) {
        if free.len() >= count {
            break;
        }
        free.add(&core);
    }
    if free.len() < count {
        return fail(
            asked,
            format!(
                "only {} can run the host's tasks, {} too few",
                count_noun(free.len(), "CPU"),
                count - free.len()
            ),
        );
    }
    if allowed.is_subset(&free) {
        return fail(
            asked,
            format!(
                "in whole cores, that is all of {allowed}: no CPU would be left for the \
                     placement"
            ),
        );
    }
    Ok(free)
}

/// The hostable CPUs of each core, in the order in which they are kept free: first the weakest part
/// of the machine (or the one on which the kernel boots), within it those nearest to its first
/// core, or to the core on which the kernel boots.
fn cores_near_the_host(
    index: &Index<'_>,
    cores: &[AvailableCore],
    hostable: &CpuSet,
    from: FreeFrom,
) -> Vec<CpuSet> {
    let parts: BTreeMap<CoreId, u32> = cores.iter().map(|core| (core.id, core.part)).collect();
    let pus: Vec<&Pu> = hostable.iter().filter_map(|pu| index.pu(pu)).collect();
    let Some(weakest) = pus.iter().map(|pu| part_of(pu, &parts)).max() else { return Vec::new() };
    let Some(host) =
        pus.iter().copied().find(|pu| from == FreeFrom::Boot || part_of(pu, &parts) == weakest)
    else {
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
            let other = from == FreeFrom::Boot && part_of(at, &parts) != part_of(host, &parts);
            let weak = std::cmp::Reverse(part_of(at, &parts));
            Some(((other, weak, at.core != host.core, away, at.logical), pus))
        })
        .collect();
    cores.sort_by_key(|(key, _)| *key);
    cores.into_iter().map(|(_, pus)| pus).collect()
}

fn part_of(pu: &Pu, parts: &BTreeMap<CoreId, u32>) -> u32 {
    parts.get(&pu.core).copied().unwrap_or(0)
}

/// The shared level-2 cache of each CPU that has one, by its index in the topology's table.
fn l2_domains(topology: &Topology) -> BTreeMap<PuId, u32> {
    let numbered = (0_u32..).zip(&topology.l2_domains);
    numbered.flat_map(|(number, pus)| pus.iter().map(move |pu| (pu, number))).collect()
}

/// The CPUs that plans may use if they avoid some: online and in the process's cpuset.
fn allowed_cpus(topology: &Topology, avoid: &CpuSet) -> CpuSet {
    topology.allowed.intersection(&topology.online()).difference(avoid)
}

/// The cores of these CPUs in hwloc's order, not divided into parts.
pub(crate) fn allowed_cores(topology: &Topology, avoid: &CpuSet) -> Vec<AvailableCore> {
    cores(topology, &allowed_cpus(topology, avoid))
}

fn cores(topology: &Topology, usable: &CpuSet) -> Vec<AvailableCore> {
    let mut pus: Vec<&Pu> = topology.pus.iter().filter(|pu| usable.contains(pu.os)).collect();
    pus.sort_by_key(|pu| pu.logical);
    let l2_of = l2_domains(topology);
    let has_sizes = topology.nodes.iter().any(|node| node.memory_bytes > 0);
    let empty: Vec<NodeId> = topology
        .nodes
        .iter()
        .filter(|node: &&NumaNode| has_sizes && node.memory_bytes == 0)
        .map(|node| node.id)
        .collect();
    let mut cores: Vec<AvailableCore> = Vec::new();
    let mut places = vec![usize::MAX; topology.cores.len()];
    for pu in pus {
        let isolated = topology.isolated.contains(pu.os);
        let Some(place) = places.get_mut(pu.core.index()) else {
            continue;
        };
        if let Some(core) = cores.get_mut(*place) {
            core.pus.push(pu.os);
            core.isolated &= isolated;
        } else {
            *place = cores.len();
            let mut pus = Vec::with_capacity(topology.core(pu.core).pus.len());
            pus.push(pu.os);
            cores.push(AvailableCore {
                id: pu.core,
                pus,
                kind: pu.kind,
                l2: l2_of.get(&pu.os).copied(),
                l3: pu.l3,
                node: pu.node,
                package: pu.package,
                isolated,
                part: 0,
                speed: 0,
                is_partial: false,
                boots: false,
                of_helpers: CpuSet::new(),
                memoryless: pu.node.is_some_and(|node| empty.contains(&node)),
            });
        }
    }
    cores
}

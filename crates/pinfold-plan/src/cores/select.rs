//! Selects cores near each other, for one vnode after the other.
//!
//! Cores of one [part](crate::parts) of the machine are taken if one has enough, the preferred such
//! part; else of all parts, the preferred first. Within a part they are taken tier by tier: a tier
//! contains cores of equal SMT width. Isolated cores form separate tiers, which come first, and
//! cores to which a helper is pinned by hand others, which come last. In a tier that is not needed
//! completely, the cores come from the smallest domain that has enough of them: a shared L2, L3
//! within node and package, package within a node, node, L3, package, machine. Among domains of
//! equal size the order is: one that already contains cores of the vnode, one of a requested node,
//! one without the host core (the host's tasks then do not share that cache), one with memory, then
//! hwloc's order.
//!
//! Within a domain, its parts with the most free cores are used first. This gives the fewest pairs
//! of vCPUs in different parts, and fewer vCPUs are then never farther apart on average.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pinfold_model::{CpuSet, NodeId, PuId};

use crate::cores::available::distinct;
use crate::cores::available_core::AvailableCore;
use crate::cores::host_share::HostShare;

/// The unit for selecting cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// One vCPU per core.
    Cores,
    /// One vCPU per CPU.
    Threads,
}

impl Count {
    /// Number of vCPUs that a core can carry.
    pub fn of(self, core: &AvailableCore) -> usize {
        match self {
            Count::Cores => 1,
            Count::Threads => core.pus.len(),
        }
    }
}

/// Cores for one vnode, in hwloc's order.
pub(crate) struct Selection<'g> {
    pub cores: Vec<&'g AvailableCore>,
    /// The CPU of each vCPU.
    pub pins: Vec<PuId>,
}

/// The cores that are still free.
pub(crate) struct Pool<'g> {
    cores: &'g [AvailableCore],
    count: Count,
    tiers: Vec<Tier>,
    /// The CPUs to which vCPUs of any vnode are pinned by hand.
    reserved: CpuSet,
}

/// Cores that are alike: of one part and width, isolated or not, whole or partial, with helpers or
/// without.
struct Tier {
    part: u32,
    isolated: bool,
    width: usize,
    /// Number of free cores.
    left: usize,
    cells: Vec<Cell>,
    /// The domains of each of [`LEVELS`].
    levels: [Vec<Domain>; LEVELS.len()],
}

/// The cores of one L2 domain, or of one L3 domain without such, within one node and package.
struct Cell {
    /// Index of one of its cores, which determines the cell's position.
    at: usize,
    /// Indexes of the free cores, the last in hwloc's order first.
    free: Vec<usize>,
    /// Index of its domain at each level.
    domains: [Option<usize>; LEVELS.len()],
}

/// A domain of the machine at one level.
struct Domain {
    key: Key,
    penalty: DomainPenalty,
    /// Number of free cores.
    free: usize,
    cells: Vec<usize>,
}

/// Disadvantage of a domain, the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DomainPenalty {
    None,
    /// It contains the host's core.
    Host,
    /// Its node has no memory although other nodes have.
    NoMemory,
}

/// Identity of a domain at one level; `None` if the core is in no such domain.
type Key = Option<[Option<u32>; 3]>;

/// The levels, from the smallest domain to the whole machine.
const LEVELS: [fn(&AvailableCore) -> Key; 7] = [
    |core| core.l2.map(|l2| [Some(l2), None, None]),
    |core| {
        let (l3, node) = (core.l3.map(|l3| l3.0), core.node.map(|node| node.0));
        Some([l3, node, Some(core.package.0)])
    },
    |core| Some([core.node.map(|node| node.0), Some(core.package.0), None]),
    |core| core.node.map(|node| [Some(node.0), None, None]),
    |core| core.l3.map(|l3| [Some(l3.0), None, None]),
    |core| Some([Some(core.package.0), None, None]),
    |_| Some([None, None, None]),
];

/// Indexes into [`LEVELS`].
const L2: usize = 0;
const CACHE: usize = 1;
const NODE: usize = 2;
const WHOLE_NODE: usize = 3;
const PACKAGE: usize = 5;

impl<'g> Pool<'g> {
    /// A pool in which all of `cores` are free. `host` are the host's CPUs, if the strategy
    /// reserves any.
    pub fn new(cores: &'g [AvailableCore], count: Count, host: Option<&HostShare>) -> Self {
        let mut parts: BTreeMap<u32, BTreeMap<usize, [Vec<usize>; 4]>> = BTreeMap::new();
        for (place, core) in cores.iter().enumerate() {
            let widths = parts.entry(core.part).or_default();
            let [isolated, others, partial, with_helper] =
                widths.entry(count.of(core)).or_default();
            if !core.of_helpers.is_empty() {
                with_helper.push(place);
            } else if core.is_partial {
                partial.push(place);
            } else if core.isolated {
                isolated.push(place);
            } else {
                others.push(place);
            }
        }
        let mut tiers = Vec::new();
        for (part, widths) in parts {
            let mut widths: Vec<(usize, [Vec<usize>; 4])> = widths.into_iter().collect();
            // The width that carries the most vCPUs first; if equal, the larger width.
            widths.sort_by_key(|(width, places)| {
                Reverse((width * places.iter().map(Vec::len).sum::<usize>(), *width))
            });
            for (width, parts) in widths {
                let filled = parts.iter().filter(|places| !places.is_empty());
                tiers.extend(filled.map(|places| Tier::new(cores, part, width, places, host)));
            }
        }
        Self { cores, count, tiers, reserved: CpuSet::new() }
    }

    /// The same pool without the cores of CPUs to which vCPUs are pinned by hand: only
    /// [`Self::take_around`] takes them, for the vnodes of these vCPUs.
    pub fn reserve(mut self, by_hand: &CpuSet) -> Self {
        for place in self.places_of(by_hand) {
            self.claim(place);
        }
        self.reserved = by_hand.clone();
        self
    }

    /// The indexes of the cores of some CPUs.
    fn places_of(&self, pus: &CpuSet) -> Vec<usize> {
        let places = self.cores.iter().enumerate();
        let with = places.filter(|(_, core)| core.pus.iter().any(|pu| pus.contains(*pu)));
        with.map(|(place, _)| place).collect()
    }

    /// Number of vCPUs that the free cores can carry.
    pub fn remaining(&self) -> usize {
        self.tiers.iter().map(|tier| tier.left * tier.width).sum()
    }

    /// The same for a vnode with these pins, which alone may take the cores that they reserve.
    pub fn remaining_for(&self, pin_requests: &[Option<&CpuSet>]) -> usize {
        let own = pin_requests.iter().flatten().copied().collect::<CpuSet>();
        let own = self.places_of(&own.intersection(&self.reserved)).into_iter();
        let own = own.filter_map(|place| self.cores.get(place)).map(|core| self.count.of(core));
        self.remaining() + own.sum::<usize>()
    }

    /// Number of vCPUs on the cores that `auto` uses, and per core: cores of the preferred part
    /// and, if CPUs are counted, of the most frequent SMT width.
    pub fn auto(&self) -> (usize, usize) {
        let Some(first) = self.tiers.first() else { return (0, 1) };
        let all = self
            .tiers
            .iter()
            .filter(|tier: &&Tier| (tier.part, tier.width) == (first.part, first.width))
            .map(|tier| tier.left * tier.width)
            .sum();
        (all, first.width)
    }

    /// Takes cores for `need` vCPUs near each other, if possible on one of `nodes` and of one part.
    /// `None`, without taking any, if there are too few.
    pub fn take(&mut self, need: usize, nodes: &[NodeId]) -> Option<Selection<'g>> {
        let part = self.part_for(need);
        (self.remaining() >= need).then(|| self.take_of(need, nodes, &[], part))
    }

    /// Takes the cores of the vCPUs that are pinned by hand (`pin_requests` for each vCPU), and
    /// cores near those for the others. `None` if there are too few.
    pub fn take_around(
        &mut self,
        pin_requests: &[Option<&CpuSet>],
        nodes: &[NodeId],
    ) -> Option<Selection<'g>> {
        let by_hand = pin_requests.iter().flatten().copied().collect::<CpuSet>();
        let own = self.places_of(&by_hand);
        own.iter().for_each(|place| self.claim(*place));
        let named: Vec<&'g AvailableCore> =
            own.iter().filter_map(|place| self.cores.get(*place)).collect();
        let mut siblings: Vec<PuId> = match self.count {
            Count::Cores => Vec::new(),
            Count::Threads => named.iter().flat_map(|core| core.pus.iter().copied()).collect(),
        };
        siblings.retain(|pu| !by_hand.contains(*pu) && !self.reserved.contains(*pu));
        let others = pin_requests.iter().filter(|pin_request| pin_request.is_none()).count();
        let more = others.saturating_sub(siblings.len());
        if self.remaining() < more {
            return None;
        }
        let part = named.iter().map(|core| core.part).find(|part| {
            let tiers = self.tiers.iter().filter(|tier| tier.part == *part);
            tiers.map(|tier| tier.left * tier.width).sum::<usize>() >= more
        });
        let part = part.or_else(|| self.part_for(more));
        let taken = self.take_of(more, nodes, &own, part);
        let all: Vec<&'g AvailableCore> = named.into_iter().chain(taken.cores).collect();
        let mut pins = number_vcpus(pin_requests, &all, siblings, taken.pins);
        // A vCPU that may use several CPUs is represented by the first of them.
        pins.truncate(pin_requests.len());
        let cores = match self.count {
            Count::Cores => pins
                .iter()
                .filter_map(|pu: &PuId| all.iter().find(|core| core.pus.contains(pu)).copied())
                .collect(),
            Count::Threads => all.clone(),
        };
        Some(Selection { cores, pins })
    }

    /// Removes a core from the pool, if it is free.
    fn claim(&mut self, place: usize) {
        for tier in &mut self.tiers {
            let cell = tier.cells.iter_mut().find(|cell| cell.free.contains(&place));
            let Some(cell) = cell else { continue };
            cell.free.retain(|other| *other != place);
            for (level, domain) in cell.domains.into_iter().enumerate() {
                if let Some(domain) = domain {
                    tier.levels[level][domain].free -= 1;
                }
            }
            tier.left -= 1;
        }
    }

    /// Takes a core for each of `need` vCPUs although CPUs are counted, if that number of vCPUs
    /// would not fill their cores: the guest then has no siblings that its topology does not show.
    /// `None`, without taking any, if that leaves fewer than `waiting` cores for others, leaves
    /// none for an emulator on the node, or uses more L3 domains or nodes.
    pub fn take_apart(
        &mut self,
        need: usize,
        nodes: &[NodeId],
        waiting: usize,
    ) -> Option<Selection<'g>> {
        let part = self.part_for(need)?;
        if let Some(taken) = self.take_uneven(need, part, waiting) {
            return Some(taken);
        }
        let tier = self.tiers.iter_mut().find(|tier| tier.part == part && tier.left > 0)?;
        let near = NearbyCores { cores: self.cores, chosen: &[], nodes };
        if need <= tier.width || need.is_multiple_of(tier.width) || tier.left < need + waiting {
            return None;
        }
        let (level, domain) = tier.fitting(need, &near)?;
        let (filled, _) = tier.fitting(need.div_ceil(tier.width), &near)?;
        if level > filled.max(CACHE) || !tier.has_room_beside(level, domain, need, &near) {
            return None;
        }
        let mut places = tier.take(need, &near);
        places.sort_unstable();
        let cores: Vec<&AvailableCore> =
            places.into_iter().filter_map(|place| self.cores.get(place)).collect();
        let pins = cores.iter().flat_map(|core| core.for_vcpus(1)).collect();
        Some(Selection { cores, pins })
    }

    /// The same if cores of unequal width would carry unequal numbers of vCPUs.
    fn take_uneven(&mut self, need: usize, part: u32, waiting: usize) -> Option<Selection<'g>> {
        let cores = self.cores;
        let mut tiers: Vec<&mut Tier> =
            self.tiers.iter_mut().filter(|tier| tier.part == part && tier.left > 0).collect();
        let fills =
            |tier: &&mut Tier| need.is_multiple_of(tier.width) && tier.left * tier.width >= need;
        let all: usize = tiers.iter().map(|tier| tier.left).sum();
        let is_uneven = tiers.windows(2).any(|pair| pair[0].width != pair[1].width);
        if !is_uneven || all < need + waiting || tiers.iter().any(fills) {
            return None;
        }
        let mut places: Vec<usize> = Vec::new();
        for tier in &mut tiers {
            let wanted = (need - places.len()).min(tier.left);
            let near = NearbyCores { cores, chosen: &places, nodes: &[] };
            let taken = tier.take(wanted, &near);
            places.extend(taken);
        }
        places.sort_unstable();
        let cores: Vec<&AvailableCore> =
            places.into_iter().filter_map(|place| cores.get(place)).collect();
        let pins = cores.iter().flat_map(|core| core.for_vcpus(1)).collect();
        Some(Selection { cores, pins })
    }

    /// The preferred part with room for `need` vCPUs; on isolated cores if a part has enough of
    /// them.
    pub fn part_for(&self, need: usize) -> Option<u32> {
        let among = |isolated_only: bool| {
            let mut left: BTreeMap<u32, usize> = BTreeMap::new();
            for tier in self.tiers.iter().filter(|tier| tier.isolated || !isolated_only) {
                *left.entry(tier.part).or_default() += tier.left * tier.width;
            }
            left.into_iter().find(|(_, left)| *left >= need).map(|(part, _)| part)
        };
        among(true).or_else(|| among(false))
    }

    /// The node with the most free cores, of those that are `allowed` and have room for `need`
    /// vCPUs in one part: with memory first; of equal ones that with the host's core, as the others
    /// then have vCPUs.
    pub fn emptiest_node(&self, need: usize, allowed: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        self.emptiest(WHOLE_NODE, need, |node| allowed(NodeId(node))).map(NodeId)
    }

    /// The nodes of the package with the most free cores, of those that have room for `need` vCPUs
    /// in one part; in the same order. Empty if none has room.
    pub fn nodes_of_emptiest_package(&self, need: usize) -> Vec<NodeId> {
        let Some(package) = self.emptiest(PACKAGE, need, |_| true) else { return Vec::new() };
        let own = self.cores.iter().filter(|core| core.package.0 == package);
        distinct(own.filter_map(|core| core.node))
    }

    /// The domain of a level, by its number, with the most free cores of those that are `allowed`.
    fn emptiest(&self, level: usize, need: usize, allowed: impl Fn(u32) -> bool) -> Option<u32> {
        let part = self.part_for(need)?;
        let mut best = None;
        for tier in self.tiers.iter().filter(|tier| tier.part == part) {
            for domain in &tier.levels[level] {
                let Some([Some(number), ..]) = domain.key else { continue };
                let room = domain.free * tier.width;
                let poor = domain.penalty == DomainPenalty::NoMemory;
                let is_hosts = domain.penalty == DomainPenalty::Host;
                let rank = (poor, Reverse((room, is_hosts)), number);
                if room >= need && allowed(number) && best.is_none_or(|best| rank < best) {
                    best = Some(rank);
                }
            }
        }
        best.map(|(.., number)| number)
    }

    /// True if a single part has room for `need` vCPUs.
    pub fn fits_a_part(&self, need: usize) -> bool {
        self.part_for(need).is_some()
    }

    /// Takes cores of a part, or of all, near the cores at `own`. There must be enough.
    fn take_of(
        &mut self,
        need: usize,
        nodes: &[NodeId],
        own: &[usize],
        part: Option<u32>,
    ) -> Selection<'g> {
        let mut chosen: Vec<usize> = own.to_vec();
        let mut left = need;
        for tier in self.tiers.iter_mut().filter(|tier| part.is_none_or(|part| tier.part == part)) {
            if left == 0 {
                break;
            }
            let wanted = left.div_ceil(tier.width).min(tier.left);
            left = left.saturating_sub(wanted * tier.width);
            let near = NearbyCores { cores: self.cores, chosen: &chosen, nodes };
            let part = tier.take(wanted, &near);
            chosen.extend(part);
        }
        chosen.drain(..own.len());
        let mut left = need;
        // The core that is taken last carries fewer vCPUs, if any does.
        let mut used: Vec<(usize, usize)> = Vec::with_capacity(chosen.len());
        for place in chosen {
            let carried = self.cores.get(place).map_or(0, |core| self.count.of(core).min(left));
            left -= carried;
            used.push((place, carried));
        }
        // `cores` is in hwloc's order, and so is the result.
        used.sort_unstable();
        let taken_cores =
            used.into_iter().filter_map(|(place, carried)| Some((self.cores.get(place)?, carried)));
        let mut taken = Selection { cores: Vec::new(), pins: Vec::with_capacity(need) };
        for (core, carried) in taken_cores {
            taken.pins.extend(core.for_vcpus(carried));
            taken.cores.push(core);
        }
        taken
    }
}

/// The CPU of each vCPU: the first CPU to which it is pinned by hand; for a vCPU that shares a
/// guest core with such a vCPU, a sibling of its CPU; else the next of `free`.
fn number_vcpus(
    pin_requests: &[Option<&CpuSet>],
    cores: &[&AvailableCore],
    mut siblings: Vec<PuId>,
    free: Vec<PuId>,
) -> Vec<PuId> {
    let core_of = |pu: PuId| cores.iter().find(|core| core.pus.contains(&pu));
    let mut free = free.into_iter();
    let mut pins: Vec<PuId> = Vec::with_capacity(pin_requests.len());
    for (index, pin_request) in pin_requests.iter().enumerate() {
        if let Some(first) = pin_request.and_then(CpuSet::first) {
            pins.push(first);
            continue;
        }
        let width = cores.first().map_or(1, |core| core.pus.len().max(1));
        let group = pin_requests.chunks(width).nth(index / width).unwrap_or_default();
        let sibling = (0..siblings.len())
            .find(|place| {
                let near =
                    group.iter().flatten().filter_map(|pin_request| core_of(pin_request.first()?));
                near.into_iter().any(|core| core.pus.contains(&siblings[*place]))
            })
            .map(|place| siblings.remove(place));
        pins.extend(
            sibling
                .or_else(|| free.next())
                .or_else(&mut || (!siblings.is_empty()).then(|| siblings.remove(0))),
        );
    }
    pins
}

/// Cores and nodes near which cores are selected.
struct NearbyCores<'a> {
    cores: &'a [AvailableCore],
    /// Cores that the vnode already has.
    chosen: &'a [usize],
    /// The requested nodes.
    nodes: &'a [NodeId],
}

impl NearbyCores<'_> {
    /// Sort key, false first: domains with chosen cores, then domains on a requested node.
    fn rank(&self, level: usize, key: Key, at: &AvailableCore) -> (bool, bool) {
        let Some(of) = LEVELS.get(level) else { return (true, true) };
        let chosen = self.chosen.iter().filter_map(|place| self.cores.get(*place));
        let with_chosen = chosen.into_iter().any(|core| of(core) == key);
        let asked = at.node.is_some_and(|node| self.nodes.contains(&node));
        (!with_chosen, !asked)
    }
}

impl Tier {
    fn new(
        cores: &[AvailableCore],
        part: u32,
        width: usize,
        places: &[usize],
        host: Option<&HostShare>,
    ) -> Self {
        let mut tier = Self {
            part,
            isolated: places.first().and_then(|at| cores.get(*at)).is_some_and(|at| at.isolated),
            width,
            left: places.len(),
            cells: Vec::new(),
            levels: Default::default(),
        };
        let mut known: BTreeMap<(Key, Key), usize> = BTreeMap::new();
        let mut keys: [BTreeMap<Key, usize>; LEVELS.len()] = Default::default();
        for (place, core) in places.iter().filter_map(|place| Some((*place, cores.get(*place)?))) {
            let key = (LEVELS[L2](core), LEVELS[CACHE](core));
            let cell = *known.entry(key).or_insert_with(|| {
                tier.cells.push(Cell {
                    at: place,
                    free: Vec::new(),
                    domains: [None; LEVELS.len()],
                });
                tier.cells.len() - 1
            });
            for (level, of) in LEVELS.iter().enumerate() {
                let Some(key) = of(core).map(Some) else { continue };
                let domains = &mut tier.levels[level];
                let penalty = match host {
                    _ if core.memoryless => DomainPenalty::NoMemory,
                    Some(host) if hosts(level, host, core) => DomainPenalty::Host,
                    Some(_) | None => DomainPenalty::None,
                };
                let domain = *keys[level].entry(key).or_insert_with(|| {
                    domains.push(Domain { key, penalty, free: 0, cells: Vec::new() });
                    domains.len() - 1
                });
                let entry = &mut domains[domain];
                entry.free += 1;
                entry.penalty = entry.penalty.min(penalty);
                if tier.cells[cell].domains[level].is_none() {
                    tier.cells[cell].domains[level] = Some(domain);
                    entry.cells.push(cell);
                }
            }
            tier.cells[cell].free.push(place);
        }
        for cell in &mut tier.cells {
            // The fastest first, if requested; the core on which the kernel boots last.
            let last = |place: &usize| {
                cores.get(*place).map(|core| (core.boots, Reverse(core.speed), *place))
            };
            cell.free.sort_by_key(|place| Reverse(last(place)));
        }
        tier
    }

    /// Takes `wanted` cores; there must be enough.
    fn take(&mut self, wanted: usize, near: &NearbyCores<'_>) -> Vec<usize> {
        let Some((level, domain)) = self.fitting(wanted, near) else { return Vec::new() };
        let mut taken = Vec::new();
        for cell in self.in_order(level, domain, near) {
            while taken.len() < wanted {
                let Some(place) = self.cells[cell].free.pop() else { break };
                taken.push(place);
                for (level, domain) in self.cells[cell].domains.into_iter().enumerate() {
                    if let Some(domain) = domain {
                        self.levels[level][domain].free -= 1;
                    }
                }
            }
        }
        self.left -= taken.len();
        taken
    }

    /// The smallest domain with `wanted` free cores, with its level.
    fn fitting(&self, wanted: usize, near: &NearbyCores<'_>) -> Option<(usize, usize)> {
        (0..LEVELS.len()).find_map(|level| Some((level, self.fit(level, wanted, near)?)))
    }

    /// True if the node of a domain is a requested one, and has the host's core or more than `need`
    /// free cores.
    fn has_room_beside(
        &self,
        level: usize,
        domain: usize,
        need: usize,
        near: &NearbyCores<'_>,
    ) -> bool {
        let cells = &self.levels[level][domain].cells;
        let Some(cell) = cells.first().map(|cell| &self.cells[*cell]) else { return false };
        let node = near.cores.get(cell.at).and_then(|core| core.node);
        let asked = near.nodes.is_empty() || node.is_some_and(|node| near.nodes.contains(&node));
        let of_node = cell.domains[NODE].map(|place| &self.levels[NODE][place]);
        asked && of_node.is_some_and(|node| node.penalty == DomainPenalty::Host || node.free > need)
    }

    /// The preferred domain of a level with `wanted` free cores.
    fn fit(&self, level: usize, wanted: usize, near: &NearbyCores<'_>) -> Option<usize> {
        let fitting =
            self.levels[level].iter().enumerate().filter(|(_, domain)| domain.free >= wanted);
        if near.chosen.is_empty() && near.nodes.is_empty() {
            // In hwloc's order, so the first without a burden is taken.
            let mut best: Option<(DomainPenalty, usize)> = None;
            for (place, domain) in fitting {
                if domain.penalty == DomainPenalty::None {
                    return Some(place);
                }
                if best.is_none_or(|(penalty, _)| domain.penalty < penalty) {
                    best = Some((domain.penalty, place));
                }
            }
            return best.map(|(_, place)| place);
        }
        let rank = |domain: &Domain| {
            let at = domain.cells.iter().filter_map(|cell| near.cores.get(self.cells[*cell].at));
            at.map(|at| near.rank(level, domain.key, at)).min()
        };
        fitting.min_by_key(|(_, domain)| (rank(domain), domain.penalty)).map(|(place, _)| place)
    }

    /// The cells of a domain, ordered so that smaller domains stay together, preferred ones first.
    fn in_order(&self, level: usize, domain: usize, near: &NearbyCores<'_>) -> Vec<usize> {
        let cells = &self.levels[level][domain].cells;
        if let [only] = cells.as_slice() {
            return vec![*only];
        }
        let filled: Vec<(usize, &Cell, &AvailableCore)> = cells
            .iter()
            .filter(|cell| !self.cells[**cell].free.is_empty())
            .filter_map(|cell| {
                Some((*cell, &self.cells[*cell], near.cores.get(self.cells[*cell].at)?))
            })
            .collect();
        // Number of free cores of each cell's domain at each level, within these cells.
        let mut free: [BTreeMap<Key, usize>; LEVELS.len()] = Default::default();
        for (_, cell, at) in &filled {
            for level in [PACKAGE, WHOLE_NODE, NODE, CACHE] {
                *free[level].entry(LEVELS[level](at)).or_default() += cell.free.len();
            }
        }
        let rank = |level: usize, cell: &Cell, at: &AvailableCore| {
            let key = LEVELS[level](at);
            let free = free[level].get(&key).copied().unwrap_or(cell.free.len());
            let domain = cell.domains[level].map(|domain| &self.levels[level][domain]);
            let penalty = domain.map_or(DomainPenalty::None, |domain| domain.penalty);
            let poor = penalty == DomainPenalty::NoMemory;
            (near.rank(level, key, at), poor, Reverse(free), penalty, key)
        };
        let mut packages = BTreeMap::new();
        let has_wide_nodes = filled.iter().any(|(.., at)| {
            at.node.is_some() && *packages.entry(at.node).or_insert(at.package) != at.package
        });
        let mut keyed: Vec<_> = filled
            .iter()
            .map(|&(place, cell, at)| {
                // A core without a node comes after those with one.
                let node = (at.node.is_none(), rank(NODE, cell, at));
                let of = |level| rank(level, cell, at);
                let (near, poor, free, penalty, package) = of(PACKAGE);
                let package = (near.0, poor, free, penalty, package);
                // A node of several packages is used whole before the next one.
                let whole = has_wide_nodes.then(|| of(WHOLE_NODE));
                ((whole, package, node, of(CACHE), of(L2)), place)
            })
            .collect();
        keyed.sort();
        keyed.into_iter().map(|(_, place)| place).collect()
    }
}

/// True if the host's core lies in the core's domain at that level.
fn hosts(level: usize, host: &HostShare, core: &AvailableCore) -> bool {
    match level {
        0 => host.l2.is_some() && host.l2 == core.l2,
        1 => (host.l3, host.node, host.package) == (core.l3, core.node, Some(core.package)),
        2 => (host.node, host.package) == (core.node, Some(core.package)),
        3 => host.node == core.node,
        4 => host.l3 == core.l3,
        5 => host.package == Some(core.package),
        _ => true,
    }
}

//! Exclusive cores for each vnode: the common part of the strategies that never let two vnodes
//! share a core.

use pinfold_model::{CpuSet, NodeId, PuId};

use crate::cores::available::AvailableCpus;
use crate::cores::available_core::AvailableCore;
use crate::cores::capacity::MemoryLeft;
use crate::cores::host_share::HostShare;
use crate::cores::request_check::{self, nodes_of};
use crate::cores::select::{Count, Pool, Selection};
use crate::error::PlanError;
use crate::placement::builder::{Limits, PlanBuilder};
use crate::placement::pins;
use crate::placement::vnode_builder::Reserve;

/// The cores of one vnode.
pub(crate) struct ExclusiveCores<'g> {
    /// Its cores in hwloc's order.
    pub cores: Vec<&'g AvailableCore>,
    /// The CPU of each vCPU.
    pub pins: Vec<PuId>,
    /// The CPUs of its cores that carry no vCPU.
    pub rest: CpuSet,
}

impl ExclusiveCores<'_> {
    /// The core of a vCPU, if each vCPU has its own core.
    pub fn core(&self, vcpu: usize) -> Option<&AvailableCore> {
        self.cores.get(vcpu).copied()
    }
}

/// Cores for all vnodes of a request.
pub(crate) struct CoreAssignment<'g> {
    /// The vnodes in the request's order.
    pub vnodes: Vec<ExclusiveCores<'g>>,
    /// All CPUs of all their cores.
    pub all: CpuSet,
    /// True if some candidate cores are unused.
    pub choice: bool,
}

impl CoreAssignment<'_> {
    /// Reserves all their CPUs for the vnodes.
    pub fn reserve(&self, available: &AvailableCpus<'_>, host: &HostShare) -> Reserve {
        Reserve { exclusive: self.all.clone(), reason: available.host_reason(host, &self.all) }
    }
}

/// Where several vnodes are relative to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Next to each other.
    Packed,
    /// Each on the node with the most free cores; on the package if no node has room.
    Nodes,
}

/// Rules for assigning cores.
pub(crate) struct Terms<'a> {
    pub count: Count,
    /// The host's CPUs, if the strategy reserves any.
    pub host: Option<&'a HostShare>,
    /// True if `auto` means all cores, of any kind.
    pub auto_is_all: bool,
    pub spread: Spread,
    /// The limiting reason, for errors.
    pub why: String,
}

/// Assigns cores among `candidates` to each vnode, those of the highest priority first.
///
/// # Errors
/// As [`PlanBuilder::counts`]; [`PlanError::NoRoom`] if there are too few whole cores.
pub(crate) fn assign_cores<'g>(
    builder: &PlanBuilder<'_>,
    candidates: &'g [AvailableCore],
    terms: &Terms<'_>,
) -> Result<CoreAssignment<'g>, PlanError> {
    let by_hand = request_check::pinned_cpus(builder.request);
    let pool = || Pool::new(candidates, terms.count, terms.host);
    if builder.request.vnodes.len() < 2 || by_hand.is_empty() {
        return assign_from(pool(), builder, candidates, terms);
    }
    // No vnode takes a core to which another one is pinned, unless there are too few.
    assign_from(pool().reserve(&by_hand), builder, candidates, terms)
        .or_else(|_| assign_from(pool(), builder, candidates, terms))
}

fn assign_from<'g>(
    mut pool: Pool<'g>,
    builder: &PlanBuilder<'_>,
    candidates: &'g [AvailableCore],
    terms: &Terms<'_>,
) -> Result<CoreAssignment<'g>, PlanError> {
    let (auto, unit) = auto(candidates, terms).unwrap_or_else(|| pool.auto());
    let auto = if terms.auto_is_all { pool.remaining() } else { auto };
    let most = candidates.iter().map(|core| terms.count.of(core)).sum();
    let limits = Limits { auto, unit, most: Some(most), why: terms.why.clone() };
    let counts = builder.counts(limits)?;
    let mut vnodes: Vec<Option<ExclusiveCores<'g>>> = counts.iter().map(|_| None).collect();
    let (mut all, mut used) = (CpuSet::new(), 0);
    let mut waiting: usize = counts.iter().sum();
    let mut memory = MemoryLeft::from_topology(builder.available.topology);
    for place in builder.choosing_order() {
        let need = counts.get(place).copied().unwrap_or(0);
        let nodes =
            choose_nodes(builder, terms.spread, &pool, &memory, &Need { place, vcpus: need });
        waiting -= need;
        let pin_requests = pins::pin_requests(builder.vnode(place), need);
        let taken = match terms.count {
            _ if pin_requests.iter().any(Option::is_some) => {
                pool.take_around(&pin_requests, &nodes)
            }
            Count::Threads => {
                pool.take_apart(need, &nodes, waiting).or_else(|| pool.take(need, &nodes))
            }
            Count::Cores => pool.take(need, &nodes),
        };
        let Selection { cores, pins } = taken
            .ok_or_else(|| builder.no_room(place, need, pool.remaining(), terms.why.clone()))?;
        let mut rest: CpuSet = cores.iter().flat_map(|core| core.pus.iter().copied()).collect();
        all.add(&rest);
        used += cores.len();
        pins.iter().for_each(|pu| rest.remove(*pu));
        if let Some(node) = cores.first().and_then(|core| core.node) {
            memory.take(node, builder.vnode(place).memory);
        }
        if let Some(entry) = vnodes.get_mut(place) {
            *entry = Some(ExclusiveCores { cores, pins, rest });
        }
    }
    let vnodes = vnodes.into_iter().flatten().collect();
    Ok(CoreAssignment { vnodes, all, choice: used < candidates.len() })
}

/// A vnode by its index in the request, and its number of vCPUs.
struct Need {
    place: usize,
    vcpus: usize,
}

/// The nodes near which a vnode should be: those that the request names; else those
/// with its memory, if not all have it; of several vnodes that spread, the emptiest of these, or
/// the nodes of the emptiest package.
fn choose_nodes(
    builder: &PlanBuilder<'_>,
    spread: Spread,
    pool: &Pool<'_>,
    memory: &MemoryLeft,
    need: &Need,
) -> Vec<NodeId> {
    let (topology, asked) = (builder.available.topology, builder.vnode(need.place));
    let named = nodes_of(topology, asked);
    if !named.is_empty() {
        return named;
    }
    let fits = |node: NodeId| memory.fits(node, asked.memory);
    if spread == Spread::Nodes && builder.request.vnodes.len() > 1 {
        return match pool.emptiest_node(need.vcpus, fits) {
            Some(node) => vec![node],
            None => pool.nodes_of_emptiest_package(need.vcpus),
        };
    }
    let all = || topology.nodes.iter().filter(|node| !node.pus.is_empty());
    if asked.memory.is_none() || all().all(|node| fits(node.id)) {
        return Vec::new();
    }
    all().map(|node| node.id).filter(|node| fits(*node)).collect()
}

/// The result of [`Pool::auto`] for the nodes with memory, if other nodes have none.
fn auto(candidates: &[AvailableCore], terms: &Terms<'_>) -> Option<(usize, usize)> {
    let near: Vec<AvailableCore> =
        candidates.iter().filter(|core| !core.memoryless).cloned().collect();
    let some = !near.is_empty() && near.len() < candidates.len();
    some.then(|| Pool::new(&near, terms.count, terms.host).auto())
}

/// The host's core: of the weakest part of the machine. If the largest vnode then fits in no single
/// part, but does with the host on the boot core, it is the boot core.
pub(crate) fn choose_host_core(builder: &PlanBuilder<'_>, count: Count) -> HostShare {
    let available = builder.available;
    let (weak, boot) = (available.host(), available.boot_core());
    let largest = request_check::largest(builder.request);
    let fits =
        |host: &HostShare| Pool::new(&available.without(host), count, None).fits_a_part(largest);
    let host = if weak.core != boot.core && !fits(&weak) && fits(&boot) { boot } else { weak };
    host_core_on_small_node(builder, host, count)
}

/// The host's core on a node that lacks the memory of the largest vnode, if the nodes with it have
/// too few cores for that vnode otherwise; else `usual`.
pub(crate) fn host_core_on_small_node(
    builder: &PlanBuilder<'_>,
    usual: HostShare,
    count: Count,
) -> HostShare {
    let largest = request_check::largest(builder.request);
    let memory = MemoryLeft::from_topology(builder.available.topology);
    let asked = match builder.request.vnodes.as_slice() {
        [only] => only.memory,
        _ => None,
    };
    // Where no node has so much, those with memory are the nearest.
    let asked = asked.filter(|_| {
        builder
            .available
            .topology
            .nodes
            .iter()
            .filter(|node| !node.pus.is_empty())
            .any(|node| memory.fits(node.id, asked))
    });
    let room = |host: &HostShare| -> usize {
        let cores = builder.available.cores_without(host);
        let near = cores.filter(|core| core.node.is_none_or(|node| memory.fits(node, asked)));
        near.map(|core| count.of(core)).sum()
    };
    let other = builder
        .available
        .host_without(|node: NodeId| memory.fits(node, asked))
        .filter(|_| room(&usual) < largest);
    other.filter(|other| room(other) > room(&usual)).unwrap_or(usual)
}

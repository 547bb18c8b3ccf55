//! `realtime`: each vCPU alone on an isolated core under FIFO, all helper threads on housekeeping
//! CPUs of the same node.
//!
//! The layout of real-time KVM hosts (tuned's `realtime-virtual-host`, OpenStack's real-time
//! flavors, libvirt's `<vcpusched>`): a vCPU has a core whose siblings stay idle and are isolated
//! with it, and `SCHED_FIFO` priority 1, below the kernel's own real-time threads. Emulator,
//! iothreads and vhost workers keep the ordinary policy and run on housekeeping CPUs of the node
//! with the vCPUs, the memory and the devices. So a FIFO vCPU that spins never starves them, and
//! their memory accesses are local.
//!
//! Each node keeps one core for housekeeping. A machine never spans nodes, because its helper
//! threads would be near only to a part of it. Cores that were isolated at boot are used first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, IsolationScope, NodeId, Plan, Policy, Request, Topology, VnodeRequest, Work,
};

use super::{Strategy, StrategyKind, TrialOrder, isolcpus};
use crate::cores::available::AvailableCpus;
use crate::cores::available_core::AvailableCore;
use crate::cores::boot;
use crate::cores::capacity::{MemoryLeft, is_empty_node};
use crate::cores::host_share::HostShare;
use crate::cores::request_check::{self, nodes_of};
use crate::cores::select::{Count, Pool, Selection};
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{Limits, PlacedPlan, PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::choose_host_core;
use crate::placement::pins;
use crate::placement::rules::{Isolated, Rules};
use crate::placement::vnode_builder::Reserve;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "realtime",
    summary: "each vCPU alone on an isolated core under FIFO, its helpers on housekeeping CPUs of \
              the same node",
    source: "tuned's realtime-virtual-host and OpenStack's real-time flavors: isolated cores, \
             vCPUs FIFO priority 1, emulator threads on housekeeping CPUs",
    kind: StrategyKind::Shape,
    rules: Rules {
        has_own_cores: true,
        takes_emulator_request: false,
        isolated: Isolated::Required,
    },
    turns: TrialOrder::NONE,
    is_divided: false,
    plan,
};

/// The lowest FIFO priority: above every ordinary task, below the kernel's real-time threads.
const POLICY: Policy = Policy::Fifo { priority: 1 };

const WHY: &str = "each vCPU needs a core of its own on one node, where another core is left for \
                   housekeeping";

/// The cores of a node for vCPUs.
struct NodeCores {
    node: Option<NodeId>,
    /// Its cores without the host's.
    cores: Vec<AvailableCore>,
    with_host: bool,
}

/// A node from which cores are taken.
struct Open<'r> {
    room: &'r NodeCores,
    pool: Pool<'r>,
    isolated: usize,
}

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Cores)?;
    let builder = || PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request);
    let host = choose_host_core(&builder()?, Count::Cores);
    if available.cores.iter().any(|core| available.is_shared(core)) {
        // A core with CPUs that the plan may not use is not exclusive: it becomes the host's if
        // vCPUs need all others.
        for host in [Some(host.clone()), available.host_on_a_shared_core()].into_iter().flatten() {
            if let Ok(plan) = on_cores(builder()?, &host, |core| !available.is_shared(core)) {
                return Ok(plan);
            }
        }
    }
    on_cores(builder()?, &host, |_| true)
}

/// The plan with its vCPUs on these cores.
fn on_cores<'a>(
    mut builder: PlanBuilder<'a>,
    host: &HostShare,
    is_for_vcpus: impl Fn(&AvailableCore) -> bool,
) -> Result<Plan, PlanError> {
    let (available, request) = (builder.available, builder.request);
    let topology = available.topology;
    let rooms = nodes_with_spare_core(available, host, is_for_vcpus);
    let open: Vec<Open<'_>> = rooms.iter().map(|room| Open::new(room, host)).collect();
    let counts = builder.counts(limits(&open, topology, request))?;
    let by_hand = request_check::pinned_cpus(request);
    let placed = if request.vnodes.len() < 2 || by_hand.is_empty() {
        take_all(open, &builder, &counts)
    } else {
        // No vnode takes a core to which another one is pinned, unless there are too few.
        let reserved = rooms.iter().map(|room| Open::new(room, host).reserve(&by_hand)).collect();
        take_all(reserved, &builder, &counts).or_else(|_| take_all(open, &builder, &counts))
    }?;
    let all: CpuSet = placed
        .iter()
        .flat_map(|(_, (_, taken))| taken.cores.iter())
        .flat_map(|core| core.pus.iter().copied())
        .collect();
    for (place, (node, taken)) in &placed {
        let mut vnode_builder = builder.open(*place);
        for (core, pin) in taken.cores.iter().zip(&taken.pins) {
            vnode_builder.vcpu(CpuSet::single(*pin), vcpu_reason(available, request, core));
        }
        if matches!(vnode_builder.asked.work, Work::Vm(_)) {
            vnode_builder.policies = [Some(POLICY), None];
        }
        let home = available.choose_emulator_cpus(host, &taken.pins, &all);
        vnode_builder.emulator(&home.pus, || {
            format!(
                "the emulator runs on {}, housekeeping CPUs {}: a FIFO vCPU never blocks it, and \
                 it is on the vCPUs' node",
                pus_text(&home.pus),
                home.what
            )
        });
        vnode_builder.node = *node;
        builder.finish_vnode(vnode_builder, GuestSmt::None)?;
    }
    builder.defer_finding(move |ended| {
        isolcpus::boot_isolation_finding(available, &kept_cpus(available, request, ended))
    });
    let reason = available.host_reason(host, &all);
    builder.finish_isolated(Reserve { exclusive: all, reason })
}

/// A vnode by its index in the request, with its node and cores.
type Placed<'r> = (usize, (Option<NodeId>, Selection<'r>));

/// Cores for all vnodes, each on one node.
fn take_all<'r>(
    mut open: Vec<Open<'r>>,
    builder: &PlanBuilder<'_>,
    counts: &[usize],
) -> Result<Vec<Placed<'r>>, PlanError> {
    let topology = builder.available.topology;
    let mut placed = Vec::new();
    let mut memory = MemoryLeft::from_topology(topology);
    for place in builder.choosing_order() {
        let need = counts.get(place).copied().unwrap_or(0);
        let asked = builder.vnode(place);
        let taken = take(&mut open, topology, &mut memory, asked, need);
        let most = || {
            open.iter()
                .filter(|one| one.is_for(topology, asked))
                .map(|one| one.pool.remaining())
                .max()
                .unwrap_or(0)
        };
        placed
            .push((place, taken.ok_or_else(|| builder.no_room(place, need, most(), WHY.into()))?));
    }
    Ok(placed)
}

/// The CPUs that the plan's kernel parameters isolate.
fn kept_cpus(available: &AvailableCpus<'_>, request: &Request, ended: &PlacedPlan<'_>) -> CpuSet {
    let shared = kept_with(&CpuSet::new(), available, ended);
    let isolates = request.isolation != IsolationScope::None;
    // Process groups have no real-time threads: their cores are known from the exclusive CPUs only.
    if isolates || shared.is_empty() {
        kept_with(ended.exclusive, available, ended)
    } else {
        shared
    }
}

fn kept_with(exclusive: &CpuSet, available: &AvailableCpus<'_>, ended: &PlacedPlan<'_>) -> CpuSet {
    let housekeeping = available.hostable.difference(exclusive);
    boot::cpus_isolated_at_boot(ended.vnodes, exclusive, &housekeeping, available.topology)
}

/// The nodes with a core for vCPUs and another one for housekeeping.
fn nodes_with_spare_core(
    available: &AvailableCpus<'_>,
    host: &HostShare,
    is_for_vcpus: impl Fn(&AvailableCore) -> bool,
) -> Vec<NodeCores> {
    let others = available.without(host);
    let nodes: BTreeSet<Option<NodeId>> = others.iter().map(|core| core.node).collect();
    nodes
        .into_iter()
        .filter_map(|node: Option<NodeId>| {
            let mut cores: Vec<AvailableCore> =
                others.iter().filter(|s| s.node == node).cloned().collect();
            let with_host =
                host.pus.iter().any(|pu| available.pu(pu).map(|pu| pu.node) == Some(node));
            if !with_host {
                // The weakest core that the host's tasks may use, the last of equal ones.
                let hosts = |core: &AvailableCore| {
                    core.pus.iter().any(|pu| available.hostable.contains(*pu))
                };
                let usable = cores.iter().enumerate().filter(|(_, core)| hosts(core));
                let kept =
                    usable.max_by_key(|(place, core)| ((!is_for_vcpus(core), core.part), *place));
                cores.remove(kept.map(|(place, _)| place)?);
            }
            cores.retain(&is_for_vcpus);
            (!cores.is_empty()).then_some(NodeCores { node, cores, with_host })
        })
        .collect()
}

fn limits(open: &[Open<'_>], topology: &Topology, request: &Request) -> Limits {
    let first = request.vnodes.first();
    let usable: Vec<&Open<'_>> = match request.vnodes.as_slice() {
        [only] => open.iter().filter(|one| one.is_for(topology, only)).collect(),
        _ => open.iter().collect(),
    };
    let rooms = usable.iter().map(|one| (one.pool.auto().0, one.pool.remaining()));
    let (auto, most) = match (request.vnodes.len(), first) {
        (1, Some(_)) => (
            rooms.clone().map(|(auto, _)| auto).max().unwrap_or(0),
            rooms.map(|(_, left)| left).max().unwrap_or(0),
        ),
        _ => {
            let least = rooms.clone().map(|(auto, _)| auto).min().unwrap_or(0);
            (least * usable.len(), rooms.map(|(_, left)| left).sum())
        }
    };
    Limits { auto, unit: 1, most: Some(most), why: WHY.to_owned() }
}

/// Cores for one vnode on one node: one with its devices, else one with enough memory, enough
/// isolated cores, room for it in one part of the machine, the most cores left, without the host.
fn take<'r>(
    open: &mut [Open<'r>],
    topology: &Topology,
    memory: &mut MemoryLeft,
    asked: &VnodeRequest,
    need: usize,
) -> Option<(Option<NodeId>, Selection<'r>)> {
    let pin_requests = pins::pin_requests(asked, need);
    let fits = open
        .iter_mut()
        .filter(|one| one.is_for(topology, asked) && one.pool.remaining_for(&pin_requests) >= need)
        .min_by_key(|one| {
            let part = one.pool.fits_a_part(need);
            let node = one.room.node;
            let poor = node.is_some_and(|node| is_empty_node(topology, node));
            let small = node.is_some_and(|node| !memory.fits(node, asked.memory));
            let away = (Reverse(one.pool.remaining()), one.room.with_host);
            (poor, small, one.isolated < need, !part, away)
        })?;
    let taken = fits.pool.take_around(&pin_requests, &[])?;
    // Machines whose vCPUs are pinned by hand to the same core take it more than once.
    let isolated = taken.cores.iter().filter(|core| core.isolated).count();
    fits.isolated = fits.isolated.saturating_sub(isolated);
    if let Some(node) = fits.room.node {
        memory.take(node, asked.memory);
    }
    Some((fits.room.node, taken))
}

impl<'r> Open<'r> {
    fn new(room: &'r NodeCores, host: &HostShare) -> Self {
        Self {
            pool: Pool::new(&room.cores, Count::Cores, Some(host)),
            isolated: room.cores.iter().filter(|core| core.isolated).count(),
            room,
        }
    }

    /// The same without the cores of CPUs to which vCPUs are pinned by hand.
    fn reserve(self, by_hand: &CpuSet) -> Self {
        Self { pool: self.pool.reserve(by_hand), ..self }
    }

    /// True if a vnode has no devices, or has them on this node.
    fn is_for(&self, topology: &Topology, asked: &VnodeRequest) -> bool {
        let nodes = nodes_of(topology, asked);
        nodes.is_empty() || self.room.node.is_some_and(|node| nodes.contains(&node))
    }
}

fn vcpu_reason(available: &AvailableCpus<'_>, request: &Request, core: &AvailableCore) -> String {
    let Some((first, siblings)) = core.pus.split_first() else {
        return String::new();
    };
    let place = available.place(*first);
    let others = available.siblings_of_others(core);
    if !others.is_empty() {
        return format!(
            "CPU {first} is on a core that this vCPU may have to share ({place}): the plan may not \
             use {}, and tasks that run there slow the vCPU",
            pus_text(&others)
        );
    }
    let siblings: CpuSet = siblings.iter().copied().collect();
    let offline = boot::possible_siblings(&core.set(), available.topology);
    let isolated = siblings.is_subset(&available.topology.isolated);
    let idle = match request.isolation {
        _ if siblings.is_empty() && offline.is_empty() => "it has no sibling".to_owned(),
        _ if siblings.is_empty() => "it has no sibling that is online".to_owned(),
        IsolationScope::None if !isolated => format!(
            "its sibling {siblings} stays idle; `--isolate host` or the kernel parameters exclude \
             the host's tasks from it"
        ),
        IsolationScope::None | IsolationScope::Own | IsolationScope::Host => {
            format!("its sibling {siblings} stays idle and is isolated with it")
        }
    };
    let isolated =
        if core.isolated { ", chosen first because it was isolated at boot" } else { "" };
    format!("CPU {first} is the first of a core for this vCPU only ({place}){isolated}; {idle}")
}

//! A machine that fits on no single node, because of its vCPUs or its memory: it is planned as NUMA
//! cells of equal size, on as few nodes as possible.
//!
//! Then no guest socket spans two nodes, and the plan is the same as for a domain file with these
//! cells. If the nodes do not divide the number of vCPUs, they are distributed as evenly as
//! possible. Sockets have one size, so the guest then has one socket and no cells, and its memory
//! is interleaved over the nodes. Strategies that promise an order of CPUs, or one domain for each
//! machine, are not changed. If there are several machines that no node can hold, they are planned
//! one after the other, the largest first.

use std::collections::BTreeMap;

use pinfold_model::{
    CellRequest, CpuSet, Finding, NodeId, NumaNode, Plan, PuId, Request, Topology, VcpuCount,
    VmRequest, VnodePlan, VnodeRequest, Work,
};

use super::Strategy;
use crate::PlanError;
use crate::guest_cells::{Parts, cores_of, joined, scope_of_part};
use crate::guest_numa::node_list;
use crate::locality::{check_huge_pages, check_memory, is_empty_node};
use crate::pin_analysis::are_helpers_on_others;

const DIVIDED: [&str; 6] =
    ["low-latency", "low-latency-rt", "balanced", "balanced-shared", "max-performance", "multi-vm"];

/// Number of vCPUs on each node.
type Shares = Vec<(NodeId, u32)>;

/// The plan of a strategy for a request without cells.
///
/// # Errors
/// As the strategy.
pub(super) fn planned(
    strategy: &Strategy,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    let plain = (strategy.plan)(topology, request);
    if !DIVIDED.contains(&strategy.name) {
        return plain;
    }
    if request.vnodes.len() != 1 {
        return plain.or_else(|refusal| one_by_one(strategy, (topology, request), refusal));
    }
    let (divisions, mut findings) = match &plain {
        Ok(plan) => {
            let numa = plan.findings.iter().filter(|finding| finding.subject == "NUMA");
            (spanned(request, (topology, plan)), numa.cloned().collect())
        }
        Err(PlanError::Memory { bytes, .. }) => (by_memory(topology, request, *bytes), Vec::new()),
        Err(_) => return plain,
    };
    for shares in divisions {
        let parts = divided(request, &shares);
        let parts = Parts::of(topology, &parts);
        let made = parts.and_then(|parts| {
            let plans = parts.alike(|part| (strategy.plan)(topology, part))?;
            parts.merged(&plans)
        });
        let Ok(mut plan) = made else { continue };
        let is_even = shares.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if !is_even {
            plan.vnodes.iter_mut().for_each(show_one_socket);
        }
        if plain.is_err() {
            findings.push(too_large(&shares, is_even));
        }
        findings.retain(|finding| !plan.findings.contains(finding));
        plan.findings.extend(findings);
        return Ok(plan);
    }
    plain
}

/// Several machines that no node can hold: each is planned separately, the largest first, on the
/// cores and the memory that the previous ones leave.
///
/// # Errors
/// The `refusal` of the strategy, if that gives no plan either.
fn one_by_one(
    strategy: &Strategy,
    (topology, request): (&Topology, &Request),
    refusal: PlanError,
) -> Result<Plan, PlanError> {
    let may_help = matches!(
        refusal,
        PlanError::Memory { .. } | PlanError::NoRoom { .. } | PlanError::TooManyVcpus { .. }
    );
    let sizes = sizes(request).filter(|sizes| may_help && spans_nodes(topology, sizes));
    let Some(sizes) = sizes else { return Err(refusal) };
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(sizes.get(*place)));
    let (mut left, mut taken) = (topology.clone(), CpuSet::new());
    let mut plans: Vec<(usize, Plan)> = Vec::new();
    for place in order {
        let part = Request {
            vnodes: request.vnodes.get(place).cloned().into_iter().collect(),
            avoid: request.avoid.union(&taken),
            isolation: scope_of_part(request),
            ..request.clone()
        };
        let Ok(plan) = planned(strategy, &left, &part) else { return Err(refusal) };
        taken.add(&cores_of(topology, &plan));
        plan.vnodes.iter().for_each(|vnode| take_memory(&mut left, vnode));
        plans.push((place, plan));
    }
    plans.sort_by_key(|(place, _)| *place);
    let plans: Vec<Plan> = plans.into_iter().map(|(_, plan)| plan).collect();
    let vnodes: Vec<VnodePlan> = plans.iter().flat_map(|plan| plan.vnodes.clone()).collect();
    let fits = check_memory(topology, &vnodes).and(check_huge_pages(topology, &vnodes)).is_ok();
    match joined((topology, request), &plans, (vnodes, "no machine needs")) {
        Ok(plan) if fits && !are_helpers_on_others(&plan) => Ok(plan),
        Ok(_) | Err(_) => Err(refusal),
    }
}

/// Memory in bytes and vCPUs of each vnode; `None` if one is no virtual machine of a fixed size, or
/// has pins by hand.
fn sizes(request: &Request) -> Option<Vec<(u64, u32)>> {
    let of = |vnode: &VnodeRequest| match &vnode.work {
        Work::Vm(VmRequest { vcpus: VcpuCount::Exactly(vcpus), cells, .. })
            if cells.is_empty() && vnode.pins.is_empty() =>
        {
            Some((vnode.memory.map_or(0, |memory| memory.bytes), *vcpus))
        }
        Work::Vm(_) | Work::Processes { .. } => None,
    };
    request.vnodes.iter().map(of).collect()
}

/// True if a machine of these sizes exceeds every node.
fn spans_nodes(topology: &Topology, sizes: &[(u64, u32)]) -> bool {
    let most = |of: fn(&NumaNode) -> u64| topology.nodes.iter().map(of).max().unwrap_or(0);
    let (memory, pus) = (most(|node| node.memory_bytes), most(|node| node.pus.len() as u64));
    sizes.iter().any(|(bytes, vcpus)| *bytes > memory || u64::from(*vcpus) > pus)
}

/// Takes the memory of a machine from its nodes.
fn take_memory(left: &mut Topology, vnode: &VnodePlan) {
    let Some((memory, bytes)) = vnode.memory.as_ref().and_then(|m| Some((m, m.bytes?))) else {
        return;
    };
    let share = bytes.div_ceil(memory.nodes.len().max(1) as u64);
    for node in left.nodes.iter_mut().filter(|node| memory.nodes.contains(&node.id)) {
        node.memory_bytes = node.memory_bytes.saturating_sub(share);
    }
}

/// Shows the guest one socket: sockets of one size do not match cells of different sizes.
fn show_one_socket(vnode: &mut VnodePlan) {
    let Some(guest) = &mut vnode.guest else { return };
    let siblings = match guest.threads {
        1 => "no SMT is shown",
        _ => "vCPUs on siblings are shown as threads of one core",
    };
    guest.reason = format!(
        "{siblings}; one socket, because the NUMA nodes do not carry the same number of vCPUs"
    );
    guest.cores *= guest.sockets;
    guest.sockets = 1;
}

/// The finding that a machine is on several nodes because of its memory.
fn too_large(shares: &Shares, is_even: bool) -> Finding {
    let nodes: Vec<NodeId> = shares.iter().map(|(node, _)| *node).collect();
    let shown = if is_even { ": the guest should be shown a NUMA cell for each" } else { "" };
    Finding::note(
        "NUMA",
        format!(
            "no node has the memory of the machine, so it is divided over the nodes {}{shown}",
            node_list(&nodes)
        ),
    )
}

/// Ways to divide a machine whose plan spans nodes: equally, in whole cores if possible, else in
/// single CPUs; as equally as possible if the nodes do not divide the number of vCPUs.
fn spanned(request: &Request, (topology, plan): (&Topology, &Plan)) -> Vec<Shares> {
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    for thread in plan.vnodes.iter().flat_map(VnodePlan::vcpus) {
        let pu = thread.pus.first().filter(|_| thread.pus.len() == 1);
        let Some(node) = pu.and_then(|pu| topology.pu(pu)?.node) else { return Vec::new() };
        *counts.entry(node).or_default() += 1;
    }
    let own: Shares = counts.into_iter().collect();
    let with_memory = request.vnodes.iter().any(|vnode| vnode.memory.is_some());
    let is_even = own.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let is_empty = |(node, _): &(NodeId, u32)| is_empty_node(topology, *node);
    if own.len() < 2 || is_even && !with_memory || own.iter().any(is_empty) {
        return Vec::new();
    }
    let guests = plan.vnodes.iter().filter_map(|vnode| vnode.guest.as_ref());
    ways(own, guests.map(|guest| guest.threads).max().unwrap_or(1).max(1))
}

/// The ways to divide vCPUs over nodes, the best first, with `threads` per core. The remainder is
/// added to the nodes that have the most vCPUs.
fn ways(mut own: Shares, threads: u32) -> Vec<Shares> {
    let all = own.iter().map(|(_, count)| count).sum::<u32>();
    own.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
    let nodes: Vec<NodeId> = own.iter().map(|(node, _)| *node).collect();
    let by_core = all.is_multiple_of(threads).then(|| evenly(&nodes, all / threads, threads));
    let single = evenly(&nodes, all, 1);
    let mut ways: Vec<Shares> = by_core.into_iter().chain([single]).flatten().collect();
    ways.sort_by_key(|shares| shares.iter().any(|(_, count)| *count != shares[0].1));
    ways.dedup();
    ways
}

/// Distributes `units` of `of` vCPUs over nodes as evenly as possible; `None` if a node gets none.
fn evenly(nodes: &[NodeId], units: u32, of: u32) -> Option<Shares> {
    let count = u32::try_from(nodes.len()).ok().filter(|count| (1..=units).contains(count))?;
    let (share, left) = (units / count, units % count);
    let mut shares: Shares = (0..)
        .zip(nodes)
        .map(|(place, node)| (*node, (share + u32::from(place < left)) * of))
        .collect();
    shares.sort_unstable();
    Some(shares)
}

/// Ways to divide a machine whose memory no node can hold: over the fewest nodes that can.
fn by_memory(topology: &Topology, request: &Request, bytes: u64) -> Vec<Shares> {
    let Some(Work::Vm(vm)) = request.vnodes.first().map(|vnode| &vnode.work) else {
        return Vec::new();
    };
    let VcpuCount::Exactly(vcpus) = vm.vcpus else { return Vec::new() };
    let is_usable = |node: &&NumaNode| {
        !node.pus.intersection(&topology.allowed).is_subset(&request.avoid)
            && !is_empty_node(topology, node.id)
            && (vm.nodes.is_empty() || vm.nodes.contains(&node.id))
    };
    let mut nodes: Vec<&NumaNode> = topology.nodes.iter().filter(is_usable).collect();
    nodes.sort_by_key(|node| (std::cmp::Reverse(node.memory_bytes), node.id));
    let over = |count: usize| {
        let chosen = nodes.get(..count)?;
        let part = bytes.div_ceil(count as u64);
        let holds = chosen.iter().all(|node| node.memory_bytes >= part);
        let ids: Vec<NodeId> = chosen.iter().map(|node| node.id).collect();
        evenly(&ids, vcpus, 1).filter(|_| holds)
    };
    (2..=nodes.len()).filter_map(over).collect()
}

/// The request with its machine divided into cells.
fn divided(request: &Request, shares: &Shares) -> Request {
    let mut request = request.clone();
    let vcpus: u32 = shares.iter().map(|(_, count)| count).sum();
    for vnode in &mut request.vnodes {
        let each = vnode.memory.map(|memory| memory.bytes.div_ceil(u64::from(vcpus.max(1))));
        let Work::Vm(vm) = &mut vnode.work else { continue };
        vm.vcpus = VcpuCount::Exactly(vcpus);
        let mut next = 0;
        for (node, count) in shares {
            let own: CpuSet = (next..next + count).map(PuId).collect();
            let bytes = each.map(|each| each * u64::from(*count));
            vm.cells.push(CellRequest { vcpus: own, nodes: vec![*node], bytes });
            next += count;
        }
    }
    request
}

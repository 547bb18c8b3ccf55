//! A machine that fits on no single node, because of its vCPUs or its memory: it is planned as NUMA
//! cells of equal size, on as few nodes as possible.
//!
//! The plan is the one that a domain file with these cells gets. A machine on several packages has
//! the same number of nodes and of vCPUs on each, if there are such nodes: its guest is then shown
//! a socket for each. A number of vCPUs that the nodes do not divide is shared out as evenly as can
//! be: the cells then have different sizes. Strategies that promise an order of CPUs, or one domain
//! for each machine, are not changed. Of several machines, those that no node holds are planned one
//! after the other, the largest first, and the others on what these leave.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::text::pus_text;
use pinfold_model::{
    CellRequest, CpuSet, Finding, NodeId, NumaNode, PackageId, Plan, PuId, Request, Role, Topology,
    VcpuCount, VmRequest, VnodePlan, VnodeRequest, Work,
};

use super::Strategy;
use crate::analysis::locality::{FAR_MEMORY, check_huge_pages, check_memory};
use crate::analysis::placement::{are_helpers_on_others, is_warning};
use crate::cores::available::Index;
use crate::cores::capacity::is_empty_node;
use crate::cores::request_check::nodes_to_stay_on;
use crate::error::PlanError;
use crate::guest::numa::cells;
use crate::placement::cells::{Parts, cores_of, free_of_part, join, scope_of_part};
use crate::text::{narrow, node_list};

/// Number of vCPUs on each node.
type Shares = Vec<(NodeId, u32)>;

/// The plan of a strategy for a request without cells.
///
/// # Errors
/// As the strategy.
pub(super) fn plan_divided(
    strategy: &Strategy,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    let plain = match (strategy.plan)(topology, request) {
        Err(refusal @ (PlanError::Memory { .. } | PlanError::HugePages { .. })) => {
            most_memory_first(strategy, topology, request).ok_or(refusal)
        }
        plain => plain,
    };
    if !strategy.is_divided {
        return plain;
    }
    let [asked] = request.vnodes.as_slice() else {
        return match plain {
            Ok(joint) => Ok(largest_first(strategy, topology, request, joint)),
            Err(refusal) => one_by_one(strategy, topology, request, refusal),
        };
    };
    let far = plain.as_ref().ok().and_then(|plan| bytes_on_far_nodes(plan, request));
    if far.is_none() && plain.as_ref().is_ok_and(|plan| is_on_one_node(topology, plan)) {
        return plain;
    }
    let index = Index::from_topology(topology);
    let divisions = match (&plain, far) {
        // Nodes with CPUs are nearer than those without.
        (Ok(_), Some(bytes)) => by_memory(&index, request, bytes),
        (Ok(plan), None) => {
            plan.vnodes.iter().flat_map(|vnode| share_ways(asked, &index, vnode)).collect()
        }
        (Err(PlanError::Memory { bytes, .. }), _) => by_memory(&index, request, *bytes),
        (Err(_), _) => return plain,
    };
    for shares in divisions {
        let parts = divide_request(request, &shares);
        let parts = Parts::new(topology, &parts);
        let made = parts.and_then(|parts| {
            let plans = parts.plan_groups(|part| (strategy.plan)(topology, part))?;
            parts.merge_plans(&plans)
        });
        let Ok(mut plan) = made else { continue };
        if plain.is_err() || far.is_some() {
            plan.findings.push(too_large(&shares));
        }
        plan.findings.extend(uneven_packages(&index, &plan));
        return Ok(plan);
    }
    let mut plan = plain?;
    plan.findings.extend(uneven_packages(&index, &plan));
    Ok(plan)
}

/// True if all vCPUs of a plan are on the same node.
fn is_on_one_node(topology: &Topology, plan: &Plan) -> bool {
    let vcpus = plan.vnodes.iter().flat_map(VnodePlan::vcpus);
    let pus = vcpus.map(|thread| &thread.pus).collect::<CpuSet>();
    topology.nodes.iter().any(|node| pus.is_subset(&node.pus))
}

/// The finding that a machine on several nodes has different numbers of them on its packages.
fn uneven_packages(index: &Index<'_>, plan: &Plan) -> Option<Finding> {
    let mut packages: BTreeMap<PackageId, BTreeSet<NodeId>> = BTreeMap::new();
    for pu in plan.vnodes.first()?.vcpus().filter_map(|thread| index.pu(thread.pus.first()?)) {
        packages.entry(pu.package).or_default().extend(pu.node);
    }
    let mut counts: Vec<usize> = packages.values().map(BTreeSet::len).collect();
    counts.dedup();
    (counts.len() > 1).then(|| {
        let each: Vec<String> = packages
            .iter()
            .map(|(package, nodes)| format!("{} of package {package}", nodes.len()))
            .collect();
        let text = format!(
            "the vCPUs use different numbers of nodes in each package ({}), so the guest cannot \
             have a socket for each package",
            each.join(", ")
        );
        Finding::note("NUMA", text)
    })
}

/// The plan in which machines and groups of one priority choose their CPUs in the order of their
/// memory, the largest first; `None` if that finds no place either.
fn most_memory_first(strategy: &Strategy, topology: &Topology, request: &Request) -> Option<Plan> {
    let mut asked: Vec<(usize, VnodeRequest)> =
        request.vnodes.iter().cloned().enumerate().collect();
    asked.sort_by_key(|(_, vnode)| Reverse(vnode.memory.map_or(0, |memory| memory.bytes)));
    if asked.is_sorted_by_key(|(place, _)| *place) {
        return None;
    }
    let (places, vnodes): (Vec<usize>, Vec<VnodeRequest>) = asked.into_iter().unzip();
    let mut plan = (strategy.plan)(topology, &Request { vnodes, ..request.clone() }).ok()?;
    let mut planned: Vec<(usize, VnodePlan)> = places.into_iter().zip(plan.vnodes).collect();
    planned.sort_by_key(|(place, _)| *place);
    plan.vnodes = planned.into_iter().map(|(_, vnode)| vnode).collect();
    Some(plan)
}

/// The memory of the machine in bytes, if the plan has some of it on nodes without CPUs.
fn bytes_on_far_nodes(plan: &Plan, request: &Request) -> Option<u64> {
    let is_far = plan.findings.iter().any(|finding| finding.subject == FAR_MEMORY);
    let memory = request.vnodes.first()?.memory.filter(|_| is_far)?;
    Some(memory.bytes)
}

/// Several machines that no node can hold: each is planned separately, the largest first, on the
/// cores and the memory that the previous ones leave.
///
/// # Errors
/// The `refusal` of the strategy, if that gives no plan either.
fn one_by_one(
    strategy: &Strategy,
    topology: &Topology,
    request: &Request,
    refusal: PlanError,
) -> Result<Plan, PlanError> {
    let may_help = matches!(
        refusal,
        PlanError::Memory { .. } | PlanError::NoRoom { .. } | PlanError::TooManyVcpus { .. }
    );
    let sizes = sizes(request).filter(|sizes| may_help && spans_nodes(topology, sizes));
    let Some(sizes) = sizes else { return Err(refusal) };
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|place| Reverse(sizes.get(*place)));
    let steps: Vec<Vec<usize>> = order.into_iter().map(|place| vec![place]).collect();
    in_steps(strategy, topology, request, &steps).ok_or(refusal)
}

/// More machines than this that span nodes are left as they are: each takes a plan of its own.
const MOST_DIVIDED: usize = 16;

/// The plan for several machines, some of which may span nodes: those one after the other, the
/// largest first, then the others together, where that gives a plan with no more warnings.
fn largest_first(strategy: &Strategy, topology: &Topology, request: &Request, joint: Plan) -> Plan {
    let index = Index::from_topology(topology);
    let spans = |(asked, vnode): (&VnodeRequest, &VnodePlan)| {
        size(asked).filter(|_| {
            is_on_several(&index, vnode)
                && !is_divided_evenly(vnode, topology)
                && !share_ways(asked, &index, vnode).is_empty()
        })
    };
    let sizes: Vec<_> = request.vnodes.iter().zip(&joint.vnodes).map(spans).collect();
    let (mut first, others): (Vec<usize>, Vec<usize>) =
        (0..sizes.len()).partition(|place| sizes.get(*place).is_some_and(Option::is_some));
    if first.is_empty() || first.len() > MOST_DIVIDED {
        return joint;
    }
    first.sort_by_key(|place| Reverse(sizes.get(*place)));
    let steps: Vec<Vec<usize>> =
        first.into_iter().map(|place| vec![place]).chain([others]).collect();
    let divided = in_steps(strategy, topology, request, &steps);
    divided.filter(|plan| warnings(plan) <= warnings(&joint)).unwrap_or(joint)
}

fn warnings(plan: &Plan) -> usize {
    plan.findings.iter().filter(|it| is_warning(it)).count()
}

/// True if a machine has a NUMA cell of the same size on each of its nodes.
fn is_divided_evenly(vnode: &VnodePlan, topology: &Topology) -> bool {
    let cells = cells(vnode, topology);
    !cells.is_empty() && cells.iter().all(|cell| cell.vcpus.len() == cells[0].vcpus.len())
}

/// True if the vCPUs of a machine are on several nodes.
fn is_on_several(index: &Index<'_>, vnode: &VnodePlan) -> bool {
    let pus = vnode.vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
    index.node_tables(&pus).nth(1).is_some()
}

/// The vnodes of each step planned on the cores and the memory that those of the steps before it
/// leave. `None` if a step finds no place, or helpers of one machine are on vCPUs of another.
fn in_steps(
    strategy: &Strategy,
    topology: &Topology,
    request: &Request,
    steps: &[Vec<usize>],
) -> Option<Plan> {
    let (mut left, mut taken) = (topology.clone(), CpuSet::new());
    let mut plans: Vec<Plan> = Vec::new();
    let mut vnodes: Vec<(usize, VnodePlan)> = Vec::new();
    for places in steps.iter().filter(|places| !places.is_empty()) {
        let asked = places.iter().filter_map(|place| request.vnodes.get(*place));
        let part = Request {
            vnodes: asked.cloned().collect(),
            avoid: request.avoid.union(&taken),
            isolation: scope_of_part(request),
            free: free_of_part(topology, request),
            ..request.clone()
        };
        let plan = match places.as_slice() {
            [_] => plan_divided(strategy, &left, &part),
            _ => (strategy.plan)(&left, &part),
        };
        let mut plan = plan.ok()?;
        if let ([vnode], true) = (part.vnodes.as_slice(), request.vnodes.len() > 1) {
            let guest = plan.findings.iter_mut().filter(|it| it.subject == "guest topology");
            guest.for_each(|finding| finding.text = format!("{}: {}", vnode.name, finding.text));
        }
        let cores = cores_of(topology, &plan);
        vnodes.iter_mut().for_each(|(_, vnode)| keep_helpers_off(&cores, vnode));
        taken.add(&cores);
        plan.vnodes.iter().for_each(|vnode| take_memory(&mut left, vnode));
        vnodes.extend(places.iter().copied().zip(plan.vnodes.iter().cloned()));
        plans.push(plan);
    }
    vnodes.sort_by_key(|(place, _)| *place);
    let vnodes: Vec<VnodePlan> = vnodes.into_iter().map(|(_, vnode)| vnode).collect();
    check_memory(topology, &vnodes).and(check_huge_pages(topology, &vnodes)).ok()?;
    let plan = join(topology, request, &plans, vnodes, "no machine needs").ok()?;
    (!are_helpers_on_others(&plan)).then_some(plan)
}

/// Takes a machine's helpers off the `cores` of vCPUs that are placed after it, where other CPUs
/// are left to them.
fn keep_helpers_off(cores: &CpuSet, vnode: &mut VnodePlan) {
    let helpers = vnode.threads.iter_mut().filter(|it| !it.role.is_vcpu());
    for thread in helpers.filter(|thread| !thread.pus.is_disjoint(cores)) {
        let rest = thread.pus.difference(cores);
        if !rest.is_empty() && thread.role != Role::Task {
            thread.reason = thread.reason.replace(&pus_text(&thread.pus), &pus_text(&rest));
            thread.pus = rest;
        }
    }
}

/// Memory in bytes and vCPUs of each vnode; `None` if one is no virtual machine of a fixed size, or
/// has pins by hand.
fn sizes(request: &Request) -> Option<Vec<(u64, u32)>> {
    request.vnodes.iter().map(size).collect()
}

/// The same of one vnode.
fn size(vnode: &VnodeRequest) -> Option<(u64, u32)> {
    match &vnode.work {
        Work::Vm(VmRequest { vcpus: VcpuCount::Exactly(vcpus), cells, .. })
            if cells.is_empty() && vnode.pins.is_empty() =>
        {
            Some((vnode.memory.map_or(0, |memory| memory.bytes), *vcpus))
        }
        Work::Vm(_) | Work::Processes { .. } => None,
    }
}

/// True if a machine of these sizes exceeds every node.
fn spans_nodes(topology: &Topology, sizes: &[(u64, u32)]) -> bool {
    fn most(of: fn(&NumaNode) -> u64, topology: &Topology) -> u64 {
        topology.nodes.iter().map(of).max().unwrap_or(0)
    }
    let (memory, pus) =
        (most(|node| node.memory_bytes, topology), most(|node| node.pus.len() as u64, topology));
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

/// The finding that a machine is on several nodes because of its memory.
fn too_large(shares: &Shares) -> Finding {
    let nodes: Vec<NodeId> = shares.iter().map(|(node, _)| *node).collect();
    Finding::note(
        "NUMA",
        format!(
            "no node has enough memory for the machine, so it is divided over the nodes {}: give \
             the guest a NUMA cell for each",
            node_list(&nodes)
        ),
    )
}

/// How to divide a machine whose plan spans nodes: equally, in whole cores if that can be, else in
/// single CPUs; as equally as can be if the nodes do not divide the number of vCPUs.
fn share_ways(asked: &VnodeRequest, index: &Index<'_>, vnode: &VnodePlan) -> Vec<Shares> {
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    for thread in vnode.vcpus() {
        let pu = thread.pus.first().filter(|_| thread.pus.len() == 1);
        let Some(node) = pu.and_then(|pu| index.pu(pu)?.node) else { return Vec::new() };
        *counts.entry(node).or_default() += 1;
    }
    let own: Shares = counts.into_iter().collect();
    let is_even = own.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if own.len() < 2 || own.iter().any(|(node, _)| is_empty_node(index.topology, *node)) {
        return Vec::new();
    }
    let threads = vnode.guest.as_ref().map_or(1, |guest| guest.threads.max(1));
    let mut all: Vec<Shares> = by_package(asked, index, &own)
        .map_or_else(Vec::new, |packages| ways_by_package(&packages, &own, threads));
    if !is_even || asked.memory.is_some() {
        all.extend(division_candidates(own, threads));
    }
    all
}

/// The same number of nodes on each package of a machine, if its plan has them or its vCPUs
/// unevenly: those of the plan first, that with the host's core last; one more than the plan has if
/// its number is odd. `None` if no such division exists.
fn by_package(asked: &VnodeRequest, index: &Index<'_>, own: &Shares) -> Option<Vec<Vec<NodeId>>> {
    let boot = index.topology.online().first()?;
    let mut packages: BTreeMap<PackageId, Vec<(bool, bool, NodeId)>> = BTreeMap::new();
    for node in index.topology.nodes.iter().filter(|node| !is_empty_node(index.topology, node.id)) {
        if let Some(pu) = node.pus.first().and_then(|pu| index.pu(pu)) {
            let rank =
                (!own.iter().any(|(known, _)| *known == node.id), node.pus.contains(boot), node.id);
            packages.entry(pu.package).or_default().push(rank);
        }
    }
    packages.retain(|_, nodes| nodes.iter().any(|(is_other, ..)| !is_other));
    let each = own.len().div_ceil(packages.len());
    let mut vcpus: Vec<u32> = packages.values().map(|nodes| vcpus_of(nodes, own)).collect();
    let is_divisible = vcpus.iter().sum::<u32>().is_multiple_of(narrow(vcpus.len()));
    vcpus.dedup();
    let is_even = packages.values().all(|nodes| nodes.iter().filter(|it| !it.0).count() == each)
        && (vcpus.len() == 1 || !is_divisible);
    let is_room = packages.values().all(|nodes| nodes.len() >= each);
    let is_bound = !nodes_to_stay_on(asked).is_empty() || !asked.pins.is_empty();
    if is_even || !is_room || is_bound {
        return None;
    }
    // The remainder is added to the packages that have the most vCPUs.
    let mut packages: Vec<_> = packages.into_values().collect();
    packages.sort_by_key(|nodes| Reverse(vcpus_of(nodes, own)));
    let chosen = packages.into_iter().map(|mut nodes| {
        nodes.sort_unstable();
        nodes.iter().take(each).map(|(.., node)| *node).collect()
    });
    Some(chosen.collect())
}

fn vcpus_of(nodes: &[(bool, bool, NodeId)], own: &Shares) -> u32 {
    own.iter()
        .filter(|(node, _)| nodes.iter().any(|(.., known)| *known == *node))
        .map(|(_, count)| count)
        .sum()
}

/// The ways to divide the vCPUs of `own` over these nodes of each package, the best first: as
/// evenly as can be over the packages, then over the nodes of each.
fn ways_by_package(packages: &[Vec<NodeId>], own: &Shares, threads: u32) -> Vec<Shares> {
    let all = own.iter().map(|(_, count)| count).sum::<u32>();
    let count = narrow(packages.len());
    let over = |of: u32| -> Option<Shares> {
        let units = all / of;
        let parts = (0..).zip(packages).map(|(place, nodes)| {
            evenly(nodes, units / count + u32::from(place < units % count), of)
        });
        let mut shares = parts.collect::<Option<Vec<Shares>>>()?.concat();
        shares.sort_unstable();
        Some(shares)
    };
    // In single CPUs only where the packages do not divide the cores.
    let units = count * threads;
    let by_core = all.is_multiple_of(threads).then(|| over(threads)).flatten();
    let mut ways: Vec<Shares> = if all.is_multiple_of(units) {
        by_core.into_iter().chain(over(1)).collect()
    } else {
        over(1).into_iter().chain(by_core).collect()
    };
    ways.dedup();
    ways
}

/// The ways to divide vCPUs over nodes, the best first, with `threads` per core. The remainder is
/// added to the nodes that have the most vCPUs.
fn division_candidates(mut own: Shares, threads: u32) -> Vec<Shares> {
    let all = own.iter().map(|(_, count)| count).sum::<u32>();
    own.sort_by_key(|(node, count)| (Reverse(*count), *node));
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

/// Ways to divide a machine whose memory no node can hold: over the fewest nodes that can, with
/// the same number on each package if possible.
fn by_memory(index: &Index<'_>, request: &Request, bytes: u64) -> Vec<Shares> {
    let topology = index.topology;
    let Some(asked) = request.vnodes.first() else { return Vec::new() };
    let Work::Vm(vm) = &asked.work else { return Vec::new() };
    let VcpuCount::Exactly(vcpus) = vm.vcpus else { return Vec::new() };
    let mut nodes: Vec<&NumaNode> = topology
        .nodes
        .iter()
        .filter(|node: &&NumaNode| {
            !node.pus.intersection(&topology.allowed).is_subset(&request.avoid)
                && !is_empty_node(topology, node.id)
                && (vm.nodes.is_empty() || vm.nodes.contains(&node.id))
        })
        .collect();
    nodes.sort_by_key(|node| (Reverse(node.memory_bytes), node.id));
    (2..=nodes.len())
        .filter_map(|count| {
            let chosen = nodes.get(..count)?;
            let part = bytes.div_ceil(count as u64);
            let holds = chosen.iter().all(|node| node.memory_bytes >= part);
            let ids: Vec<NodeId> = chosen.iter().map(|node| node.id).collect();
            evenly(&ids, vcpus, 1).filter(|_| holds)
        })
        .flat_map(|shares| {
            let packages = by_package(asked, index, &shares);
            let ways = packages.map_or_else(Vec::new, |nodes| ways_by_package(&nodes, &shares, 1));
            ways.into_iter().chain([shares])
        })
        .collect()
}

/// The request with its machine divided into cells.
fn divide_request(request: &Request, shares: &Shares) -> Request {
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

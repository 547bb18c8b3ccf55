//! A machine that no node of the host holds, by its vCPUs or by its memory: planned as NUMA cells
//! of equal size, one on each of as few nodes as can be.
//!
//! Then no guest socket spans two nodes, and the plan is the one that a domain file with these
//! cells gets. Strategies that promise an order of PUs, or one domain for each machine, are not
//! changed.

use std::collections::BTreeMap;

use pinfold_model::{
    CellRequest, CpuSet, Finding, NodeId, NumaNode, Plan, PuId, Request, Topology, VcpuCount, Work,
};

use super::Strategy;
use crate::PlanError;
use crate::cells::node_list;
use crate::guest_cells::Parts;

const DIVIDED: [&str; 6] =
    ["low-latency", "low-latency-rt", "balanced", "balanced-shared", "max-performance", "multi-vm"];

/// vCPUs on each node.
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
    if request.vnodes.len() != 1 || !DIVIDED.contains(&strategy.name) {
        return plain;
    }
    let (divisions, mut findings) = match &plain {
        Ok(plan) => {
            let numa = plan.findings.iter().filter(|finding| finding.subject == "NUMA");
            (spanned(topology, request, plan), numa.cloned().collect())
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
        if plain.is_err() {
            let nodes: Vec<NodeId> = shares.iter().map(|(node, _)| *node).collect();
            findings.push(Finding::note(
                "NUMA",
                format!(
                    "no node has the memory of the machine, so it is divided over the nodes {}: the \
                     guest should be shown a NUMA cell for each",
                    node_list(&nodes)
                ),
            ));
        }
        findings.retain(|finding| !plan.findings.contains(finding));
        plan.findings.extend(findings);
        return Ok(plan);
    }
    plain
}

/// How to divide a machine whose plan spans nodes: equally, in whole cores; in single CPUs if NUMA
/// cells will be shown.
fn spanned(topology: &Topology, request: &Request, plan: &Plan) -> Vec<Shares> {
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    for thread in plan.vnodes.iter().flat_map(pinfold_model::VnodePlan::vcpus) {
        let pu = thread.pus.first().filter(|_| thread.pus.len() == 1);
        let Some(node) = pu.and_then(|pu| topology.pu(pu)?.node) else { return Vec::new() };
        *counts.entry(node).or_default() += 1;
    }
    let with_memory = request.vnodes.iter().any(|vnode| vnode.memory.is_some());
    let own: Shares = counts.into_iter().collect();
    let nodes: Vec<NodeId> = own.iter().map(|(node, _)| *node).collect();
    let guests = plan.vnodes.iter().filter_map(|vnode| vnode.guest.as_ref());
    let threads = guests.map(|guest| guest.threads).max().unwrap_or(1).max(1);
    let all = own.iter().map(|(_, count)| count).sum::<u32>();
    let equal = equally(&nodes, all / threads).filter(|_| all.is_multiple_of(threads));
    let equal = equal.map(|shares| times(shares, threads));
    let any = equally(&nodes, all).filter(|_| with_memory);
    match own.len() {
        0 | 1 => Vec::new(),
        _ if equal.as_ref() == Some(&own) && !with_memory => Vec::new(),
        _ => equal.into_iter().chain(any).collect(),
    }
}

fn times(shares: Shares, threads: u32) -> Shares {
    shares.into_iter().map(|(node, cores)| (node, cores * threads)).collect()
}

fn equally(nodes: &[NodeId], vcpus: u32) -> Option<Shares> {
    let count = u32::try_from(nodes.len()).ok().filter(|count| *count > 0)?;
    let share = vcpus / count;
    (share > 0 && vcpus.is_multiple_of(count))
        .then(|| nodes.iter().map(|node| (*node, share)).collect())
}

/// How to divide a machine whose memory no node has: over the fewest nodes that have it.
fn by_memory(topology: &Topology, request: &Request, bytes: u64) -> Vec<Shares> {
    let Some(Work::Vm(vm)) = request.vnodes.first().map(|vnode| &vnode.work) else {
        return Vec::new();
    };
    let VcpuCount::Exactly(vcpus) = vm.vcpus else { return Vec::new() };
    let is_usable = |node: &&NumaNode| {
        !node.pus.is_disjoint(&topology.allowed)
            && (vm.nodes.is_empty() || vm.nodes.contains(&node.id))
    };
    let mut nodes: Vec<&NumaNode> = topology.nodes.iter().filter(is_usable).collect();
    nodes.sort_by_key(|node| (std::cmp::Reverse(node.memory_bytes), node.id));
    let over = |count: usize| {
        let chosen = nodes.get(..count)?;
        let part = bytes.div_ceil(count as u64);
        let holds = chosen.iter().all(|node| node.memory_bytes >= part);
        let mut ids: Vec<NodeId> = chosen.iter().map(|node| node.id).collect();
        ids.sort_unstable();
        equally(&ids, vcpus).filter(|_| holds)
    };
    (2..=nodes.len()).filter_map(over).collect()
}

/// The request with its machine in cells.
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

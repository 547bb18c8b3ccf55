//! Locality of a vnode's memory, devices and interrupts relative to its CPUs.

use std::collections::BTreeMap;

use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, Finding, IrqPlan, MemoryPlan, NodeId, Request, ThreadPlan, Topology, VnodePlan,
    VnodeRequest,
};

use crate::cores::available::{AvailableCpus, Index};
use crate::cores::capacity::{free_by_node, is_empty_node, sizes_are_known};
use crate::cores::request_check::{self, node_of};
use crate::error::PlanError;
use crate::error::{size, size_below};
use crate::guest::numa::{GuestCell, cells};
use crate::text::node_list;

/// Nodes of a vnode's memory: those of its vCPUs' CPUs, if the request gives its size, the strategy
/// binds it to `bound`, or the vCPUs of a machine are pinned to nodes.
pub(crate) fn memory(
    available: &AvailableCpus<'_>,
    asked: &VnodeRequest,
    threads: &[ThreadPlan],
    bound: Option<NodeId>,
) -> Option<MemoryPlan> {
    let bound = bound.filter(|node| !is_empty_node(available.topology, *node));
    let nodes = match bound {
        Some(node) => vec![node],
        None => nodes_of(available, threads),
    };
    if asked.memory.is_none() && bound.is_none() && !pinned_to(available, threads, &nodes) {
        return None;
    }
    let empty =
        !nodes.is_empty() && nodes.iter().all(|node| is_empty_node(available.topology, *node));
    let is_free = asked.memory.is_some() && request_check::nodes_to_stay_on(asked).is_empty();
    let nodes = if empty && is_free { with_memory(available.topology) } else { nodes };
    let more = if is_free { memory_only(available.topology, &nodes, asked) } else { Vec::new() };
    let nodes: Vec<NodeId> = nodes.into_iter().chain(more.iter().copied()).collect();
    let reason = match (bound, nodes.as_slice()) {
        (_, []) => return None,
        _ if !more.is_empty() => format!(
            "the nodes of its CPUs have too little memory, so part of it is on node {}, which has \
             no CPUs",
            node_list(&more)
        ),
        (None, _) if empty && is_free => "the nodes of its vCPUs have no memory".to_owned(),
        (Some(node), _) => format!("all its CPUs are on node {node}, and so is its memory"),
        (None, [node]) => format!("its vCPUs are on node {node}"),
        (None, several) => {
            format!("its vCPUs are on {} nodes, and each uses the memory of all", several.len())
        }
    };
    let (bytes, page_bytes) = match asked.memory {
        Some(memory) => (Some(memory.bytes), memory.page_bytes),
        None => (None, None),
    };
    Some(MemoryPlan { nodes, bytes, page_bytes, is_preferred: false, reason })
}

/// The nodes without CPUs, in order, whose memory a vnode needs because `nodes` have too little.
/// Empty if all of them together have too little, or the sizes are unknown.
fn memory_only(topology: &Topology, nodes: &[NodeId], asked: &VnodeRequest) -> Vec<NodeId> {
    let bytes = asked.memory.map_or(0, |memory| memory.bytes);
    let mut missing = bytes.saturating_sub(memory_of(topology, nodes));
    if !sizes_are_known(topology) || nodes.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for node in topology.nodes.iter().filter(|node| node.pus.is_empty()) {
        if missing > 0 && node.memory_bytes > 0 {
            missing = missing.saturating_sub(node.memory_bytes);
            found.push(node.id);
        }
    }
    if missing > 0 { Vec::new() } else { found }
}

/// A machine or group of which some memory is on nodes without CPUs: what it costs.
pub(crate) fn far_memory(topology: &Topology, vnodes: &[VnodePlan]) -> Option<Finding> {
    vnodes.iter().find_map(|vnode| {
        let memory = vnode.memory.as_ref()?;
        let far: Vec<NodeId> =
            memory.nodes.iter().copied().filter(|id| is_far(id, topology)).collect();
        let near: Vec<NodeId> =
            memory.nodes.iter().copied().filter(|id| !is_far(id, topology)).collect();
        let bytes = memory.bytes?.checked_sub(memory_of(topology, &near))?;
        (!far.is_empty()).then(|| {
            let text = format!(
                "{} of the memory of {} are on node {}, which has no CPUs (CXL, persistent or \
                 high-bandwidth memory): each access there takes longer than on the vCPUs' node",
                size(bytes),
                vnode.name,
                node_list(&far)
            );
            Finding::note(FAR_MEMORY, text).with_hint(format!(
                "request at most {} of memory",
                size_below(memory_of(topology, &near))
            ))
        })
    })
}

fn is_far(id: &NodeId, topology: &Topology) -> bool {
    topology.nodes.iter().any(|node| node.id == *id && node.pus.is_empty())
}

/// The subject of [`far_memory`].
pub(crate) const FAR_MEMORY: &str = "memory";

/// The nodes with memory; only those with CPUs, if there are any.
fn with_memory(topology: &Topology) -> Vec<NodeId> {
    let filled = || topology.nodes.iter().filter(|node| node.memory_bytes > 0);
    let near: Vec<NodeId> =
        filled().filter(|node| !node.pus.is_empty()).map(|node| node.id).collect();
    if near.is_empty() { filled().map(|node| node.id).collect() } else { near }
}

/// True if the vCPUs stay on `nodes`, which then determine where the memory belongs.
fn pinned_to(available: &AvailableCpus<'_>, threads: &[ThreadPlan], nodes: &[NodeId]) -> bool {
    let topology = available.topology;
    let mut vcpus = threads.iter().filter(|thread| thread.role.is_vcpu()).peekable();
    count_filled(topology) > 1
        && vcpus.peek().is_some()
        && !nodes.iter().any(|node| is_empty_node(topology, *node))
        && is_memory_node_determined(available.index(), vcpus.map(|thread| &thread.pus), nodes)
}

/// The number of nodes with memory; of all, if the host reports none.
fn count_filled(topology: &Topology) -> usize {
    let filled = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
    if filled == 0 { topology.nodes.len() } else { filled }
}

/// True if the CPUs of vCPUs on `nodes` determine where the memory belongs: each vCPU stays on one
/// node, or all stay on some of the nodes. If they float over all nodes, the kernel places both.
pub fn is_memory_node_determined<'a>(
    index: &Index<'_>,
    mut vcpus: impl Iterator<Item = &'a CpuSet>,
    nodes: &[NodeId],
) -> bool {
    nodes.len() < count_filled(index.topology)
        || vcpus.all(|pus| {
            let first = pus.first().into_iter().collect();
            index.node_tables(&first).any(|node| pus.is_subset(&node.pus))
        })
}

/// Refuses vCPUs outside the nodes to which the request restricts their machine.
pub(crate) fn check_nodes(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnodes: &[VnodePlan],
) -> Result<(), PlanError> {
    for (asked, plan) in request.vnodes.iter().zip(vnodes) {
        let nodes = request_check::nodes_to_stay_on(asked);
        if nodes.is_empty()
            || plan.vcpus().flat_map(|thread| thread.pus.iter()).all(|pu| {
                available.pu(pu).and_then(|pu| pu.node).is_some_and(|id| nodes.contains(&id))
            })
        {
            continue;
        }
        return Err(PlanError::Nodes {
            vnode: asked.name.clone(),
            nodes: nodes.to_vec(),
            why: "other machines of the request leave too few CPUs there".to_owned(),
        });
    }
    Ok(())
}

/// True if all vCPUs or tasks run on CPUs of this node.
pub(crate) fn all_on(available: &AvailableCpus<'_>, threads: &[ThreadPlan], node: NodeId) -> bool {
    let pus = threads
        .iter()
        .filter(|thread: &&ThreadPlan| thread.role.runs_work())
        .flat_map(|thread| thread.pus.iter());
    let mut nodes = pus.filter_map(|pu| available.pu(pu).and_then(|pu| pu.node));
    nodes.all(|of| of == node)
}

/// The nodes with memory of those CPUs on which vCPUs and tasks may run.
fn nodes_of(available: &AvailableCpus<'_>, threads: &[ThreadPlan]) -> Vec<NodeId> {
    let mut seen = CpuSet::new();
    threads
        .iter()
        .filter(|thread| thread.role.runs_work())
        .for_each(|thread| seen.add(&thread.pus));
    let mut nodes: Vec<NodeId> = available.nodes_of(&seen).into_iter().collect();
    let known = &available.topology.nodes;
    if known.iter().any(|node| node.memory_bytes > 0) {
        let filled = |id: &NodeId| known.iter().any(|node| node.id == *id && node.memory_bytes > 0);
        if nodes.iter().any(filled) {
            nodes.retain(filled);
        }
    }
    nodes
}

/// Refuses memory that exceeds the size of the nodes. The topology does not contain free memory.
pub(crate) fn check_memory(topology: &Topology, vnodes: &[VnodePlan]) -> Result<(), PlanError> {
    let mut left: BTreeMap<NodeId, u64> =
        topology.nodes.iter().map(|node| (node.id, node.memory_bytes)).collect();
    if left.values().all(|bytes| *bytes == 0) {
        return Ok(());
    }
    for vnode in vnodes {
        let bound = vnode.memory.as_ref().filter(|memory| !memory.is_preferred);
        let Some((memory, bytes)) = bound.and_then(|memory| Some((memory, memory.bytes?))) else {
            continue;
        };
        let cells = cells(vnode, topology);
        let missing = if cells.is_empty() {
            take(&mut left, &memory.nodes, bytes)
        } else {
            take_by_cells(&mut left, &cells, bytes)
        };
        if missing > 0 {
            return Err(PlanError::Memory {
                vnode: vnode.name.clone(),
                bytes,
                nodes: memory.nodes.clone(),
                missing,
                all: memory_of(topology, &memory.nodes),
                in_cells: !cells.is_empty(),
                nearest: None,
            });
        }
    }
    Ok(())
}

/// The subject of [`check_host_memory`].
pub(crate) const HOST_MEMORY: &str = "host memory";

/// A warning if the memory of all machines and groups leaves the host less than 5 % or at most 1
/// GiB.
pub(crate) fn check_host_memory(topology: &Topology, vnodes: &[VnodePlan]) -> Option<Finding> {
    if !sizes_are_known(topology) {
        return None;
    }
    let all: u64 = topology.nodes.iter().map(|node| node.memory_bytes).sum();
    let sizes = vnodes.iter().filter_map(|vnode| vnode.memory.as_ref()?.bytes);
    let planned = sizes.fold(0_u64, u64::saturating_add);
    let left = all.checked_sub(planned)?;
    let is_little = left <= 1 << 30 || u128::from(left) * 20 < u128::from(all);
    (planned > 0 && is_little).then(|| {
        let text = format!(
            "the plan uses {} of the host's {} of memory and leaves {} for the host's own tasks, \
             the emulators and page tables: the kernel may swap or kill a machine",
            size_below(planned),
            size_below(all),
            size_below(left)
        );
        Finding::note(HOST_MEMORY, text).with_hint("plan less memory")
    })
}

/// The subject of [`part_of_a_page`].
pub(crate) const HUGE_PAGES: &str = "huge pages";

/// Memory in huge pages that is no whole number of them.
pub(crate) fn part_of_a_page(vnodes: &[VnodePlan]) -> Option<Finding> {
    vnodes.iter().find_map(|vnode| {
        let memory = vnode.memory.as_ref()?;
        let (bytes, page) = memory.bytes.zip(memory.page_bytes.filter(|page| *page > 0))?;
        let text = format!(
            "{} of memory for {} is not a multiple of the page size, {}: QEMU refuses it, or \
             allocates one page more",
            size(bytes),
            vnode.name,
            size(page)
        );
        let finding = Finding::warning(HUGE_PAGES, text);
        (!bytes.is_multiple_of(page))
            .then(|| finding.with_hint(format!("request {}", whole_pages(bytes, page))))
    })
}

/// The sizes next to one that is no whole number of pages.
pub fn whole_pages(bytes: u64, page: u64) -> String {
    let less = bytes - bytes % page.max(1);
    match less {
        0 => format!("{} of memory", size(page)),
        _ => format!("{} or {} of memory", size(less), size(less.saturating_add(page))),
    }
}

/// All memory of some nodes.
fn memory_of(topology: &Topology, nodes: &[NodeId]) -> u64 {
    let own = topology.nodes.iter().filter(|node| nodes.contains(&node.id));
    own.map(|node| node.memory_bytes).sum()
}

/// Machines and groups whose nodes have less free memory now than they need. Huge pages are not
/// taken from free memory.
pub(crate) fn short_of_free_memory(topology: &Topology, vnodes: &[VnodePlan]) -> Vec<Finding> {
    let mut left = free_by_node(topology);
    let mut findings = Vec::new();
    for vnode in vnodes {
        let Some(memory) = vnode.memory.as_ref().filter(|it| it.page_bytes.is_none()) else {
            continue;
        };
        let Some(bytes) = memory.bytes else { continue };
        if memory.nodes.iter().any(|node| !left.contains_key(node)) {
            continue;
        }
        let missing = take(&mut left, &memory.nodes, bytes);
        if missing > 0 {
            let text = format!(
                "{} needs {} of memory, but node {} has only {} free now: when the machine uses \
                 all its memory, the kernel swaps or kills a process",
                vnode.name,
                size(bytes),
                node_list(&memory.nodes),
                size_below(bytes - missing)
            );
            let hint = "free memory on the node, or request less";
            findings.push(Finding::note("free memory", text).with_hint(hint.to_owned()));
        }
    }
    findings
}

/// Takes memory from any of the nodes; returns the missing bytes.
fn take(left: &mut BTreeMap<NodeId, u64>, nodes: &[NodeId], bytes: u64) -> u64 {
    nodes.iter().fold(bytes, |missing, node| {
        let left = left.entry(*node).or_default();
        let taken = missing.min(*left);
        *left -= taken;
        missing - taken
    })
}

/// Takes the memory of cells from their nodes, each in proportion to its vCPUs; returns by how much
/// the whole is too large.
fn take_by_cells(left: &mut BTreeMap<NodeId, u64>, cells: &[GuestCell], bytes: u64) -> u64 {
    let all: u128 = cells.iter().map(|cell| cell.vcpus.len() as u128).sum();
    let fits = cells
        .iter()
        .map(|cell| {
            let here = left.get(&cell.node).copied().unwrap_or(0);
            u128::from(here) * all / (cell.vcpus.len() as u128).max(1)
        })
        .min()
        .unwrap_or(0);
    for cell in cells {
        let share = u128::from(bytes) * cell.vcpus.len() as u128 / all.max(1);
        let here = left.entry(cell.node).or_default();
        *here = here.saturating_sub(u64::try_from(share).unwrap_or(u64::MAX));
    }
    u64::try_from(u128::from(bytes).saturating_sub(fits)).unwrap_or(u64::MAX)
}

/// Refuses huge pages that exceed the free ones of the nodes. A host that reports no huge pages is
/// not refused, because its pool is unknown.
pub(crate) fn check_huge_pages(topology: &Topology, vnodes: &[VnodePlan]) -> Result<(), PlanError> {
    let pools = topology.nodes.iter().flat_map(|node| {
        node.huge_pages.iter().map(move |pool| ((node.id, pool.page_bytes), pool.free))
    });
    let mut left: BTreeMap<(NodeId, u64), u64> = pools.collect();
    if left.is_empty() {
        return Ok(());
    }
    for vnode in vnodes {
        let bound = vnode.memory.as_ref().filter(|memory| !memory.is_preferred);
        let Some(memory) = bound else { continue };
        let Some((bytes, page_bytes)) = memory.bytes.zip(memory.page_bytes) else { continue };
        let needed = bytes.div_ceil(page_bytes.max(1));
        let mut missing = needed;
        for node in &memory.nodes {
            if let Some(free) = left.get_mut(&(*node, page_bytes)) {
                let taken = missing.min(*free);
                *free -= taken;
                missing -= taken;
            }
        }
        if missing > 0 {
            return Err(PlanError::HugePages {
                vnode: vnode.name.clone(),
                page_bytes,
                needed,
                nodes: memory.nodes.clone(),
                free: needed - missing,
            });
        }
    }
    Ok(())
}

/// Devices that are on another node than the vCPUs of their vnode.
pub(crate) fn far_devices(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnodes: &[VnodePlan],
) -> Result<Vec<Finding>, PlanError> {
    let mut findings = Vec::new();
    for (asked, plan) in request.vnodes.iter().zip(vnodes) {
        if asked.devices.is_empty() {
            continue;
        }
        let nodes = nodes_of(available, &plan.threads);
        for device in &asked.devices {
            let node = node_of(available.topology, device)?;
            match node {
                Some(node) if nodes.contains(&node) => {}
                Some(node) => findings.push(Finding::warning(
                    "devices",
                    format!(
                        "{device} is on node {node}, but {} is not: each access crosses the \
                         interconnect",
                        plan.name
                    ),
                )),
                None => findings.push(Finding::note(
                    "devices",
                    format!("the firmware does not report the node of {device}"),
                )),
            }
        }
    }
    Ok(findings)
}

/// CPUs for the interrupts in the request: host CPUs near the device, without vCPUs or tasks.
pub(crate) fn interrupts(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnodes: &[VnodePlan],
    housekeeping: &CpuSet,
) -> Result<(Vec<IrqPlan>, Vec<Finding>), PlanError> {
    let (mut irqs, mut findings) = (Vec::new(), Vec::new());
    if request.interrupts.is_empty() {
        return Ok((irqs, findings));
    }
    let mut carried = CpuSet::new();
    let threads = vnodes.iter().flat_map(|vnode| &vnode.threads);
    threads.filter(|thread| thread.role.runs_work()).for_each(|thread| carried.add(&thread.pus));
    let quiet = housekeeping.difference(&carried);
    for device in &request.interrupts {
        let node = request_check::node_of(available.topology, device)?;
        let of_node = available.topology.nodes.iter().find(|known| Some(known.id) == node);
        let near = of_node.map(|node| node.pus.intersection(&quiet)).unwrap_or_default();
        let name = match device {
            pinfold_model::Device::Pci(address) => address.clone(),
            pinfold_model::Device::Node(node) => format!("node {node}"),
        };
        let (pus, reason) = if !near.is_empty() {
            let node = of_node.map_or_else(String::new, |node| node.id.to_string());
            (near, format!("{device} is on node {node}, and these CPUs of the node have no vCPU"))
        } else if !quiet.is_empty() {
            (quiet.clone(), format!("every CPU near {device} has a vCPU; these CPUs have none"))
        } else {
            findings.push(Finding::warning(
                "interrupts",
                format!(
                    "the interrupts of {device} share {} with vCPUs: the plan leaves no CPU \
                     without a vCPU",
                    pus_text(housekeeping)
                ),
            ));
            (
                housekeeping.clone(),
                format!("every CPU has a vCPU, so {device} shares the host's CPUs"),
            )
        };
        irqs.push(IrqPlan { device: name, pus, reason });
    }
    Ok((irqs, findings))
}

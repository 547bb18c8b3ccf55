//! The request for a plan that follows from the command line of a hypervisor.

use pinfold_model::{
    CellRequest, CpuSet, MachineSpec, MemoryRequest, PuId, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};

/// The machine that a command line describes, with this number of vCPUs: its name, its iothreads,
/// its NUMA cells, and its memory if it is to be bound.
pub fn vnode(spec: &MachineSpec, vcpus: VcpuCount, topology: &Topology) -> VnodeRequest {
    // If the command line binds the memory itself, the vCPUs stay on those nodes.
    let nodes = &spec.memory_nodes;
    let vm = VmRequest {
        iothreads: spec.iothreads.clone(),
        cells: cells(spec, vcpus),
        nodes: nodes.clone(),
        ..VmRequest::from_vcpus(vcpus)
    };
    let mut vnode = VnodeRequest::vm(spec.name.as_deref().unwrap_or("vm"), vm);
    let filled = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
    if filled > 1 && nodes.is_empty() && !spec.has_cells {
        vnode.memory = spec.memory_bytes.map(|bytes| MemoryRequest { bytes, page_bytes: None });
    }
    vnode
}

/// The guest's NUMA cells, if there are several and each of its vCPUs is in exactly one.
fn cells(spec: &MachineSpec, vcpus: VcpuCount) -> Vec<CellRequest> {
    let VcpuCount::Exactly(count) = vcpus else { return Vec::new() };
    let cells = &spec.cells;
    let mut all = CpuSet::new();
    cells.iter().for_each(|cell| all.add(&cell.vcpus));
    let sum: usize = cells.iter().map(|cell| cell.vcpus.len()).sum();
    // The number of vCPUs is not checked yet; a set of CPUs is bounded.
    let whole = usize::try_from(count) == Ok(sum)
        && sum == all.len()
        && all.iter().last() == count.checked_sub(1).map(PuId);
    if cells.len() < 2 || !whole || cells.iter().any(|cell| cell.vcpus.is_empty()) {
        return Vec::new();
    }
    cells
        .iter()
        .map(|cell| CellRequest {
            vcpus: cell.vcpus.clone(),
            nodes: cell.host_nodes.clone(),
            bytes: cell.memory_bytes,
        })
        .collect()
}

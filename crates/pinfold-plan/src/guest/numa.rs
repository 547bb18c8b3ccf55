//! The guest's NUMA cells: one for each host node that has its vCPUs and memory.

use std::collections::BTreeSet;

use pinfold_model::{CpuSet, NodeId, PuId, Role, Topology, VnodePlan};

pub use crate::text::node_list;

/// A NUMA node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCell {
    /// The host node that it represents.
    pub node: NodeId,
    /// Indexes of its vCPUs; never empty.
    pub vcpus: CpuSet,
}

/// The cells of a guest whose memory is planned on several nodes, by their first vCPU. Empty if a
/// vCPU may run on more than one node, if a node has no vCPU, if a core of the guest would be in
/// two cells, or if cells of different sizes exceed the memory of their nodes. A socket may be in
/// two: the scheduler of Linux then keeps to the cells.
pub fn cells(vnode: &VnodePlan, topology: &Topology) -> Vec<GuestCell> {
    let Some(memory) = vnode.memory.as_ref().filter(|memory| memory.nodes.len() > 1) else {
        return Vec::new();
    };
    let node_of = |pus: &CpuSet| {
        topology.nodes.iter().find(|node| pus.is_subset(&node.pus)).map(|node| node.id)
    };
    let mut cells: Vec<GuestCell> = Vec::new();
    for thread in vnode.vcpus() {
        let (Role::Vcpu(index), Some(node)) = (&thread.role, node_of(&thread.pus)) else {
            return Vec::new();
        };
        match cells.iter_mut().find(|cell| cell.node == node) {
            Some(cell) => cell.vcpus.insert(PuId(*index)),
            None => cells.push(GuestCell { node, vcpus: CpuSet::single(PuId(*index)) }),
        }
    }
    let mut nodes: Vec<NodeId> = cells.iter().map(|cell| cell.node).collect();
    nodes.sort_unstable();
    let fit = nodes == memory.nodes
        && fit_cores(vnode, &cells)
        && memory.bytes.is_none_or(|bytes| have_room(&cells, topology, bytes));
    if fit { cells } else { Vec::new() }
}

/// True if cells of different sizes have the memory of their vCPUs on their nodes; without cells it
/// can be divided in another way. Cells of one size share it out evenly, as it would be anyway.
fn have_room(cells: &[GuestCell], topology: &Topology, bytes: u64) -> bool {
    let all: u64 = cells.iter().map(|cell| cell.vcpus.len() as u64).sum();
    let memory_of = |id: NodeId| {
        topology.nodes.iter().find(|node| node.id == id).map_or(0, |node| node.memory_bytes)
    };
    let is_known = topology.nodes.iter().any(|node| node.memory_bytes > 0);
    let is_even = cells.windows(2).all(|pair| pair[0].vcpus.len() == pair[1].vcpus.len());
    is_even
        || !is_known
        || cells.iter().all(|cell| {
            let share = bytes / all.max(1) * cell.vcpus.len() as u64;
            share <= memory_of(cell.node)
        })
}

/// True if no core of the guest is in two cells.
fn fit_cores(vnode: &VnodePlan, cells: &[GuestCell]) -> bool {
    let threads = vnode.guest.as_ref().map_or(1, |guest| guest.threads.max(1));
    let cores_of = |cell: &GuestCell| -> BTreeSet<u32> {
        cell.vcpus.iter().map(|vcpu| vcpu.0 / threads).collect()
    };
    let cores: usize = cells.iter().map(|cell| cores_of(cell).len()).sum();
    cores == cells.iter().flat_map(cores_of).collect::<BTreeSet<u32>>().len()
}

/// Divides `bytes` among the cells in proportion to their vCPUs, each part a multiple of `unit`;
/// the remainder is added to the first. `None` if a part would be empty.
pub fn shares(cells: &[GuestCell], bytes: u64, unit: u64) -> Option<Vec<u64>> {
    let all: u64 = cells.iter().map(|cell| cell.vcpus.len() as u64).sum();
    let units = bytes / unit.max(1);
    let part = |cell: &GuestCell| {
        units.checked_mul(cell.vcpus.len() as u64).map(|share| share / all.max(1))
    };
    let mut parts: Vec<u64> = cells.iter().map(part).collect::<Option<_>>()?;
    let given: u64 = parts.iter().sum();
    *parts.first_mut()? += units - given;
    let sizes: Vec<u64> = parts.iter().map(|part| part * unit).collect();
    (bytes.is_multiple_of(unit.max(1)) && sizes.iter().all(|size| *size > 0)).then_some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_out_in_whole_pages() {
        let even = [guest_cell("0-1"), guest_cell("2-3")];
        check(&even, 8, 1, Some(&[4, 4]));
        check(&even, 6, 2, Some(&[4, 2]));
        check(&[guest_cell("0-2"), guest_cell("3")], 8, 1, Some(&[6, 2]));
        check(&even, 7, 2, None);
        check(&even, 2, 2, None);
        check(&[], 2, 2, None);
    }

    fn guest_cell(vcpus: &str) -> GuestCell {
        GuestCell { node: NodeId(0), vcpus: CpuSet::parse_list(vcpus).unwrap() }
    }

    fn check(cells: &[GuestCell], bytes: u64, unit: u64, expected: Option<&[u64]>) {
        assert_eq!(shares(cells, bytes, unit).as_deref(), expected);
    }
}

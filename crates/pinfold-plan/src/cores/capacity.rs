//! Checks whether memory fits into the NUMA nodes to which it is bound.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{MemoryRequest, NodeId, Source, Topology};

use crate::text::{mib, node_list};

type Nodes = BTreeSet<NodeId>;

/// Maximum number of node sets that are searched; no host has so many that overlap.
const MOST_SETS: usize = 4096;

/// Memory that can come only from certain nodes.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Size in bytes.
    pub bytes: u64,
    /// The nodes; `None` if the kernel may take it from any node.
    pub nodes: Option<Nodes>,
    /// The guest's NUMA cell; `None` for the whole guest.
    pub cell: Option<u32>,
}

/// Nodes with less memory than is bound to them.
#[derive(Clone, Debug)]
pub struct Excess {
    /// The nodes, ascending; `None` for all nodes of the host.
    pub nodes: Option<Vec<NodeId>>,
    /// Bytes that are bound to them.
    pub bytes: u64,
    /// Bytes of memory that they have.
    pub room: u64,
    /// Indexes of the demands concerned, ascending.
    pub whose: Vec<usize>,
}

impl Excess {
    /// A sentence for one machine with these demands.
    pub fn of_one(&self, demands: &[Demand]) -> String {
        let cells: Vec<String> = self
            .whose
            .iter()
            .filter_map(|at| demands.get(*at)?.cell)
            .map(|cell| cell.to_string())
            .collect();
        let (bytes, room) = (mib(self.bytes), mib(self.room));
        let (who, has) = match cells.as_slice() {
            _ if self.nodes.is_none() => ("the machine".to_owned(), "has"),
            [] => ("the machine".to_owned(), "has"),
            [cell] => (format!("the guest's cell {cell}"), "has"),
            cells => (format!("the guest's cells {} together", cells.join(",")), "have"),
        };
        match &self.nodes {
            None => format!("{who} {has} {bytes} of memory, but this host has {room}"),
            Some(nodes) => format!(
                "{who} {has} {bytes} of memory bound to node {}, which has {room}",
                node_list(nodes)
            ),
        }
    }
}

/// The smallest sets of nodes that have less memory than is bound to them; empty if the topology
/// has no memory sizes.
pub fn excesses(demands: &[Demand], topology: &Topology) -> Vec<Excess> {
    if !sizes_are_known(topology) {
        return Vec::new();
    }
    let all: Nodes = topology.nodes.iter().map(|node| node.id).collect();
    let mut found: Vec<(Nodes, Excess)> = Vec::new();
    for nodes in sets(demands, &all) {
        let room = room(&nodes, topology);
        let whose: Vec<usize> = demands
            .iter()
            .enumerate()
            .filter(|(_, one)| match &one.nodes {
                // Memory that is bound to a missing node must be somewhere on the host.
                Some(own) => own.is_subset(&nodes) || nodes == all,
                None => nodes == all,
            })
            .map(|(at, _)| at)
            .collect();
        let bytes: u64 = whose.iter().fold(0, |sum, at| sum.saturating_add(demands[*at].bytes));
        let is_known = found.iter().any(|(smaller, _)| smaller.is_subset(&nodes));
        if room > 0 && bytes > room && !is_known {
            let list = (nodes != all).then(|| nodes.iter().copied().collect());
            found.push((nodes, Excess { nodes: list, bytes, room, whose }));
        }
    }
    found.into_iter().map(|(_, excess)| excess).collect()
}

/// Bytes of memory of these nodes.
pub fn room(nodes: &Nodes, topology: &Topology) -> u64 {
    let on = topology.nodes.iter().filter(|node| nodes.contains(&node.id));
    on.map(|node| node.memory_bytes).sum()
}

/// The sets of nodes to which memory is bound, the unions of overlapping sets, and the whole host;
/// smaller ones first. Only one of these can be overcommitted.
fn sets(demands: &[Demand], all: &Nodes) -> Vec<Nodes> {
    let bound: BTreeSet<Nodes> = demands
        .iter()
        .filter_map(|demand| demand.nodes.clone())
        .filter(|nodes| !nodes.is_empty() && nodes.is_subset(all))
        .collect();
    let mut found: BTreeSet<Nodes> = bound.clone();
    let mut open: Vec<Nodes> = bound.iter().cloned().collect();
    while let Some(one) = open.pop().filter(|_| found.len() < MOST_SETS) {
        for other in bound.iter().filter(|other| !one.is_disjoint(other)) {
            let union: Nodes = one.union(other).copied().collect();
            if found.insert(union.clone()) {
                open.push(union);
            }
        }
    }
    found.insert(all.clone());
    let mut found: Vec<Nodes> = found.into_iter().collect();
    found.sort_by_key(Nodes::len);
    found
}

/// hwloc gives each node of a synthetic machine 1 GiB if the description has no sizes.
pub fn sizes_are_known(topology: &Topology) -> bool {
    match &topology.source {
        Source::Synthetic(text) => text.contains("memory"),
        Source::Live | Source::Captured(_) => true,
    }
}

/// Memory and huge pages of the nodes that no vnode has yet.
#[derive(Clone, Debug)]
pub(crate) struct MemoryLeft {
    /// Bytes by node; empty if the host reports none.
    bytes: BTreeMap<NodeId, u64>,
    /// Free bytes by node; without the nodes for which the host reports none.
    free: BTreeMap<NodeId, u64>,
    /// Free huge pages by node and page size in bytes; empty if the host reports none.
    pages: BTreeMap<(NodeId, u64), u64>,
}

impl MemoryLeft {
    /// All of a host.
    pub fn from_topology(topology: &Topology) -> Self {
        let has_sizes = topology.nodes.iter().any(|node| node.memory_bytes > 0);
        let sizes = topology.nodes.iter().filter(|_| has_sizes);
        let pools = topology.nodes.iter().flat_map(|node| {
            node.huge_pages.iter().map(move |pool| ((node.id, pool.page_bytes), pool.free))
        });
        Self {
            bytes: sizes.map(|node| (node.id, node.memory_bytes)).collect(),
            free: free_by_node(topology),
            pages: pools.collect(),
        }
    }

    /// True if a node has this memory free, or no node is known to have. Huge pages are not taken
    /// from free memory.
    fn is_free(&self, node: NodeId, memory: Option<MemoryRequest>) -> bool {
        let Some(memory) = memory.filter(|memory| memory.page_bytes.is_none()) else { return true };
        self.free.get(&node).is_none_or(|free| *free >= memory.bytes)
            || !self.free.values().any(|free| *free >= memory.bytes)
    }

    /// True if a node has this memory left, in free huge pages if it is to be in these; and free
    /// now, if a node has. Without a size: if it has any memory.
    pub fn fits(&self, node: NodeId, memory: Option<MemoryRequest>) -> bool {
        let needed = memory.map_or(1, |memory| memory.bytes);
        let is_there =
            self.bytes.is_empty() || self.bytes.get(&node).is_some_and(|bytes| *bytes >= needed);
        let pages = memory.and_then(pages_of).filter(|_| !self.pages.is_empty());
        is_there
            && self.is_free(node, memory)
            && pages.is_none_or(|(page, count)| {
                self.pages.get(&(node, page)).is_some_and(|free| *free >= count)
            })
    }

    /// Gives memory of a node to a vnode.
    pub fn take(&mut self, node: NodeId, memory: Option<MemoryRequest>) {
        let Some(memory) = memory else { return };
        if let Some(left) = self.bytes.get_mut(&node) {
            *left = left.saturating_sub(memory.bytes);
        }
        if let Some(free) = self.free.get_mut(&node).filter(|_| memory.page_bytes.is_none()) {
            *free = free.saturating_sub(memory.bytes);
        }
        if let Some((page, count)) = pages_of(memory)
            && let Some(free) = self.pages.get_mut(&(node, page))
        {
            *free = free.saturating_sub(count);
        }
    }
}

/// Free bytes of the nodes for which the host reports them.
pub(crate) fn free_by_node(topology: &Topology) -> BTreeMap<NodeId, u64> {
    topology.nodes.iter().filter_map(|node| Some((node.id, node.free_bytes?))).collect()
}

/// Size in bytes and number of the huge pages of a vnode.
fn pages_of(memory: MemoryRequest) -> Option<(u64, u64)> {
    memory.page_bytes.map(|page| (page, memory.bytes.div_ceil(page.max(1))))
}

/// True for a node without memory on a host that reports memory.
pub fn is_empty_node(topology: &Topology, id: NodeId) -> bool {
    topology.nodes.iter().any(|node| node.memory_bytes > 0)
        && !topology.nodes.iter().any(|node| node.id == id && node.memory_bytes > 0)
}

/// Those of the nodes that exist on the host and have CPUs.
#[must_use]
pub fn with_cpus(nodes: &[NodeId], topology: &Topology) -> Vec<NodeId> {
    nodes
        .iter()
        .filter(|id: &&NodeId| {
            topology.nodes.iter().any(|node| node.id == **id && !node.pus.is_empty())
        })
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_samples::machine::Machine;

    #[test]
    fn what_is_bound_to_nodes_is_added_up() {
        // Three nodes of 1 GiB.
        let mut topology = Machine::new([1, 3, 1, 1, 1], |place| place.node).build();
        topology.source = Source::Captured("three nodes".to_owned());
        // SIZE@NODES, in eighths of a node.
        let demands = |text: &str| -> Vec<Demand> {
            (0..)
                .zip(text.split(' '))
                .map(|(cell, part)| {
                    let (size, list) = part.split_once('@').unwrap();
                    let nodes = list.split('+').filter_map(|id| id.parse().ok()).map(NodeId);
                    Demand {
                        bytes: size.parse::<u64>().unwrap() << 27,
                        nodes: (list != "any").then(|| nodes.collect()),
                        cell: Some(cell),
                    }
                })
                .collect()
        };
        let check = |text: &str, expected: &[(&str, u64, &[usize])]| {
            let found = excesses(&demands(text), &topology);
            let of = |excess: &Excess| {
                let nodes = excess.nodes.as_ref().map_or("all".to_owned(), |nodes| {
                    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
                });
                (nodes, excess.bytes >> 27, excess.whose.clone())
            };
            let found: Vec<_> = found.iter().map(of).collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|(nodes, size, whose)| ((*nodes).to_owned(), *size, whose.to_vec()))
                .collect();
            assert_eq!(found, expected, "{text}");
        };
        check("8@0 8@1 8@2", &[]);
        check("9@0 8@1", &[("0", 9, &[0])]);
        check("5@0 5@0", &[("0", 10, &[0, 1])]);
        // Demands that fit alone but not together.
        check("10@0+1 7@1", &[("0+1", 17, &[0, 1])]);
        check("9@0+1 9@1+2 8@0+2", &[("all", 26, &[0, 1, 2])]);
        check("20@any 5@0", &[("all", 25, &[0, 1])]);
        check("24@any", &[]);
        // A missing node is a separate finding, but the host must have enough memory for it.
        check("20@7", &[]);
        check("30@7", &[("all", 30, &[0])]);
    }
}

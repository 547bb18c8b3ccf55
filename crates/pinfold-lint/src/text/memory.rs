//! Nodes and L3 domains: vCPUs far from each other, and memory far from them.

use pinfold_model::NodeId;
use pinfold_model::text::count_noun;

use super::{Fault, FaultText};
use crate::descriptions::describe_nodes;

/// Room for all vCPUs of a machine that is spread.
pub(crate) struct FreeResources<Id> {
    pub id: Id,
    /// Number of CPUs there.
    pub pus: usize,
}

pub(crate) enum MemoryFault<'a> {
    /// A node that the host lacks; it has these.
    AbsentNode { node: NodeId, known: Vec<NodeId> },
    /// A node without memory, to which memory is bound.
    EmptyNode { node: NodeId },
    /// `restrictive` in a part of `<numatune>`.
    ModesMixed,
    /// `restrictive` for cells.
    CellsRestricted,
    /// Memory of a cell or of the whole guest on other nodes than its vCPUs.
    Far { cell: Option<u32>, nodes: &'a [NodeId], vcpu_nodes: &'a [NodeId] },
    /// Memory without a binding; `holding` are the nodes that can hold it.
    NotBound { nodes: &'a [NodeId], holding: &'a [NodeId] },
    /// vCPUs on nodes without memory.
    NodeWithoutMemory { nodes: &'a [NodeId] },
    /// vCPUs on several nodes, although one has room for them.
    NodesCrossed { nodes: &'a [NodeId], room: FreeResources<NodeId> },
    /// vCPUs on several nodes, and a guest that is shown this number.
    NodesHidden { nodes: &'a [NodeId], cells: usize },
    /// A cell on several nodes.
    CellCrosses { cell: u32, nodes: &'a [NodeId] },
    /// A number of cells on one node.
    CellsOnOneNode { cells: usize, node: &'a [NodeId] },
    /// vCPUs on several L3 caches, and the CPUs of one that has room for all.
    L3Crossed { domains: usize, room: Option<usize> },
}

impl Fault for MemoryFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            MemoryFault::AbsentNode { node, known } => not_there(format!(
                "memory is bound to node {node}, which this host does not have: it has {}",
                describe_nodes(known)
            )),
            MemoryFault::EmptyNode { node } => {
                not_there(format!("memory is bound to node {node}, which has no memory"))
            }
            MemoryFault::ModesMixed => FaultText::new(
                "memory-modes-mixed",
                "mode='restrictive' is in a part of <numatune> only",
                "libvirt requires it in <memory> and each <memnode>, or in none: it rejects the \
                 file",
            ),
            MemoryFault::CellsRestricted => FaultText::new(
                "cells-restricted",
                "the memory of the guest's cells is restricted to nodes, but not bound to them",
                "under mode='restrictive' libvirt limits threads and gives QEMU no memory policy: \
                 a page is allocated on the nodes of the thread that touches it first, so pages \
                 that QEMU itself touches can be on the node of another cell",
            )
            .with_replacement(["mode='strict' in <memory> and in each <memnode> binds each cell"]),
            MemoryFault::Far { cell, nodes, vcpu_nodes } => describe_far(*cell, nodes, vcpu_nodes),
            MemoryFault::NotBound { nodes, holding } => not_bound(nodes, holding),
            MemoryFault::NodeWithoutMemory { nodes } => FaultText::new(
                "node-without-memory",
                format!("vCPUs are pinned to {}, which has no memory", describe_nodes(nodes)),
                "each of their cache misses crosses the interconnect",
            ),
            MemoryFault::NodesCrossed { nodes, room } => {
                let (id, pus) = (room.id, room.pus);
                spread(
                    "nodes-crossed",
                    format!("{}, although they all fit on node {id} ({pus} CPUs)", on_nodes(nodes)),
                )
            }
            MemoryFault::NodesHidden { nodes, cells } => {
                let shown = count_noun(*cells, "NUMA node");
                spread(
                    "nodes-hidden",
                    format!("{}, and the guest is shown {shown}", on_nodes(nodes)),
                )
            }
            MemoryFault::CellCrosses { cell, nodes } => cell_crosses(*cell, nodes),
            MemoryFault::CellsOnOneNode { cells, node } => cells_on_one_node(*cells, node),
            MemoryFault::L3Crossed { domains, room } => l3_crossed(*domains, *room),
        }
    }
}

fn not_there(what: String) -> FaultText {
    FaultText::new("absent-node", what, "the machine does not start")
}

fn describe_far(cell: Option<u32>, nodes: &[NodeId], vcpu_nodes: &[NodeId]) -> FaultText {
    let whose = match cell {
        None => "the guest's memory".to_owned(),
        Some(cell) => format!("the memory of the guest's cell {cell}"),
    };
    FaultText::new(
        "memory-far",
        format!(
            "{whose} is on {}, its vCPUs run on {}",
            describe_nodes(nodes),
            describe_nodes(vcpu_nodes)
        ),
        "each cache miss crosses the interconnect, which takes up to twice as long and has \
         less bandwidth",
    )
}

fn not_bound(nodes: &[NodeId], holding: &[NodeId]) -> FaultText {
    let mut what =
        format!("the vCPUs are pinned to {}, the memory is not bound", describe_nodes(nodes));
    if holding != nodes {
        what.push_str(&format!(
            "; it is larger than that node, {} are needed",
            describe_nodes(holding)
        ));
    }
    FaultText::new(
        "memory-not-bound",
        what,
        "pages are allocated on the node of the thread that touches them first, often QEMU's own, \
         and pins do not move existing pages",
    )
}

fn on_nodes(nodes: &[NodeId]) -> String {
    format!("the vCPUs are pinned to CPUs of {}", describe_nodes(nodes))
}

fn spread(name: &'static str, what: String) -> FaultText {
    FaultText::new(
        name,
        what,
        "the guest cannot keep a task near its memory: half of all misses cross the interconnect",
    )
}

fn cell_crosses(cell: u32, nodes: &[NodeId]) -> FaultText {
    FaultText::new(
        "cell-crosses-nodes",
        format!(
            "the vCPUs of the guest's cell {cell} are pinned to CPUs of {}",
            describe_nodes(nodes)
        ),
        "the guest treats the cell's memory as local to all of them: for some, each cache miss \
         crosses the interconnect",
    )
}

fn cells_on_one_node(cells: usize, node: &[NodeId]) -> FaultText {
    FaultText::new(
        "cells-on-one-node",
        format!("the guest is shown {cells} NUMA nodes, all on {}", describe_nodes(node)),
        "the guest separates tasks and memory, and moves pages between its nodes, although there \
         is no distance between them",
    )
    .with_replacement(["remove <numa> from <cpu>, unless a program in the guest needs it"])
}

fn l3_crossed(domains: usize, room: Option<usize>) -> FaultText {
    let (although, unseen) = match room {
        Some(pus) => (
            format!(", although they all fit on one of them ({pus} CPUs)"),
            "; the guest does not see the boundary",
        ),
        None => (String::new(), ""),
    };
    FaultText::new(
        "l3-crossed",
        format!("the vCPUs are spread over {domains} L3 caches{although}"),
        format!(
            "data shared by vCPUs (locks, queues, frames) moves between the caches, several times \
             slower than within one{unseen}"
        ),
    )
}

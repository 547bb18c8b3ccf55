//! What a domain file asks of a plan: its number of vCPUs and iothreads, its memory and the nodes
//! of that, the NUMA cells of its guest.

use pinfold_model::{
    CellRequest, MemoryRequest, NodeId, SmtWish, Source, Topology, VcpuCount, VmRequest,
};

use super::{Board, Domain};
use crate::guest_cells;
use crate::parts::mib;

impl Domain {
    /// The machine of the file as a request. Nodes that the host lacks, or that have no CPU, are
    /// left out: they say nothing of where vCPUs can be.
    #[must_use]
    pub fn request(&self, topology: &Topology) -> VmRequest {
        let bound = self.memory.as_ref().and_then(|bound| bound.value.nodes.as_deref());
        let mut bound = with_cpus(bound.unwrap_or_default(), topology);
        let sized = self.memory_request(topology).is_some();
        let cell = |cell: &super::Placed<super::Cell>| {
            let own = self.memnodes.iter().find(|memnode| memnode.value.0 == cell.value.id);
            CellRequest {
                vcpus: cell.value.vcpus.clone(),
                nodes: own.map(|memnode| memnode.value.1.clone()).unwrap_or_default(),
                bytes: cell.value.bytes.filter(|_| sized),
            }
        };
        let mut cells = guest_cells::of_file(self.cells.iter().map(cell), &bound, topology);
        // One cell is the whole guest: nothing of it is divided.
        if let [only] = cells.as_slice()
            && !only.nodes.is_empty()
        {
            bound = only.nodes.clone();
        }
        if cells.len() < 2 {
            cells.clear();
        }
        let smt = match self.board {
            Board::WithoutThreads => SmtWish::Hidden,
            Board::X86 | Board::Other | Board::WithoutCpu => SmtWish::Auto,
        };
        VmRequest {
            iothreads: self.iothreads.iter().map(|number| format!("iothread{number}")).collect(),
            smt,
            nodes: bound,
            cells,
            ..VmRequest::of(VcpuCount::Exactly(self.vcpus.value))
        }
    }

    /// Its memory, where a host of several nodes can be asked whether it fits.
    #[must_use]
    pub fn memory_request(&self, topology: &Topology) -> Option<MemoryRequest> {
        let filled = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
        let fits = sizes_are_known(topology) && filled > 1;
        let bytes = self.memory_bytes.filter(|bytes| *bytes > 0 && fits)?;
        Some(MemoryRequest { bytes, page_bytes: None })
    }

    /// A sentence, if so much memory is more than the host has, or than the nodes have to which the
    /// file binds it strictly.
    #[must_use]
    pub(crate) fn memory_excess(&self, bytes: Option<u64>, topology: &Topology) -> Option<String> {
        let bytes = bytes.filter(|_| sizes_are_known(topology))?;
        let sum = |on: &dyn Fn(NodeId) -> bool| -> u64 {
            let nodes = topology.nodes.iter().filter(|node| on(node.id));
            nodes.map(|node| node.memory_bytes).sum()
        };
        let all = sum(&|_| true);
        if all > 0 && bytes > all {
            return Some(format!(
                "the machine has {} of memory, this host has {}",
                mib(bytes),
                mib(all)
            ));
        }
        let strict = self.memory.as_ref().filter(|bound| bound.value.mode == "strict");
        let nodes = strict.and_then(|bound| bound.value.nodes.as_ref())?;
        let own = sum(&|id| nodes.contains(&id));
        (own > 0 && bytes > own).then(|| {
            let list: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            format!(
                "the machine has {} of memory, bound to node {}, where this host has {}",
                mib(bytes),
                list.join(","),
                mib(own)
            )
        })
    }
}

/// hwloc gives each node of a synthetic machine 1 GiB where its text says nothing.
fn sizes_are_known(topology: &Topology) -> bool {
    match &topology.source {
        Source::Synthetic(text) => text.contains("memory"),
        Source::Live | Source::Captured(_) => true,
    }
}

/// Those of the nodes that the host has and that have CPUs.
pub(crate) fn with_cpus(nodes: &[NodeId], topology: &Topology) -> Vec<NodeId> {
    let has =
        |id: &&NodeId| topology.nodes.iter().any(|node| node.id == **id && !node.pus.is_empty());
    nodes.iter().filter(has).copied().collect()
}

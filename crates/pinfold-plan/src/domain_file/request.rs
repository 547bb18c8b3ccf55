//! The request in a domain file: number of vCPUs and iothreads, memory and its nodes, the guest's
//! NUMA cells.

use pinfold_model::{
    CellRequest, CpuSet, MemoryRequest, PuId, SmtRequest, Topology, VcpuCount, VmRequest,
};

use super::{Cell, Domain, Located, Memnode, TopologyLevels};
use crate::cores::capacity::{Demand, excesses, sizes_are_known, with_cpus};
use crate::placement::cells as guest_cells;

fn count(set: &CpuSet) -> u32 {
    u32::try_from(set.len()).unwrap_or(u32::MAX)
}

impl Domain {
    /// The machine of the file as a request. Nodes that the host lacks, or that have no CPU, are
    /// omitted, because vCPUs cannot be there.
    pub fn request(&self, topology: &Topology) -> VmRequest {
        let bound = self.memory.as_ref().and_then(|bound| bound.value.nodes.as_deref());
        let mut bound = with_cpus(bound.unwrap_or_default(), topology);
        let sized = self.memory_request(topology).is_some();
        let mut cells = guest_cells::of_file(
            self.cells.iter().map(|cell| {
                let own = self.memnode(cell.value.id);
                CellRequest {
                    vcpus: self.positions(&cell.value.vcpus),
                    nodes: own.map(|memnode| memnode.nodes.clone()).unwrap_or_default(),
                    bytes: cell.value.bytes.filter(|_| sized),
                }
            }),
            &bound,
            topology,
        );
        // A single cell is the whole guest, which is then not divided.
        if let [only] = cells.as_slice()
            && !only.nodes.is_empty()
        {
            bound = only.nodes.clone();
        }
        if cells.len() < 2 {
            cells.clear();
        }
        let smt = match self.board {
            TopologyLevels::WithoutThreads => SmtRequest::Hidden,
            TopologyLevels::X86 | TopologyLevels::Other | TopologyLevels::WithoutCpu => {
                SmtRequest::Auto
            }
        };
        VmRequest {
            iothreads: self.iothreads.iter().map(|number| format!("iothread{number}")).collect(),
            smt,
            nodes: bound,
            cells,
            ..VmRequest::from_vcpus(VcpuCount::Exactly(count(&self.enabled_vcpus)))
        }
    }

    /// Those of some vCPUs that exist, numbered without the reserve, as plans number them.
    pub fn positions(&self, vcpus: &CpuSet) -> CpuSet {
        let numbered = self.enabled_vcpus.iter().zip(0_u32..);
        numbered.filter(|(id, _)| vcpus.contains(*id)).map(|(_, position)| PuId(position)).collect()
    }

    /// The requested memory, if the host has several nodes to choose from.
    #[must_use]
    pub fn memory_request(&self, topology: &Topology) -> Option<MemoryRequest> {
        let filled = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
        let fits = sizes_are_known(topology) && filled > 1;
        let bytes = self.memory_bytes.filter(|bytes| *bytes > 0 && fits)?;
        Some(MemoryRequest { bytes, page_bytes: None })
    }

    /// The `<memnode>` of a cell.
    pub fn memnode(&self, cell: u32) -> Option<&Memnode> {
        self.memnodes.iter().map(|memnode| &memnode.value).find(|memnode| memnode.cell == cell)
    }

    /// The parts of its memory, each with the nodes to which it is bound. `bytes` is the size of a
    /// guest whose cells have no sizes.
    #[must_use]
    pub fn demands(&self, bytes: Option<u64>) -> Vec<Demand> {
        let whole = self.memory.as_ref().map(|bound| &bound.value);
        let whole = whole.filter(|bound| bound.is_strict());
        let whole = whole
            .and_then(|bound| bound.nodes.as_deref())
            .map(|nodes| nodes.iter().copied().collect());
        // libvirt makes the guest as large as the sum of its cells.
        let cells: Vec<Demand> = self
            .cells
            .iter()
            .filter_map(|cell: &Located<Cell>| {
                let nodes = match self.memnode(cell.value.id) {
                    Some(own) => own.is_strict().then(|| own.nodes.iter().copied().collect()),
                    None => whole.clone(),
                };
                Some(Demand { bytes: cell.value.bytes?, nodes, cell: Some(cell.value.id) })
            })
            .collect();
        if !cells.is_empty() {
            return cells;
        }
        let all = bytes.map(|bytes| Demand { bytes, nodes: whole, cell: None });
        all.into_iter().collect()
    }

    /// A sentence, if this much memory exceeds that of the host, or of the nodes to which it is
    /// bound.
    #[must_use]
    pub fn memory_excess(&self, bytes: Option<u64>, topology: &Topology) -> Option<String> {
        let demands = self.demands(bytes);
        excesses(&demands, topology).first().map(|excess| excess.of_one(&demands))
    }
}

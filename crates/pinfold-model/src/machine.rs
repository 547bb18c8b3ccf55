//! What the command line of a hypervisor says about its virtual machine.

use crate::{Accelerator, CpuSet, NodeId};

/// A NUMA node of the guest, as the command line defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellSpec {
    /// Its vCPUs by index; empty if the command line leaves them to the hypervisor.
    pub vcpus: CpuSet,
    /// Its memory in bytes, if the command line gives it.
    pub memory_bytes: Option<u64>,
    /// Host nodes of its memory; empty if the kernel chooses.
    pub host_nodes: Vec<NodeId>,
}

/// A virtual machine as its command line describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSpec {
    /// The machine's name.
    pub name: Option<String>,
    /// Number of vCPUs at start; `None` for the hypervisor's default, or if it cannot be parsed.
    pub vcpus: Option<u32>,
    /// Number of vCPUs including those that can be hot-plugged; never less than `vcpus`.
    pub max_vcpus: Option<u32>,
    /// IDs of the iothreads.
    pub iothreads: Vec<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The host nodes to which the command line binds memory.
    pub memory_nodes: Vec<NodeId>,
    /// True if the command line defines the guest's NUMA nodes.
    pub has_cells: bool,
    /// The guest's NUMA nodes.
    pub cells: Vec<CellSpec>,
    /// A file of further options that is not read, in words, if the command line names one.
    pub unread: Option<&'static str>,
    /// The accelerator that the command line selects; `None` if the hypervisor chooses.
    pub accelerator: Option<Accelerator>,
    /// The accelerator if KVM does not run the guest.
    pub without_kvm: Accelerator,
}

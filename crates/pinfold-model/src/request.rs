//! Requests: what the user wants placed.

use crate::{CpuSet, IsolationScope};

/// How many vCPUs a virtual machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuCount {
    /// The strategy chooses.
    Auto,
    /// This many.
    Exactly(u32),
}

/// One virtual machine to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRequest {
    /// Name, unique among the request's machines.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: VcpuCount,
    /// Ids of its iothreads.
    pub iothreads: Vec<String>,
}

/// What is to be placed on a host, and under which conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The virtual machine.
    pub vm: VmRequest,
    /// PUs that nothing of the plan may use.
    pub avoid: CpuSet,
    /// How far other tasks are to be kept off.
    pub isolation: IsolationScope,
}

impl Request {
    /// One virtual machine with `vcpus` vCPUs and nothing else asked.
    #[must_use]
    pub fn vm(name: &str, vcpus: VcpuCount) -> Self {
        Self {
            vm: VmRequest { name: name.to_owned(), vcpus, iothreads: Vec::new() },
            avoid: CpuSet::new(),
            isolation: IsolationScope::None,
        }
    }
}

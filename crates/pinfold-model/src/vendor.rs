//! The vendor of a host's CPUs.

use crate::Topology;

/// Vendor of the host's CPUs, if the topology records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Another or unknown vendor: x86-only settings are then mentioned but not applied.
    Unknown,
}

impl Vendor {
    /// The vendor of a topology.
    pub fn from_topology(topology: &Topology) -> Self {
        match topology.model.as_deref() {
            Some(model) if model.contains("AMD") => Vendor::Amd,
            Some(model) if model.contains("Intel") => Vendor::Intel,
            Some(_) | None => Vendor::Unknown,
        }
    }
}

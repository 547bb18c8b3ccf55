//! The JSON formats of topologies and capabilities, version 1.
//!
//! `format` contains the name and version of the document. Names of quantities end in the unit.
//! Sets of CPUs are in the kernel's list format (`"0-3,8"`), IDs are numbers: `os` is Linux's,
//! `logical` is hwloc's. Keys may be added within a version, but are never renamed or removed.

use std::collections::BTreeMap;

use pinfold_model::{
    Core, CpuSet, Finding, L3Domain, NumaNode, Package, PciDevice, Pu, PuId, Smt, Source, Topology,
};
use serde::Serialize;

use crate::capabilities::Capability;

/// Name and version of the topology document.
pub const TOPOLOGY_FORMAT: &str = "pinfold-topology/1";

/// Name and version of the capabilities document.
pub const CAPABILITIES_FORMAT: &str = "pinfold-capabilities/1";

#[derive(Serialize)]
struct TopologyDocument<'t> {
    format: &'static str,
    source: &'t Source,
    fingerprint: &'t str,
    model: Option<&'t str>,
    hypervisor: Option<&'t str>,
    smt: Smt,
    online: CpuSet,
    offline: &'t CpuSet,
    isolated: &'t CpuSet,
    nohz_full: &'t CpuSet,
    allowed: &'t CpuSet,
    mask: Option<&'t CpuSet>,
    packages: &'t [Package],
    nodes: &'t [NumaNode],
    l3: &'t [L3Domain],
    cores: &'t [Core],
    pus: &'t [Pu],
    l2_domains: &'t [CpuSet],
    frequency_domains: &'t [CpuSet],
    highest_khz: &'t BTreeMap<PuId, u64>,
    core_ranking: &'t BTreeMap<PuId, u32>,
    devices: &'t [PciDevice],
    findings: &'t [Finding],
}

#[derive(Serialize)]
struct CapabilitiesDocument<'c> {
    format: &'static str,
    main_job: bool,
    capabilities: &'c [Capability],
}

/// A topology as JSON, indented, with a newline at the end.
pub fn topology_to_json(topology: &Topology) -> String {
    to_text(&TopologyDocument {
        format: TOPOLOGY_FORMAT,
        source: &topology.source,
        fingerprint: &topology.fingerprint,
        model: topology.model.as_deref(),
        hypervisor: topology.hypervisor.as_deref(),
        smt: topology.smt,
        online: topology.online(),
        offline: &topology.offline,
        isolated: &topology.isolated,
        nohz_full: &topology.nohz_full,
        allowed: &topology.allowed,
        mask: topology.mask.as_ref(),
        packages: &topology.packages,
        nodes: &topology.nodes,
        l3: &topology.l3,
        cores: &topology.cores,
        pus: &topology.pus,
        l2_domains: &topology.l2_domains,
        frequency_domains: &topology.frequency_domains,
        highest_khz: &topology.highest_khz,
        core_ranking: &topology.core_ranking,
        devices: &topology.devices,
        findings: &topology.findings,
    })
}

/// Capabilities as JSON, indented, with a newline at the end.
pub fn capabilities_to_json(capabilities: &[Capability]) -> String {
    to_text(&CapabilitiesDocument {
        format: CAPABILITIES_FORMAT,
        main_job: crate::has_required_capabilities(capabilities),
        capabilities,
    })
}

/// Serialises a document; this cannot fail, because it only contains strings, numbers and lists.
fn to_text(document: &impl Serialize) -> String {
    match serde_json::to_string_pretty(document) {
        Ok(text) => text + "\n",
        Err(error) => unreachable!("a document of plain values: {error}"),
    }
}

//! The JSON formats of topologies and capabilities, version 1.
//!
//! `format` contains the name and version of the document. Names of quantities end in the unit.
//! Sets of CPUs are in the kernel's list format (`"0-3,8"`), IDs are numbers: `os` is Linux's,
//! `logical` is hwloc's. Keys may be added within a version, but are never renamed or removed.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, Finding, Source, Topology};
use serde::Serialize;

use crate::capabilities::{Capability, Verdict};
use crate::fingerprint::{kind_word, smt_word};

/// Name and version of the topology document.
pub const TOPOLOGY_FORMAT: &str = "pinfold-topology/1";

/// Name and version of the capabilities document.
pub const CAPABILITIES_FORMAT: &str = "pinfold-capabilities/1";

/// A PCI device.
#[derive(Serialize)]
struct DeviceEntry<'t> {
    address: &'t str,
    node: Option<u32>,
}

#[derive(Serialize)]
struct TopologyDocument<'t> {
    format: &'static str,
    source: SourceEntry<'t>,
    fingerprint: &'t str,
    model: Option<&'t str>,
    hypervisor: Option<&'t str>,
    smt: &'static str,
    online: String,
    offline: String,
    isolated: String,
    nohz_full: String,
    allowed: String,
    mask: Option<String>,
    packages: Vec<SetEntry>,
    nodes: Vec<NodeEntry>,
    l3: Vec<CacheEntry>,
    cores: Vec<CoreEntry>,
    pus: Vec<PuEntry>,
    l2_domains: Vec<String>,
    frequency_domains: Vec<String>,
    highest_khz: BTreeMap<u32, u64>,
    core_ranking: BTreeMap<u32, u32>,
    devices: Vec<DeviceEntry<'t>>,
    findings: Vec<FindingEntry<'t>>,
}

#[derive(Serialize)]
struct SourceEntry<'t> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'t str>,
}

#[derive(Serialize)]
struct SetEntry {
    logical: u32,
    pus: String,
}

#[derive(Serialize)]
struct NodeEntry {
    os: u32,
    pus: String,
    memory_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    huge_pages: Vec<HugePagesEntry>,
}

#[derive(Serialize)]
struct HugePagesEntry {
    page_bytes: u64,
    total: u64,
    free: u64,
}

#[derive(Serialize)]
struct CacheEntry {
    logical: u32,
    pus: String,
    size_bytes: Option<u64>,
}

#[derive(Serialize)]
struct CoreEntry {
    logical: u32,
    pus: String,
    package: u32,
    kind: &'static str,
}

#[derive(Serialize)]
struct PuEntry {
    os: u32,
    logical: u32,
    core: u32,
    smt_rank: u32,
    l3: Option<u32>,
    node: Option<u32>,
    package: u32,
    kind: &'static str,
}

#[derive(Serialize)]
struct FindingEntry<'t> {
    severity: String,
    subject: &'t str,
    text: &'t str,
    hint: Option<&'t str>,
}

#[derive(Serialize)]
struct CapabilitiesDocument<'c> {
    format: &'static str,
    main_job: bool,
    capabilities: Vec<CapabilityEntry<'c>>,
}

#[derive(Serialize)]
struct CapabilityEntry<'c> {
    name: &'c str,
    verdict: &'static str,
    why: &'c str,
    hint: Option<&'c str>,
    required: bool,
}

/// A topology as JSON, indented, with a newline at the end.
#[must_use]
pub fn topology_to_json(topology: &Topology) -> String {
    to_text(&TopologyDocument {
        format: TOPOLOGY_FORMAT,
        source: source(&topology.source),
        fingerprint: &topology.fingerprint,
        model: topology.model.as_deref(),
        hypervisor: topology.hypervisor.as_deref(),
        smt: smt_word(topology.smt),
        online: topology.online().to_string(),
        offline: topology.offline.to_string(),
        isolated: topology.isolated.to_string(),
        nohz_full: topology.nohz_full.to_string(),
        allowed: topology.allowed.to_string(),
        mask: topology.mask.as_ref().map(ToString::to_string),
        packages: topology
            .packages
            .iter()
            .map(|package| SetEntry { logical: package.id.0, pus: package.pus.to_string() })
            .collect(),
        nodes: nodes(topology),
        l3: caches(topology),
        cores: cores(topology),
        pus: pus(topology),
        l2_domains: topology.l2_domains.iter().map(CpuSet::to_string).collect(),
        frequency_domains: topology.frequency_domains.iter().map(CpuSet::to_string).collect(),
        highest_khz: topology.highest_khz.iter().map(|(pu, khz)| (pu.0, *khz)).collect(),
        core_ranking: topology.core_ranking.iter().map(|(pu, rank)| (pu.0, *rank)).collect(),
        devices: topology
            .devices
            .iter()
            .map(|device| DeviceEntry {
                address: &device.address,
                node: device.node.map(|node| node.0),
            })
            .collect(),
        findings: topology.findings.iter().map(finding).collect(),
    })
}

/// Capabilities as JSON, indented, with a newline at the end.
#[must_use]
pub fn capabilities_to_json(capabilities: &[Capability]) -> String {
    to_text(&CapabilitiesDocument {
        format: CAPABILITIES_FORMAT,
        main_job: crate::can_run_main_job(capabilities),
        capabilities: capabilities
            .iter()
            .map(|capability| CapabilityEntry {
                name: capability.name,
                verdict: verdict_word(capability.verdict),
                why: &capability.why,
                hint: capability.hint.as_deref(),
                required: capability.required,
            })
            .collect(),
    })
}

fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Yes => "yes",
        Verdict::Partly => "partly",
        Verdict::No => "no",
    }
}

fn source(source: &Source) -> SourceEntry<'_> {
    match source {
        Source::Live => SourceEntry { kind: "live", name: None },
        Source::Captured(name) => SourceEntry { kind: "captured", name: Some(name) },
        Source::Synthetic(text) => SourceEntry { kind: "synthetic", name: Some(text) },
    }
}

fn nodes(topology: &Topology) -> Vec<NodeEntry> {
    topology
        .nodes
        .iter()
        .map(|node| NodeEntry {
            os: node.id.0,
            pus: node.pus.to_string(),
            memory_bytes: node.memory_bytes,
            free_bytes: node.free_bytes,
            huge_pages: node
                .huge_pages
                .iter()
                .map(|pool| HugePagesEntry {
                    page_bytes: pool.page_bytes,
                    total: pool.total,
                    free: pool.free,
                })
                .collect(),
        })
        .collect()
}

fn caches(topology: &Topology) -> Vec<CacheEntry> {
    topology
        .l3
        .iter()
        .map(|cache| CacheEntry {
            logical: cache.id.0,
            pus: cache.pus.to_string(),
            size_bytes: Some(cache.size_bytes).filter(|size| *size > 0),
        })
        .collect()
}

fn cores(topology: &Topology) -> Vec<CoreEntry> {
    topology
        .cores
        .iter()
        .map(|core| CoreEntry {
            logical: core.id.0,
            pus: core.pus.to_string(),
            package: core.package.0,
            kind: kind_word(core.kind),
        })
        .collect()
}

fn pus(topology: &Topology) -> Vec<PuEntry> {
    topology
        .pus
        .iter()
        .map(|pu| PuEntry {
            os: pu.os.0,
            logical: pu.logical.0,
            core: pu.core.0,
            smt_rank: pu.smt_rank,
            l3: pu.l3.map(|id| id.0),
            node: pu.node.map(|id| id.0),
            package: pu.package.0,
            kind: kind_word(pu.kind),
        })
        .collect()
}

fn finding(finding: &Finding) -> FindingEntry<'_> {
    FindingEntry {
        severity: finding.severity.to_string(),
        subject: &finding.subject,
        text: &finding.text,
        hint: finding.hint.as_deref(),
    }
}

/// Serialises a document; this cannot fail, because it only contains strings, numbers and lists.
fn to_text(document: &impl Serialize) -> String {
    match serde_json::to_string_pretty(document) {
        Ok(text) => text + "\n",
        Err(error) => unreachable!("a document of plain values: {error}"),
    }
}

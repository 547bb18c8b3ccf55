//! Combines tree, facts and findings into a topology. Pure.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, PuId, Smt, Source, Topology};

use crate::error::TopologyError;
use crate::facts::Facts;
use crate::findings;
use crate::fingerprint;
use crate::hwloc::Tree;
use crate::kinds;
use crate::tables::{self, Tables};

/// The topology for a tree and the host's facts.
pub(crate) fn topology(
    source: Source,
    tree: &Tree,
    facts: &Facts,
) -> Result<Topology, TopologyError> {
    let tables = tables::tables(tree, facts);
    let online: CpuSet = tables.pus.iter().map(|pu| pu.os).collect();
    if online.is_empty() {
        return Err(TopologyError::NoPu { name: source_name(&source) });
    }
    let present = facts.present.as_ref().unwrap_or(&tree.complete);
    let mut topology = Topology {
        source,
        fingerprint: String::new(),
        model: facts.model.clone().or_else(|| tree.cpu_model.clone()),
        hypervisor: facts.hypervisor.clone(),
        smt: smt(&tables, facts),
        offline: present.difference(&online),
        isolated: facts.isolated.clone(),
        nohz_full: facts.nohz_full.clone(),
        allowed: online.intersection(facts.cpuset.as_ref().unwrap_or(&tree.allowed)),
        mask: facts.mask.clone(),
        l2_domains: tables.l2_domains.clone(),
        frequency_domains: facts.frequency_domains.clone(),
        highest_khz: of_online(
            &kinds::of_tree(&facts.highest_khz, tree, |kind| kind.highest_khz),
            &online,
        ),
        core_ranking: ranking(facts, &online),
        devices: facts.devices.clone(),
        boot_parameters: facts.boot_parameters.clone(),
        pus: tables.pus.clone(),
        cores: tables.cores.clone(),
        l3: tables.l3.clone(),
        nodes: tables.nodes.clone(),
        packages: tables.packages.clone(),
        findings: Vec::new(),
    };
    topology.fingerprint = fingerprint::fingerprint(&topology);
    topology.findings = findings::findings(&topology, &tables, facts);
    Ok(topology)
}

fn of_online<V: Copy>(values: &BTreeMap<PuId, V>, online: &CpuSet) -> BTreeMap<PuId, V> {
    values.iter().filter(|(pu, _)| online.contains(**pu)).map(|(pu, value)| (*pu, *value)).collect()
}

/// A ranking of equal values counts as none.
fn ranking(facts: &Facts, online: &CpuSet) -> BTreeMap<PuId, u32> {
    let ranking = of_online(&facts.core_ranking, online);
    let (lowest, highest) = (ranking.values().min(), ranking.values().max());
    if lowest == highest { BTreeMap::new() } else { ranking }
}

/// Online siblings override the state of the control file.
fn smt(tables: &Tables, facts: &Facts) -> Smt {
    if tables.cores.iter().any(|core| core.pus.len() > 1) {
        return Smt::On;
    }
    match (facts.smt_control.as_deref(), facts.smt_active.as_deref()) {
        (Some("off" | "forceoff"), _) | (Some("on"), Some("0")) => Smt::Off,
        (Some("notsupported"), _) => Smt::NotSupported,
        // POWER: the requested number of threads per core.
        (Some(threads), _) if threads.parse::<u32>().is_ok_and(|threads| threads > 0) => Smt::Off,
        (Some(_) | None, _) => Smt::Unknown,
    }
}

/// The name of a source in messages.
pub(crate) fn source_name(source: &Source) -> String {
    match source {
        Source::Live => "this machine".to_owned(),
        Source::Captured(name) => name.clone(),
        Source::Synthetic(text) => format!("{text:?}"),
    }
}

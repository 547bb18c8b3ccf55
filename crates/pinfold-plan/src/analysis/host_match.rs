//! Checks whether a saved plan is for this host, even if other CPUs are online than when it was
//! made.
//!
//! The kernel hides the topology of an offline CPU, so the fingerprint of a host depends on its
//! online CPUs. A compute service may take dedicated CPUs offline while no machine uses them
//! (Nova's `cpu_power_management`). So a plan records what is known of its CPUs.

use pinfold_model::text::cpus_text;
use pinfold_model::{CpuSet, NodeId, Plan, PlannedCache, PlannedCpus, PlannedNode, PuId, Topology};

use crate::text::mib;

/// Maximum number of differences that are named.
const NAMED: usize = 4;

/// Relation of a plan to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// The plan was made for this host in its present state.
    Same,
    /// The plan was made for this host; CPUs that it does not use have since gone online or
    /// offline.
    OtherOnline,
    /// These CPUs of its threads are offline. The data of the others agree; whether the plan is for
    /// this host is known only when they are online.
    Offline(CpuSet),
    /// The plan was made for another host; the recorded data that differ.
    Other(Vec<String>),
}

/// Compares `plan` with the host of `topology`.
pub fn fit(plan: &Plan, topology: &Topology) -> HostMatch {
    if plan.fingerprint == topology.fingerprint {
        return HostMatch::Same;
    }
    let Some(cpus) = &plan.cpus else { return HostMatch::Other(Vec::new()) };
    let differences = differences(cpus, &plan.pus(), topology);
    if !differences.is_empty() {
        return HostMatch::Other(differences);
    }
    let offline = plan.pus().intersection(&topology.offline);
    if !offline.is_empty() {
        return HostMatch::Offline(offline);
    }
    if cpus.online == topology.online() {
        let what = "the same CPUs are online, but their kinds, L2 caches, frequency domains or \
                    memory differ";
        return HostMatch::Other(vec![what.to_owned()]);
    }
    HostMatch::OtherOnline
}

/// The data of its CPUs that a plan records.
pub(crate) fn record_cpus(plan: &Plan, topology: &Topology) -> PlannedCpus {
    let used = plan.pus();
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&used));
    let caches = topology.l3.iter().filter(|cache| !cache.pus.is_disjoint(&used));
    let nodes = topology.nodes.iter().filter(|node| !node.pus.is_disjoint(&used));
    PlannedCpus {
        model: topology.model.clone(),
        online: topology.online(),
        nohz_full: topology.nohz_full.clone(),
        cores: cores.map(|core| core.pus.clone()).collect(),
        l3: caches
            .map(|one| PlannedCache { cpus: one.pus.clone(), size_bytes: one.size_bytes })
            .collect(),
        nodes: nodes.map(|one| PlannedNode { node: one.id, cpus: one.pus.clone() }).collect(),
    }
}

/// The recorded data that differ on a host, for online CPUs; empty if all agree.
fn differences(cpus: &PlannedCpus, used: &CpuSet, topology: &Topology) -> Vec<String> {
    let mut found = Vec::new();
    if cpus.model != topology.model {
        found.push(format!(
            "the processor is {:?} here, {:?} in the plan",
            name(&topology.model),
            name(&cpus.model)
        ));
    }
    if cpus.nohz_full != topology.nohz_full {
        found.push(format!(
            "nohz_full is {} here, {} in the plan",
            list_cpus(&topology.nohz_full),
            list_cpus(&cpus.nohz_full)
        ));
    }
    let absent = used.difference(&topology.online()).difference(&topology.offline);
    if !absent.is_empty() {
        found.push(format!("this host has no {}", cpus_text(&absent)));
    }
    let both = cpus.online.intersection(&topology.online());
    let mut seen = Vec::new();
    for cpu in used.intersection(&both).iter() {
        let pairs = places_of(cpus, cpu, &both).into_iter().zip(found_here(topology, cpu, &both));
        for (what, pair) in ["core", "L3", "NUMA node"].into_iter().zip(pairs) {
            if pair.0 != pair.1 && !seen.contains(&(what, pair.clone())) {
                let (then, now) = &pair;
                found.push(format!("the {what} of CPU {cpu} is {now} here, {then} in the plan"));
                seen.push((what, pair));
            }
        }
    }
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    found
}

fn name(model: &Option<String>) -> String {
    model.clone().unwrap_or_else(|| "unknown".to_owned())
}

/// Core, L3 and node of a CPU in a plan's record, restricted to CPUs that are online in `both`.
fn places_of(cpus: &PlannedCpus, cpu: PuId, both: &CpuSet) -> [String; 3] {
    let core = cpus.cores.iter().find(|core| core.contains(cpu));
    let cache = cpus.l3.iter().find(|cache| cache.cpus.contains(cpu));
    let node = cpus.nodes.iter().find(|node| node.cpus.contains(cpu));
    [
        core.map(|core| list_cpus(&core.intersection(both))),
        cache.map(|cache| of_cache(&cache.cpus.intersection(both), cache.size_bytes)),
        node.map(|node| of_node(node.node, &node.cpus.intersection(both))),
    ]
    .map(|text| text.unwrap_or_else(unknown))
}

/// The same on a host.
fn found_here(topology: &Topology, cpu: PuId, both: &CpuSet) -> [String; 3] {
    let core = topology.cores.iter().find(|core| core.pus.contains(cpu));
    let cache = topology.l3.iter().find(|cache| cache.pus.contains(cpu));
    let node = topology.nodes.iter().find(|node| node.pus.contains(cpu));
    [
        core.map(|core| list_cpus(&core.pus.intersection(both))),
        cache.map(|cache| of_cache(&cache.pus.intersection(both), cache.size_bytes)),
        node.map(|node| of_node(node.id, &node.pus.intersection(both))),
    ]
    .map(|text| text.unwrap_or_else(unknown))
}

fn of_cache(cpus: &CpuSet, size_bytes: u64) -> String {
    format!("{cpus} ({})", mib(size_bytes))
}

fn of_node(id: NodeId, cpus: &CpuSet) -> String {
    format!("{id} ({cpus})")
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn list_cpus(cpus: &CpuSet) -> String {
    if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
}

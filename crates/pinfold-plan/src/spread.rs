//! What pins mean on a machine, whatever strategy chose them: domains crossed,
//! siblings shared, PUs used twice.
//!
//! [`Spread`] counts it for the explanation; [`findings`] says what of it the user
//! should know. Only vCPUs with a PU of their own count as pinned: a floating vCPU
//! has no place.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CoreId, CpuSet, Finding, L3Id, NodeId, PuId, Role, ThreadPlan, Topology};

use crate::draft::{counted, pus_text, verb};
use crate::ground::Ground;

/// Where the pinned vCPUs of a plan lie.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    /// How many vCPUs each PU carries.
    pub load: BTreeMap<PuId, usize>,
    /// The PUs that carry at least one.
    pub pus: CpuSet,
    pub cores: BTreeSet<CoreId>,
    pub l3s: BTreeSet<L3Id>,
    pub nodes: BTreeSet<NodeId>,
}

impl Spread {
    /// The spread of the vCPUs among `threads` that are pinned to one PU.
    pub fn of(topology: &Topology, threads: &[ThreadPlan]) -> Self {
        let mut spread = Self::default();
        let pinned = threads.iter().filter(|thread| is_vcpu(thread) && thread.pus.len() == 1);
        for pu in pinned.filter_map(|thread| thread.pus.first()) {
            *spread.load.entry(pu).or_default() += 1;
        }
        spread.pus = spread.load.keys().copied().collect();
        for pu in topology.pus.iter().filter(|pu| spread.load.contains_key(&pu.os)) {
            spread.cores.insert(pu.core);
            spread.l3s.extend(pu.l3);
            spread.nodes.extend(pu.node);
        }
        spread
    }

    /// PUs that carry more than one vCPU.
    pub fn crowded(&self) -> CpuSet {
        self.load.iter().filter(|(_, count)| **count > 1).map(|(pu, _)| *pu).collect()
    }

    /// The siblings of the vCPUs' PUs that carry no vCPU themselves.
    pub fn idle_siblings(&self, topology: &Topology) -> CpuSet {
        let on_core = |pu: &&pinfold_model::Pu| self.cores.contains(&pu.core);
        let all: CpuSet = topology.pus.iter().filter(on_core).map(|pu| pu.os).collect();
        all.difference(&self.pus)
    }
}

/// Findings that hold whatever the strategy.
pub(crate) fn findings(ground: &Ground<'_>, threads: &[ThreadPlan]) -> Vec<Finding> {
    let spread = Spread::of(ground.topology, threads);
    [
        oversubscribed(ground, threads, &spread),
        foreign_siblings(ground, &spread),
        crossed_nodes(&spread),
        crossed_l3s(&spread),
        memoryless(ground.topology, &spread),
        unbalanced(ground.topology, threads),
        nested(ground.topology, &spread),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn oversubscribed(ground: &Ground<'_>, threads: &[ThreadPlan], spread: &Spread) -> Option<Finding> {
    let vcpus = threads.iter().filter(|thread| is_vcpu(thread)).count();
    let crowded = spread.crowded();
    let text = if !crowded.is_empty() {
        format!(
            "{} {} more than one vCPU: a vCPU waits while another has its PU, and a guest \
             spinlock may be held by one that waits",
            pus_text(&crowded),
            verb(&crowded, "carries", "each carry")
        )
    } else if vcpus > ground.usable.len() {
        format!(
            "{vcpus} vCPUs float on {}: a vCPU waits while others have them, and a guest spinlock \
             may be held by one that waits",
            counted(ground.usable.len(), "PU")
        )
    } else {
        return None;
    };
    Some(Finding::warning("oversubscription", text).with_hint(format!(
        "ask for at most {} vCPUs",
        if crowded.is_empty() { ground.usable.len() } else { spread.load.len() }
    )))
}

/// The sibling of a vCPU's PU that is not the plan's to use may be busy with anything.
fn foreign_siblings(ground: &Ground<'_>, spread: &Spread) -> Option<Finding> {
    let foreign = spread.idle_siblings(ground.topology).difference(&ground.usable);
    (!foreign.is_empty()).then(|| {
        Finding::warning(
            "smt",
            format!(
                "{} {} with vCPUs but may not be used by this plan: whatever runs there slows \
                 those vCPUs",
                pus_text(&foreign),
                verb(&foreign, "shares a core", "share cores")
            ),
        )
        .with_hint("avoid whole cores instead of single siblings")
    })
}

fn crossed_nodes(spread: &Spread) -> Option<Finding> {
    (spread.nodes.len() > 1).then(|| {
        Finding::warning(
            "NUMA",
            format!(
                "the vCPUs lie in {} NUMA nodes ({}), so part of the guest's memory is remote to \
                 each of them",
                spread.nodes.len(),
                names(&spread.nodes)
            ),
        )
        .with_hint("ask for as many vCPUs as fit into one node")
    })
}

fn crossed_l3s(spread: &Spread) -> Option<Finding> {
    (spread.l3s.len() > 1 && spread.nodes.len() <= 1).then(|| {
        Finding::note(
            "L3",
            format!(
                "the vCPUs lie in {} L3 domains ({}): what one writes, another in a different \
                 domain reads through memory or the interconnect",
                spread.l3s.len(),
                names(&spread.l3s)
            ),
        )
    })
}

fn memoryless(topology: &Topology, spread: &Spread) -> Option<Finding> {
    let has_memory = topology.nodes.iter().any(|node| node.memory_bytes > 0);
    let empty: BTreeSet<NodeId> = topology
        .nodes
        .iter()
        .filter(|node| node.memory_bytes == 0 && spread.nodes.contains(&node.id))
        .map(|node| node.id)
        .collect();
    // A source that knows no memory sizes at all says nothing about a single node.
    (has_memory && !empty.is_empty()).then(|| {
        Finding::warning(
            "NUMA",
            format!(
                "vCPUs lie on {} without memory: {}; they use the memory of other nodes only",
                if empty.len() == 1 { "a node" } else { "nodes" },
                names(&empty)
            ),
        )
    })
}

/// The kernel does not spread threads over isolated PUs: each stays where it was put.
fn unbalanced(topology: &Topology, threads: &[ThreadPlan]) -> Option<Finding> {
    let floats =
        |thread: &&ThreadPlan| thread.pus.len() > 1 && !thread.pus.is_disjoint(&topology.isolated);
    let isolated = threads
        .iter()
        .filter(floats)
        .fold(CpuSet::new(), |set, thread| set.union(&thread.pus))
        .intersection(&topology.isolated);
    (!isolated.is_empty()).then(|| {
        Finding::warning(
            "isolated PUs",
            format!(
                "the kernel does not balance load over {}, which {} isolated: the threads of a \
                 role that may use several such PUs stay where they start",
                pus_text(&isolated),
                verb(&isolated, "is", "are")
            ),
        )
    })
}

fn nested(topology: &Topology, spread: &Spread) -> Option<Finding> {
    let hypervisor = topology.hypervisor.as_ref()?;
    (!spread.pus.is_empty()).then(|| {
        Finding::note(
            "virtual host",
            format!(
                "this host is itself a virtual machine ({hypervisor}): its cores, siblings and \
                 caches are what that hypervisor shows, and may move under it"
            ),
        )
        .with_hint("trust measurements here, not the topology")
    })
}

fn is_vcpu(thread: &ThreadPlan) -> bool {
    matches!(thread.role, Role::Vcpu(_))
}

fn names<T: ToString>(items: &BTreeSet<T>) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

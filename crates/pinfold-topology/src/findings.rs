//! Unusual properties of a machine, with hints. Pure.
//!
//! There is one function per property. Each uses the finished topology (and the facts, for data
//! that the topology does not contain). The order is the order of the output.

use std::collections::BTreeMap;

use pinfold_host::paths;
use pinfold_model::text::select_verb;
use pinfold_model::{CoreKind, CpuSet, Finding, PackageId, Source, Topology};

use crate::facts::Facts;
use crate::tables::Tables;

/// All findings about the topology. Files that could not be read come last.
pub(crate) fn findings(topology: &Topology, tables: &Tables, facts: &Facts) -> Vec<Finding> {
    let checks = [
        guest(topology),
        no_place(topology),
        disagreement(topology, facts),
        offline(topology),
        half_smt(topology),
        find_isolated(topology),
        not_allowed(topology),
        narrow_mask(topology),
        hybrid(topology),
        no_l3(topology),
        several_l3(topology),
        unequal_l3(topology),
        no_cpu_nodes(topology),
        no_memory_nodes(topology, facts),
        assumed_packages(tables),
        assumed_cores(tables),
    ];
    checks.into_iter().flatten().chain(facts.findings.iter().cloned()).collect()
}

fn guest(topology: &Topology) -> Option<Finding> {
    let hypervisor = topology.hypervisor.as_ref()?;
    Some(
        Finding::warning(
            "virtual machine",
            format!(
                "this machine is itself a guest of {hypervisor}, which defines its cores, caches \
                 and NUMA nodes; its CPUs may share real cores"
            ),
        )
        .with_hint(
            "ask the provider for dedicated cores with their real topology; rely on measurements \
             rather than on the topology",
        ),
    )
}

fn no_place(topology: &Topology) -> Option<Finding> {
    topology.allowed.is_empty().then(|| {
        Finding::problem("allowed CPUs", "this process may not use any online CPU")
            .with_hint("start it in a cgroup whose cpuset has online CPUs")
    })
}

/// The kernel's list and hwloc's tree are read at different times and may differ during CPU
/// hotplug.
fn disagreement(topology: &Topology, facts: &Facts) -> Option<Finding> {
    let unplaced = facts.online.as_ref()?.difference(&topology.online());
    (!unplaced.is_empty()).then(|| {
        Finding::warning(
            format!("CPU {unplaced}"),
            "online, but not in hwloc's topology: a CPU was just hot-plugged, or this is a \
             container with its own view of online CPUs",
        )
        .with_hint("run it again")
    })
}

fn offline(topology: &Topology) -> Option<Finding> {
    let offline = &topology.offline;
    let first = offline.first()?;
    Some(
        Finding::note(
            format!("CPU {offline}"),
            format!(
                "{} of {} CPUs {} offline",
                offline.len(),
                offline.len() + topology.pus.len(),
                select_verb(offline.len(), "is", "are")
            ),
        )
        .with_hint(format!("`echo 1 > {}` brings one back", paths::cpu_is_online(first))),
    )
}

/// Cores with fewer CPUs than others of their kind while CPUs are offline.
fn half_smt(topology: &Topology) -> Option<Finding> {
    if topology.offline.is_empty() {
        return None;
    }
    let mut widest: BTreeMap<CoreKind, usize> = BTreeMap::new();
    for core in &topology.cores {
        let width = widest.entry(core.kind).or_default();
        *width = (*width).max(core.pus.len());
    }
    let narrow: Vec<String> = topology
        .cores
        .iter()
        .filter(|core| widest.get(&core.kind).is_some_and(|width| core.pus.len() < *width))
        .map(|core| core.pus.to_string())
        .collect();
    (!narrow.is_empty()).then(|| {
        Finding::warning(
            "smt",
            format!(
                "{} of {} cores {} an offline sibling (CPU {}), so vCPUs of one plan run at \
                 different speeds",
                narrow.len(),
                topology.cores.len(),
                select_verb(narrow.len(), "has", "have"),
                narrow.join(",")
            ),
        )
        .with_hint(format!(
            "bring all siblings online, or all offline: `echo off > {}`",
            paths::smt_control()
        ))
    })
}

fn find_isolated(topology: &Topology) -> Option<Finding> {
    let isolated = &topology.isolated;
    (!isolated.is_empty()).then(|| {
        Finding::note(
            format!("CPU {isolated}"),
            "isolated: the scheduler does not balance them, so threads that may use several of \
             them all stay on one",
        )
        .with_hint("bind each thread to one CPU there")
    })
}

fn not_allowed(topology: &Topology) -> Option<Finding> {
    let denied = topology.online().difference(&topology.allowed);
    if denied.is_empty() || topology.allowed.is_empty() {
        return None;
    }
    let text = "online, but outside the cpuset of this process's cgroup";
    Some(
        Finding::warning(format!("CPU {denied}"), text)
            .with_hint("start Pinfold in a cgroup with all CPUs, or plan without them"),
    )
}

/// `isolcpus=` removes its CPUs from the mask that every process inherits, and `taskset` may remove
/// any. A process may still widen its mask.
fn narrow_mask(topology: &Topology) -> Option<Finding> {
    let outside = topology.allowed.difference(topology.mask.as_ref()?);
    if outside.is_empty() {
        return None;
    }
    let why =
        if outside.is_subset(&topology.isolated) { ", because they are isolated" } else { "" };
    Some(Finding::note(
        format!("CPU {outside}"),
        format!(
            "not in the affinity mask of this process{why}; plans use them anyway: only a cpuset \
             forbids CPUs, a mask does not"
        ),
    ))
}

fn hybrid(topology: &Topology) -> Option<Finding> {
    let mut kinds: BTreeMap<CoreKind, CpuSet> = BTreeMap::new();
    for core in &topology.cores {
        let pus = kinds.entry(core.kind).or_default();
        *pus = pus.union(&core.pus);
    }
    if kinds.len() < 2 {
        return None;
    }
    let parts: Vec<String> = [
        cpus_of_kind(&kinds, CoreKind::Performance, "fast cores"),
        cpus_of_kind(&kinds, CoreKind::Efficiency, "small cores"),
        cpus_of_kind(&kinds, CoreKind::LowPower, "low-power cores"),
        cpus_of_kind(&kinds, CoreKind::Uniform, "cores of unknown kind"),
    ]
    .into_iter()
    .flatten()
    .collect();
    Some(
        Finding::note("hybrid", parts.join(", "))
            .with_hint("guests assume that all vCPUs are equal: give a guest cores of one kind"),
    )
}

fn cpus_of_kind(kinds: &BTreeMap<CoreKind, CpuSet>, kind: CoreKind, word: &str) -> Option<String> {
    kinds.get(&kind).map(|pus| format!("{word} on CPU {pus}"))
}

fn no_l3(topology: &Topology) -> Option<Finding> {
    (topology.l3.is_empty() && !matches!(topology.source, Source::Synthetic(_))).then(|| {
        Finding::note("L3", "the source reports no L3 cache: which cores share one is unknown")
    })
}

fn several_l3(topology: &Topology) -> Option<Finding> {
    let mut domains: BTreeMap<PackageId, usize> = BTreeMap::new();
    for package in &topology.packages {
        let inside = topology.l3.iter().filter(|l3| l3.pus.is_subset(&package.pus)).count();
        domains.insert(package.id, inside);
    }
    let most = domains.values().copied().max().filter(|most| *most > 1)?;
    Some(
        Finding::note(
            "L3",
            format!("up to {most} L3 domains in a package: threads that share data are slower across them"),
        )
        .with_hint("keep the vCPUs of one guest inside one L3 domain where they fit"),
    )
}

/// A difference of at least 16 MiB and a factor of at least two indicate a stacked cache; less is a
/// cache with disabled parts.
fn unequal_l3(topology: &Topology) -> Option<Finding> {
    let sizes = || topology.l3.iter().map(|l3| l3.size_bytes).filter(|size| *size > 0);
    let (small, large) = (sizes().min()?, sizes().max()?);
    (large >= small.saturating_mul(2) && large - small >= 16 << 20).then(|| {
        let pus = topology
            .l3
            .iter()
            .filter(|l3| l3.size_bytes == large)
            .map(|l3| &l3.pus)
            .collect::<CpuSet>();
        Finding::note(
            "L3",
            format!(
                "the L3 domains differ: {} MiB on CPU {pus}, down to {} MiB elsewhere",
                large >> 20,
                small >> 20
            ),
        )
        .with_hint(
            "--prefer cache puts a guest on the large one, --prefer frequency where the clock is \
             higher",
        )
    })
}

fn no_cpu_nodes(topology: &Topology) -> Option<Finding> {
    let bare: Vec<String> = topology
        .nodes
        .iter()
        .filter(|node| node.pus.is_empty())
        .map(|node| node.id.to_string())
        .collect();
    (!bare.is_empty()).then(|| {
        Finding::note(
            format!("NUMA node {}", bare.join(",")),
            "memory without CPUs (CXL, persistent or high-bandwidth memory, or all its CPUs \
             are offline)",
        )
        .with_hint("no vCPU can be local to it; bind memory there only on purpose")
    })
}

fn no_memory_nodes(topology: &Topology, facts: &Facts) -> Option<Finding> {
    let empty: Vec<String> = topology
        .nodes
        .iter()
        .filter(|node: &&pinfold_model::NumaNode| match &facts.nodes_with_memory {
            Some(with) => !with.contains(&node.id),
            // A foreign XML may leave out all sizes.
            None => node.memory_bytes == 0 && topology.nodes.iter().any(|n| n.memory_bytes > 0),
        })
        .map(|node| node.id.to_string())
        .collect();
    (!empty.is_empty()).then(|| {
        Finding::warning(
            format!("NUMA node {}", empty.join(",")),
            "CPUs without local memory: all their accesses cross to another node",
        )
        .with_hint("fill the memory slots of that socket, or prefer the other nodes' CPUs")
    })
}

fn assumed_packages(tables: &Tables) -> Option<Finding> {
    tables.packages_assumed.then(|| {
        let text = if tables.packages.len() > 1 {
            "the source reports no packages: each NUMA node is treated as one"
        } else {
            "the source reports no packages: the machine is treated as one"
        };
        Finding::note("package", text)
    })
}

fn assumed_cores(tables: &Tables) -> Option<Finding> {
    tables
        .cores_assumed
        .then(|| Finding::note("core", "the source reports no cores: each CPU is treated as one"))
}

#[cfg(test)]
mod tests {
    use pinfold_host::LiveHost;

    use super::*;

    #[test]
    fn a_stacked_cache_is_recognized_by_ratio_and_size() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/ryzen-7950x3d.xml");
        let host = LiveHost::new().expect("the running machine");
        let mut topology = crate::read_input(&host, path).expect("a topology");
        assert!(
            report_sizes(&mut topology, [96, 32])
                .is_some_and(|text| text.contains("96 MiB on CPU 0-7,16-23"))
        );
        assert!(
            report_sizes(&mut topology, [32, 96])
                .is_some_and(|text| text.contains("96 MiB on CPU 8-15,24-31"))
        );
        assert_eq!(report_sizes(&mut topology, [16, 8]), None, "two kinds of cores (Strix Point)");
        assert_eq!(report_sizes(&mut topology, [36, 32]), None, "lines that were switched off");
        assert_eq!(report_sizes(&mut topology, [0, 96]), None, "not known");
    }

    fn report_sizes(topology: &mut Topology, mebibytes: [u64; 2]) -> Option<String> {
        for (l3, size) in topology.l3.iter_mut().zip(mebibytes) {
            l3.size_bytes = size << 20;
        }
        unequal_l3(topology).map(|finding| finding.text)
    }
}

//! Boxes of unusual machines, and the threads on a CPU.

use std::collections::BTreeMap;

use pinfold_model::{
    Core, CoreId, IsolationScope, L3Domain, L3Id, LogicalPu, NodeId, NumaNode, Package, PackageId,
    Role, Smt, Source, Speed, ThreadPlan, VnodeKind, VnodePlan,
};

use super::*;

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// Sets with their ids.
fn number_sets(lists: &[&str]) -> impl Iterator<Item = (u32, CpuSet)> {
    (0_u32..).zip(lists.iter().map(|list| set(list)))
}

/// A machine from lists of CPUs: packages, NUMA nodes, L3 domains, cores.
fn machine(packages: &[&str], nodes: &[&str], l3: &[&str], cores: &[&str]) -> Topology {
    let everything = cores.iter().fold(CpuSet::new(), |all, core| all.union(&set(core)));
    Topology {
        source: Source::Synthetic("test".to_owned()),
        fingerprint: String::new(),
        model: None,
        hypervisor: None,
        pus: (0_u32..).zip(everything.iter()).map(|(logical, os)| pu(logical, os)).collect(),
        cores: number_sets(cores).map(|(id, pus)| core(id, pus)).collect(),
        l3: number_sets(l3).map(|(id, pus)| l3_domain(id, pus)).collect(),
        nodes: number_sets(nodes)
            .map(|(id, pus)| NumaNode {
                id: NodeId(id),
                pus,
                memory_bytes: 0,
                free_bytes: None,
                huge_pages: Vec::new(),
            })
            .collect(),
        packages: number_sets(packages)
            .map(|(id, pus)| Package { id: PackageId(id), pus })
            .collect(),
        smt: Smt::Unknown,
        offline: CpuSet::new(),
        isolated: CpuSet::new(),
        nohz_full: CpuSet::new(),
        allowed: everything,
        mask: None,
        l2_domains: Vec::new(),
        frequency_domains: Vec::new(),
        highest_khz: BTreeMap::new(),
        core_ranking: BTreeMap::new(),
        devices: Vec::new(),
        boot_parameters: Vec::new(),
        findings: Vec::new(),
    }
}

fn pu(logical: u32, os: PuId) -> Pu {
    Pu {
        os,
        logical: LogicalPu(logical),
        core: CoreId(0),
        smt_rank: 0,
        l3: None,
        node: None,
        package: PackageId(0),
        kind: CoreKind::Uniform,
    }
}

fn core(id: u32, pus: CpuSet) -> Core {
    let (package, kind) = (PackageId(0), CoreKind::Uniform);
    Core { id: CoreId(id), pus, package, kind }
}

fn l3_domain(id: u32, pus: CpuSet) -> L3Domain {
    L3Domain { id: L3Id(id), pus, size_bytes: 0, ways: 0 }
}

/// The boxes as text: `Package 0 + NUMA 0 [L3 0 L3 1]`.
fn outline(blocks: &[Block]) -> String {
    blocks
        .iter()
        .map(|block| {
            let names: Vec<&str> =
                block.labels.iter().map(|it| it.split(" · ").next().unwrap()).collect();
            let names = names.join("+");
            match block.inside.as_slice() {
                [] => names,
                inside => format!("{names}[{}]", outline(inside)),
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn boxes_nest_by_their_pus() {
    // With one CPU, all boxes are merged.
    check(&machine(&["0"], &["0"], &["0"], &["0"]), "Package 0+NUMA 0+L3 0");
    // Siblings make cores visible.
    check(
        &machine(&["0-3"], &["0-3"], &["0-3"], &["0,2", "1,3"]),
        "Package 0+NUMA 0+L3 0[core 0 core 1]",
    );
    // Two nodes in a package, two packages in a node.
    check(
        &machine(&["0-3"], &["0-1", "2-3"], &[], &["0", "1", "2", "3"]),
        "Package 0[NUMA 0 NUMA 1]",
    );
    check(
        &machine(&["0-1", "2-3"], &["0-3"], &[], &["0", "1", "2", "3"]),
        "NUMA 0[Package 0 Package 1]",
    );
    // A node without CPUs has no box; an empty machine has no chart.
    check(&machine(&["0"], &["0", ""], &[], &["0"]), "Package 0+NUMA 0");
    check(&machine(&[], &[], &[], &[]), "");
    // A set that partially overlaps another one is left out.
    check(&machine(&["0-2"], &["0-1", "1-2"], &[], &["0", "1", "2"]), "Package 0[NUMA 0]");
}

fn check(topology: &Topology, expected: &str) {
    assert_eq!(outline(&nest(topology)), expected);
}

#[test]
fn every_pu_is_drawn_once_whatever_the_nesting() {
    for topology in [
        machine(&["0"], &["0"], &["0"], &["0"]),
        machine(&["0-3"], &["0-1", "2-3"], &["0-3"], &["0,2", "1,3"]),
        machine(&["0-2"], &["0-1", "1-2"], &[], &["0", "1", "2"]),
        machine(&["0-127"], &["0-63"], &[], &["0-127"]),
    ] {
        let html = draw(&topology, &plan(&topology));
        assert_eq!(html.matches("class=\"pu ").count(), topology.pus.len(), "{html}");
    }
}

/// vCPU 0 only on CPU 0, the emulator on all CPUs.
fn plan(topology: &Topology) -> Plan {
    let online = topology.online();
    Plan {
        strategy: "test".to_owned(),
        fingerprint: String::new(),
        vnodes: vec![VnodePlan {
            name: "vm".to_owned(),
            kind: VnodeKind::VirtualMachine,
            threads: vec![
                thread(Role::Vcpu(0), set("0")),
                thread(Role::Vcpu(1), set("0-1")),
                thread(Role::Vcpu(2), set("1-2")),
                thread(Role::Emulator, set("2-3")),
                thread(Role::Iothread("disk".to_owned()), set("3")),
            ],
            guest: None,
            memory: None,
            speed: Speed::FULL,
        }],
        irqs: Vec::new(),
        tuning: pinfold_model::Tuning::default(),
        cpus: None,
        housekeeping: online.difference(&set("0,5")),
        exclusive: set("0"),
        isolation: IsolationScope::Own,
        avoid_pus: pinfold_model::CpuSet::new(),
        moved: Vec::new(),
        housekeeping_reason: String::new(),
        findings: Vec::new(),
    }
}

fn thread(role: Role, pus: CpuSet) -> ThreadPlan {
    ThreadPlan { role, pus, policy: None, reason: String::new() }
}

#[test]
fn who_sits_on_a_pu() {
    fn check(plan: &Plan, pu: u32, class: &str, words: &str, letters: &str) {
        let seat = seat(plan, PuId(pu));
        assert_eq!(
            (seat.class().as_str(), seat.words().join(", ").as_str(), seat.letters().as_str()),
            (class, words, letters)
        );
    }

    let plan = plan(&machine(&["0-5"], &[], &[], &["0", "1", "2", "3", "4", "5"]));
    check(&plan, 0, "pu pinned exclusive", "vCPU 0–1, exclusive", "∗");
    check(&plan, 1, "pu floating", "vCPU 1–2 ↔, host", "∗");
    check(&plan, 2, "pu floating", "vCPU 2 ↔, emulator, host", "∗");
    check(&plan, 3, "pu helper", "emulator, iothread disk, host", "EH");
    check(&plan, 4, "pu host", "host", "H");
    check(&plan, 5, "pu free", "unused", "");
}

#[test]
fn numbers_as_ranges() {
    fn check(numbers: &[u32], text: &str) {
        assert_eq!(ranges(numbers), text)
    }

    check(&[], "");
    check(&[3], "3");
    check(&[0, 1, 2, 7, 9, 10], "0–2, 7, 9–10");
    check(&[u32::MAX], "4294967295");
}

#[test]
fn scales() {
    fn check(pus: u32, scale: Scale) {
        let all = format!("0-{}", pus - 1);
        assert_eq!(Scale::from_topology(&machine(&[&all], &[], &[], &[&all])), scale, "{pus} CPUs");
    }

    check(1, Scale::Roomy);
    check(8, Scale::Roomy);
    check(16, Scale::Middle);
    check(64, Scale::Dense);
    check(256, Scale::Small);
}

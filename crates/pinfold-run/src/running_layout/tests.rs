//! A running machine on a simulated host with two NUMA nodes.

use pinfold_model::{PuId, Severity, Topology};
use pinfold_sim::{CgroupVersion, SimBuilder, SimPages, SimTask};
use pinfold_vm::discover;

use super::*;

#[test]
fn cores_come_from_the_places_that_qemu_reports() {
    let found = guest_shape(
        &[(0, guest_place(0, 0, 0)), (1, guest_place(0, 0, 1)), (2, guest_place(1, 0, 0))],
        "query",
    );
    assert_eq!((found.sockets, found.threads), (2, 2));
    assert_eq!(found.cores, [vec![0, 1], vec![2]]);
    // A board that reports no positions gives single CPUs.
    let found = guest_shape(
        &[(0, CpuInstanceProperties::default()), (1, CpuInstanceProperties::default())],
        "query",
    );
    assert_eq!((found.threads, found.cores.len()), (1, 2));
}

fn guest_place(socket: u32, core: u32, thread: u32) -> CpuInstanceProperties {
    CpuInstanceProperties {
        socket: Some(socket),
        core: Some(core),
        thread: Some(thread),
        ..CpuInstanceProperties::default()
    }
}

const QEMU: u32 = 200;

/// Two nodes with two CPUs each; a QEMU with a vCPU on each CPU of node 0 and this number of pages
/// by node.
fn on_two_nodes(pages: &[(u32, u64)]) -> (Vec<Layout>, Topology) {
    let mut process = SimTask::new(QEMU, "qemu-system-x86_64");
    for (node, movable) in pages {
        process = process.with_pages(*node, SimPages { movable: *movable, in_use: 0 });
    }
    process.asked = Some(CpuSet::single(PuId(2)));
    let host = SimBuilder::new(CgroupVersion::V2, 4)
        .nodes(2)
        .task(process)
        .task(pinned(201, "CPU 0/TCG", 0))
        .task(pinned(202, "CPU 1/TCG", 1))
        .build();
    let found = discover(&host, Tid(QEMU), None).unwrap();
    let mut vm = Vm {
        name: "a".to_owned(),
        asked: format!("--pid {QEMU}"),
        findings: Vec::new(),
        found,
        monitor: None,
        domain: None,
    };
    let topology = pinfold_topology::read_input(&host, "node:2 core:2 pu:1").unwrap();
    (vec![of_running(&host, &mut vm).unwrap()], topology)
}

fn pinned(tid: u32, name: &str, pu: u32) -> SimTask {
    let mut task = SimTask::new(tid, name).thread_of(QEMU);
    task.asked = Some(CpuSet::single(PuId(pu)));
    task
}

fn memory_diagnostics(layouts: &[Layout], topology: &Topology) -> Vec<(Severity, String)> {
    pinfold_lint::lint(layouts, topology)
        .into_iter()
        .filter(|diagnostic| diagnostic.name.starts_with("memory-"))
        .map(|diagnostic| {
            (diagnostic.severity, format!("{}: {}", diagnostic.name, diagnostic.what))
        })
        .collect()
}

#[test]
fn pages_on_another_node_than_the_pins() {
    assert_eq!(diagnostics_of(&[(0, 25_600)]), []);
    // A quarter of 100 MiB, then a hundredth, then less than the threshold.
    let far = "memory-elsewhere: of the 100 MiB of memory that it holds, 25 MiB are on another node \
               (node 1 25 MiB); its vCPUs are pinned to node 0";
    assert_eq!(diagnostics_of(&[(0, 19_200), (1, 6_400)]), [(Severity::Warning, far.to_owned())]);
    let found = diagnostics_of(&[(0, 25_344), (1, 256)]);
    assert_eq!(found.iter().map(|(severity, _)| *severity).collect::<Vec<_>>(), [Severity::Note]);
    assert_eq!(diagnostics_of(&[(0, 25_344), (1, 255)]), []);
}

fn diagnostics_of(pages: &[(u32, u64)]) -> Vec<(Severity, String)> {
    let (layouts, topology) = on_two_nodes(pages);
    memory_diagnostics(&layouts, &topology)
}

#[test]
fn pages_on_another_node_than_a_plan_of_the_same_name_binds() {
    let (mut layouts, topology) = on_two_nodes(&[(0, 25_600)]);
    let mut request = pinfold_model::Request::vm("a", pinfold_model::VcpuCount::Exactly(1));
    request.avoid = CpuSet::parse_list("0-1").unwrap();
    let plan = pinfold_plan::plan("numa-exclusive", &topology, &request).unwrap();
    layouts.extend(Layout::of_plan(&plan, "plan.json"));
    let found = memory_diagnostics(&layouts, &topology);
    assert!(
        found.iter().any(|(_, text)| text.ends_with("plan.json binds it to node 1")),
        "{found:?}"
    );
}

#[test]
fn pages_that_cannot_be_seen_are_reported() {
    let (mut layouts, topology) = on_two_nodes(&[(0, 25_600)]);
    layouts[0].pages = Some(MemoryLocation::Unseen("Permission denied".to_owned()));
    let found = memory_diagnostics(&layouts, &topology);
    assert_eq!(found.len(), 1);
    assert!(found[0].1.contains("Permission denied"), "{found:?}");
}

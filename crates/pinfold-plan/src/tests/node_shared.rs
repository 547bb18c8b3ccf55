//! `node-shared`: machines float inside nodes, evenly.

use std::collections::BTreeMap;

use pinfold_model::{
    CpuSet, Load, MemoryRequest, NodeId, Plan, Preference, Request, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_samples::{exactly, from_description, set};

use crate::plan;

fn machines(count: u32, vcpus: u32) -> Request {
    let vm = VmRequest::from_vcpus(VcpuCount::Exactly(vcpus));
    let names = (0..count).map(|number| format!("vm{number}"));
    Request::from_vnodes(names.map(|name| VnodeRequest::vm(&name, vm.clone())).collect())
}

/// The number of machines by their CPUs.
fn by_cpus(plan: &Plan) -> BTreeMap<CpuSet, usize> {
    let mut found = BTreeMap::new();
    for vnode in &plan.vnodes {
        *found.entry(vnode.pus()).or_default() += 1;
    }
    found
}

#[test]
fn sixty_machines_of_eight_vcpus_are_spread_over_eight_nodes() {
    let host = from_description("package:2 numa:4 l3:4 core:4 pu:2");
    assert_eq!((host.pus.len(), host.nodes.len()), (256, 8));
    let made = plan("node-shared", &host, &machines(60, 8)).unwrap();
    let found = by_cpus(&made);
    let counts: Vec<usize> = found.values().copied().collect();
    assert_eq!(counts, [8, 8, 8, 8, 7, 7, 7, 7]);
    assert!(found.keys().all(|cpus| host.nodes.iter().any(|node| node.pus == *cpus)));
    let memory = made.vnodes[0].memory.as_ref().unwrap();
    assert!(memory.is_preferred && memory.nodes.len() == 1, "{memory:?}");
    assert!(made.exclusive.is_empty() && !made.housekeeping.is_empty());
    let auto = plan("auto", &host, &machines(60, 8)).unwrap();
    assert_eq!((auto.strategy.as_str(), by_cpus(&auto)), ("node-shared", found));
    assert!(auto.findings[0].text.contains("inside one NUMA node"), "{}", auto.findings[0]);
}

#[test]
fn unequal_machines_are_spread_by_vcpus_and_the_load_of_others_counts() {
    let host = from_description("numa:2 core:8 pu:1");
    let mut request = machines(3, 4);
    request.vnodes[2].work = pinfold_model::Work::Vm(VmRequest::from_vcpus(VcpuCount::Exactly(8)));
    let made = plan("node-shared", &host, &request).unwrap();
    let on: Vec<String> = made.vnodes.iter().map(|vnode| vnode.pus().to_string()).collect();
    assert_eq!(on, ["8-15", "8-15", "0-7"], "the largest is alone");
    let load = vec![Load { cpus: set("0-7"), vcpus_milli: 6000 }];
    let request = Request { load, ..exactly(4) };
    assert_eq!(plan("node-shared", &host, &request).unwrap().pus(), set("8-15"));
}

#[test]
fn a_machine_that_prefers_cache_floats_inside_one() {
    let host = from_description("numa:2 l3:2 core:4 pu:1");
    let mut request = machines(4, 4);
    request.prefer = Preference::Cache;
    let found = by_cpus(&plan("node-shared", &host, &request).unwrap());
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.keys().all(|cpus| host.l3.iter().any(|l3| l3.pus == *cpus)));
    let larger = Request { prefer: Preference::Cache, ..exactly(6) };
    assert_eq!(plan("node-shared", &host, &larger).unwrap().pus(), set("0-7"));
}

#[test]
fn a_larger_machine_uses_as_few_nodes_as_it_needs() {
    let host = from_description("numa:4 core:4 pu:1");
    let made = plan("node-shared", &host, &exactly(7)).unwrap();
    assert_eq!(made.pus(), set("0-7"));
    assert_eq!(made.vnodes[0].vcpus().count(), 7);
}

#[test]
fn a_full_node_is_not_chosen_and_never_an_error() {
    let mut host = from_description("numa:2 core:4 pu:1");
    host.nodes.iter_mut().for_each(|node| node.memory_bytes = 8 << 30);
    host.nodes[0].free_bytes = Some(1 << 30);
    host.nodes[1].free_bytes = Some(8 << 30);
    let sized = |bytes| {
        let mut request = exactly(2);
        request.vnodes[0].memory = Some(MemoryRequest { bytes, page_bytes: None });
        plan("node-shared", &host, &request).unwrap()
    };
    assert_eq!(sized(4 << 30).vnodes[0].memory.as_ref().unwrap().nodes, [NodeId(1)]);
    assert_eq!(sized(12 << 30).vnodes[0].pus(), set("0-3"), "it does not fit, and starts");
}

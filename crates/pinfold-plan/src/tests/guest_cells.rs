//! Machines restricted to nodes, and guests whose NUMA cells are fixed before the plan.

use pinfold_model::{
    CellRequest, CpuSet, EmulatorRequest, FreeCpus, IsolationScope, MemoryRequest, NodeId, Request,
    Role, Topology, VcpuCount, VmRequest, VnodeRequest, Work,
};
use pinfold_samples::machine::Machine;
use pinfold_samples::{exactly, from_description, set, shape};

use crate::analysis::validate::faults;
use crate::{PlanError, plan, strategies, validate};

/// Two packages of one node, eight cores of two threads each: the siblings are 16 apart.
fn server() -> Topology {
    Machine::new([2, 1, 1, 8, 2], |place| 8 * place.package + place.core + 16 * place.thread)
        .build()
}

/// Cores of three threads, of which some are offline or not available, so that the nodes have cores
/// of different widths: a guest that is to see siblings sees some, or the plan is refused.
#[test]
fn nodes_with_cores_of_different_widths_show_siblings_if_the_request_says_so() {
    let topology = Machine::new([3, 1, 2, 2, 3], |place| {
        12 * place.package + 6 * place.l3 + 3 * place.core + place.thread
    });
    let topology = topology.offline("3,6").allowed("0-2,4,5,7-11,13-35").build();
    let mut refused = 0;
    for strategy in strategies() {
        for vcpus in [VcpuCount::Auto, VcpuCount::Exactly(18), VcpuCount::Exactly(15)] {
            let mut request = Request::vm("vm", vcpus);
            let Work::Vm(vm) = &mut request.vnodes[0].work else { unreachable!() };
            vm.smt = pinfold_model::SmtRequest::Shown;
            match plan(strategy.name, &topology, &request) {
                Ok(made) => {
                    let guest = made.vnodes[0].guest.as_ref().unwrap();
                    assert!(guest.threads > 1, "{} {vcpus:?}: {guest:?}", strategy.name);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused < 3 * strategies().len(), "each strategy refuses");
}

/// Number of nodes and of vCPUs on each package with vCPUs.
fn by_package(plan: &pinfold_model::Plan, topology: &Topology) -> Vec<(usize, usize)> {
    let pus = plan.vnodes[0].vcpus().map(|thread| &thread.pus).collect::<pinfold_model::CpuSet>();
    let counts = topology.packages.iter().map(|package| {
        let nodes = topology
            .nodes
            .iter()
            .filter(|node| !node.pus.intersection(&package.pus).is_disjoint(&pus));
        (nodes.count(), package.pus.intersection(&pus).len())
    });
    counts.filter(|(nodes, _)| *nodes > 0).collect()
}

/// A machine that spans packages has the same number of nodes and of vCPUs on each, and a socket
/// for each, or a note says why not.
#[test]
fn a_large_machine_is_divided_evenly_over_the_packages() {
    let (mut even, mut uneven) = (0, 0);
    for hosts in [[2, 4, 8, 1], [2, 4, 8, 2], [2, 2, 6, 2], [2, 3, 6, 1], [4, 2, 4, 2]] {
        let [packages, nodes, cores, pus] = hosts;
        let topology = from_description(&format!(
            "package:{packages} numa:{nodes}(memory=16GiB) core:{cores} pu:{pus}"
        ));
        let all = u32::try_from(topology.pus.len()).unwrap();
        for (strategy, bytes) in
            [("auto", None), ("balanced", None), ("low-latency", None), ("auto", Some(40 << 30))]
        {
            for vcpus in (2..all).step_by(2) {
                let mut request = exactly(vcpus);
                request.vnodes[0].memory =
                    bytes.map(|bytes| MemoryRequest { bytes, page_bytes: None });
                let Ok(made) = plan(strategy, &topology, &request) else { continue };
                let counts = by_package(&made, &topology);
                let case = format!("{hosts:?} {strategy} {vcpus} {bytes:?}: {counts:?}");
                if counts.len() < 2 || ["none", "max-performance"].contains(&made.strategy.as_str())
                {
                    continue;
                }
                let notes = made.findings.iter().filter(|it| it.subject == "NUMA");
                let is_said =
                    notes.clone().any(|it| it.text.contains("different numbers of nodes"));
                let guest = made.vnodes[0].guest.as_ref().unwrap();
                if counts.iter().any(|(nodes, _)| *nodes != counts[0].0) {
                    assert!(is_said && guest.sockets == 1, "{case}");
                    uneven += 1;
                } else {
                    assert!(!is_said, "{case}");
                    let is_even = counts.iter().all(|(_, vcpus)| *vcpus == counts[0].1);
                    // The node with the host's core holds less than the others.
                    let is_full = vcpus > all / 8 * 7;
                    let divides = (vcpus as usize).is_multiple_of(counts.len());
                    assert!(is_even || is_full || !divides, "{case}");
                    assert!(!is_even || guest.sockets as usize == counts.len(), "{case}");
                    even += 1;
                }
                let about = notes.filter(|it| it.text.starts_with("the vCPUs span"));
                assert!(about.count() < 2, "{case}: {:?}", made.findings);
            }
        }
    }
    assert!(even > 100, "{even} even, {uneven} uneven");
}

fn vm(request: &mut Request) -> &mut VmRequest {
    match &mut request.vnodes[0].work {
        Work::Vm(vm) => vm,
        Work::Processes { .. } => panic!("a process group"),
    }
}

fn cell(vcpus: &str, nodes: &[u32]) -> CellRequest {
    CellRequest {
        vcpus: set(vcpus),
        nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
        bytes: Some(1 << 20),
    }
}

fn with_cells(cells: &[CellRequest]) -> Request {
    let all: usize = cells.iter().map(|cell| cell.vcpus.len()).sum();
    let mut request = exactly(u32::try_from(all).unwrap());
    vm(&mut request).cells = cells.to_vec();
    request.vnodes[0].memory = Some(MemoryRequest { bytes: 2 << 20, page_bytes: None });
    request
}

/// The host nodes on which the vCPUs of a cell may run.
fn nodes_of(plan: &pinfold_model::Plan, topology: &Topology, vcpus: &CpuSet) -> Vec<u32> {
    let mut nodes: Vec<u32> = plan.vnodes[0]
        .vcpus()
        .filter(|thread| matches!(thread.role, Role::Vcpu(index) if vcpus.contains(pinfold_model::PuId(index))))
        .flat_map(|thread| thread.pus.iter())
        .filter_map(|pu| topology.pu(pu).and_then(|pu| pu.node).map(|node| node.0))
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[test]
fn every_strategy_keeps_each_cell_on_its_node_and_each_core_in_one_cell() {
    let topology = server();
    let check = |cells: &[CellRequest], expected: &[u32]| {
        let mut planned = 0;
        for strategy in strategies().iter().filter(|known| known.name != "vnodes") {
            let layout = match plan(strategy.name, &topology, &with_cells(cells)) {
                Ok(layout) => layout,
                Err(error) => {
                    assert!(error.depends_on_strategy(), "{}: {error}", strategy.name);
                    continue;
                }
            };
            assert_eq!(crate::validate(&layout, &topology), [], "{}", strategy.name);
            for (cell, node) in cells.iter().zip(expected) {
                let found = nodes_of(&layout, &topology, &cell.vcpus);
                assert_eq!(found, [*node], "{}: {}", strategy.name, cell.vcpus);
            }
            let guest = layout.vnodes[0].guest.as_ref().unwrap();
            assert!(guest.sockets as usize <= topology.packages.len(), "{}", strategy.name);
            for cell in cells {
                assert_eq!(cell.vcpus.first().unwrap().0 % guest.threads, 0, "{}", strategy.name);
            }
            planned += 1;
        }
        assert!(planned >= 12, "{planned}");
    };
    check(&[cell("0-6", &[0]), cell("7-13", &[1])], &[0, 1]);
    check(&[cell("0-6", &[1]), cell("7-13", &[0])], &[1, 0]);
    check(&[cell("0-1", &[1]), cell("2-7", &[0])], &[1, 0]);
    // Cells on one node, and cells without nodes: a node each.
    check(&[cell("0-1", &[1]), cell("2-3", &[1])], &[1, 1]);
    check(&[cell("0-3", &[]), cell("4-7", &[])], &[0, 1]);
}

#[test]
fn sixteen_vcpus_in_two_cells() {
    let topology = server();
    let request = with_cells(&[cell("0-7", &[0]), cell("8-15", &[1])]);
    let layout = plan("balanced", &topology, &request).unwrap();
    assert_eq!(pinfold_samples::pins(&layout), "1,17,2,18,3,19,4,20,8,24,9,25,10,26,11,27");
    assert_eq!(
        (shape(&layout).as_str(), pinfold_samples::emulator(&layout).as_str()),
        ("2×4×2", "0,5-7,12-16,21-23,28-31")
    );
    let memory = layout.vnodes[0].memory.as_ref().unwrap();
    assert_eq!(
        (memory.nodes.as_slice(), memory.bytes),
        (&[NodeId(0), NodeId(1)][..], Some(2 << 20))
    );
    assert_eq!(
        (layout.exclusive.to_string().as_str(), layout.housekeeping.to_string().as_str()),
        ("1-4,8-11,17-20,24-27", "0,5-7,12-16,21-23,28-31")
    );
}

#[test]
fn cells_that_cannot_be_planned_are_refused() {
    let topology = server();
    check_refusal(
        &with_cells(&[cell("0,2", &[0]), cell("1,3", &[1])]),
        "in ascending order",
        &topology,
    );
    let mut request = with_cells(&[cell("0-1", &[0]), cell("2-3", &[1])]);
    request.vnodes.push(VnodeRequest::vm("other", VmRequest::from_vcpus(VcpuCount::Exactly(1))));
    check_refusal(&request, "other machines", &topology);
    check_refusal(
        &with_cells(&[cell("0-15", &[0]), cell("16", &[1])]),
        "keeps it on node 0",
        &topology,
    );
}

fn check_refusal(request: &Request, reported: &str, topology: &Topology) {
    let error = plan("balanced", topology, request).unwrap_err();
    assert!(error.to_string().contains(reported) && error.hint().is_some(), "{error}");
}

#[test]
fn a_machine_stays_on_the_nodes_that_the_request_names() {
    let topology = server();
    for strategy in strategies().iter().filter(|known| known.name != "vnodes") {
        for node in [0, 1] {
            let mut request = exactly(4);
            vm(&mut request).nodes = vec![NodeId(node)];
            let layout = plan(strategy.name, &topology, &request).unwrap();
            let found = nodes_of(&layout, &topology, &set("0-3"));
            assert_eq!(found, [node], "{}", strategy.name);
            assert_eq!(layout.vnodes[0].memory.as_ref().unwrap().nodes, [NodeId(node)]);
            assert!(!layout.housekeeping.is_empty());
        }
    }
    let mut request = exactly(4);
    vm(&mut request).nodes = vec![NodeId(7)];
    let error = plan("balanced", &topology, &request).unwrap_err();
    assert!(matches!(error, PlanError::Nodes { .. }), "{error}");
    vm(&mut request).nodes = vec![NodeId(0)];
    vm(&mut request).vcpus = VcpuCount::Exactly(20);
    let error = plan("balanced", &topology, &request).unwrap_err();
    assert!(error.to_string().ends_with("the request keeps it on node 0"), "{error}");
}

/// If vCPUs are pinned to nodes, the memory follows, with or without a given size.
#[test]
fn memory_is_bound_where_vcpus_are_pinned() {
    let mut topology = server();
    assert_eq!(nodes("low-latency", &topology, 4), [1]);
    assert_eq!(nodes("compact", &topology, 4), [0]);
    assert_eq!(nodes("scatter", &topology, 4), [0, 1]);
    assert_eq!(nodes("none", &topology, 4), [0; 0], "they float");
    assert_eq!(
        nodes("low-latency", &pinfold_samples::machine::i7_4790k().build(), 3),
        [0; 0],
        "one node"
    );
    // Nothing is bound to a node without memory.
    topology.nodes[1].memory_bytes = 0;
    topology.nodes[0].memory_bytes = 1 << 30;
    assert_eq!(nodes("low-latency", &topology, 4), [0; 0]);
}

fn nodes(strategy: &str, topology: &Topology, vcpus: u32) -> Vec<u32> {
    let layout = plan(strategy, topology, &exactly(vcpus)).unwrap();
    let memory = layout.vnodes[0].memory.as_ref();
    memory.map_or_else(Vec::new, |memory| memory.nodes.iter().map(|node| node.0).collect())
}

#[test]
fn pins_by_hand_name_the_vcpus_of_the_whole_machine() {
    let topology = server();
    let mut request = with_cells(&[cell("0-3", &[0]), cell("4-7", &[1])]);
    for text in ["vcpu5=15", "emulator=0,16"] {
        request.vnodes[0].pins.extend(pinfold_config::requests::pins(text).unwrap());
    }
    let layout = plan("low-latency", &topology, &request).unwrap();
    let pins = pinfold_samples::pins(&layout);
    let fifth = pins.split(',').nth(5);
    assert_eq!(
        (fifth, pinfold_samples::emulator(&layout).as_str()),
        (Some("15"), "0,16"),
        "{pins}"
    );
    assert_eq!(nodes_of(&layout, &topology, &set("0-3")), [0]);
    assert_eq!(nodes_of(&layout, &topology, &set("4-7")), [1]);
    request.vnodes[0].pins = pinfold_config::requests::pins("vcpu5=3").unwrap();
    let error = plan("low-latency", &topology, &request).unwrap_err();
    assert!(matches!(error, PlanError::Nodes { .. } | PlanError::Pin { .. }), "{error}");
    request.vnodes[0].pins = pinfold_config::requests::pins("vcpu9=3").unwrap();
    let error = plan("low-latency", &topology, &request).unwrap_err();
    assert!(error.to_string().contains("there is no thread \"vcpu(9)\""), "{error}");
}

/// Each part alone keeps a CPU for the host, and the share that stays free; so must the whole.
#[test]
fn a_machine_in_parts_leaves_the_host_its_cpus() {
    let mut divided = 0;
    for shape in [[2, 1, 1, 2, 2], [2, 1, 1, 3, 1], [2, 1, 1, 4, 2], [1, 3, 1, 2, 2]] {
        let topology = pinfold_samples::number_cpus(shape, 1).build();
        let all = u32::try_from(topology.online().len()).unwrap();
        for (vcpus, percent) in (2..all).flat_map(|vcpus| [(vcpus, 0), (vcpus, 25)]) {
            let memory = MemoryRequest { bytes: 1 << 30, page_bytes: None };
            let mut request = exactly(vcpus);
            request.emulator = EmulatorRequest::RealTime;
            request.free = (percent > 0).then_some(FreeCpus::Percent(percent));
            request.vnodes[0].memory = Some(memory);
            let Ok(layout) = plan("balanced", &topology, &request) else { continue };
            let faults = faults(&layout);
            assert!(faults.is_empty(), "{shape:?} {vcpus} {percent}: {faults:?}");
            assert!((all - vcpus) * 100 >= all * percent, "{shape:?} {vcpus} {percent}");
            let emulator = layout.vnodes[0].thread(&Role::Emulator).unwrap();
            divided += usize::from(emulator.pus.len() > 1);
        }
    }
    assert!(divided > 5, "{divided}");
}

/// A helper's pin is for the whole machine: no cell's cores forbid it, and none is avoided.
#[test]
fn a_helper_is_pinned_although_a_cell_has_its_core() {
    let topology = from_description("package:2 [numa(memory=16GiB)] core:8 pu:2");
    for pus in ["3", "1", "2-3", "0-31"] {
        for strategy in ["balanced", "auto", "none"] {
            let mut request = with_cells(&[cell("0-2", &[0]), cell("3-4", &[1])]);
            request.isolation = IsolationScope::Host;
            let pin = pinfold_config::requests::pins(&format!("emulator={pus}")).unwrap();
            request.vnodes[0].pins = pin;
            let layout = plan(strategy, &topology, &request).unwrap();
            assert_eq!(pinfold_samples::emulator(&layout), pus, "{strategy}");
            let thread = layout.vnodes[0].thread(&Role::Emulator).unwrap();
            assert!(thread.reason.ends_with("by hand"), "{}", thread.reason);
            assert_eq!(validate(&layout, &topology), vec![], "{strategy} {pus}");
        }
    }
    // What the request itself avoids is still refused.
    let mut request = with_cells(&[cell("0-2", &[0]), cell("3-4", &[1])]);
    request.vnodes[0].pins = pinfold_config::requests::pins("emulator=3").unwrap();
    request.avoid = set("3");
    let refused = plan("balanced", &topology, &request).unwrap_err();
    assert!(refused.to_string().contains("the request avoids CPU 3"), "{refused}");
}

//! Which strategy `auto` picks for several machines and for isolation, and on which nodes machines
//! are because of their memory.

use std::collections::BTreeSet;

use pinfold_config::requests::{parse_group_spec, parse_vm_spec};
use pinfold_model::{
    CellRequest, CpuSet, HugePages, IsolationScope, MemoryRequest, NodeId, Plan, Request, Role,
    Speed, Topology, VcpuCount, VmRequest, VnodePlan, VnodeRequest, Work,
};
use pinfold_samples::machine::{Machine, dual_x5540, i7_4790k, two_complexes};
use pinfold_samples::{exactly, finds, from_description, hosts, set};

use crate::analysis::placement::runs_on;
use crate::{fill, plan};

/// Isolated machines with these numbers of vCPUs.
fn isolated(counts: &[u32]) -> Request {
    let mut vnodes = Vec::new();
    for (number, vcpus) in counts.iter().enumerate() {
        let vm = VmRequest::from_vcpus(VcpuCount::Exactly(*vcpus));
        vnodes.push(VnodeRequest::vm(&format!("vm{number}"), vm));
    }
    Request { isolation: IsolationScope::Host, ..Request::from_vnodes(vnodes) }
}

fn nodes(topology: &Topology, pus: &CpuSet) -> Vec<u32> {
    let on = topology.pus.iter().filter(|pu| pus.contains(pu.os));
    let nodes: BTreeSet<u32> = on.filter_map(|pu| pu.node).map(|node| node.0).collect();
    nodes.into_iter().collect()
}

fn nodes_of_each(topology: &Topology, layout: &Plan) -> Vec<Vec<u32>> {
    layout.vnodes.iter().map(|vnode| nodes(topology, &runs_on(vnode))).collect()
}

#[test]
fn several_machines_spread_over_the_nodes_and_leave_cpu_0_to_the_host() {
    let topology = from_description("package:2 [numa] core:32 pu:4");
    let layout = plan("auto", &topology, &isolated(&[8, 8, 8])).unwrap();
    assert_eq!(nodes_of_each(&topology, &layout), [[1], [0], [1]]);
    assert!(set("0-3").is_subset(&layout.housekeeping), "{}", layout.housekeeping);
    assert!(!finds(&layout, "boot CPU", ""), "{:?}", layout.findings);
}

#[test]
fn small_machines_share_cores_before_they_float() {
    let layout = plan("auto", &i7_4790k().build(), &isolated(&[1; 5])).unwrap();
    let pins: Vec<String> = layout.vnodes.iter().map(|it| runs_on(it).to_string()).collect();
    assert_eq!(pins, ["1", "5", "2", "6", "3"]);
    assert_eq!(layout.isolation, IsolationScope::Host);
    assert!(set("0,4").is_subset(&layout.housekeeping), "{}", layout.housekeeping);
    // Three of them have a core each.
    let layout = plan("auto", &i7_4790k().build(), &isolated(&[1; 3])).unwrap();
    assert!(!finds(&layout, "shared cores", ""), "{:?}", layout.findings);
}

#[test]
fn the_core_is_the_unit_where_an_l3_cache_is_no_larger() {
    for caches in ["core:9 l3:2 pu:4", "l3:9 core:1 pu:8"] {
        let topology = from_description(&format!("package:2 [numa(memory=128GiB)] {caches}"));
        for counts in [&[8][..], &[4, 4, 4]] {
            let layout = plan("auto", &topology, &isolated(counts)).unwrap();
            let on =
                layout.vnodes.iter().flat_map(|vnode| runs_on(vnode).iter().collect::<Vec<_>>());
            let cores: BTreeSet<_> = on.map(|pu| topology.pu(pu).unwrap().core).collect();
            let vcpus: u32 = counts.iter().sum();
            assert_eq!(cores.len(), vcpus as usize, "{caches}, {counts:?}: {}", layout.strategy);
        }
    }
}

#[test]
fn idle_cores_next_to_siblings_are_named() {
    let topology = from_description("package:1 [numa] l3:1(size=96MiB) core:8 pu:2");
    let layout = plan("auto", &topology, &exactly(8)).unwrap();
    assert!(finds(
        &layout,
        "idle cores",
        "8 vCPUs are on siblings of 4 cores, and 3 more cores are"
    ));
    let found = layout.findings.iter().find(|finding| finding.subject == "idle cores").unwrap();
    assert!(found.hint.as_ref().unwrap().starts_with("`--vcpus 7`"), "{found}");
    let seven = plan("auto", &topology, &exactly(7)).unwrap();
    assert_eq!((seven.strategy.as_str(), runs_on(&seven.vnodes[0]).len()), ("low-latency", 7));
    for vcpus in [7, 13, 14] {
        let layout = plan("auto", &topology, &exactly(vcpus)).unwrap();
        assert!(!finds(&layout, "idle cores", ""), "{vcpus}: {:?}", layout.findings);
    }
}

/// Four dies of eight cores, of which two have no memory, as a 2990WX.
fn four_dies() -> Topology {
    let dies =
        Machine::new([1, 4, 1, 8, 2], |place| 8 * place.node + place.core + 32 * place.thread);
    dies.memoryless(1).memoryless(3).build()
}

#[test]
fn nodes_without_memory_come_last() {
    let topology = four_dies();
    let with_memory = |layout: &Plan| -> usize {
        let vnode = &layout.vnodes[0];
        let near = topology.pus.iter().filter(|pu| matches!(pu.node, Some(NodeId(0 | 2))));
        near.map(|pu| pu.os).collect::<CpuSet>().intersection(&runs_on(vnode)).len()
    };
    // The host has a core without memory.
    for (strategy, vcpus, near) in
        [("balanced", 20, 20), ("low-latency", 12, 12), ("auto", 30, 30), ("balanced", 40, 32)]
    {
        let request = Request { isolation: IsolationScope::Host, ..exactly(vcpus) };
        let layout = plan(strategy, &topology, &request).unwrap();
        assert_eq!(with_memory(&layout), near, "{strategy} {vcpus}");
        let memory = layout.vnodes[0].memory.as_ref().unwrap();
        assert_eq!(memory.nodes, [NodeId(0), NodeId(2)], "{strategy} {vcpus}");
        assert_eq!(layout.isolation, IsolationScope::Host, "{strategy} {vcpus}");
    }
}

/// A machine of this size, in huge pages of 2 MiB if asked for.
fn sized(vcpus: u32, bytes: u64, page_bytes: Option<u64>) -> Request {
    let mut request = exactly(vcpus);
    request.vnodes[0].memory = Some(MemoryRequest { bytes, page_bytes });
    request
}

fn memory_nodes(vnode: &VnodePlan) -> Vec<u32> {
    vnode.memory.as_ref().unwrap().nodes.iter().map(|node| node.0).collect()
}

#[test]
fn free_huge_pages_decide_the_node() {
    let mut topology = dual_x5540().build();
    for (node, free) in topology.nodes.iter_mut().zip([600, 400]) {
        node.huge_pages = vec![HugePages { page_bytes: 2 << 20, total: 600, free }];
    }
    for strategy in ["auto", "low-latency", "numa-exclusive", "balanced", "realtime"] {
        let vcpus = if strategy == "realtime" { 3 } else { 4 };
        let request = sized(vcpus, 1 << 30, Some(2 << 20));
        let layout = plan(strategy, &topology, &request).unwrap();
        let vnode = &layout.vnodes[0];
        let found = (memory_nodes(vnode), nodes(&topology, &runs_on(vnode)));
        assert_eq!(found, (vec![0], vec![0]), "{strategy}: {}", layout.strategy);
    }
    // Two machines of 400 pages: no node has twice as many.
    let mut two = isolated(&[2, 2]);
    two.vnodes.iter_mut().for_each(|vnode| {
        vnode.memory = Some(MemoryRequest { bytes: 800 << 20, page_bytes: Some(2 << 20) });
    });
    for strategy in ["balanced", "low-latency", "numa-exclusive"] {
        let layout = plan(strategy, &topology, &two).unwrap();
        let mut of_each: Vec<_> = layout.vnodes.iter().map(memory_nodes).collect();
        of_each.sort();
        assert_eq!(of_each, [[0], [1]], "{strategy}");
    }
}

/// Memory on a node without CPUs is used where the others have too little, and named.
#[test]
fn memory_that_no_node_with_cpus_has() {
    let topology = pinfold_samples::read("cxl-memory.capture".to_owned()).1;
    for strategy in ["none", "auto", "balanced", "low-latency", "numa-exclusive"] {
        let vcpus = if strategy == "low-latency" { 3 } else { 6 };
        let layout = plan(strategy, &topology, &sized(vcpus, 100 << 30, None)).unwrap();
        assert_eq!(memory_nodes(&layout.vnodes[0]), [0, 2], "{strategy}");
        let text = "36 GiB of the memory of vm are on node 2, which has no CPUs";
        assert!(finds(&layout, "memory", text), "{strategy}: {:?}", layout.findings);
        let small = plan(strategy, &topology, &sized(vcpus, 60 << 30, None)).unwrap();
        assert_eq!(memory_nodes(&small.vnodes[0]), [0], "{strategy}");
    }
    let error = plan("balanced", &topology, &sized(6, 200 << 30, None)).unwrap_err();
    assert!(matches!(error, crate::PlanError::Memory { .. }), "{error}");
}

/// More memory than any node has: still the node with memory, and the host on the other.
#[test]
fn vcpus_stay_on_the_node_with_memory_although_it_has_too_little() {
    let topology = pinfold_samples::read("cxl-memory.capture".to_owned()).1;
    for strategy in ["balanced", "numa-exclusive", "auto"] {
        for vcpus in [4, 8] {
            let isolation = IsolationScope::Host;
            let request = Request { isolation, ..sized(vcpus, 100 << 30, None) };
            let layout = plan(strategy, &topology, &request).unwrap();
            let pus = runs_on(&layout.vnodes[0]);
            assert_eq!(nodes(&topology, &pus), [0], "{strategy} {vcpus}: {pus}");
            assert!(!layout.exclusive.is_empty(), "{strategy} {vcpus}");
            if vcpus == 8 {
                assert_eq!(pus, set("0-3,8-11"), "{strategy}");
                assert!(layout.housekeeping.is_subset(&set("4-7,12-15")), "{strategy}");
            }
        }
    }
}

/// Six of eight nodes: three on each package, not four and two.
#[test]
fn a_large_machine_has_as_many_nodes_on_each_package() {
    let topology = pinfold_samples::read("epyc-7763-dual.synthetic".to_owned()).1;
    for memory in [None, Some(MemoryRequest { bytes: 192 << 30, page_bytes: None })] {
        let mut request = exactly(192);
        request.vnodes[0].memory = memory;
        let layout = plan("balanced", &topology, &request).unwrap();
        let pus = runs_on(&layout.vnodes[0]);
        let of_package = |package| {
            let pus =
                topology.pus.iter().filter(|pu| pu.package.0 == package && pus.contains(pu.os));
            pus.map(|pu| pu.node.unwrap().0).collect::<Vec<_>>()
        };
        for package in [0, 1] {
            let nodes = of_package(package);
            assert_eq!((nodes.len(), nodes.iter().collect::<BTreeSet<_>>().len()), (96, 3));
        }
    }
}

#[test]
fn few_nodes_where_a_node_has_several_packages() {
    let topology = from_description("numa:4 package:4 core:6 pu:1");
    let layout = plan("balanced", &topology, &exactly(48)).unwrap();
    assert_eq!(runs_on(&layout.vnodes[0]), set("24-71"));
    let layout = plan("balanced", &topology, &exactly(24)).unwrap();
    assert_eq!(runs_on(&layout.vnodes[0]), set("24-47"));
}

/// Four groups of two cores, each with an L3 domain of its own; where the fast cores are too few
/// for all, it is said.
#[test]
fn groups_are_alike_or_it_is_said() {
    let names = ["r1", "r2", "r3", "r4"];
    let groups = names.map(|name| VnodeRequest::processes(name, 2, Speed::FULL));
    let request = Request::from_vnodes(groups.into());
    let epyc = pinfold_samples::read("epyc-7702p.synthetic".to_owned()).1;
    let layout = plan("vnodes", &epyc, &request).unwrap();
    let mut l3s = Vec::new();
    for vnode in &layout.vnodes {
        let own: BTreeSet<_> =
            runs_on(vnode).iter().map(|pu| epyc.pu(pu).unwrap().l3.unwrap()).collect();
        assert_eq!(own.len(), 1, "{}", runs_on(vnode));
        l3s.extend(own);
    }
    l3s.sort();
    l3s.dedup();
    assert_eq!((l3s.len(), finds(&layout, "groups", "")), (4, false));
    let intel = pinfold_samples::read("i5-12600k.capture".to_owned()).1;
    let layout = plan("vnodes", &intel, &request).unwrap();
    assert!(finds(&layout, "groups", "r4 is on cores of another kind than r1"));
    // Two L3 domains of four cores.
    let layout = plan("vnodes", &two_complexes().build(), &request).unwrap();
    assert!(finds(&layout, "groups", "share L3 0"), "{:?}", layout.findings);
}

#[test]
fn as_many_machines_as_fit() {
    let topology = pinfold_samples::read("e5-2670-dual.synthetic".to_owned()).1;
    for (strategy, vcpus, count) in [
        ("auto", 8, 3),
        ("balanced", 8, 3),
        ("low-latency", 8, 1),
        ("low-latency", 5, 3),
        ("balanced", 2, 15),
        ("compact", 8, 3),
        ("auto", 30, 1),
    ] {
        let layout = fill(strategy, &topology, &like_web(vcpus, IsolationScope::None)).unwrap();
        assert_eq!(layout.vnodes.len(), count, "{strategy} {vcpus}");
        let names: Vec<String> = (1..=count).map(|number| format!("web{number}")).collect();
        assert!(layout.vnodes.iter().map(|vnode| &vnode.name).eq(&names));
        let text = match count {
            1 => "1 machine like web fits on".to_owned(),
            _ => format!("{count} machines like web fit on"),
        };
        assert!(finds(&layout, "fill", &text), "{strategy} {vcpus}: {:?}", layout.findings);
    }
    let layout = fill("auto", &topology, &like_web(8, IsolationScope::Host)).unwrap();
    assert_eq!((layout.vnodes.len(), layout.isolation), (3, IsolationScope::Host));
    let none = fill("auto", &topology, &like_web(40, IsolationScope::None)).unwrap();
    assert!(finds(&none, "fill", "not even one fits"));
    assert!(fill("balanced", &topology, &like_web(40, IsolationScope::None)).is_err());
    // Too many of the same are refused with the number that fits.
    let error = plan("balanced", &topology, &isolated(&[8; 4])).unwrap_err();
    let hint = error.hint().unwrap();
    assert!(hint.starts_with("3 of them fit; the strategy `"), "{hint}");
    assert!(hint.ends_with("` places all"), "{hint}");
    let error = plan("low-latency", &topology, &isolated(&[7, 8, 8])).unwrap_err();
    assert!(!error.hint().unwrap().contains("of them"), "{:?}", error.hint());
}

fn like_web(vcpus: u32, isolation: IsolationScope) -> Request {
    let vm = VnodeRequest::vm("web", VmRequest::from_vcpus(VcpuCount::Exactly(vcpus)));
    Request { isolation, ..Request::from_vnodes(vec![vm]) }
}

/// Free memory decides the node where it is known, as free huge pages do; a note says where no node
/// has enough.
#[test]
fn the_node_with_free_memory_is_taken() {
    const GIB: u64 = 1 << 30;
    let strategies = [
        "auto",
        "low-latency",
        "balanced",
        "max-performance",
        "numa-exclusive",
        "l3-exclusive",
        "multi-vm",
        "realtime",
    ];
    for nodes in 2..5_u32 {
        let text = format!("package:{nodes} [numa(memory=64GiB)] l3:1 core:6 pu:2");
        let unknown = from_description(&text);
        for (strategy, roomy) in
            strategies.iter().flat_map(|name| (0..nodes).map(move |node| (*name, node)))
        {
            let mut topology = unknown.clone();
            for node in &mut topology.nodes {
                node.free_bytes = Some(if node.id.0 == roomy { 40 * GIB } else { 2 * GIB });
            }
            let case = format!("{strategy} on {nodes} nodes, {roomy} is free");
            fn is_noted(made: &Plan) -> bool {
                finds(made, "free memory", "vm needs")
            }
            let made = plan(strategy, &topology, &sized(4, 16 * GIB, None)).unwrap();
            assert_eq!(memory_nodes(&made.vnodes[0]), [roomy], "{case}");
            assert!(!is_noted(&made), "{case}");
            // More than any node has free: as if it were unknown, with a note.
            let large = plan(strategy, &topology, &sized(4, 48 * GIB, None)).unwrap();
            let before = plan(strategy, &unknown, &sized(4, 48 * GIB, None)).unwrap();
            assert_eq!(pins_of(&large), pins_of(&before), "{case}");
            assert!(is_noted(&large) && !is_noted(&before), "{case}: {:?}", large.findings);
            // A machine that runs has its memory already.
            let running = topology.clone().without_free_memory();
            let before = plan(strategy, &unknown, &sized(4, 16 * GIB, None)).unwrap();
            assert_eq!(plan(strategy, &running, &sized(4, 16 * GIB, None)).unwrap(), before);
            // Huge pages are reserved already, and a machine without a size needs nothing known.
            for (asked, name) in
                [(sized(4, 16 * GIB, Some(2 << 20)), "pages"), (exactly(4), "none")]
            {
                let made = plan(strategy, &topology, &asked).unwrap();
                let before = plan(strategy, &unknown, &asked).unwrap();
                assert_eq!(pins_of(&made), pins_of(&before), "{case}: {name}");
                assert!(!is_noted(&made), "{case}: {name}");
            }
        }
    }
}

fn pins_of(plan: &Plan) -> Vec<CpuSet> {
    plan.vnodes[0].vcpus().map(|thread| thread.pus.clone()).collect()
}

/// What the reason and the notes count is what the request has.
#[test]
fn the_reason_of_auto_counts_the_whole_request() {
    let topology = from_description("package:1 core:8 pu:1");
    let mut request = Request::from_vnodes(vec![parse_vm_spec("name=a,vcpus=1").unwrap()]);
    request.vnodes.push(parse_group_spec("name=g,cores=2,speed=50%").unwrap());
    let made = plan("auto", &topology, &request).unwrap();
    assert!(finds(&made, "auto", "each of 3 vCPUs and cores can have"), "{:?}", made.findings);
    // Cells are not counted one by one.
    let two = from_description("package:2 [numa(memory=16GiB)] core:8 pu:2");
    for vcpus in [4, 5] {
        let mut request = exactly(vcpus);
        let Work::Vm(vm) = &mut request.vnodes[0].work else { panic!("a machine") };
        vm.cells = vec![cell_on("0-1", 0), cell_on(&format!("2-{}", vcpus - 1), 1)];
        let made = plan("auto", &two, &request).unwrap();
        let reasons = made.findings.iter().filter(|finding| finding.subject == "auto");
        let reasons: Vec<&str> = reasons.map(|finding| finding.text.as_str()).collect();
        assert_eq!(reasons, ["auto chose low-latency: it fits each NUMA cell of the guest"]);
    }
}

fn cell_on(vcpus: &str, node: u32) -> CellRequest {
    CellRequest { vcpus: set(vcpus), nodes: vec![NodeId(node)], bytes: Some(1 << 30) }
}

/// A machine on slow cores is named, also if another one could change its cores.
#[test]
fn a_second_machine_on_slow_cores_is_named() {
    let topology = hosts().into_iter().find(|(name, _)| name.starts_with("i9-13900k")).unwrap().1;
    for (first, second, is_slower) in [(8, 4, true), (8, 12, true), (4, 4, false)] {
        let request =
            Request::from_vnodes(vec![named_machine("a", first), named_machine("b", second)]);
        let made = plan("low-latency", &topology, &request).unwrap();
        let text = "the remaining faster cores are too few for it";
        let found = made.findings.iter().any(|it| {
            it.subject == "preference" && it.text.starts_with("b is on") && it.text.contains(text)
        });
        assert_eq!(found, is_slower, "{first} and {second}: {:?}", made.findings);
    }
}

fn named_machine(name: &str, vcpus: u32) -> VnodeRequest {
    VnodeRequest { name: name.to_owned(), ..exactly(vcpus).vnodes.remove(0) }
}

/// On a node with a core to spare, the emulator is not on the siblings of vCPUs.
#[test]
fn the_emulator_in_a_domain_leaves_the_siblings_alone() {
    let mut spare = 0;
    for (name, topology) in hosts() {
        for (strategy, vcpus) in
            ["numa-exclusive", "l3-exclusive"].into_iter().flat_map(|it| [(it, 2), (it, 4)])
        {
            let Ok(made) = plan(strategy, &topology, &isolated(&[vcpus])) else { continue };
            let vcpus = runs_on(&made.vnodes[0]);
            let emulator = &made.vnodes[0].thread(&Role::Emulator).unwrap().pus;
            let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&vcpus));
            let cores = cores.map(|core| &core.pus).collect::<CpuSet>();
            if !emulator.is_subset(&cores) {
                assert!(emulator.is_disjoint(&cores), "{name} {strategy}: {emulator}, {vcpus}");
                spare += 1;
            }
        }
    }
    assert!(spare > 20, "{spare}");
}

/// A vCPU of a host with one CPU floats: nothing is pinned.
#[test]
fn a_vcpu_without_a_pin_floats_on_one_cpu() {
    let made = plan("auto", &from_description("core:1 pu:1"), &exactly(1)).unwrap();
    let text = crate::explain(&made, &from_description("core:1 pu:1"), 80);
    assert!(text.contains("1 vCPU floating over 0") && !text.contains("pinned to"), "{text}");
}

/// CPUs of an exclusive domain that nothing may use are named, and only those.
#[test]
fn idle_cpus_of_an_exclusive_domain_are_named() {
    let mut named = 0;
    for (name, topology) in hosts() {
        for (strategy, vcpus) in
            ["numa-exclusive", "l3-exclusive"].into_iter().flat_map(|it| [(it, 2), (it, 4)])
        {
            let Ok(made) = plan(strategy, &topology, &isolated(&[vcpus])) else { continue };
            let work = runs_on(&made.vnodes[0]);
            let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&work));
            let cores = cores.map(|core| &core.pus).collect::<CpuSet>();
            let idle = made.exclusive.difference(&cores).difference(&made.vnodes[0].pus());
            let case = format!("{name} {strategy} {vcpus}: {:?}", made.findings);
            assert_eq!(finds(&made, "idle CPUs", " idle: each "), !idle.is_empty(), "{case}");
            assert!(idle.is_empty() || finds(&made, "idle CPUs", &idle.to_string()), "{case}");
            named += usize::from(!idle.is_empty());
        }
    }
    assert!(named > 0);
}

/// A core with a sibling that the plan may not use is slowed by what runs there: it comes last.
#[test]
fn whole_cores_are_taken_before_those_with_an_avoided_sibling() {
    for text in ["package:1 l3:1 core:10 pu:2", "package:2 numa:1 core:8 pu:2"] {
        let topology = from_description(text);
        let avoided = topology.cores.iter().take(3).filter_map(|core| core.pus.first());
        let avoid: CpuSet = avoided.collect();
        for strategy in
            ["auto", "low-latency", "balanced", "multi-vm", "numa-exclusive", "realtime"]
        {
            let request = Request { avoid: avoid.clone(), ..exactly(3) };
            let made = plan(strategy, &topology, &request).unwrap();
            for thread in made.vnodes[0].vcpus() {
                let mut cores = topology.cores.iter();
                let own = cores.find(|core| !core.pus.is_disjoint(&thread.pus)).unwrap();
                let case = format!("{strategy} on {text}: {}", thread.pus);
                assert!(own.pus.is_disjoint(&avoid), "{case}");
            }
        }
    }
}

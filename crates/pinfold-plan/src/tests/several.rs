//! Several vnodes at once, process groups, and the host's CPUs.

use pinfold_model::{
    CpuSet, Device, EmulatorRequest, FreeCpus, HugePages, IsolationScope, MemoryRequest, NodeId,
    Plan, Request, Role, SmtRequest, Speed, VcpuCount, VmRequest, VnodeRequest,
};
use pinfold_samples::machine::{
    Machine, dual_e5_2670, dual_l5420, dual_x5540, i7_4790k, plain, r910, two_complexes,
};
use pinfold_samples::{auto, exactly, finds, set, shape};

use crate::guest::numa::cells;
use crate::{PlanError, plan, validate};

fn vm(name: &str, vcpus: u32) -> VnodeRequest {
    VnodeRequest::vm(name, VmRequest::from_vcpus(VcpuCount::Exactly(vcpus)))
}

fn group(name: &str, cores: u32, percent: u32) -> VnodeRequest {
    VnodeRequest::processes(name, cores, Speed::from_millionths(percent * 10_000).unwrap())
}

fn ask(vnodes: Vec<VnodeRequest>) -> Request {
    Request { isolation: IsolationScope::Host, ..Request::from_vnodes(vnodes) }
}

/// `vCPU pins | emulator` of each machine, CPUs of each group.
fn places(layout: &Plan) -> Vec<String> {
    layout
        .vnodes
        .iter()
        .map(|vnode| {
            let pins: Vec<String> = vnode.vcpus().map(|vcpu| vcpu.pus.to_string()).collect();
            match (vnode.thread(&Role::Emulator), vnode.thread(&Role::Task)) {
                (Some(emulator), _) => format!("{} | {}", pins.join(","), emulator.pus),
                (None, Some(task)) => format!("{} at {}", task.pus, vnode.speed),
                (None, None) => "nowhere".to_owned(),
            }
        })
        .collect()
}

#[track_caller]
fn check(machine: Machine, strategy: &str, request: &Request, expected: &[&str]) -> Plan {
    let layout = plan(strategy, &machine.build(), request).unwrap();
    assert_eq!(places(&layout), expected, "{strategy}");
    layout
}

/// The reply in Lindroth's thread: no overlap, emulators on the siblings of their own machine's
/// cores, the host on package 1. The source has the machine and the rules; the sizes are not from
/// it.
#[test]
fn three_machines_on_two_packages() {
    let three = ask(vec![vm("a", 4), vm("b", 4), vm("c", 4)]);
    let expected = ["0,1,2,3 | 16-19", "4,5,6,7 | 20-23", "9,10,11,12 | 25-28"];
    let layout = check(dual_e5_2670(), "multi-vm", &three, &expected);
    assert_eq!(layout.housekeeping, set("8,13-15,24,29-31"));
    assert!(layout.housekeeping_reason.contains("the first core of package 1"));
    assert!(finds(&layout, "boot CPU", "CPU 0"));
    // The host's CPUs by hand, and the same strategy on one package.
    let by_hand = Request { free: Some(FreeCpus::These(set("0,16"))), ..three.clone() };
    let expected = ["8,9,10,11 | 24-27", "12,13,14,15 | 28-31", "1,2,3,4 | 17-20"];
    check(dual_e5_2670(), "multi-vm", &by_hand, &expected);
    let two = ask(vec![vm("a", 1), vm("b", 2)]);
    check(i7_4790k(), "multi-vm", &two, &["1 | 5", "2,3 | 6-7"]);
    check(plain(4), "multi-vm", &two, &["1 | 0", "2,3 | 0"]);
}

/// What a machine's own text names: the cores of its vCPUs, with their idle siblings.
#[test]
fn a_machine_of_several_keeps_its_own_cores_only() {
    let two = ask(vec![vm("rt", 4), vm("db", 6)]);
    let own = |strategy| {
        let layout = plan(strategy, &dual_e5_2670().build(), &two).unwrap();
        let own =
            layout.vnodes.iter().map(|vnode| layout.extract_vnode(vnode).exclusive.to_string());
        own.collect::<Vec<_>>()
    };
    assert_eq!(own("realtime"), ["8-11,24-27", "1-6,17-22"]);
    assert_eq!(own("multi-vm"), ["0-3,16-19", "9-14,25-30"]);
}

/// A core of a slowed group is a core of its own: `auto` refuses more than there are, and a
/// strategy by name warns.
#[test]
fn slowed_groups_have_whole_cores() {
    let slow = Request::from_vnodes(vec![group("slow", 20, 40)]);
    let topology = dual_e5_2670().build();
    let refused = plan("auto", &topology, &slow).unwrap_err();
    assert!(
        matches!(refused, PlanError::TooManyVcpus { most: 16, nearest: None, .. }),
        "{refused}"
    );
    let layout = plan("balanced", &topology, &slow).unwrap();
    assert!(
        finds(&layout, "fewer cores", "slow requests 20 cores at 40%"),
        "{:?}",
        layout.findings
    );
    let few = Request::from_vnodes(vec![group("slow", 16, 40)]);
    let layout = plan("vnodes", &topology, &few).unwrap();
    assert!(!finds(&layout, "fewer cores", ""), "{:?}", layout.findings);
    // At full speed the threads of a core are as good as cores to the kernel.
    let fast = Request::from_vnodes(vec![group("fast", 20, 100)]);
    let layout = plan("auto", &topology, &fast).unwrap();
    assert!(!finds(&layout, "fewer cores", ""));
    assert!(finds(&layout, "NUMA", "") && !finds(&layout, "auto", "no warning"));
}

/// The question in the same thread: one whole package for the machine.
#[test]
fn one_of_two_x5540_for_the_machine() {
    let layout =
        check(dual_x5540(), "numa-exclusive", &auto(), &["4,12,5,13,6,14,7,15 | 0-3,8-11"]);
    assert_eq!(shape(&layout), "1×4×2");
    assert_eq!((layout.exclusive, layout.housekeeping), (set("4-7,12-15"), set("0-3,8-11")));
    let memory = layout.vnodes[0].memory.as_ref().unwrap();
    assert_eq!((memory.nodes.as_slice(), memory.bytes), ([NodeId(1)].as_slice(), None));
    let layout = check(dual_x5540(), "numa-exclusive", &exactly(4), &["4,5,6,7 | 12-15"]);
    assert_eq!(shape(&layout), "1×4×1");
}

#[test]
fn buchert_figure_2() {
    let four = vec![group("1", 1, 75), group("2", 1, 40), group("3", 2, 60), group("4", 4, 25)];
    let expected = ["0 at 75%", "1 at 40%", "2-3 at 60%", "4-7 at 25%"];
    let layout = check(plain(8), "vnodes", &ask(four.clone()), &expected);
    assert_eq!((layout.housekeeping.clone(), layout.exclusive.clone()), (set("0"), set("1-7")));
    assert!(finds(&layout, "housekeeping", "share CPU 0"));
    // A spare core becomes the host's.
    let expected = ["1 at 75%", "2 at 40%", "3-4 at 60%", "5-8 at 25%"];
    let layout = check(plain(9), "vnodes", &ask(four.clone()), &expected);
    assert_eq!(layout.housekeeping, set("0"));
    // Siblings stay idle.
    let layout = check(i7_4790k(), "vnodes", &ask(vec![group("a", 2, 50)]), &["1-2 at 50%"]);
    assert_eq!((layout.exclusive, layout.housekeeping), (set("1-2,5-6"), set("0,3-4,7")));
    // Cores that change frequency together: four speeds need five pairs, and there are four.
    let expected = ["0 at 75%", "1 at 40%", "2-3 at 60%", "4-7 at 25%"];
    let layout = check(dual_l5420(), "vnodes", &ask(four.clone()), &expected);
    assert!(finds(&layout, "frequency domains", "the CPUs 0-1 change frequency together"));
    let three = ask(four.clone().into_iter().take(3).collect());
    let layout = check(dual_l5420(), "vnodes", &three, &["1 at 75%", "2 at 40%", "4-5 at 60%"]);
    assert!(!finds(&layout, "frequency domains", ""));
    // Groups of equal speed may share a pair.
    let alike = ask(vec![group("a", 1, 50), group("b", 1, 50), group("c", 1, 60)]);
    check(dual_l5420(), "vnodes", &alike, &["4 at 50%", "5 at 50%", "6 at 60%"]);
    // A group has cores of one kind inside one package, even if the host's core is nearer.
    let expected = ["13 at 75%", "14 at 40%", "0,2 at 60%", "4,6,8,10 at 25%"];
    check(Machine::hybrid(6, 4), "vnodes", &ask(four.clone()), &expected);
    let expected = ["2 at 75%", "6 at 40%", "10,14 at 60%", "1,5,9,13 at 25%"];
    check(r910(), "vnodes", &ask(four), &expected);
}

/// Pairs of cores behind one level-2 cache, as on the LS2080.
#[test]
fn machines_have_shared_l2_caches_whole() {
    let two = ask(vec![vm("a", 2), vm("b", 2)]);
    check(pairs(), "low-latency", &two, &["2,3 | 0-1,6-7", "4,5 | 0-1,6-7"]);
    check(pairs(), "low-latency", &exactly(4), &["2,3,4,5 | 0-1,6-7"]);
    check(pairs(), "low-latency", &exactly(1), &["2 | 0-1,3-7"]);
    check(
        pairs().without_l3_and_nodes(),
        "l3-exclusive",
        &two,
        &["2,3 | 0-1,6-7", "4,5 | 0-1,6-7"],
    );
    let error = plan("l3-exclusive", &pairs().without_l3_and_nodes().build(), &exactly(4))
        .unwrap_err()
        .to_string();
    assert!(error.contains("inside one L2 domain, and the largest has 2 CPUs"), "{error}");
    check(pairs(), "scatter", &exactly(4), &["0,2,4,6 | 1,3,5,7"]);
    check(pairs(), "max-performance", &two, &["0,1 | 4-7", "2,3 | 4-7"]);
    let layout = plan("low-latency", &pairs().build(), &two).unwrap();
    let reason = &layout.vnodes[0].vcpus().next().unwrap().reason;
    assert!(reason.contains("core 2, L2 1, L3 0"), "{reason}");
}

fn pairs() -> Machine {
    plain(8).l2(&["0-1", "2-3", "4-5", "6-7"])
}

/// Inside a domain the fast cores carry vCPUs, and no core has vCPUs of two machines.
#[test]
fn exclusive_domains_are_divided_by_cores() {
    let two = ask(vec![vm("a", 2), vm("b", 2)]);
    check(hybrid(), "numa-exclusive", &auto(), &["0,1,2,3,4,5,6,7,8,9,10,11 | 13-15"]);
    check(hybrid(), "numa-exclusive", &two, &["2,4 | 13-15", "6,8 | 13-15"]);
    // The second node has no memory, so both are on the first.
    check(memoryless(), "numa-exclusive", &two, &["1,9 | 3,11", "2,10 | 3,11"]);
    check(memoryless(), "numa-exclusive", &auto(), &["1,9,2,10,3,11 | 0,8"]);
    let layout = plan("numa-exclusive", &memoryless().build(), &two).unwrap();
    let reason = &layout.vnodes[1].vcpus().next().unwrap().reason;
    assert!(reason.contains("no other is large enough, has the memory"), "{reason}");
}

fn hybrid() -> Machine {
    Machine::hybrid(6, 4)
}

fn memoryless() -> Machine {
    dual_x5540().memoryless(1)
}

#[test]
fn lines_go_on_where_the_last_vnode_ended() {
    let two = ask(vec![vm("a", 3), vm("b", 2)]);
    let layout = check(i7_4790k(), "compact", &two, &["0,4,1 | 3,6-7", "5,2 | 3,6-7"]);
    assert!(finds(&layout, "shared cores", "1 core has vCPUs of several machines"));
    check(i7_4790k(), "sequential", &two, &["0,1,2 | 5-7", "3,4 | 5-7"]);
    check(
        r910(),
        "scatter",
        &two,
        &[
            "0,1,2 | 5-6,8-10,12-14,16-18,20-22,24-26,28-30",
            "4,3 | 7-8,11-12,15-16,19-20,23-24,27-28,31",
        ],
    );
    check(i7_4790k(), "isolcpus", &two, &["1,5,2 | 0,4", "6,3 | 0,4"]);
    check(i7_4790k(), "none", &two, &["0-7,0-7,0-7 | 0-7", "0-7,0-7 | 0-7"]);
    let many = ask(vec![vm("a", 7), vm("b", 3)]);
    let layout = plan("compact", &i7_4790k().build(), &many).unwrap();
    let last = layout.vnodes[1].vcpus().last().unwrap();
    assert!(last.reason.contains("shared with vCPU 1 of a"), "{}", last.reason);
    assert!(finds(&layout, "oversubscription", "the CPUs 0,4 each have more than one"));
}

/// An emulator floats over CPUs without vCPUs of any machine; if there are none, over those of its
/// own machine's vCPUs, which is a finding.
#[test]
fn an_emulator_is_never_on_the_vcpus_of_another_machine_alone() {
    let full = &["0,8,1,9,2,10,3,11 | 0-3,8-11", "4,12,5,13,6,14,7,15 | 4-7,12-15"];
    for strategy in ["auto", "max-performance"] {
        let layout = check(dual_x5540(), strategy, &two_machines(8), full);
        let found = layout.findings.iter().find(|found| found.subject == "emulator").unwrap();
        assert_eq!(found.severity, pinfold_model::Severity::Note, "{found}");
        assert!(found.text.contains("of a, b run on CPUs of their vCPUs"), "{found}");
        for (_, thread) in layout.threads().filter(|(_, it)| it.role == Role::Emulator) {
            assert!(
                thread.reason.contains("because every other CPU has a vCPU"),
                "{}",
                thread.reason
            );
        }
    }
    check(dual_x5540(), "compact", &two_machines(8), full);
    check(
        dual_x5540(),
        "sequential",
        &two_machines(8),
        &["0,1,2,3,4,5,6,7 | 0-7", "8,9,10,11,12,13,14,15 | 8-15"],
    );
    let layout = check(
        dual_x5540(),
        "max-performance",
        &two_machines(6),
        &["0,8,1,9,2,10 | 3,11", "4,12,5,13,6,14 | 7,15"],
    );
    assert!(!finds(&layout, "emulator", ""));
}

fn two_machines(count: u32) -> Request {
    ask(vec![vm("a", count), vm("b", count)])
}

/// Memory that leaves the host almost nothing, in one machine or in several.
#[test]
fn memory_that_leaves_the_host_nothing_is_a_finding() {
    let mut topology = dual_x5540().build();
    topology.source = pinfold_model::Source::Captured("x5540".to_owned());
    topology.nodes.iter_mut().for_each(|node| node.memory_bytes = 12 << 30);
    let found = |gib: &[u64]| {
        let request = ask(gib
            .iter()
            .enumerate()
            .map(|(place, gib)| VnodeRequest {
                memory: Some(MemoryRequest { bytes: gib << 30, page_bytes: None }),
                ..vm(&format!("vm{place}"), 2)
            })
            .collect());
        let layout = plan("numa-exclusive", &topology, &request).unwrap();
        let found = layout.findings.iter().find(|found| found.subject == "host memory");
        found.map(|found| (found.severity, found.text.clone()))
    };
    let (severity, text) = found(&[12, 12]).unwrap();
    assert_eq!(severity, pinfold_model::Severity::Note);
    assert!(
        text.starts_with("the plan uses 24 GiB of the host's 24 GiB of memory and leaves 0 GiB")
    );
    assert!(found(&[12, 11]).unwrap().1.contains("and leaves 1 GiB for"));
    assert_eq!(found(&[12, 10]), None);
    assert_eq!(found(&[12]), None);
}

/// A machine larger than a node, and another one on the remaining CPUs.
#[test]
fn a_machine_that_spans_nodes_is_planned_with_another() {
    // Four nodes of eight cores and 16 GiB.
    let mut four = Machine::new([4, 1, 1, 8, 1], |p| 8 * p.package + p.core).build();
    four.nodes.iter_mut().for_each(|node| node.memory_bytes = 16 << 30);
    for vnodes in [
        vec![with_gib("a", 18, 44), with_gib("b", 6, 8)],
        vec![with_gib("b", 6, 8), with_gib("a", 18, 44)],
    ] {
        let request = ask(vnodes);
        for strategy in ["auto", "multi-vm", "balanced"] {
            let layout = plan(strategy, &four, &request).unwrap();
            assert_ne!(layout.strategy, "none");
            let names: Vec<&str> = layout.vnodes.iter().map(|it| it.name.as_str()).collect();
            let asked: Vec<&str> = request.vnodes.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(names, asked);
            let find = |name: &str| layout.vnodes.iter().find(|it| it.name == name).unwrap();
            let nodes = |name: &str| find(name).memory.as_ref().unwrap().nodes.clone();
            assert_eq!((nodes("a").len(), nodes("b").len()), (3, 1), "{strategy}");
            assert!(!nodes("a").contains(&nodes("b")[0]), "{strategy}: {:?}", nodes("a"));
            let mut all = ["a", "b"]
                .map(|name: &str| -> Vec<String> {
                    find(name).vcpus().map(|vcpu| vcpu.pus.to_string()).collect()
                })
                .concat();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 24, "{strategy}");
        }
    }
    // 60 GiB and 8 GiB exceed the host's memory.
    let request = ask(vec![with_gib("a", 18, 60), with_gib("b", 6, 8)]);
    assert!(plan("multi-vm", &four, &request).is_err());
}

fn with_gib(name: &str, vcpus: u32, gib: u64) -> VnodeRequest {
    VnodeRequest {
        memory: Some(MemoryRequest { bytes: gib << 30, page_bytes: None }),
        ..vm(name, vcpus)
    }
}

/// A second machine, however small, takes no NUMA cell from one that spans nodes.
#[test]
fn a_machine_that_spans_nodes_keeps_its_cells_with_another() {
    fn shape(
        topology: &pinfold_model::Topology,
        strategy: &str,
        vnodes: Vec<VnodeRequest>,
    ) -> (u32, u32, u32, usize) {
        let layout = plan(strategy, topology, &ask(vnodes)).unwrap();
        assert_eq!(validate(&layout, topology), vec![]);
        let a = layout.vnodes.iter().find(|vnode| vnode.name == "a").unwrap();
        let guest = a.guest.as_ref().unwrap();
        (guest.sockets, guest.cores, guest.threads, cells(a, topology).len())
    }

    // Two packages with four nodes of sixteen cores each: three of them are in one package.
    let mut eight = Machine::new([2, 4, 2, 8, 2], |p| {
        p.core + 8 * (p.l3 + 2 * (p.node + 4 * p.package)) + 128 * p.thread
    })
    .build();
    eight.nodes.iter_mut().for_each(|node| node.memory_bytes = 64 << 30);
    let a = || with_gib("a", 48, 96);
    assert_eq!(shape(&eight, "low-latency", vec![a()]), (1, 48, 1, 3));
    assert_eq!(shape(&eight, "low-latency", vec![a(), vm("b", 2)]), (1, 48, 1, 3));
    assert_eq!(shape(&eight, "auto", vec![vm("b", 2), a()]), (1, 48, 1, 3));
    let mut two = dual_e5_2670().build();
    two.nodes.iter_mut().for_each(|node| node.memory_bytes = 64 << 30);
    assert_eq!(shape(&two, "balanced", vec![with_gib("a", 20, 40)]), (2, 5, 2, 2));
    assert_eq!(shape(&two, "balanced", vec![with_gib("a", 20, 40), vm("b", 2)]), (2, 5, 2, 2));
}

/// Of a machine that spans nodes, too, the vCPUs are in several L3 domains.
#[test]
fn all_machines_in_several_l3_domains_are_named() {
    let eight = Machine::new([2, 4, 2, 8, 2], |p| {
        p.core + 8 * (p.l3 + 2 * (p.node + 4 * p.package)) + 128 * p.thread
    });
    let three = ask(vec![vm("a", 48), vm("b", 16), vm("c", 8)]);
    let layout = plan("auto", &eight.build(), &three).unwrap();
    let l3 = layout.findings.iter().find(|finding| finding.subject == "L3").unwrap();
    assert!(
        l3.text.starts_with("the vCPUs of 2 machines span several L3 domains (a, b)"),
        "{l3:?}"
    );
}

/// Memory that is no whole number of huge pages.
#[test]
fn huge_pages_are_whole() {
    fn paged(mib: u64) -> VnodeRequest {
        VnodeRequest {
            memory: Some(MemoryRequest { bytes: mib << 20, page_bytes: Some(1 << 30) }),
            ..vm("rt", 4)
        }
    }
    let mut topology = dual_e5_2670().build();
    topology.nodes.iter_mut().for_each(|node| node.memory_bytes = 64 << 30);
    let layout = plan("realtime", &topology, &ask(vec![paged(16 << 10)])).unwrap();
    assert!(!finds(&layout, "huge pages", ""));
    let layout = plan("realtime", &topology, &ask(vec![paged(4608)])).unwrap();
    let finding = layout.findings.iter().find(|it| it.subject == "huge pages").unwrap();
    assert_eq!(finding.hint.as_deref(), Some("request 4 GiB or 5 GiB of memory"));
}

/// A limit on memory is given in the unit of requests, rounded down.
#[test]
fn memory_that_is_left_is_given_in_whole_mib() {
    let mut topology = i7_4790k().build();
    topology.nodes[0].memory_bytes = 37_738_264 << 10;
    fn sized(name: &str, bytes: u64) -> VnodeRequest {
        VnodeRequest { memory: Some(MemoryRequest { bytes, page_bytes: None }), ..vm(name, 1) }
    }
    let two = ask(vec![sized("a", 33 << 30), sized("b", 8 << 30)]);
    let refused = plan("multi-vm", &topology, &two).unwrap_err();
    assert!(refused.to_string().contains("3061 MiB left of 36853 MiB"), "{refused}");
    assert_eq!(refused.hint().as_deref(), Some("request at most 3061 MiB"));
}

/// The CPUs of the host are in the node too, and carry no vCPU.
#[test]
fn the_reason_of_an_emulator_with_the_host_excepts_the_hosts_pus() {
    let two = ask(vec![vm("web", 6), vm("db", 6)]);
    let expected = &["4,12,5,13,6,14 | 7,15", "1,9,2,10,3,11 | 0,8"];
    let layout = check(dual_x5540(), "numa-exclusive", &two, expected);
    let reason = &layout.vnodes[1].thread(&Role::Emulator).unwrap().reason;
    let expected = "the emulator runs on the CPUs 0,8 of core 0: every CPU of node 0 that is not \
                    reserved for the host has a vCPU";
    assert_eq!(reason, expected);
}

#[test]
fn priorities_choose_first() {
    let mut three = vec![vm("low", 2), vm("high", 2), vm("middle", 2)];
    for (vnode, priority) in three.iter_mut().zip([-1, 7, 0]) {
        vnode.priority = priority;
    }
    let expected = ["5,6 | 13-14", "1,2 | 9-10", "3,4 | 11-12"];
    check(
        Machine::new([1, 1, 1, 8, 2], |p| p.core + 8 * p.thread),
        "low-latency",
        &ask(three),
        &expected,
    );
}

#[test]
fn domains_of_their_own() {
    let two = ask(vec![vm("a", 4), vm("b", 2)]);
    let expected = ["4,5,6,7 | 12-15", "1,2 | 3,11"];
    check(two_complexes(), "l3-exclusive", &two, &expected);
    let layout = check(dual_x5540(), "numa-exclusive", &two, &expected);
    assert_eq!(layout.vnodes[1].memory.as_ref().unwrap().nodes, [NodeId(0)]);
    // Three vnodes on two nodes: two share a node without overlap.
    check(
        dual_x5540(),
        "numa-exclusive",
        &ask(vec![vm("a", 4), vm("b", 4)]),
        &["4,5,6,7 | 12-15", "1,9,2,10 | 3,11"],
    );
    let three = ask(vec![vm("a", 4), vm("b", 4), vm("c", 4)]);
    let expected = ["4,12,5,13 | 0,8", "1,9,2,10 | 3,11", "6,14,7,15 | 0,8"];
    check(dual_x5540(), "numa-exclusive", &three, &expected);
    // The order of the request would leave no room for the last: the largest is placed first.
    let packed = ask(vec![vm("a", 2), vm("b", 2), vm("c", 8)]);
    let expected = ["1,9 | 3,11", "2,10 | 3,11", "4,12,5,13,6,14,7,15 | 0,8"];
    check(dual_x5540(), "numa-exclusive", &packed, &expected);
    // Two nodes cannot hold three such machines: refused, like a single one that is too large.
    let crowd = ask(vec![vm("a", 8), vm("b", 6), vm("c", 4)]);
    for strategy in ["numa-exclusive", "l3-exclusive"] {
        let error = plan(strategy, &dual_x5540().build(), &crowd).unwrap_err();
        assert!(error.to_string().contains("\"c\""), "{error}");
        assert!(error.to_string().contains("has more CPUs left"), "{error}");
    }
}

#[test]
fn domains_that_are_not_there_or_too_small() {
    fn refused(machine: Machine, strategy: &str, request: &Request, text: &str) {
        let error = plan(strategy, &machine.build(), request).unwrap_err();
        assert_eq!(error.to_string(), text);
    }

    refused(
        i7_4790k().without_l3_and_nodes(),
        "l3-exclusive",
        &exactly(2),
        "l3-exclusive cannot use the CPUs 0-7 of this host: it has no L3 domain",
    );
    refused(
        dual_x5540(),
        "numa-exclusive",
        &exactly(9),
        "numa-exclusive gives at most 8 vCPUs on this host, the request asks for 9: each virtual \
         machine stays inside one node, and the largest has 8 CPUs apart from the host's core",
    );
    refused(
        dual_x5540(),
        "numa-exclusive",
        &ask(vec![vm("a", 2), vm("b", 9)]),
        "numa-exclusive has room for 8 of the 9 vCPUs of \"b\": each virtual machine stays inside \
         one node, and the largest has 8 CPUs apart from the host's core",
    );
    refused(
        i7_4790k(),
        "balanced",
        &ask(vec![vm("a", 1), vm("b", 1), vm("c", 1), vm("d", 1)]),
        "balanced has room for 0 of the 1 vCPU of \"d\": each vCPU needs a CPU of its own, and core \
         0 stays with the host",
    );
    let error = plan("vnodes", &i7_4790k().build(), &exactly(2)).unwrap_err();
    assert_eq!(error.hint().unwrap(), "use low-latency, which can");
    let five = ask(vec![group("a", 5, 50)]);
    refused(
        i7_4790k(),
        "vnodes",
        &five,
        "vnodes gives at most 4 cores on this host, the request asks for 5: each core of a group \
         is a separate core of the host",
    );
}

#[test]
fn process_groups_under_other_strategies() {
    let both = ask(vec![vm("a", 2), group("b", 1, 100)]);
    check(i7_4790k(), "low-latency", &both, &["1,2 | 5-6", "3 at 100%"]);
    check(i7_4790k(), "balanced", &both, &["1,5 | 0,3-4,7", "2 at 100%"]);
    check(i7_4790k(), "compact", &both, &["0,4 | 2-3,5-7", "1 at 100%"]);
}

#[test]
fn what_the_request_shows_the_guest() {
    let topology = i7_4790k().build();
    assert_eq!(shape(&plan("balanced", &topology, &with_smt(SmtRequest::Auto)).unwrap()), "1×2×2");
    assert_eq!(shape(&plan("balanced", &topology, &with_smt(SmtRequest::Shown)).unwrap()), "1×2×2");
    let hidden = plan("balanced", &topology, &with_smt(SmtRequest::Hidden)).unwrap();
    assert_eq!(shape(&hidden), "1×4×1");
    assert!(!finds(&hidden, "guest topology", ""));
    let wide = dual_e5_2670().build();
    let error = plan("low-latency", &wide, &with_smt(SmtRequest::Shown)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "low-latency cannot show \"a\" SMT siblings: no SMT is shown, because each vCPU has a core \
         of its own; one socket, because all vCPUs are in package 1"
    );
    assert_eq!(error.hint().unwrap(), "use balanced, which can");
    let packed = plan("numa-exclusive", &wide, &with_smt(SmtRequest::Shown)).unwrap();
    assert_eq!(shape(&packed), "1×2×2");
}

fn with_smt(smt: SmtRequest) -> Request {
    let vm = VmRequest { smt, ..VmRequest::from_vcpus(VcpuCount::Exactly(4)) };
    ask(vec![VnodeRequest::vm("a", vm)])
}

#[test]
fn devices_and_memory_near_the_vcpus() {
    let mut near = vm("a", 2);
    near.devices = vec![Device::Node(NodeId(0))];
    check(dual_x5540(), "low-latency", &ask(vec![near.clone()]), &["1,2 | 9-10"]);
    near.devices = vec![Device::Pci("0000:81:00.0".to_owned())];
    let layout = check(dual_x5540(), "low-latency", &ask(vec![near.clone()]), &["4,5 | 12-13"]);
    assert!(!finds(&layout, "devices", ""));
    let layout = plan("sequential", &dual_x5540().build(), &ask(vec![near.clone()])).unwrap();
    assert!(finds(&layout, "devices", "0000:81:00.0 is on node 1, but a is not"));
    near.devices = vec![Device::Pci("0000:02:00.0".to_owned())];
    let error = plan("compact", &dual_x5540().build(), &ask(vec![near])).unwrap_err();
    assert!(error.to_string().contains("cannot plan for the PCI device 0000:02:00.0"), "{error}");
    // Each node of these machines has 1 GiB.
    let layout = plan("low-latency", &dual_x5540().build(), &with_huge_pages(1 << 30)).unwrap();
    let memory = layout.vnodes[0].memory.as_ref().unwrap();
    assert_eq!(
        (memory.nodes.as_slice(), memory.page_bytes),
        ([NodeId(1)].as_slice(), Some(2 << 20))
    );
    let error = plan("numa-exclusive", &dual_x5540().build(), &with_huge_pages((1 << 30) + 4096))
        .unwrap_err();
    assert!(matches!(error, PlanError::Memory { missing: 4096, .. }), "{error}");
}

fn with_huge_pages(bytes: u64) -> Request {
    let mut vnode = vm("a", 2);
    vnode.memory = Some(MemoryRequest { bytes, page_bytes: Some(2 << 20) });
    ask(vec![vnode])
}

#[test]
fn huge_pages_that_are_free_on_the_node() {
    let mut topology = dual_x5540().build();
    for node in &mut topology.nodes {
        node.huge_pages = vec![HugePages { page_bytes: 2 << 20, total: 100, free: 64 }];
    }
    let asked = |machines: &[(&str, u64, u64)]| {
        let vnodes = machines.iter().map(|(name, bytes, page_bytes)| {
            let mut vnode = vm(name, 2);
            vnode.memory = Some(MemoryRequest { bytes: *bytes, page_bytes: Some(*page_bytes) });
            vnode
        });
        plan("numa-exclusive", &topology, &ask(vnodes.collect()))
    };
    let (mib, small) = (1 << 20, 2 << 20);
    assert!(asked(&[("a", 128 * mib, small), ("b", 128 * mib, small)]).is_ok());
    let error = asked(&[("a", 130 * mib, small)]).unwrap_err();
    let node = topology.nodes[1].id;
    let expected = PlanError::HugePages {
        vnode: "a".to_owned(),
        page_bytes: small,
        needed: 65,
        nodes: vec![node],
        free: 64,
    };
    assert_eq!(error, expected);
    assert!(error.hint().unwrap().contains("reserve 1 more"), "{:?}", error.hint());
    let error = asked(&[("a", 128 * mib, 1 << 30)]).unwrap_err();
    assert!(error.to_string().contains("needs 1 pages of 1048576 KiB"), "{error}");
}

#[test]
fn interrupts_near_their_device_and_off_the_vcpus() {
    assert_eq!(irqs("low-latency", 0).0, "0-3,8-11");
    let (pus, reason) = irqs("low-latency", 1);
    assert_eq!(
        (pus.as_str(), reason.contains("has a vCPU; these CPUs have none")),
        ("0-3,8-11", true),
        "{reason}"
    );
    assert_eq!(irqs("compact", 0).0, "2-3,10-11");
    let mut request = exactly(16);
    request.interrupts = vec![Device::Node(NodeId(1))];
    let layout = plan("compact", &dual_x5540().build(), &request).unwrap();
    assert_eq!(layout.irqs[0].pus, set("0-15"));
    assert!(finds(&layout, "interrupts", "share the CPUs 0-15 with vCPUs"));
}

fn irqs(strategy: &str, node: u32) -> (String, String) {
    let mut request = exactly(4);
    request.interrupts = vec![Device::Node(NodeId(node))];
    let layout = plan(strategy, &dual_x5540().build(), &request).unwrap();
    (layout.irqs[0].pus.to_string(), layout.irqs[0].reason.clone())
}

#[test]
fn a_share_that_stays_free() {
    fn refused(free: FreeCpus, text: &str) {
        let error = pins(free, "none").unwrap_err();
        assert_eq!(error.to_string(), text);
    }

    assert_eq!(pins(FreeCpus::Pus(3), "compact").unwrap(), "2,10,3,11,4,12,5,13,6,14,7,15");
    assert_eq!(pins(FreeCpus::Percent(50), "low-latency").unwrap(), "4,5,6,7");
    assert_eq!(pins(FreeCpus::These(set("7,15")), "low-latency").unwrap(), "0,1,2,3,4,5,6");
    refused(
        FreeCpus::Pus(17),
        "cannot keep 17 CPUs free on this host: only 16 CPUs can run the host's tasks, 1 too few",
    );
    refused(
        FreeCpus::Percent(90),
        "cannot keep 90 percent, 15 of 16 CPUs, free on this host: in whole cores, that is all of \
         0-15: no CPU would be left for the placement",
    );
    refused(
        FreeCpus::These(set("15-16")),
        "cannot keep the CPUs 15-16 free on this host: CPU 16 cannot run the host's tasks: not \
         present on this host, isolated, avoided, or not in the cpuset of this process",
    );
    let request = Request { free: Some(FreeCpus::These(set("14-15"))), ..auto() };
    let error = plan("none", &dual_x5540().offline("15").build(), &request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot keep the CPUs 14-15 free on this host: CPU 15 is offline, usable once online: \
         `echo 1 > /sys/devices/system/cpu/cpu15/online`"
    );
}

fn pins(free: FreeCpus, strategy: &str) -> Result<String, PlanError> {
    let request = Request { free: Some(free), ..auto() };
    plan(strategy, &dual_x5540().build(), &request).map(|layout| pinfold_samples::pins(&layout))
}

/// CPUs that the request names or counts are the host's, wherever the emulator is placed.
#[test]
fn the_hosts_pus_under_every_emulator() {
    let ask = |emulator_request, free: &FreeCpus, vcpus| Request {
        emulator: emulator_request,
        free: Some(free.clone()),
        ..exactly(vcpus)
    };
    let named = FreeCpus::These(set("0-3"));
    let topology = plain(8).build();
    for free in [&named, &FreeCpus::Pus(4)] {
        let usual = plan("balanced", &topology, &ask(EmulatorRequest::Usual, free, 4)).unwrap();
        assert_eq!(
            (pinfold_samples::pins(&usual), pinfold_samples::emulator(&usual)),
            ("4,5,6,7".into(), "0-3".into())
        );
        // Apart from the host's CPUs and the four vCPUs' no CPU is left.
        let error = plan("balanced", &topology, &ask(EmulatorRequest::Apart, free, 4)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("the CPUs 0-3 stay with the host, core 7 with the emulator"),
            "{text}"
        );
        let apart = plan("balanced", &topology, &ask(EmulatorRequest::Apart, free, 3)).unwrap();
        assert_eq!(
            (pinfold_samples::pins(&apart), pinfold_samples::emulator(&apart)),
            ("4,5,6".into(), "7".into())
        );
        assert_eq!((&apart.housekeeping, &apart.exclusive), (&set("0-3"), &set("4-7")));
        let reason = &apart.vnodes[0].thread(&pinfold_model::Role::Emulator).unwrap().reason;
        assert!(!reason.contains("sibling"), "{reason}");
        let ahead = plan("balanced", &topology, &ask(EmulatorRequest::RealTime, free, 4)).unwrap();
        assert!(set(&pinfold_samples::emulator(&ahead)).is_subset(&set("0-3")));
        assert!(set("0-3").is_subset(&ahead.housekeeping), "{}", ahead.housekeeping);
    }
}

#[test]
fn auto_says_what_it_picked_and_why() {
    picks(i7_4790k(), &exactly(3), "low-latency", "its own core");
    picks(i7_4790k(), &exactly(6), "balanced", "6 vCPUs fit on the 6 CPUs");
    picks(i7_4790k(), &exactly(8), "max-performance", "refused: balanced gives at most 6");
    picks(i7_4790k(), &auto(), "balanced", "is auto");
    picks(i7_4790k(), &exactly(9), "none", "do not pin, because 9 vCPUs must share 8 CPUs");
    picks(plain(1), &exactly(1), "none", "all threads float over CPU 0");
    let two = ask(vec![vm("a", 2), vm("b", 2)]);
    picks(dual_x5540(), &two, "numa-exclusive", "its own NUMA node");
    picks(two_complexes(), &two, "l3-exclusive", "its own L3 domain");
    picks(plain(8), &two, "low-latency", "its own core");
    picks(plain(8), &ask(vec![group("a", 2, 50)]), "vnodes", "process groups only");
    let apart = Request { emulator: EmulatorRequest::Apart, ..exactly(2) };
    picks(i7_4790k(), &apart, "balanced", "emulator's CPUs");
}

fn picks(machine: Machine, request: &Request, strategy: &str, why: &str) {
    let layout = plan("auto", &machine.build(), request).unwrap();
    assert_eq!(layout.strategy, strategy, "{:?}", layout.findings);
    assert!(finds(&layout, "auto", why), "{:?}", layout.findings);
}

#[test]
fn requests_that_place_nothing_or_the_same_twice() {
    let topology = plain(4).build();
    let error = plan("none", &topology, &Request::from_vnodes(Vec::new())).unwrap_err();
    assert_eq!(error, PlanError::NoVnodes);
    let twice = ask(vec![vm("a", 1), group("a", 1, 50)]);
    let error = plan("none", &topology, &twice).unwrap_err();
    assert_eq!(error.to_string(), "invalid name \"a\": it is given twice");
}

/// Machines larger than any node: each on a package of its own, its emulator too.
#[test]
fn machines_larger_than_a_node_have_a_package_each() {
    let topology = pinfold_samples::read("epyc-7763-dual.synthetic".to_owned()).1;
    for strategy in ["balanced", "auto"] {
        let layout = plan(strategy, &topology, &ask(vec![vm("a", 64), vm("b", 64)])).unwrap();
        let mut packages = Vec::new();
        for vnode in &layout.vnodes {
            let pus: CpuSet = vnode.threads.iter().map(|thread| &thread.pus).collect();
            packages.push(topology.packages.iter().position(|it| pus.is_subset(&it.pus)));
        }
        packages.sort_unstable();
        assert_eq!(packages, [Some(0), Some(1)], "{strategy}: {:?}", places(&layout));
        assert!(!layout.exclusive.is_empty(), "{strategy}");
    }
}

/// The machine with the most memory chooses its node first where the memory fits only then, in
/// whatever order the machines are given.
#[test]
fn memory_fits_in_every_order_of_the_machines() {
    let topology = pinfold_samples::read("e5-2670-dual.synthetic".to_owned()).1;
    fn sized(name: &str, gib: u64) -> VnodeRequest {
        let memory = Some(MemoryRequest { bytes: gib << 30, page_bytes: None });
        VnodeRequest { memory, ..vm(name, 2) }
    }
    let (a, b, c) = (sized("a", 30), sized("b", 30), sized("c", 60));
    let orders = [[&a, &b, &c], [&a, &c, &b], [&c, &a, &b]];
    for strategy in ["balanced", "numa-exclusive", "auto"] {
        for order in orders {
            let request = ask(order.map(Clone::clone).to_vec());
            let layout = plan(strategy, &topology, &request).unwrap();
            assert!(!layout.exclusive.is_empty(), "{strategy}");
            let node = |name: &str| {
                let vnode = layout.vnodes.iter().find(|vnode| vnode.name == name).unwrap();
                vnode.memory.as_ref().unwrap().nodes.clone()
            };
            let names: Vec<&str> = layout.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
            assert_eq!(names, order.map(|vnode| vnode.name.as_str()));
            assert_eq!((node("a"), node("c").len()), (node("b"), 1), "{strategy}");
            assert_ne!(node("a"), node("c"), "{strategy}");
        }
    }
}

#[test]
fn a_note_about_vcpus_that_float_names_the_machines_unless_it_holds_for_all() {
    for (vcpus, expected) in
        [(4, " of a float over 2 NUMA nodes"), (40, " float over 2 NUMA nodes")]
    {
        let request = Request::from_vnodes(vec![vm("a", 40), vm("b", vcpus)]);
        let plan = plan("node-shared", &dual_e5_2670().build(), &request).unwrap();
        let notes = plan.findings.iter().filter(|finding| finding.subject == "NUMA");
        let notes: Vec<&str> = notes.map(|finding| finding.text.as_str()).collect();
        let expected = format!("the vCPUs{expected} (0, 1)");
        assert!(notes.iter().any(|text| text.starts_with(&expected)), "{notes:?}");
    }
}

/// A core to which a vCPU of one machine is pinned by hand has no vCPU of another machine, and of
/// two pins on one core each machine has its own CPU only.
#[test]
fn no_machine_takes_a_cpu_to_which_another_is_pinned() {
    let topology = pinfold_samples::from_description("package:2 l3:1 core:8 pu:2");
    let strategies = ["balanced", "low-latency", "numa-exclusive", "l3-exclusive", "realtime"];
    for (cpus, are_on_one_core) in
        [(["2", "4"], false), (["16", "18"], false), (["18", "20"], false), (["18", "19"], true)]
    {
        for strategy in strategies.into_iter().chain(["max-performance", "multi-vm"]) {
            // Node 0 has seven cores next to the host's.
            let vcpus = if strategy == "realtime" { 3 } else { 4 };
            let mut request = Request::from_vnodes(vec![vm("a", vcpus), vm("b", vcpus)]);
            for (vnode, cpu) in request.vnodes.iter_mut().zip(cpus) {
                vnode.pins = pinfold_config::requests::pins(&format!("vcpu0={cpu}")).unwrap();
            }
            let layout = plan(strategy, &topology, &request).unwrap();
            let places = places(&layout);
            let used = layout.vnodes.iter().map(crate::analysis::placement::runs_on);
            let used = used.collect::<Vec<_>>();
            assert!(used[0].is_disjoint(&used[1]), "{strategy} {cpus:?}: {places:?}");
            assert!(used.iter().all(|pus| pus.len() == vcpus as usize), "{strategy}: {places:?}");
            let shares = layout.findings.iter().find(|finding| finding.subject == "shared cores");
            assert_eq!(shares.is_some(), are_on_one_core, "{strategy} {cpus:?}: {places:?}");
            if let Some(shares) = shares {
                let text = "1 core has vCPUs of several machines: each is slower while the others \
                            are busy (core 9)";
                assert_eq!(shares.text, text);
            }
        }
    }
}

/// Where the other cores are too few, the machines share cores as before.
#[test]
fn pins_by_hand_of_several_machines_are_never_a_reason_to_refuse() {
    let topology = pinfold_samples::from_description("core:4 pu:2");
    let mut request = Request::from_vnodes(vec![vm("a", 3), vm("b", 3)]);
    for (vnode, cpu) in request.vnodes.iter_mut().zip(["2", "4"]) {
        vnode.pins = pinfold_config::requests::pins(&format!("vcpu0={cpu}")).unwrap();
    }
    let layout = plan("balanced", &topology, &request).unwrap();
    assert_eq!(layout.threads().filter(|(_, thread)| thread.role.is_vcpu()).count(), 6);
}

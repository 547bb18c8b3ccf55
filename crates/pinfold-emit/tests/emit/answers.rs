//! What an expert would answer on the hosts of `fixtures/hosts`, request by request.

use pinfold_config::requests;
use pinfold_emit::{cmdline, libvirt, merge_libvirt_domain};
use pinfold_model::{
    CpuSet, EmulatorRequest, FreeCpus, IsolationScope, MemoryRequest, NumaNode, Plan, Preference,
    Request, Role, Severity, SmtRequest, Topology, VcpuCount, VmRequest, VnodeRequest, Work,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::{PlanError, plan};

fn host(name: &str) -> Topology {
    pinfold_samples::read(name.to_owned()).1
}

fn new_request(vcpus: u32) -> Request {
    Request::vm("vm", VcpuCount::Exactly(vcpus))
}

fn pin_request(vcpus: u32, pins: &[&str]) -> Request {
    let mut request = new_request(vcpus);
    for text in pins {
        request.vnodes[0].pins.extend(requests::pins(text).expect("a pin"));
    }
    request
}

fn with_iothread(mut request: Request) -> Request {
    if let Work::Vm(vm) = &mut request.vnodes[0].work {
        vm.iothreads.push("a".to_owned());
    }
    request
}

fn with_memory(vcpus: u32, gib: u64) -> Request {
    let mut request = new_request(vcpus);
    request.vnodes[0].memory = Some(MemoryRequest { bytes: gib << 30, page_bytes: None });
    request
}

fn make_plan(strategy: &str, on: &str, request: &Request) -> Plan {
    plan(strategy, &host(on), request).unwrap_or_else(|error| panic!("{strategy}, {on}: {error}"))
}

/// The CPUs of all vCPUs.
fn pus(plan: &Plan) -> String {
    plan.vnodes[0].vcpus().map(|one| &one.pus).collect::<CpuSet>().to_string()
}

fn pus_of(plan: &Plan, role: &Role) -> String {
    plan.vnodes[0].thread(role).expect("the role").pus.to_string()
}

fn shape(plan: &Plan) -> String {
    let guest = plan.vnodes[0].guest.as_ref().expect("a guest");
    format!("{}×{}×{}", guest.sockets, guest.cores, guest.threads)
}

fn texts(plan: &Plan, subject: &str) -> Vec<String> {
    let found = plan.findings.iter().filter(|finding| finding.subject == subject);
    found.map(|it| format!("{}: {}", it.text, it.hint.as_deref().unwrap_or(""))).collect()
}

fn severity(plan: &Plan, subject: &str) -> Option<Severity> {
    let found = plan.findings.iter().filter(|finding| finding.subject == subject);
    found.map(|finding| finding.severity).max()
}

#[test]
fn findings_are_those_of_the_plan_with_its_pins() {
    let request = Request { isolation: IsolationScope::Host, ..pin_request(2, &["vcpu0-1=2,3"]) };
    for strategy in ["realtime", "isolcpus"] {
        let layout = make_plan(strategy, "i7-4790k.synthetic", &request);
        let hint = texts(&layout, "isolcpus").concat();
        let line = format!("isolcpus=managed_irq,domain,{} ", layout.exclusive);
        assert!(hint.contains(&line), "{strategy}: {hint}");
        let parameters = cmdline(&layout, &host("i7-4790k.synthetic"));
        assert!(parameters.contains(line.trim_end()), "{strategy}");
    }
    let layout = make_plan("realtime", "i7-4790k.synthetic", &request);
    assert_eq!(layout.exclusive.to_string(), "2-3,6-7");
    // Where nothing is isolated the note names what would be.
    let request = pin_request(2, &["vcpu=8-9"]);
    let layout = make_plan("balanced", "e5-2670-dual.synthetic", &request);
    let note = texts(&layout, "isolation").concat();
    assert!(note.contains("the CPUs 8-9,24-25, which balanced"), "{note}");
    let request = pin_request(2, &["vcpu0=3", "vcpu1=4"]);
    let layout = make_plan("balanced", "e5-2670-dual.synthetic", &request);
    let note = texts(&layout, "smt").concat();
    assert!(note.contains("the CPUs 19-20 stay idle"), "{note}");
}

#[test]
fn helpers_that_are_pinned_to_a_bad_place_are_warned_of() {
    let on_vcpu = plan_on(&["vcpu0=8", "iothread:a=8"]);
    assert!(pus(&on_vcpu).starts_with('8'));
    assert_eq!(severity(&on_vcpu, "emulator"), Some(Severity::Warning));
    assert!(texts(&on_vcpu, "emulator").concat().contains("iothread(a) of vm run"));
    assert_eq!(severity(&plan_on(&["iothread:a=0"]), "iothread"), Some(Severity::Warning));
    assert_eq!(severity(&plan_on(&["iothread:a=12"]), "iothread"), None);
    let both = plan_on(&["emulator=8", "vcpu0=8"]);
    assert_eq!(severity(&both, "emulator"), Some(Severity::Warning));
    // No other place is left: worth a note.
    let full = make_plan("max-performance", "i7-4790k.synthetic", &new_request(8));
    assert_eq!(severity(&full, "emulator"), Some(Severity::Note));
}

fn plan_on(pin: &[&str]) -> Plan {
    let request = with_iothread(pin_request(4, pin));
    make_plan("balanced", "e5-2670-dual.synthetic", &request)
}

#[test]
fn a_thread_is_pinned_once() {
    for pins in [&["vcpu0=1", "vcpu0=2"][..], &["vcpu0-1=1,2", "vcpu1=3"], &["vcpu=1", "vcpu=2"]] {
        let error = plan("balanced", &host("e5-2670-dual.synthetic"), &pin_request(2, pins));
        assert!(error.expect_err("twice").to_string().contains("is pinned twice"), "{pins:?}");
    }
    // A kind of threads, and one of them.
    let layout =
        make_plan("none", "e5-2670-dual.synthetic", &pin_request(2, &["vcpu=1-2", "vcpu1=3"]));
    assert_eq!(
        (pus_of(&layout, &Role::Vcpu(0)), pus_of(&layout, &Role::Vcpu(1))),
        ("1-2".into(), "3".into())
    );
}

#[test]
fn auto_heeds_the_preference() {
    for vcpus in [6, 8, 10] {
        let request = Request { prefer: Preference::Cache, ..new_request(vcpus) };
        let topology = host("gb10.xml");
        let layout = make_plan("auto", "gb10.xml", &request);
        assert!(!["scatter", "compact", "sequential"].contains(&layout.strategy.as_str()));
        let carried = CpuSet::parse_list(&pus(&layout)).expect("a list");
        let size = |pu| {
            let l3 = topology.pu(pu).and_then(|pu| pu.l3);
            topology.l3.iter().find(|domain| Some(domain.id) == l3).map(|domain| domain.size_bytes)
        };
        let largest = topology.l3.iter().map(|domain| domain.size_bytes).max();
        assert!(carried.iter().all(|pu| size(pu) == largest), "{vcpus}: {carried}");
    }
}

#[test]
fn vcpus_without_a_pin_are_near_those_with_one() {
    let layout = make_plan("auto", "e5-2670-dual.synthetic", &pin_request(2, &["vcpu0=1"]));
    assert_eq!((layout.strategy.as_str(), pus(&layout).as_str()), ("low-latency", "1-2"));
    assert!(texts(&layout, "auto").concat().contains("its own core"));
}

/// An emulator apart from the host is near its vCPUs wherever a core is left there.
#[test]
fn an_emulator_apart_is_on_the_vcpus_node() {
    check("x5540-dual.synthetic", 3, "4", "3,11");
    check("memory-in-group.xml", 1, "18", "3");
}

fn check(on: &str, vcpus: u32, free: &str, expected: &str) {
    let free = Some(FreeCpus::These(CpuSet::parse_list(free).expect("a list")));
    let emulator_request = EmulatorRequest::Apart;
    let request = with_iothread(Request { free, emulator: emulator_request, ..new_request(vcpus) });
    let layout = make_plan("balanced", on, &request);
    assert_eq!(pus_of(&layout, &Role::Emulator), expected, "{on}");
    assert_eq!(pus_of(&layout, &Role::Iothread("a".to_owned())), expected, "{on}");
}

#[test]
fn counted_free_pus_leave_a_kind_of_cores_whole() {
    let request = Request { free: Some(FreeCpus::Pus(3)), ..new_request(8) };
    let layout = make_plan("low-latency", "ryzen-hx370.xml", &request);
    assert_eq!(pus(&layout), "4-11");
    assert_eq!(severity(&layout, "core kinds"), None);
}

#[test]
fn a_machine_over_two_nodes_is_divided_equally() {
    let topology = host("e5-2670-dual.synthetic");
    for strategy in ["auto", "balanced"] {
        let layout = plan(strategy, &topology, &with_memory(20, 40)).expect("a plan");
        assert_eq!(shape(&layout), "2×5×2", "{strategy}");
        let text = libvirt(&layout, &topology).expect("one machine");
        for cell in ["cpus='0-9' memory='20971520'", "cpus='10-19' memory='20971520'"] {
            assert!(text.contains(cell), "{text}");
        }
    }
    assert_eq!(shape(&make_plan("balanced", "e5-2670-dual.synthetic", &new_request(20))), "2×5×2");
    // In single CPUs where the nodes do not divide the cores.
    for (on, vcpus, expected) in
        [("e5-2670-dual.synthetic", 18, "2×9×1"), ("x5540-dual.synthetic", 10, "2×5×1")]
    {
        let layout = make_plan("balanced", on, &with_memory(vcpus, 8));
        assert_eq!(shape(&layout), expected, "{on}");
        let text = libvirt(&layout, &host(on)).expect("one machine");
        assert_eq!(text.matches("memory='4194304'").count(), 2, "{text}");
        assert_eq!(severity(&layout, "guest topology"), Some(Severity::Note));
        assert_eq!(texts(&layout, "isolation").len(), 1);
    }
    assert_eq!(shape(&make_plan("balanced", "snc2.synthetic", &with_memory(8, 16))), "1×8×1");
}

/// Sockets have one size: where the nodes carry unequal numbers of vCPUs, their cells are parts of
/// one.
#[test]
fn a_number_that_the_nodes_do_not_divide_is_shown_as_one_socket() {
    let topology = host("e5-2670-dual.synthetic");
    let mut shown = with_memory(18, 8);
    if let Work::Vm(vm) = &mut shown.vnodes[0].work {
        vm.smt = SmtRequest::Shown;
    }
    for (request, expected, most) in [
        (with_memory(17, 8), "1×17×1", 9),
        (with_memory(29, 8), "1×29×1", 15),
        (shown, "1×9×2", 10),
    ] {
        let layout = plan("balanced", &topology, &request).unwrap_or_else(|error| {
            panic!("{expected}: {error}");
        });
        assert_eq!(shape(&layout), expected);
        let vcpus = layout.vnodes[0].vcpus();
        let on_second = vcpus.filter(|thread| thread.pus.is_subset(&topology.nodes[1].pus));
        assert_eq!(on_second.count(), most, "{expected}");
        let text = libvirt(&layout, &topology).expect("one machine");
        let count = layout.vnodes[0].vcpus().count();
        assert!(text.contains("<memory mode='strict' nodeset='0-1'/>"), "{text}");
        for cell in [
            format!("cpus='0-{}'", count - most - 1),
            format!("cpus='{}-{}'", count - most, count - 1),
        ] {
            assert!(text.contains(&cell), "{cell}: {text}");
        }
    }
}

/// The plan of a file into which a plan was merged is the same plan.
#[test]
fn a_merged_file_gets_the_same_plan_again() {
    let mut divided = 0;
    for (name, topology) in &pinfold_samples::hosts() {
        let sizes = [(4, 16), (8, 16), (20, 40), (6, 2), (7, 4), (10, 4), (17, 8), (18, 8)];
        // Of a guest as large as the host the second plan may float, as its pins need not help;
        // too much memory is refused.
        let memory: u64 = topology.nodes.iter().map(|node| node.memory_bytes).sum();
        for (vcpus, gib) in sizes.into_iter().filter(|(vcpus, gib): &(usize, u64)| {
            *vcpus < topology.pus.len() && gib << 30 <= memory
        }) {
            for strategy in ["auto", "balanced", "low-latency"] {
                let mut xml = format!(
                    "<domain type='kvm'>\n  <name>vm</name>\n  <memory unit='GiB'>{gib}</memory>\n  \
                     <vcpu placement='static'>{vcpus}</vcpu>\n  \
                     <os><type arch='x86_64' machine='q35'>hvm</type></os>\n  \
                     <cpu mode='host-passthrough'/>\n</domain>\n"
                );
                let Ok(first) = merge(&xml, strategy, topology) else { continue };
                xml = first;
                let domain = Domain::read(&xml).expect("a domain file");
                // The memory of vCPUs on a node without any is bound to another node, and a second
                // plan stays there.
                if domain.cells.is_empty()
                    && topology
                        .nodes
                        .iter()
                        .any(|node: &NumaNode| node.memory_bytes == 0 && !node.pus.is_empty())
                {
                    continue;
                }
                let second = merge(&xml, strategy, topology).expect("a second plan");
                divided += usize::from(!domain.cells.is_empty());
                assert_eq!(second, xml, "{name}, {strategy}, {vcpus} vCPUs");
                let shape = &domain.shape.as_ref().expect("a topology").value;
                assert!(shape.sockets as usize <= topology.packages.len(), "{name}, {strategy}");
                for cell in &domain.cells {
                    let first = cell.value.vcpus.first().expect("a vCPU").0;
                    assert_eq!(
                        first % shape.threads,
                        0,
                        "{name}, {strategy}: {}",
                        cell.value.vcpus
                    );
                }
            }
        }
    }
    assert!(divided >= 40, "{divided}");
}

fn merge(xml: &str, strategy: &str, topology: &Topology) -> Result<String, PlanError> {
    let domain = Domain::read(xml).expect("a domain file");
    let mut vnode = VnodeRequest::vm("vm", domain.request(topology));
    vnode.memory = domain.memory_request(topology);
    let layout = plan(strategy, topology, &Request::from_vnodes(vec![vnode]))?;
    let vnode = layout.single_vnode().expect("one machine");
    Ok(merge_libvirt_domain(xml, &layout, vnode, topology).expect("a merge").text)
}

#[test]
fn memory_that_no_node_has_is_divided_or_refused_with_what_fits() {
    let topology = host("x5540-dual.synthetic");
    let layout = plan("auto", &topology, &with_memory(4, 16)).expect("a plan");
    let nodes = &layout.vnodes[0].memory.as_ref().expect("memory").nodes;
    assert_eq!((nodes.len(), shape(&layout).as_str()), (2, "2×2×1"));
    let text = libvirt(&layout, &topology).expect("one machine");
    assert_eq!(text.matches("memory='8388608'").count(), 2, "{text}");
    let error = plan("auto", &topology, &with_memory(4, 64)).expect_err("too much");
    assert_eq!(error.to_string(), "\"vm\" needs 64 GiB of memory, but the nodes 0, 1 have 24 GiB");
    assert_eq!(error.hint().as_deref(), Some("request at most 24 GiB"));
    for finding in layout.findings.iter().filter(|finding| finding.subject == "NUMA") {
        assert_eq!(finding.hint.as_deref(), Some("request at most 12 GiB of memory"));
    }
    let (a, b) = (("a", 8), ("b", 4));
    let three = Request::from_vnodes(
        [a, b, ("c", 14)]
            .map(|(name, gib)| VnodeRequest {
                memory: Some(MemoryRequest { bytes: gib << 30, page_bytes: None }),
                ..VnodeRequest::vm(name, VmRequest::from_vcpus(VcpuCount::Exactly(2)))
            })
            .to_vec(),
    );
    let error = plan("compact", &topology, &three).expect_err("too much");
    let text = error.to_string();
    assert!(text.contains(" left of 12 GiB") || text.contains(" left of 24 GiB"), "{text}");
    let error = plan("realtime", &topology, &with_memory(2, 16)).expect_err("one node");
    let hint = error.hint().expect("a hint");
    assert!(hint.starts_with("request at most 12 GiB, or use the strategy low-latency"), "{hint}");
}

/// A number of vCPUs that fills no cores is given a core each where cores are idle.
#[test]
fn an_odd_number_hides_no_siblings() {
    fn check(strategy: &str, on: &str, vcpus: u32, expected: &str) {
        assert_eq!(pus(&make_plan(strategy, on, &new_request(vcpus))), expected, "{on}");
    }

    check("balanced", "i5-12600k.capture", 3, "2,4,6");
    check("balanced", "x5540-dual.synthetic", 3, "4-6");
    check("auto", "i5-12600k.capture", 5, "2,4,6,8,10");
    // Siblings where the number fills cores, and where another machine needs the cores.
    assert_eq!(shape(&make_plan("balanced", "i5-12600k.capture", &new_request(4))), "1×2×2");
    let two = Request::from_vnodes(
        [("a", 3), ("b", 2)]
            .map(|(name, vcpus)| {
                VnodeRequest::vm(name, VmRequest::from_vcpus(VcpuCount::Exactly(vcpus)))
            })
            .to_vec(),
    );
    let layout = make_plan("balanced", "i7-4790k.synthetic", &two);
    assert_eq!(layout.vnodes.iter().map(|vnode| vnode.vcpus().count()).sum::<usize>(), 5);
}

#[test]
fn the_preference_that_would_give_other_cpus_is_named() {
    for prefer in [Preference::Auto, Preference::None] {
        for (on, vcpus) in [("ultra-255h.capture", 8), ("ryzen-hx370.xml", 16)] {
            let layout = make_plan("balanced", on, &Request { prefer, ..new_request(vcpus) });
            let notes = texts(&layout, "preference");
            assert!(!notes.is_empty(), "{on}, {prefer}: {}", pus(&layout));
        }
    }
    let layout = make_plan("balanced", "e5-2670-dual.synthetic", &new_request(8));
    assert_eq!(texts(&layout, "preference"), [""; 0]);
}

/// Strategies that refuse, or warn, for the same reason are named together.
#[test]
fn auto_names_each_reason_once() {
    let mut together = 0;
    for (name, topology) in pinfold_samples::hosts().iter().filter(|(_, it)| it.pus.len() <= 64) {
        let pus = u32::try_from(topology.pus.len()).expect("few CPUs");
        let node = topology.nodes.iter().map(|node| node.memory_bytes).max().unwrap_or(0);
        // No division gives one vCPU the memory of two nodes.
        let large = with_memory(1, (node >> 30) * 3 / 2);
        let sizes = [pus / 2, pus - 1, pus].map(|vcpus| new_request(vcpus.max(1)));
        for request in sizes.iter().chain([&large]) {
            let Ok(layout) = plan("auto", topology, request) else { continue };
            let text = texts(&layout, "auto").concat();
            let refusals = text.match_indices("refused").map(|(at, _)| &text[at..]);
            let reasons: Vec<&str> = refusals
                .filter_map(|text| text.split("; ").next()?.split_once(": "))
                .map(|(_, reason)| reason)
                .collect();
            let distinct: std::collections::BTreeSet<_> = reasons.iter().collect();
            assert_eq!(distinct.len(), reasons.len(), "{name}: {text}");
            together += text.matches("refused by").count() + text.matches(" warn of ").count();
        }
    }
    assert!(together > 0);
}

/// A core of which the plan may not use a sibling is no vCPU's own: it is the host's, or the last
/// that is taken, with the reason.
#[test]
fn a_core_with_an_avoided_sibling_is_the_last_that_real_time_vcpus_get() {
    fn plan_on(plan: &Plan) -> String {
        pinfold_model::describe_pins(plan)
    }

    assert_eq!(plan_on(&answers_of("0", 2)), "0→2, 1→3");
    let three = answers_of("0", 3);
    assert_eq!(plan_on(&three), "0→1, 1→2, 2→3");
    assert_eq!(three.vnodes[0].thread(&Role::Emulator).expect("it").pus.to_string(), "4");
    assert!(three.vnodes[0].threads[0].reason.contains("no sibling that is online"));
    assert_eq!(plan_on(&answers_of("0,1", 2)), "0→2, 1→3");
    assert_eq!(plan_on(&answers_of("0,1,3", 1)), "0→2");
    let last = answers_of("0,1,3,6", 1);
    let reason = &last.vnodes[0].threads[0].reason;
    assert_eq!(plan_on(&last), "0→4");
    assert!(
        reason.contains("this vCPU may have to share") && reason.contains("not use CPU 0"),
        "{reason}"
    );
}

fn answers_of(avoid: &str, count: u32) -> Plan {
    let avoid = CpuSet::parse_list(avoid).expect("a list");
    let request = Request { avoid, ..pin_request(count, &[]) };
    make_plan("realtime", "half-offline-smt.capture", &request)
}

/// What a reason says of a sibling is what the plan does with it.
#[test]
fn a_sibling_is_called_isolated_only_where_it_is() {
    for (isolation, name, expected) in [
        (
            IsolationScope::None,
            "e5-2670-dual.synthetic",
            "`--isolate host` or the kernel parameters",
        ),
        (IsolationScope::Host, "e5-2670-dual.synthetic", "stays idle and is isolated with it"),
        (IsolationScope::None, "isolated-realtime.capture", "stays idle and is isolated with it"),
    ] {
        let layout = make_plan("realtime", name, &Request { isolation, ..pin_request(4, &[]) });
        for vcpu in layout.vnodes[0].vcpus() {
            assert!(vcpu.reason.contains(expected), "{name}, {isolation}: {}", vcpu.reason);
        }
    }
}

#[test]
fn the_reason_of_an_emulator_on_two_nodes_is_one_sentence() {
    let plan = make_plan("auto", "e5-2670-dual.synthetic", &with_memory(20, 100));
    let emulator = plan.vnodes[0].thread(&Role::Emulator).expect("an emulator");
    assert_eq!(emulator.reason.matches("the emulator runs on").count(), 1, "{}", emulator.reason);
    assert_eq!(emulator.reason.matches("with the host's tasks").count(), 1, "{}", emulator.reason);
}

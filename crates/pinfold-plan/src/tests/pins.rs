//! Pins by hand in combination with strategies.

use pinfold_config::requests::{self, from_toml, parse_vm_spec};
use pinfold_model::{
    CpuSet, EmulatorRequest, FreeCpus, IsolationScope, Plan, Policy, Request, Role, Topology,
    VcpuCount,
};
use pinfold_samples::machine::{dual_e5_2670, i7_4790k, two_complexes};
use pinfold_samples::{emulator, exactly, finds, pins, set};
use proptest::prelude::*;

use crate::{PlanError, plan, schema, validate};

fn with(request: Request, texts: &[&str]) -> Request {
    let mut request = request;
    for text in texts {
        request.vnodes[0].pins.extend(requests::pins(text).unwrap());
    }
    request
}

fn shape(plan: &Plan) -> String {
    let guest = plan.vnodes[0].guest.as_ref().unwrap();
    format!("{}×{}×{}", guest.sockets, guest.cores, guest.threads)
}

#[test]
fn a_thread_goes_where_it_is_pinned_and_the_others_make_room() {
    let topology = i7_4790k().build();
    let swapped = low_latency(&["vcpu0=2"], &topology);
    assert_eq!((pins(&swapped).as_str(), emulator(&swapped).as_str()), ("2,1,3", "5-7"));
    // The order of compact is fixed: vCPU 1 was on CPU 4, and moves to the CPU that vCPU 0 left.
    let line = plan("compact", &topology, &with(exactly(3), &["vcpu0=4"])).unwrap();
    let reason = &line.vnodes[0].threads[1].reason;
    assert_eq!(reason, "CPU 0 is free because its vCPU is pinned to CPU 4 by hand");
    assert_eq!(swapped.vnodes[0].threads[0].reason, "pinned to CPU 2 by hand");
    assert!(finds(&swapped, "pins", "vcpu(0)=2 by hand"));
    // On a sibling: the other vCPUs have their own cores, the emulator the remaining CPUs.
    let sibling = low_latency(&["vcpu(1)=5"], &topology);
    assert_eq!((pins(&sibling).as_str(), emulator(&sibling).as_str()), ("2,5,3", "1,6-7"));
    assert_eq!(sibling.exclusive, set("1-3,5-7"));
    // All three vCPUs and the emulator on the host's core; CPUs that no vCPU needs become the
    // host's.
    let all = low_latency(&["vcpu0-1=2,6", "vcpu2=3", "emulator=0,4"], &topology);
    assert_eq!((pins(&all).as_str(), emulator(&all).as_str()), ("2,6,3", "0,4"));
    assert_eq!((all.exclusive.clone(), all.housekeeping.clone()), (set("2-3,6-7"), set("0-1,4-5")));
    let reason = &all.housekeeping_reason;
    assert!(reason.contains("1,5, which no role of the plan needs"), "{reason}");
    let pair = plan("balanced", &topology, &with(exactly(2), &["vcpu0-1=3,7"])).unwrap();
    assert_eq!((shape(&pair).as_str(), pair.exclusive.clone()), ("1×1×2", set("3,7")));
    // The emulator follows the vCPUs, and the host leaves a core that it would otherwise keep.
    let moved = plan("low-latency", &topology, &with(exactly(2), &["vcpu0-1=2,3"])).unwrap();
    assert_eq!((emulator(&moved).as_str(), moved.exclusive.clone()), ("6-7", set("2-3,6-7")));
    let boot = plan("low-latency", &topology, &with(exactly(2), &["vcpu0=0"])).unwrap();
    assert_eq!((pins(&boot).as_str(), emulator(&boot).as_str()), ("0,2", "4,6"));
    assert_eq!(boot.housekeeping, set("1,3,5,7"));
    for made in [&swapped, &sibling, &all, &pair, &moved, &boot] {
        assert_eq!(validate(made, &topology), vec![]);
        assert_eq!(schema::from_json(&schema::to_json(made)).as_ref(), Ok(made));
    }
}

fn low_latency(texts: &[&str], topology: &Topology) -> Plan {
    plan("low-latency", topology, &with(exactly(3), texts)).unwrap()
}

#[test]
fn a_vcpu_on_several_pus_floats_there() {
    let topology = i7_4790k().build();
    let request = with(exactly(3), &["vcpu2=2,6"]);
    let layout = plan("low-latency", &topology, &request).unwrap();
    assert_eq!(pins(&layout), "1,3,2,6");
    assert_eq!(shape(&layout), "1×3×1");
    assert_eq!(emulator(&layout), "5,7");
    let none = plan("none", &topology, &with(exactly(2), &["vcpu0-1=1,5"])).unwrap();
    assert_eq!((pins(&none).as_str(), shape(&none).as_str()), ("1,5", "1×1×2"));
}

#[test]
fn memory_and_guest_follow_the_pins() {
    let topology = dual_e5_2670().build();
    let request = with(exactly(2), &["vcpu0-1=0,1"]);
    let moved = plan("numa-exclusive", &topology, &request).unwrap();
    let nodes = moved.vnodes[0].memory.as_ref().map(|memory| memory.nodes.clone());
    let strategy = plan("numa-exclusive", &topology, &exactly(2)).unwrap();
    let bound = strategy.vnodes[0].memory.as_ref().unwrap().nodes.clone();
    assert_ne!(nodes, Some(bound), "the memory is not left on the node of the strategy");
    let apart = plan("low-latency", &topology, &with(exactly(2), &["vcpu0-1=1,9"])).unwrap();
    assert!(finds(&apart, "NUMA", "span 2 NUMA nodes"), "{:?}", apart.findings);
    assert_eq!(shape(&apart), "2×1×1");
}

#[test]
fn what_cannot_be_pinned_is_refused_with_its_reason() {
    let topology = i7_4790k().offline("7").build();
    let low = |text: &str, reported: &str| {
        check_pin(with(exactly(2), &[text]), "low-latency", reported, &topology)
    };
    low("vcpu0=7", "cannot pin vcpu(0) to 7: CPU 7 is offline, usable once online: `echo 1 > /sys");
    low("emulator=0,8-9", "the CPUs 8-9 do not exist on this host");
    low(
        "vcpu5=1",
        "there is no thread \"vcpu(5)\"; the threads are vcpu(0), vcpu(1), emulator, \
                    worker",
    );
    low("iothread:io1=0", "there is no thread \"iothread(io1)\"");
    let host = Request { free: Some(FreeCpus::These(set("0,4"))), ..exactly(2) };
    check_pin(with(host, &["vcpu0=4"]), "balanced", "CPU 4 is kept free for the host", &topology);
    let avoid = Request { avoid: set("3"), ..exactly(2) };
    check_pin(with(avoid, &["vcpu0=3"]), "balanced", "the request avoids CPU 3", &topology);
    let narrow = i7_4790k().allowed("0-3").build();
    let error = plan("low-latency", &narrow, &with(exactly(2), &["vcpu0=5"])).unwrap_err();
    assert!(error.to_string().contains("is not in the cpuset of this process"), "{error}");
    // The real-time check: the emulator and the host must each keep a CPU.
    let request = Request { emulator: EmulatorRequest::RealTime, ..exactly(6) };
    let i7 = i7_4790k().build();
    let error = plan("balanced", &i7, &with(request, &["emulator=0,4"])).unwrap_err();
    assert!(error.to_string().contains("no CPU is left for the host only"), "{error}");
    let mut request = with(exactly(2), &["vcpu0=1", "vcpu1=5", "emulator=1"]);
    request.vnodes[0].policies = parse_vm_spec("name=a,policies=vcpu=fifo:1").unwrap().policies;
    let error = plan("balanced", &i7, &request).unwrap_err();
    assert!(error.to_string().contains("so it would wait for them"), "{error}");
    let all = with(exactly(4), &["vcpu0-3=0-3"]);
    let layout = plan("low-latency", &i7_4790k().allowed("0-3,5-7").build(), &all);
    assert!(matches!(layout, Err(PlanError::TooManyVcpus { .. })), "{layout:?}");
}

fn check_pin(request: Request, strategy: &str, reported: &str, topology: &Topology) {
    let error = plan(strategy, topology, &request).unwrap_err();
    assert!(matches!(error, PlanError::Pin { .. }), "{error}");
    assert!(error.to_string().contains(reported), "{error}");
    assert!(error.hint().is_some());
}

#[test]
fn forms_of_a_pin() {
    for text in ["vcpu3=7", "vcpu(3)=7", "vcpu:3=7", " vcpu3 = 7 "] {
        assert_eq!(read(text), ["vcpu(3)=7"], "{text}");
    }
    assert_eq!(read("vcpu0-3=8,24,9,25"), ["vcpu(0)=8", "vcpu(1)=24", "vcpu(2)=9", "vcpu(3)=25"]);
    assert_eq!(read("vcpu=2-3"), ["vcpu=2-3"]);
    assert_eq!(read("emulator=0,8"), ["emulator=0,8"]);
    assert_eq!(read("iothread:io1=9"), ["iothread(io1)=9"]);
    assert_eq!(read("iothread(io-2.x)=9"), ["iothread(io-2.x)=9"]);
    assert_eq!(read("vhost1=4"), ["vhost(1)=4"]);
    check("vcpu3", "expected ROLE=CPUS, got \"vcpu3\"");
    check("vcpu3=", "no CPU is named");
    check("cpu3=7", "\"cpu3\" is not a role of a thread");
    check("vcpu3-1=7", "\"vcpu3-1\" is not a role of a thread");
    check("vcpu0-99999999=7", "\"vcpu0-99999999\" is not a role of a thread");
    check("iothread:=7", "\"iothread:\" is not a role of a thread");
    check("iothreadx=7", "\"iothreadx\" is not a role of a thread");
    check("vcpu0-3=8-9", "vcpu0-3 is 4 threads, but 8-9 is 2 CPUs: a range needs one CPU for each");
    let words = parse_vm_spec("name=a pins=vcpu3=7+emulator=0,8 vcpus=4").unwrap();
    let file = "[[vm]]\nname = \"a\"\nvcpus = 4\npins = [\"vcpu3=7\", \"emulator=0,8\"]\n";
    assert_eq!(from_toml(file).unwrap().vnodes, [words]);
}

fn read(text: &str) -> Vec<String> {
    let pin_requests = requests::pins(text).unwrap();
    pin_requests
        .iter()
        .map(|pin_request| format!("{}={}", pin_request.role, pin_request.pus))
        .collect()
}

fn check(text: &str, reported: &str) {
    let error = requests::pins(text).unwrap_err();
    assert_eq!(error.to_string(), format!("pins: {reported}"));
    assert!(error.hint().unwrap().contains("vcpu3=7"));
}

/// `-k 2:2,6 -i myiothread:7 *:0` of qemu-affinity's README.
#[test]
fn the_layout_of_qemu_affinity_is_one_request() {
    let mut request = with(
        Request::vm("vm", VcpuCount::Exactly(4)),
        &["vcpu2=2,6", "iothread:myiothread=7", "iothread=0"],
    );
    *pinfold_samples::iothreads(&mut request) = vec!["disk".to_owned(), "myiothread".to_owned()];
    let layout = plan("none", &two_complexes().build(), &request).unwrap();
    assert_eq!(cpus_of(Role::Vcpu(2), &layout), "2,6");
    assert_eq!(cpus_of(Role::Iothread("myiothread".to_owned()), &layout), "7");
    assert_eq!(cpus_of(Role::Iothread("disk".to_owned()), &layout), "0");
    assert_eq!(
        (cpus_of(Role::Vcpu(0), &layout).as_str(), cpus_of(Role::Emulator, &layout).as_str()),
        ("0-15", "0-15")
    );
}

fn cpus_of(role: Role, layout: &Plan) -> String {
    layout.vnodes[0].thread(&role).unwrap().pus.to_string()
}

/// The 5950X in vfio-isolate's README: 16 vCPUs on the second die, emulator and iothread on the
/// last core of the first, the host on its other cores.
#[test]
fn the_layout_of_vfio_isolate_is_one_request() {
    let topology = pinfold_samples::machine::ryzen_5950x().build();
    let request = Request { free: Some(FreeCpus::These(set("0-6,16-22"))), ..exactly(16) };
    let mut request = with(request, &["emulator=7,23"]);
    *pinfold_samples::iothreads(&mut request) = vec!["io".to_owned()];
    let words = "name=a,policies=vcpu=rr:1+iothread=fifo:98";
    request.vnodes[0].policies = parse_vm_spec(words).unwrap().policies;
    let layout = plan("balanced", &topology, &request).unwrap();
    assert_eq!(pins(&layout), "8,24,9,25,10,26,11,27,12,28,13,29,14,30,15,31");
    let iothread = layout.vnodes[0].thread(&Role::Iothread("io".to_owned())).unwrap();
    assert_eq!((emulator(&layout), iothread.pus.to_string()), ("7,23".into(), "7,23".into()));
    assert_eq!(iothread.policy, Some(Policy::Fifo { priority: 98 }));
    assert_eq!(layout.housekeeping, set("0-6,16-22"));
    assert_eq!(layout.exclusive, set("7-15,23-31"));
    assert_eq!(shape(&layout), "1×8×2");
}

proptest! {
    #[test]
    fn pins_by_hand_hold_on_any_host(
        topology in pinfold_samples::any_topology(),
        strategy in super::properties::any_strategy(),
        vcpus in 1_u32..8,
        pin_requests in prop::collection::vec((0_usize..10, prop::collection::vec(0_usize..200, 1..3)), 1..4),
    ) {
        let roles: Vec<String> = (0..8).map(|index| format!("vcpu({index})"))
            .chain(["vcpu".to_owned(), "emulator".to_owned()]).collect();
        let mut request = exactly(vcpus);
        for (role, places) in &pin_requests {
            let pus: CpuSet = pinfold_samples::some_of(&topology, places);
            request.vnodes[0].pins.push(pinfold_model::PinRequest { role: roles[*role].clone(), pus });
        }
        let Ok(layout) = plan(strategy, &topology, &request) else { return Ok(()) };
        prop_assert_eq!(validate(&layout, &topology), vec![]);
        prop_assert_eq!(schema::from_json(&schema::to_json(&layout)), Ok(layout.clone()));
        let pinned = &request.vnodes[0].pins;
        let last = pinned.last().unwrap();
        for thread in layout.vnodes[0].threads.iter().filter(|t| t.role.is_called(&last.role)) {
            let named = pinned.iter().any(|pin_request| pin_request.role == thread.role.to_string());
            prop_assert!(thread.pus == last.pus || named, "{:?}", thread);
            prop_assert!(thread.reason.ends_with("by hand"));
        }
        let vcpus = layout.vnodes[0].vcpus().map(|one| &one.pus).collect::<CpuSet>();
        if !layout.exclusive.is_empty() {
            let shared = vcpus.intersection(&layout.housekeeping);
            prop_assert!(shared.is_empty(), "vCPUs and the host share {}", shared);
        }
    }
}

/// A thread whose CPUs all carry real-time vCPUs never runs: such pins are refused.
#[test]
fn pins_with_which_real_time_vcpus_starve_a_thread_are_refused() {
    let topology = dual_e5_2670().build();
    let refused = |texts: &[&str], expected: &str| {
        let error = with_iothread("realtime", texts, &topology).unwrap_err();
        assert!(matches!(error, PlanError::Pin { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    assert_eq!(pins(&with_iothread("realtime", &[], &topology).unwrap()), "8,9");
    let both = "may run on CPU 8-9 only, but real-time vCPUs (vcpu(0), vcpu(1)) use all of it";
    refused(&["vcpu0=8", "vcpu1=9", "emulator=8-9"], &format!("emulator {both}"));
    refused(&["vcpu0=8", "vcpu1=9", "iothread:io=8-9"], &format!("iothread(io) {both}"));
    refused(&["vcpu0=8", "vcpu1=9", "worker=8-9"], &format!("worker {both}"));
    refused(&["vcpu0=8", "vcpu1=9", "emulator=9"], "emulator may run on CPU 9 only");
    refused(&["vcpu0=8", "vcpu1=8"], "vcpu(0) may run on CPU 8 only, but real-time vCPUs");
    for texts in [&["emulator=8-10"], &["emulator=24-25"], &["vcpu0-1=8,24"]] {
        with_iothread("realtime", texts, &topology).unwrap();
    }
    // Ordinary vCPUs and round-robin vCPUs take turns.
    with_iothread("low-latency", &["vcpu0=8", "vcpu1=8"], &topology).unwrap();
    with_iothread("low-latency-rt", &["vcpu0=8", "vcpu1=8"], &topology).unwrap();
    let ordinary = "name=a,vcpus=2,pins=vcpu=8,policies=vcpu(0)=fifo:1";
    let request = Request::from_vnodes(vec![parse_vm_spec(ordinary).unwrap()]);
    let error = plan("balanced", &topology, &request).unwrap_err();
    assert!(error.to_string().contains("vcpu(1) may run on CPU 8 only"), "{error}");
}

fn with_iothread(strategy: &str, texts: &[&str], topology: &Topology) -> Result<Plan, PlanError> {
    let mut request = with(exactly(2), texts);
    *pinfold_samples::iothreads(&mut request) = vec!["io".to_owned()];
    plan(strategy, topology, &request)
}

/// vCPUs take cores to which a helper is pinned by hand last.
#[test]
fn vcpus_are_not_where_a_helper_is_pinned() {
    let two = dual_e5_2670().build();
    let one = i7_4790k().build();
    for strategy in ["balanced", "auto", "low-latency", "numa-exclusive", "multi-vm"] {
        let layout = planned_beside_host(strategy, &two, 4, "emulator=9");
        let vcpus: CpuSet = layout.vnodes[0].vcpus().map(|thread| &thread.pus).collect();
        assert!(vcpus.is_disjoint(&set("9,25")), "{strategy}: {vcpus}");
        assert_eq!(emulator(&layout), "9", "{strategy}");
    }
    let layout = planned_beside_host("balanced", &two, 4, "emulator=9");
    assert_eq!(pins(&layout), "8,24,10,26");
    let layout = planned_beside_host("balanced", &one, 3, "emulator=2");
    assert_eq!((pins(&layout).as_str(), emulator(&layout).as_str()), ("1,5,3", "2"));
    assert_eq!((layout.exclusive, layout.housekeeping), (set("1,3,5,7"), set("0,2,4,6")));
    // Where every other core has a vCPU, the last one shares.
    let full = planned_beside_host("balanced", &one, 6, "emulator=2");
    assert_eq!(pins(&full), "1,5,2,6,3,7");
    // On the core with the helper, a vCPU is on the sibling; so `auto` need not leave the machine
    // without pins.
    for strategy in ["auto", "low-latency"] {
        for helper in 1..=3 {
            let pin = format!("emulator={helper}");
            let request = with(exactly(3), &[pin.as_str()]);
            let layout = plan(strategy, &one, &request).unwrap();
            assert_eq!(layout.strategy, "low-latency", "{pin}");
            let vcpus: CpuSet = layout.vnodes[0].vcpus().map(|thread| &thread.pus).collect();
            let sibling = CpuSet::single(pinfold_model::PuId(helper + 4));
            assert!(sibling.is_subset(&vcpus) && vcpus.len() == 3, "{pin}: {vcpus}");
            assert!(vcpus.is_disjoint(&set(&helper.to_string())), "{pin}: {vcpus}");
            let reason = &layout.vnodes[0].threads[helper as usize - 1].reason;
            assert!(reason.contains("to which no helper is pinned"), "{reason}");
        }
    }
}

fn planned_beside_host(strategy: &str, topology: &Topology, vcpus: u32, pin: &str) -> Plan {
    let layout = plan(
        strategy,
        topology,
        &with(Request { isolation: IsolationScope::Host, ..exactly(vcpus) }, &[pin]),
    )
    .unwrap();
    assert_eq!(validate(&layout, topology), vec![], "{strategy} {pin}");
    layout
}

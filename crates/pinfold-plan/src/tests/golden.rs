//! The strategies compared exactly with the layouts in their sources.

use pinfold_model::{
    Device, EmulatorRequest, IsolationScope, NodeId, Policy, Request, Role, VcpuCount,
};
use pinfold_samples::machine::{Machine, i7_4790k, plain, r910, r910_without_smt};
use pinfold_samples::{auto, emulator, exactly, pins, set, shape};

use crate::plan;

#[test]
fn the_names_in_the_model_are_those_of_the_table() {
    let names: Vec<&str> = crate::strategies().iter().map(|strategy| strategy.name).collect();
    assert_eq!(names, pinfold_model::STRATEGY_NAMES);
}

#[test]
fn each_strategy_is_compared_with_its_source() {
    let tests = [
        include_str!("golden.rs"),
        include_str!("several.rs"),
        include_str!("node_shared.rs"),
        include_str!("auto.rs"),
    ];
    for name in pinfold_model::STRATEGY_NAMES {
        let is_tested = tests.iter().any(|text| text.contains(&format!("\"{name}\"")));
        assert!(is_tested, "no test plans by {name}: add one to golden.rs or several.rs");
    }
}

#[test]
fn badaroux_compact_on_the_r910() {
    let layout = plan("compact", &r910().build(), &exactly(34)).unwrap();
    assert_eq!(
        pins(&layout),
        "0,16,4,20,8,24,12,28,1,17,5,21,9,25,13,29,2,18,6,22,10,26,14,30,3,19,7,23,11,27,15,31,0,16"
    );
    assert_eq!(shape(&layout), "1×34×1", "vCPUs that share a CPU have no shape");
    assert_eq!(shape(&plan("compact", &r910().build(), &exactly(32)).unwrap()), "4×4×2");
}

#[test]
fn badaroux_compact_cores_on_the_r910() {
    let order = "0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15,0";
    for machine in [r910(), r910_without_smt()] {
        let layout = plan("compact-cores", &machine.build(), &exactly(17)).unwrap();
        assert_eq!(pins(&layout), order);
    }
    assert_eq!(shape(&plan("compact-cores", &r910().build(), &auto()).unwrap()), "4×4×1");
}

#[test]
fn badaroux_sequential_on_the_r910() {
    let layout = plan("sequential", &r910().build(), &exactly(33)).unwrap();
    let numbers: Vec<String> = (0..32).chain([0]).map(|number| number.to_string()).collect();
    assert_eq!(pins(&layout), numbers.join(","));
    let layout = plan("sequential", &r910_without_smt().build(), &exactly(17)).unwrap();
    let numbers: Vec<String> = (0..16).chain([0]).map(|number| number.to_string()).collect();
    assert_eq!(pins(&layout), numbers.join(","), "modulo 16 without SMT");
    // Consecutive numbers are on different packages: no topology of the host matches.
    let layout = plan("sequential", &r910().build(), &exactly(8)).unwrap();
    assert_eq!(shape(&layout), "1×8×1");
}

#[test]
fn badaroux_isolcpus_on_the_r910() {
    let layout = plan("isolcpus", &r910().build(), &auto()).unwrap();
    assert_eq!(
        pins(&layout),
        "4,20,8,24,12,28,1,17,5,21,9,25,13,29,2,18,6,22,10,26,14,30,3,19,7,23,11,27,15,31"
    );
    assert_eq!(
        (layout.exclusive.to_string(), emulator(&layout)),
        ("1-15,17-31".into(), "0,16".into())
    );
    assert_eq!(layout.housekeeping, set("0,16"));
    let boot = layout.findings.iter().find(|finding| finding.subject == "isolcpus").unwrap();
    let hint = boot.hint.as_deref().unwrap();
    assert!(hint.contains("isolcpus=managed_irq,domain,1-15,17-31 "), "{hint}");
    assert!(hint.ends_with("irqaffinity=0,16"), "{hint}");
    // Beyond 30 vCPUs the order starts again; with multiples of 30 each CPU carries the same
    // number.
    let once = pins(&layout);
    let twice = plan("isolcpus", &r910().build(), &exactly(60)).unwrap();
    assert_eq!(pins(&twice), format!("{once},{once}"));
    assert!(
        pinfold_samples::finds(&twice, "oversubscription", "1-15,17-31"),
        "{:?}",
        twice.findings
    );
    assert_eq!((twice.exclusive, twice.housekeeping), (set("1-15,17-31"), set("0,16")));
    let beyond = plan("isolcpus", &r910().build(), &exactly(31)).unwrap();
    assert_eq!(pins(&beyond), format!("{once},4"));
    assert!(beyond.vnodes[0].threads[30].reason.contains("shared with vCPU 0"));
    let single = plan("isolcpus", &plain(1).build(), &exactly(1)).unwrap_err();
    assert!(single.to_string().contains("isolcpus cannot use CPU 0"), "{single}");
    // On a host that booted with these parameters no finding remains.
    let booted = r910().isolated("1-15,17-31").build();
    let layout = plan("isolcpus", &booted, &auto()).unwrap();
    assert!(!pinfold_samples::finds(&layout, "isolcpus", ""), "{:?}", layout.findings);
}

#[test]
fn scatter_in_the_order_of_hwloc_distrib() {
    fn check(machine: Machine, vcpus: u32, expected: &str, guest: &str) {
        let layout = plan("scatter", &machine.build(), &exactly(vcpus)).unwrap();
        assert_eq!((pins(&layout).as_str(), shape(&layout).as_str()), (expected, guest));
    }

    check(r910(), 4, "0,1,2,3", "4×1×1");
    check(r910(), 6, "0,4,1,5,2,3", "1×6×1");
    check(r910(), 16, "0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15", "4×4×1");
    check(r910(), 32, &pins(&plan("compact", &r910().build(), &exactly(32)).unwrap()), "4×4×2");
    check(i7_4790k(), 5, "0,4,1,2,3", "1×5×1");
    check(pinfold_samples::machine::two_complexes(), 4, "0,1,4,5", "1×4×1");
}

#[test]
fn lindroth_on_the_i7_4790k() {
    let check =
        |strategy: &str, vcpus: &str, emulated: &str, guest: &str, host: &str, alone: &str| {
            let layout = plan(strategy, &i7_4790k().build(), &auto()).unwrap();
            assert_eq!(pins(&layout), vcpus, "{strategy}");
            assert_eq!(emulator(&layout), emulated, "{strategy}");
            assert_eq!(shape(&layout), guest, "{strategy}");
            assert_eq!(layout.housekeeping.to_string(), host, "{strategy}");
            assert_eq!(layout.exclusive.to_string(), alone, "{strategy}");
        };
    check("low-latency", "1,2,3", "5-7", "1×3×1", "0,4", "1-3,5-7");
    check("low-latency-rt", "1,2,3", "5-7", "1×3×1", "0,4", "1-3,5-7");
    check("balanced-shared", "1,5,2,6,3,7", "1-3,5-7", "1×3×2", "0,4", "1-3,5-7");
    check("balanced", "1,5,2,6,3,7", "0,4", "1×3×2", "0,4", "1-3,5-7");
    check("max-performance", "0,4,1,5,2,6,3,7", "0-7", "1×4×2", "0-7", "");
}

#[test]
fn lindroth_real_time() {
    let first = Some(Policy::RoundRobin { priority: 1 });
    let layout = plan("low-latency-rt", &i7_4790k().build(), &auto()).unwrap();
    assert!(layout.vnodes[0].threads.iter().all(|thread| thread.policy == first));
    // Without siblings the emulator is with the host, which no real-time thread may starve.
    let layout = plan("low-latency-rt", &plain(4).build(), &auto()).unwrap();
    let threads = &layout.vnodes[0].threads;
    let policies: Vec<_> = threads.iter().map(|thread| thread.policy).collect();
    assert_eq!(policies, [first, first, first, None]);
    assert!(pinfold_samples::finds(&layout, "smt", "it does not get rr 1 there"));
}

#[test]
fn lindroth_options_of_balanced() {
    let check = |request: &Request, (of, host): (&str, &str), policy: Option<Policy>| {
        let layout = plan("balanced", &i7_4790k().build(), request).unwrap();
        assert_eq!(
            (emulator(&layout).as_str(), layout.housekeeping.to_string()),
            (of, host.into())
        );
        let emulator = layout.vnodes[0].thread(&Role::Emulator).unwrap();
        assert_eq!(emulator.policy, policy);
        layout
    };
    let round_robin = Some(Policy::RoundRobin { priority: 1 });
    let request = Request { emulator: EmulatorRequest::Apart, ..auto() };
    let layout = check(&request, ("4", "0"), None);
    assert_eq!((pins(&layout).as_str(), shape(&layout).as_str()), ("1,5,2,6,3,7", "1×3×2"));
    // The host has only its core: one CPU of it remains for the host alone.
    let request = Request { emulator: EmulatorRequest::RealTime, ..auto() };
    let layout = check(&request, ("4", "0,4"), round_robin);
    assert_eq!(pins(&layout), "1,5,2,6,3,7");
    assert!(pinfold_samples::finds(&layout, "emulator", "CPU 0 stays reserved for the host"));
    // The host has core 3 too: as in the source, the emulator has both CPUs of the host core.
    let request = Request { emulator: EmulatorRequest::RealTime, ..exactly(4) };
    let layout = check(&request, ("0,4", "0,3-4,7"), round_robin);
    assert!(!pinfold_samples::finds(&layout, "emulator", ""), "{:?}", layout.findings);
    let request = Request { emulator: EmulatorRequest::RealTime, ..exactly(2) };
    let layout = plan("balanced", &plain(4).build(), &request).unwrap();
    assert_eq!((emulator(&layout), pins(&layout)), ("0".to_owned(), "1,2".to_owned()));
    let request = Request { emulator: EmulatorRequest::Apart, ..auto() };
    let error = plan("balanced", &plain(4).build(), &request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "balanced cannot place the emulator as `apart`: the host has only CPU 0, and one CPU must \
         stay reserved for the host"
    );
    let error = plan("low-latency", &i7_4790k().build(), &request).unwrap_err();
    assert!(error.to_string().contains("only balanced"), "{error}");
}

#[test]
fn automatic_numbers_of_vcpus() {
    fn check(machine: Machine, expected: [usize; 11]) {
        let topology = machine.build();
        // The four layouts of the i7-4790K, with 3, 6, 6 and 8 vCPUs, are among them.
        let names = [
            "none",
            "compact",
            "compact-cores",
            "sequential",
            "isolcpus",
            "scatter",
            "low-latency",
            "low-latency-rt",
            "balanced-shared",
            "balanced",
            "max-performance",
        ];
        let counts =
            names.map(|name| plan(name, &topology, &auto()).unwrap().vnodes[0].vcpus().count());
        assert_eq!(counts, expected);
    }

    check(i7_4790k(), [8, 8, 4, 8, 6, 8, 3, 3, 6, 6, 8]);
    check(i7_4790k().allowed("0-2,4-6"), [6, 6, 3, 6, 4, 6, 2, 2, 4, 4, 6]);
    check(r910(), [32, 32, 16, 32, 30, 32, 15, 15, 30, 30, 32]);
    check(plain(2), [2, 2, 2, 2, 1, 2, 1, 1, 1, 1, 2]);
    check(Machine::hybrid(4, 8), [16, 16, 12, 16, 14, 16, 4, 4, 8, 8, 16]);
}

#[test]
fn none_lets_all_float() {
    let layout = plan("none", &i7_4790k().build(), &exactly(2)).unwrap();
    assert_eq!(pins(&layout), "0-7,0-7");
    assert_eq!((emulator(&layout).as_str(), shape(&layout).as_str()), ("0-7", "1×2×1"));
    assert_eq!((layout.housekeeping, layout.exclusive), (set("0-7"), set("")));
}

#[test]
fn iothreads_follow_the_emulator_with_a_reason_of_their_own() {
    fn check(strategy: &str, pus: &str) {
        let mut request = auto();
        *pinfold_samples::iothreads(&mut request) = vec!["disk".to_owned(), "net".to_owned()];
        let layout = plan(strategy, &i7_4790k().build(), &request).unwrap();
        let roles: Vec<&Role> =
            layout.vnodes[0].threads.iter().map(|thread| &thread.role).collect();
        let last: Vec<&&Role> = roles.iter().rev().take(3).rev().collect();
        let (disk, net) = (Role::Iothread("disk".to_owned()), Role::Iothread("net".to_owned()));
        assert_eq!(last, [&&Role::Emulator, &&disk, &&net]);
        let disk = layout.vnodes[0].thread(&disk).unwrap();
        assert_eq!(disk.pus, set(pus));
        assert!(disk.reason.contains("iothread disk"), "{}", disk.reason);
    }

    check("low-latency", "5-7");
    check("balanced", "0,4");
    check("max-performance", "0-7");
}

#[test]
fn the_scope_none_isolates_nothing() {
    for strategy in ["low-latency", "balanced"] {
        let request = Request::vm("vm", VcpuCount::Auto);
        let layout = plan(strategy, &i7_4790k().build(), &request).unwrap();
        assert_eq!(layout.exclusive, set(""), "{strategy}");
        assert_eq!(layout.housekeeping, set("0-7"), "{strategy}");
        assert_eq!(layout.isolation, IsolationScope::None, "{strategy}");
        assert!(pinfold_samples::finds(&layout, "isolation", "1-3,5-7"), "{strategy}");
    }
}

#[test]
fn every_reason_names_its_place() {
    for strategy in ["compact", "compact-cores", "low-latency", "balanced", "max-performance"] {
        for thread in plan(strategy, &r910().build(), &auto()).unwrap().vnodes[0].vcpus() {
            let pu = thread.pus.first().unwrap();
            let topology = r910().build();
            let place = topology.pu(pu).unwrap();
            let named = [
                format!("CPU {pu} "),
                format!("core {}", place.core),
                format!("L3 {}", place.l3.unwrap()),
                format!("node {}", place.node.unwrap()),
                format!("package {}", place.package),
            ];
            for part in named {
                assert!(thread.reason.contains(&part), "{strategy}: {part}: {}", thread.reason);
            }
        }
    }
}

/// tuned's realtime-virtual-host: exclusive isolated cores, FIFO 1 on vCPUs, all other threads on
/// housekeeping CPUs of the same node.
#[test]
fn realtime_keeps_everything_of_a_machine_on_one_node() {
    let layout = plan("realtime", &i7_4790k().build(), &auto()).unwrap();
    assert_eq!((pins(&layout).as_str(), shape(&layout).as_str()), ("1,2,3", "1×3×1"));
    assert_eq!((emulator(&layout), layout.exclusive.clone()), ("0,4".into(), set("1-3,5-7")));
    let mut request = exactly(4);
    *pinfold_samples::iothreads(&mut request) = vec!["io".to_owned()];
    let server = pinfold_samples::machine::dual_e5_2670();
    let layout = plan("realtime", &server.build(), &request).unwrap();
    assert_eq!(pins(&layout), "8,9,10,11");
    let memory = layout.vnodes[0].memory.as_ref().unwrap();
    assert_eq!(memory.nodes, [NodeId(1)]);
    for thread in &layout.vnodes[0].threads {
        let fifo = Some(Policy::Fifo { priority: 1 });
        let vcpu = matches!(thread.role, Role::Vcpu(_));
        assert_eq!(thread.policy, fifo.filter(|_| vcpu), "{}", thread.role);
        assert!(vcpu || thread.pus == set("12-15,28-31"), "{} on {}", thread.role, thread.pus);
    }
    assert_eq!(layout.exclusive, set("8-11,24-27"));
    let boot = layout.findings.iter().find(|finding| finding.subject == "isolcpus").unwrap();
    let hint = boot.hint.as_deref().unwrap();
    assert!(hint.contains("domain,8-11,24-27 nohz_full=8-11,24-27 rcu_nocbs=8-11,24-27"), "{hint}");
    // The device's node, even if the host is there.
    request.vnodes[0].devices = vec![Device::Node(NodeId(0))];
    let near = plan("realtime", &server.build(), &request).unwrap();
    assert_eq!(pins(&near), "1,2,3,4");
    assert!(set(&emulator(&near)).is_subset(&set("0,5-7,16,21-23")), "{}", emulator(&near));
    // At most seven cores of a node: the eighth is for housekeeping.
    let error = plan("realtime", &server.build(), &exactly(8)).unwrap_err();
    assert!(error.to_string().contains("realtime gives at most 7 vCPUs"), "{error}");
    let error = plan("realtime", &plain(1).build(), &exactly(1)).unwrap_err();
    assert!(error.to_string().contains("realtime cannot use CPU 0"), "{error}");
    // Cores isolated at boot are used first, and no finding remains.
    let booted = pinfold_samples::machine::dual_e5_2670().isolated("4-7,20-23").build();
    let layout = plan("realtime", &booted, &exactly(4)).unwrap();
    assert_eq!(pins(&layout), "4,5,6,7");
    assert!(!pinfold_samples::finds(&layout, "isolcpus", ""), "{:?}", layout.findings);
    assert!(layout.vnodes[0].threads[0].reason.contains("isolated at boot"));
    // A node without a housekeeping CPU is not used, and refused if a device is there.
    let all = pinfold_samples::machine::dual_e5_2670().isolated("8-15,24-31").build();
    let layout = plan("realtime", &all, &exactly(4)).unwrap();
    assert_eq!(pins(&layout), "1,2,3,4");
    let mut far = exactly(2);
    far.vnodes[0].devices = vec![Device::Node(NodeId(1))];
    let error = plan("realtime", &all, &far).unwrap_err();
    assert!(error.to_string().contains("another core is left for housekeeping"), "{error}");
}

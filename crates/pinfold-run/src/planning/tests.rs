//! Claims of machines that were planned one after the other.

use pinfold_config::requests;
use pinfold_host::SnapshotHost;
use pinfold_model::{CpuSet, Plan, Request, Severity, Topology, VcpuCount};

use pinfold_claims::owners::placements::PLACEMENT;
use pinfold_claims::{Claims, Owner, USED_TWICE};

use super::{cpus_used_twice, plan, report_in};

const DOMAINS: &str = include_str!("../../../../docs/examples/several-machines.capture");
const CONTAINERS: &str = include_str!("../../../../docs/examples/kubernetes-ovs.capture");

/// A captured host with its claims.
fn captured(text: &str) -> (Topology, Claims) {
    let host = SnapshotHost::parse(text).unwrap();
    (pinfold_topology::discover(&host).unwrap(), pinfold_claims::read_captured(&host))
}

/// A machine with a vCPU that is pinned by hand.
fn pinned(name: &str, vcpus: u32, cpu: u32) -> Request {
    let mut by_hand = request(name, vcpus);
    by_hand.vnodes[0].pins = requests::pins(&format!("vcpu0={cpu}")).unwrap();
    by_hand
}

fn joint(machines: &[Request]) -> Request {
    let vnodes = machines.iter().flat_map(|machine| machine.vnodes.clone());
    Request::from_vnodes(vnodes.collect())
}

/// The texts of the findings about a CPU that is used twice, or about claims.
fn texts<'p>(plan: &'p Plan, subject: &str) -> Vec<&'p str> {
    let findings = plan.findings.iter().filter(|finding| finding.subject == subject);
    findings.map(|finding| finding.text.as_str()).collect()
}

fn cpu_set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn topology(text: &str) -> Topology {
    pinfold_topology::read_input(&SnapshotHost::new(), text).unwrap()
}

fn request(name: &str, vcpus: u32) -> Request {
    Request::vm(name, VcpuCount::Exactly(vcpus))
}

fn owner(name: &str) -> Owner {
    Owner::new(&PLACEMENT, name).of_journal(format!("id-of-{name}"))
}

/// The CPUs of the vCPUs.
fn vcpus(plan: &Plan) -> CpuSet {
    let mut all = CpuSet::new();
    plan.vnodes.iter().flat_map(|vnode| vnode.vcpus()).for_each(|one| all.add(&one.pus));
    all
}

/// Plans machines one after the other, each with the claims of those before.
fn one_by_one(topology: &Topology, strategy: &str, sizes: &[u32]) -> Vec<Plan> {
    let mut claims = Claims::default();
    let mut plans = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let name = format!("vm{index}");
        let mut plan = plan(&claims, Some(strategy), topology, &request(&name, *size)).unwrap();
        report_in(&claims, &mut plan);
        claims.add_plan(&owner(&name), &plan);
        plans.push(plan);
    }
    plans
}

#[test]
fn sixty_machines_that_share_are_spread_over_the_nodes_one_by_one() {
    let topology = topology("package:2 numa:4 l3:4 core:4 pu:2");
    let plans = one_by_one(&topology, "node-shared", &[8; 60]);
    let counts: Vec<usize> = topology
        .nodes
        .iter()
        .map(|node| plans.iter().filter(|plan| vcpus(plan) == node.pus).count())
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), 60, "each is inside one node");
    assert!(counts.iter().all(|count| (7..=8).contains(count)), "{counts:?}");
    assert!(plans.iter().flat_map(|plan| &plan.findings).all(|one| one.subject != USED_TWICE));
}

#[test]
fn three_machines_have_no_cpu_twice_where_there_is_room() {
    let topology = topology("package:1 l3:2 core:8 pu:2");
    for strategy in ["low-latency", "balanced", "compact", "compact-cores", "auto"] {
        let plans = one_by_one(&topology, strategy, &[2, 2, 2]);
        for (index, plan) in plans.iter().enumerate() {
            for earlier in plans.iter().take(index) {
                assert!(vcpus(plan).is_disjoint(&vcpus(earlier)), "{strategy}: {plans:#?}");
            }
            let notes = plan.findings.iter().filter(|finding| finding.subject == "claims");
            assert_eq!(notes.count(), usize::from(index > 0), "{strategy}: one line");
            assert!(
                plan.findings.iter().all(|finding| finding.subject != USED_TWICE),
                "{strategy}: {:?}",
                plan.findings
            );
        }
    }
}

#[test]
fn without_room_a_warning_names_both_machines() {
    let plans = one_by_one(&topology("core:4 pu:1"), "low-latency", &[3, 3]);
    let warning = plans[1].findings.iter().find(|finding| finding.subject == USED_TWICE).unwrap();
    assert_eq!(warning.severity, Severity::Warning);
    for name in ["vm0 (placement id-of-vm0)", "vm1"] {
        assert!(warning.text.contains(name), "{warning}");
    }
}

/// As few CPUs of others as needed.
#[test]
fn a_machine_that_is_too_large_uses_the_free_cpus_first() {
    let topology = topology("core:16 pu:1");
    let mut claims = Claims::default();
    let first = plan(&claims, Some("compact"), &topology, &request("a", 6)).unwrap();
    claims.add_plan(&owner("a"), &first);
    for vcpus_of_b in 10..=14 {
        let second = plan(&claims, Some("compact"), &topology, &request("b", vcpus_of_b)).unwrap();
        let twice = vcpus(&second).intersection(&vcpus(&first)).len();
        assert!(twice <= (vcpus_of_b as usize).saturating_sub(9), "{vcpus_of_b}: {twice}");
    }
}

#[test]
fn a_pin_by_hand_that_no_strategy_chose_is_a_conflict_too() {
    let topology = topology("core:4 pu:1");
    let mut claims = Claims::default();
    let first = plan(&claims, Some("balanced"), &topology, &request("a", 1)).unwrap();
    claims.add_plan(&owner("a"), &first);
    let cpu = vcpus(&first).to_string();
    let mut by_hand = request("b", 1);
    by_hand.vnodes[0].pins = requests::pins(&format!("vcpu0={cpu}")).unwrap();
    let mut second = plan(&claims, Some("none"), &topology, &by_hand).unwrap();
    report_in(&claims, &mut second);
    assert!(second.findings.iter().any(|one| one.subject == USED_TWICE), "{second:#?}");
    claims.add_plan(&owner("b"), &second);
    assert_eq!(claims.used_twice().len(), 1);
}

/// The mask of a machine that floats over one CPU is no pin, and the plan names who has the others.
#[test]
fn machines_that_float_over_the_last_cpu_share_it() {
    let topology = topology("core:2 pu:1");
    let mut claims = Claims::default();
    let first = plan(&claims, Some("compact"), &topology, &request("a", 1)).unwrap();
    claims.add_plan(&owner("a"), &first);
    for name in ["b", "c"] {
        let mut next = plan(&claims, None, &topology, &request(name, 1)).unwrap();
        report_in(&claims, &mut next);
        let said: Vec<String> = next.findings.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|text| text.contains("all threads float over CPU ")), "{said:?}");
        assert!(said.iter().any(|text| text.contains("reserved for a")), "{said:?}");
        claims.add_plan(&owner(name), &next);
        let used = claims.all().iter().find(|claim| claim.owner.name == name);
        assert!(used.is_some_and(|claim| !claim.exclusivity.is_exclusive()), "{claims:?}");
    }
    assert!(claims.used_twice().is_empty(), "{claims:?}");
    // Its owner moves the last one to the CPU that the first keeps.
    let mut moved = plan(&claims, None, &topology, &request("d", 1)).unwrap();
    for thread in &mut moved.vnodes[0].threads {
        thread.pus = vcpus(&first);
    }
    claims.add_plan(&owner("d"), &moved);
    assert_eq!(claims.used_twice().len(), 1, "{claims:?}");
}

#[test]
fn cpus_on_which_vcpus_float_may_be_shared() {
    let topology = topology("core:8 pu:1");
    let mut claims = Claims::default();
    let first = plan(&claims, Some("balanced"), &topology, &floating("a")).unwrap();
    claims.add_plan(&owner("a"), &first);
    let mut second = plan(&claims, Some("balanced"), &topology, &floating("b")).unwrap();
    report_in(&claims, &mut second);
    for subject in ["claims", USED_TWICE] {
        let found = second.findings.iter().any(|finding| finding.subject == subject);
        assert!(!found, "{:?}", second.findings);
    }
    assert_eq!(vcpus(&second), vcpus(&first));
}

#[test]
fn a_thread_that_is_bound_to_the_cpu_of_another_vcpu_is_a_conflict() {
    let topology = topology("core:8 pu:1");
    let mut web = request("web", 1);
    web.vnodes[0].pins = requests::pins("vcpu=2").unwrap();
    let web = plan(&Claims::default(), Some("compact"), &topology, &web).unwrap();
    let mut db = request("db", 1);
    db.vnodes[0].pins = requests::pins("vcpu=4").unwrap();
    let conflicts = |emulator: &str, moved: &str| {
        let mut db = plan(&Claims::default(), Some("compact"), &topology, &db).unwrap();
        db.vnodes[0].threads[1].pus = CpuSet::parse_list(emulator).unwrap();
        let task = pinfold_model::TaskId { tid: pinfold_model::Tid(7), start_time: 1 };
        db.moved.push((task, CpuSet::parse_list(moved).unwrap()));
        let mut claims = Claims::default();
        claims.add_plan(&owner("web"), &web);
        let of_db = claims.conflicts("db", &db).len();
        claims.add_plan(&owner("db"), &db);
        let of_web = claims.without("id-of-web").conflicts("web", &web).len();
        let twice = claims.used_twice().iter().map(|one| one.cpus.to_string()).collect::<Vec<_>>();
        (of_db, of_web, twice)
    };
    assert_eq!(conflicts("2", "5"), (1, 1, vec!["2".to_owned()]));
    assert_eq!(conflicts("5", "2"), (1, 1, vec!["2".to_owned()]), "one that its owner moved");
    // It may run elsewhere too.
    assert_eq!(conflicts("2-3", "0-7"), (0, 0, Vec::new()));
}

fn floating(name: &str) -> Request {
    let mut request = request(name, 4);
    let pins = (0..4).flat_map(|vcpu| requests::pins(&format!("vcpu{vcpu}=1-4")).unwrap());
    request.vnodes[0].pins = pins.collect();
    request
}

/// A host on which machines start one after the other, and what they use.
fn many(description: &str, sizes: &[u32]) -> (Topology, Vec<Plan>) {
    let topology = topology(description);
    let plans = one_by_one(&topology, "balanced", sizes);
    (topology, plans)
}

#[test]
fn machines_one_after_the_other_have_no_avoidable_conflict() {
    for (description, sizes) in [
        ("package:2 l3:2 core:8 pu:2", vec![4; 2]),
        ("package:2 l3:2 core:8 pu:2", vec![4; 3]),
        ("numa:8 l3:4 core:8 pu:2", vec![4; 60]),
    ] {
        let (_, plans) = many(description, &sizes);
        let mut taken = CpuSet::new();
        for plan in &plans {
            assert!(vcpus(plan).is_disjoint(&taken), "{description}: {:?}", plan.findings);
            assert!(plan.findings.iter().all(|finding| finding.subject != USED_TWICE));
            taken.add(&vcpus(plan));
        }
    }
}

#[test]
fn a_conflict_without_room_is_named_for_each_machine() {
    let (_, plans) = many("core:8 pu:1", &[3; 60]);
    assert_eq!(
        plans
            .iter()
            .filter(|plan| !plan.findings.iter().any(|finding| finding.subject == USED_TWICE))
            .count(),
        2
    );
}

#[test]
fn what_does_not_run_gives_way() {
    let topology = topology("core:8 pu:1");
    let mut claims = Claims::default();
    let stopped = Owner::new(&pinfold_claims::owners::libvirt::KIND, "win10");
    let cpus = CpuSet::parse_list("1-4").unwrap();
    let source = pinfold_claims::Source::file("/etc/libvirt/qemu/win10.xml", Some(9));
    let exclusivity = pinfold_claims::Exclusivity::Dedicated;
    let claim = pinfold_claims::Claim::new(&stopped, cpus.clone(), exclusivity, &source);
    claims.push(pinfold_claims::Claim { active: false, ..claim });
    let plan = |name: &str, size: u32| {
        let mut plan = plan(&claims, Some("balanced"), &topology, &request(name, size)).unwrap();
        report_in(&claims, &mut plan);
        plan
    };
    assert!(vcpus(&plan("web", 3)).is_disjoint(&cpus));
    // Without room, a note and no warning.
    let large = plan("web", 6);
    let note =
        large.findings.iter().find(|finding| finding.text.contains("is not running")).unwrap();
    assert_eq!(note.severity, Severity::Note);
    assert!(note.text.contains("/etc/libvirt/qemu/win10.xml, line 9"), "{note}");
    // Its own definition is no claim against it.
    assert!(plan("win10", 6).findings.iter().all(|finding| finding.subject != "claims"));
}

/// Any user can start a program with such a command line: if it leaves no room, its claim gives way
/// before those that the kernel or the masks of threads show.
#[test]
fn what_only_a_command_line_says_gives_way_before_placements() {
    let topology = topology("core:8 pu:1");
    let (cpus, all) = (CpuSet::parse_list("1-2").unwrap(), CpuSet::parse_list("0-7").unwrap());
    let mut claims = Claims::default();
    let placed = Owner::new(&pinfold_claims::owners::placements::PLACEMENT, "db").of_journal("4-4");
    claims.add(
        &placed,
        cpus.clone(),
        pinfold_claims::Exclusivity::Dedicated,
        &pinfold_claims::Source::default(),
    );
    let program = Owner::new(&pinfold_claims::owners::dpdk::KIND, "dpdk-x");
    claims.add(
        &program,
        all,
        pinfold_claims::Exclusivity::Exclusive,
        &pinfold_claims::Source::default(),
    );
    let plan = plan(&claims, Some("balanced"), &topology, &request("web", 3)).unwrap();
    assert!(vcpus(&plan).is_disjoint(&cpus), "{}", vcpus(&plan));
}

/// Each pair would be a line of its own.
#[test]
fn all_users_of_a_cpu_are_in_one_line() {
    let topology = topology("core:4 pu:1");
    let mut claims = Claims::default();
    for name in ["a", "b", "c"] {
        let mut by_hand = request(name, 1);
        by_hand.vnodes[0].pins = requests::pins("vcpu0=2").unwrap();
        let mut plan = plan(&claims, Some("none"), &topology, &by_hand).unwrap();
        report_in(&claims, &mut plan);
        claims.add_plan(&owner(name), &plan);
        let twice = plan.findings.iter().filter(|one| one.subject == USED_TWICE);
        let texts: Vec<&str> = twice.map(|one| one.text.as_str()).collect();
        match name {
            "a" => assert_eq!(texts, [""; 0]),
            "b" => assert_eq!(texts.len(), 1),
            _ => {
                let [text] = texts.as_slice() else { panic!("{texts:?}") };
                assert!(text.starts_with("CPU 2 is used by c, by a"), "{text}");
                assert!(text.contains(" and by b"), "{text}");
            }
        }
    }
}

#[test]
fn a_busy_thread_on_a_cpu_of_the_plan_is_a_note() {
    let topology = topology("core:4 pu:1");
    let mut claims = Claims::default();
    let mut by_hand = request("a", 1);
    by_hand.vnodes[0].pins = requests::pins("vcpu0=2").unwrap();
    for (cpu, is_noted) in [(2, true), (3, false)] {
        let cpu = CpuSet::single(pinfold_model::PuId(cpu));
        let process = pinfold_model::Tid(7);
        claims.set_bound_threads(vec![pinfold_claims::BoundThread {
            process,
            name: "poll".to_owned(),
            cpu,
        }]);
        let mut plan = plan(&claims, Some("none"), &topology, &by_hand).unwrap();
        report_in(&claims, &mut plan);
        let noted = plan.findings.iter().any(|one| {
            one.text.starts_with("the plan uses CPU 2, although poll (busy thread, process 7)")
        });
        assert_eq!(noted, is_noted, "{:?}", plan.findings);
    }
}

/// The CPUs that others own are left out although one of them is pinned to by hand.
#[test]
fn a_pin_by_hand_gives_away_no_other_cpu() {
    for (capture, by_hand, unused, strategies) in [
        (DOMAINS, pinned("n", 4, 5), "2-4,6-9,18-22", "realtime balanced low-latency compact"),
        (DOMAINS, pinned("n", 4, 5), "2-4,6-9,18-22", "l3-exclusive numa-exclusive multi-vm"),
        (DOMAINS, pinned("n", 6, 21), "2-9,18-20,22", "balanced low-latency l3-exclusive compact"),
        (CONTAINERS, pinned("n", 10, 4), "2-3,5-7,16-17", "balanced low-latency compact"),
        (CONTAINERS, pinned("n", 10, 4), "2-3,5-7,16-17", "l3-exclusive numa-exclusive"),
    ] {
        let (topology, claims) = captured(capture);
        let cpu = &by_hand.vnodes[0].pins[0].pus;
        for strategy in strategies.split(' ') {
            let mut plan = plan(&claims, Some(strategy), &topology, &by_hand).unwrap();
            let all = format!("{strategy}: {}", plan.pus());
            assert!(plan.pus().is_disjoint(&cpu_set(unused)), "{all}");
            assert_eq!(&cpus_used_twice(&claims, &plan), cpu, "{strategy}");
            report_in(&claims, &mut plan);
            let twice = texts(&plan, USED_TWICE);
            assert!(
                twice.len() == 1 && twice[0].starts_with(&format!("CPU {cpu} is")),
                "{twice:?}"
            );
            let emulator = &plan.vnodes[0].thread(&pinfold_model::Role::Emulator).unwrap().pus;
            assert!(emulator.is_disjoint(&vcpus(&plan)), "{all}");
        }
    }
}

#[test]
fn a_cpu_to_avoid_is_refused_for_a_pin_by_hand() {
    let (topology, claims) = captured(DOMAINS);
    let by_hand = Request { avoid: cpu_set("5"), ..pinned("n", 4, 5) };
    let error = plan(&claims, Some("balanced"), &topology, &by_hand).unwrap_err();
    assert!(error.to_string().contains("the request avoids CPU 5"), "{error}");
}

#[test]
fn a_joint_plan_names_only_the_machines_on_the_cpu() {
    let (topology, claims) = captured(CONTAINERS);
    let both = joint(&[pinned("a", 4, 16), pinned("b", 4, 18)]);
    let mut plan = plan(&claims, Some("balanced"), &topology, &both).unwrap();
    report_in(&claims, &mut plan);
    let twice = texts(&plan, USED_TWICE);
    assert!(
        twice.len() == 1 && twice[0].starts_with("CPU 16 is used by a and by spdk"),
        "{twice:?}"
    );
    // On a CPU that threads of both may use, both are named.
    for vnode in &mut plan.vnodes {
        vnode.threads.iter_mut().filter(|it| !it.role.is_vcpu()).for_each(|thread| {
            thread.pus = cpu_set("4-5");
        });
    }
    plan.findings.clear();
    report_in(&claims, &mut plan);
    let starts = ["CPU 16 is used by a and by spdk", "the CPUs 4-5 are used by a, b and by video"];
    let twice = texts(&plan, USED_TWICE);
    for start in starts {
        assert!(twice.iter().any(|text| text.starts_with(start)), "{twice:?}");
    }
}

/// The isolated CPUs of their own domain are no place for emulators: the kernel does not balance
/// them.
#[test]
fn emulators_that_leave_isolated_cpus_are_on_no_vcpu_of_another_machine() {
    let (topology, claims) = captured(CONTAINERS);
    let three = joint(&["a", "b", "c"].map(|name| request(name, 2)));
    for isolation in [pinfold_model::IsolationScope::Host, pinfold_model::IsolationScope::None] {
        let three = Request { isolation, ..three.clone() };
        let plan = plan(&claims, Some("l3-exclusive"), &topology, &three).unwrap();
        let emulators = plan.threads().filter(|(_, thread)| !thread.role.runs_work());
        for (vnode, thread) in emulators {
            assert!(thread.pus.is_disjoint(&vcpus(&plan)), "{}: {}", vnode.name, thread.pus);
        }
        let moved = &plan.vnodes[0].thread(&pinfold_model::Role::Emulator).unwrap();
        assert_eq!(moved.pus.to_string(), "0-1");
        assert!(
            moved.reason.contains("; restricted to the CPUs 0-1: the kernel"),
            "{}",
            moved.reason
        );
    }
}

/// Machines on a host of two CPUs, each pinned to one of them.
fn owned(cpus: &[u32]) -> (Topology, Claims) {
    let topology = topology("core:2 pu:1");
    let mut claims = Claims::default();
    for cpu in cpus {
        let name = format!("owner{cpu}");
        let one = plan(&Claims::default(), Some("none"), &topology, &pinned(&name, 1, *cpu));
        claims.add_plan(&owner(&name), &one.unwrap());
    }
    (topology, claims)
}

#[test]
fn a_host_without_a_free_cpu_is_reported_with_all_owners() {
    let (topology, claims) = owned(&[0, 1]);
    let mut plan = plan(&claims, None, &topology, &request("c", 2)).unwrap();
    report_in(&claims, &mut plan);
    let notes = texts(&plan, "claims");
    let start = "no CPU is free: the CPUs 0-1 are reserved for owner0 (placement id-of-owner0) and \
                 owner1 (placement id-of-owner1); this plan uses CPU";
    assert!(notes.iter().any(|text| text.starts_with(start)), "{notes:?}");
    assert!(!notes.iter().any(|text| text.contains("does not use")), "{notes:?}");
}

#[test]
fn a_machine_that_floats_over_the_last_cpu_names_the_others_on_it() {
    let (topology, mut claims) = owned(&[1]);
    let note = "CPU 0 is also used by beta (placement id-of-beta)";
    for (name, is_shared) in [("beta", false), ("gamma", true)] {
        let mut plan = plan(&claims, None, &topology, &request(name, 1)).unwrap();
        report_in(&claims, &mut plan);
        assert_eq!(vcpus(&plan).to_string(), "0");
        assert_eq!(texts(&plan, "claims").contains(&note), is_shared, "{name}: {plan:#?}");
        claims.add_plan(&owner(name), &plan);
    }
}

#[test]
fn a_strategy_that_needs_cpus_of_others_names_auto() {
    let (topology, claims) = owned(&[1]);
    let note = "low-latency cannot leave out CPU 1, which others own; auto can";
    for (strategy, is_named) in [(Some("low-latency"), true), (None, false)] {
        let plan = plan(&claims, strategy, &topology, &request("b", 1)).unwrap();
        assert_eq!(texts(&plan, "claims").contains(&note), is_named, "{plan:#?}");
    }
    // Without a free CPU, auto cannot either.
    let (topology, claims) = owned(&[0, 1]);
    let plan = plan(&claims, Some("low-latency"), &topology, &request("b", 1)).unwrap();
    assert!(texts(&plan, "claims").is_empty(), "{plan:#?}");
}

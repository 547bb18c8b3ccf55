//! Plans of machines that change while they run, on known hosts.

use pinfold_claims::owners::placements;
use pinfold_claims::{Claim, Exclusivity, Owner, Source};
use pinfold_model::{
    IsolationScope, Request, STRATEGY_NAMES, TaskId, Tid, VcpuCount, VmRequest, VnodeRequest,
};
use pinfold_samples::machine::{dual_e5_2670, i7_4790k, ryzen_5950x, set};
use pinfold_samples::{emulator, pins};

use super::*;

fn planned(
    strategy: &str,
    topology: &Topology,
    vcpus: u32,
    isolation: IsolationScope,
) -> Option<Plan> {
    let mut vm = VmRequest::from_vcpus(VcpuCount::Exactly(vcpus));
    vm.iothreads = vec!["io0".to_owned()];
    let mut request = Request::from_vnodes(vec![VnodeRequest::vm("vm", vm)]);
    request.isolation = isolation;
    pinfold_plan::plan_if_possible(strategy, topology, &request)
}

fn task(tid: u32) -> TaskId {
    TaskId { tid: Tid(tid), start_time: 1 }
}

fn added(roles: &[Role]) -> MachineChange {
    let added = roles.iter().zip(600..).map(|(role, tid)| (task(tid), role.clone())).collect();
    MachineChange { added, ..MachineChange::default() }
}

fn again(topology: &Topology, plan: &Plan, change: &MachineChange) -> Plan {
    plan_again(topology, &Claims::default(), plan, change).unwrap()
}

fn cpus(plan: &Plan, role: &Role) -> CpuSet {
    plan.vnodes[0].threads.iter().find(|one| one.role == *role).unwrap().pus.clone()
}

/// vCPU 2 and iothread io1.
fn grown() -> MachineChange {
    added(&[Role::Vcpu(2), Role::Iothread("io1".to_owned())])
}

/// The vCPUs that share a CPU with another vCPU.
fn crowded(plan: &Plan) -> usize {
    let vnode = &plan.vnodes[0];
    vnode
        .vcpus()
        .filter(|vcpu: &&pinfold_model::ThreadPlan| {
            let mut others = vnode.vcpus().filter(|other| other.role != vcpu.role);
            others.any(|other| !other.pus.is_disjoint(&vcpu.pus))
        })
        .count()
}

#[test]
fn a_new_vcpu_gets_a_cpu_of_its_own_under_each_strategy_that_gives_each_vcpu_one() {
    let mut pinned = 0;
    for topology in [i7_4790k().build(), ryzen_5950x().build(), dual_e5_2670().build()] {
        for strategy in STRATEGY_NAMES {
            for isolation in [IsolationScope::None, IsolationScope::Host] {
                let Some(plan) = planned(strategy, &topology, 2, isolation) else { continue };
                let new = again(&topology, &plan, &grown());
                let label = format!("{strategy} {isolation}: {} then {}", pins(&plan), pins(&new));
                assert_eq!((new.isolation, new.vnodes[0].vcpus().count()), (plan.isolation, 3));
                assert_eq!(pinfold_plan::validate(&new, &topology), [], "{label}");
                assert!(!new.housekeeping.is_empty(), "{label}");
                for role in [Role::Vcpu(0), Role::Vcpu(1)] {
                    assert_eq!(cpus(&new, &role), cpus(&plan, &role), "{label}: {role} stays");
                }
                if plan.vnodes[0].is_pinned() {
                    pinned += 1;
                    assert!(new.vnodes[0].is_pinned(), "{label}");
                    assert!(crowded(&new) <= crowded(&plan), "{label}");
                    assert!(count_moves(&plan, &new, &grown()) <= 2, "{label}: vCPUs stay");
                }
                let what = describe(&plan, &new, &grown());
                assert!(what.contains("vcpu(2) was added and has "), "{what}");
                assert!(what.contains("; iothread(io1) was added and has "), "{what}");
            }
        }
    }
    assert!(pinned > 60, "{pinned}");
}

#[test]
fn a_removed_vcpu_gives_its_cpu_back_and_nothing_moves() {
    let topology = i7_4790k().build();
    let plan = planned("low-latency", &topology, 3, IsolationScope::Host).unwrap();
    assert_eq!((pins(&plan).as_str(), &plan.exclusive), ("1,2,3", &set("1-3,5-7")));
    // A slot in the middle: the others keep their numbers and their CPUs.
    let change = MachineChange { removed: vec![Role::Vcpu(1)], ..MachineChange::default() };
    let new = again(&topology, &plan, &change);
    assert_eq!(cpus(&new, &Role::Vcpu(0)), set("1"));
    assert_eq!(cpus(&new, &Role::Vcpu(2)), set("3"));
    assert_eq!((pins(&new).as_str(), &new.exclusive), ("1,3", &set("1,3,5,7")), "2 and 6 are free");
    assert_eq!(describe(&plan, &new, &change), "vcpu(1) was removed, which releases CPU 2");
    // It comes back to the CPU that is free.
    let back = again(&topology, &new, &added(&[Role::Vcpu(1)]));
    assert_eq!((pins(&back), &back.exclusive), (pins(&plan), &plan.exclusive));
}

#[test]
fn cpus_of_other_owners_are_avoided_and_one_without_a_free_cpu_is_named() {
    let topology = i7_4790k().build();
    let plan = planned("low-latency", &topology, 2, IsolationScope::None).unwrap();
    let mut claims = Claims::default();
    let owner = Owner::new(&placements::PLACEMENT, "web");
    claims.add(&owner, set("3,7"), Exclusivity::Exclusive, &Source::default());
    let change = added(&[Role::Vcpu(2)]);
    let new = plan_again(&topology, &claims, &plan, &change).unwrap();
    assert!(cpus(&new, &Role::Vcpu(2)).is_disjoint(&set("1-3,7")), "{}", pins(&new));
    assert_eq!(claims.conflicts("vm", &new), []);
    assert_eq!(cpus(&new, &Role::Vcpu(2)), set("0"), "the last free core");
    assert_eq!(describe(&plan, &new, &change), "vcpu(2) was added and has CPU 0");
    claims.add(&owner, set("0,4-6"), Exclusivity::Exclusive, &Source::default());
    let new = plan_again(&topology, &claims, &plan, &change).unwrap();
    assert!(
        new.findings.iter().any(|finding: &Finding| finding.subject == claims::USED_TWICE),
        "{:?}",
        new.findings
    );
    assert_eq!(cpus(&new, &Role::Vcpu(2)), cpus(&new, &Role::Emulator), "{}", pins(&new));
}

#[test]
fn a_new_vcpu_never_gets_the_only_cpu_of_a_vcpu_of_another_machine() {
    let topology = pinfold_samples::from_description("core:2 pu:1");
    let mut request = Request::vm("vm", VcpuCount::Exactly(1));
    request.avoid = set("1");
    let mut plan =
        planning::plan(&Claims::default(), Some("compact"), &topology, &request).unwrap();
    assert_eq!((pins(&plan).as_str(), emulator(&plan)), ("0", "0".to_owned()));
    plan.avoid_pus = CpuSet::new();
    let change = added(&[Role::Vcpu(1)]);
    for is_active in [true, false] {
        let mut claims = Claims::default();
        let owner = Owner::new(&placements::PLACEMENT, "wa");
        let claim = Claim::new(&owner, set("1"), Exclusivity::Exclusive, &Source::default());
        claims.push(Claim { active: is_active, ..claim });
        let new = plan_again(&topology, &claims, &plan, &change).unwrap();
        let what = describe(&plan, &new, &change);
        let vcpu = waiting::thread_of(&new, &Role::Vcpu(1)).unwrap();
        assert!(waiting::is_waiting(vcpu), "{}", vcpu.reason);
        if is_active {
            assert_eq!(vcpu.pus, set("0"), "{what}");
            assert!(what.ends_with(", with the emulator, because no CPU is free"), "{what}");
            assert_eq!(degraded_findings(&new).count(), 1, "{:?}", new.findings);
        } else {
            assert_eq!((&vcpu.pus, what.as_str()), (&set("1"), "vcpu(1) was added and has CPU 1"));
        }
        // It has the CPU to itself when the other machine is gone.
        let none = MachineChange::default();
        let free = waiting::give_cpus(&topology, &Claims::default(), &new, &none).unwrap();
        let free = free.unwrap_or(new);
        assert_eq!(cpus(&free, &Role::Vcpu(1)), set("1"), "{}", pins(&free));
    }
}

#[test]
fn a_removed_vcpu_releases_only_what_no_other_thread_uses() {
    let topology = pinfold_samples::from_description("core:2 pu:1");
    let mut plan = planned("compact", &topology, 2, IsolationScope::None).unwrap();
    let shared = cpus(&plan, &Role::Vcpu(0));
    for thread in &mut plan.vnodes[0].threads {
        thread.pus.clone_from(&shared);
    }
    let change = MachineChange { removed: vec![Role::Vcpu(1)], ..MachineChange::default() };
    let new = again(&topology, &plan, &change);
    assert_eq!(describe(&plan, &new, &change), "vcpu(1) was removed");
}

#[test]
fn a_new_vcpu_leaves_the_cpu_to_which_a_thread_of_another_machine_is_bound() {
    let topology = pinfold_samples::from_description("numa:1 core:6 pu:1");
    let plan = planned("balanced", &topology, 2, IsolationScope::None).unwrap();
    let change = added(&[Role::Vcpu(2)]);
    let nearest = cpus(&again(&topology, &plan, &change), &Role::Vcpu(2));
    let mut claims = Claims::default();
    let owner = Owner::new(&placements::PLACEMENT, "web");
    let shared =
        |cpus: &CpuSet| Claim::new(&owner, cpus.clone(), Exclusivity::Shared, &Source::default());
    claims.push(Claim { bound: nearest.clone(), ..shared(&nearest) });
    let new = plan_again(&topology, &claims, &plan, &change).unwrap();
    let own = cpus(&new, &Role::Vcpu(2));
    assert!(own.is_single() && own.is_disjoint(&nearest), "{}", pins(&new));
    assert_eq!(new.findings.iter().filter(|it| it.subject == "degraded").count(), 0);
    // The last free CPU is shared with it.
    let work = plan.vnodes[0].vcpus().map(|vcpu| &vcpu.pus).collect::<CpuSet>();
    let rest = topology.online().difference(&work).difference(&nearest);
    claims.add(&owner, rest, Exclusivity::Exclusive, &Source::default());
    let new = plan_again(&topology, &claims, &plan, &change).unwrap();
    assert_eq!(cpus(&new, &Role::Vcpu(2)), nearest, "{}", pins(&new));
}

#[test]
fn a_vcpu_whose_cpu_is_offline_moves_and_no_other() {
    let full = i7_4790k().build();
    let plan = planned("low-latency", &full, 2, IsolationScope::None).unwrap();
    let topology = i7_4790k().offline("2").build();
    let change = MachineChange { stranded: vec![Role::Vcpu(1)], ..MachineChange::default() };
    let new = again(&topology, &plan, &change);
    assert_eq!(cpus(&new, &Role::Vcpu(0)), set("1"));
    let now = cpus(&new, &Role::Vcpu(1));
    assert!(now.len() == 1 && now.is_disjoint(&set("1-2")), "{now}");
    let what = format!("CPU 2 went offline; vcpu(1) now runs on CPU {now}");
    assert_eq!(describe(&plan, &new, &change), what);
    assert!(pinfold_plan::validate(&new, &topology).is_empty());
}

#[test]
fn what_the_owner_moved_stays_and_new_threads_keep_clear_of_it() {
    let topology = i7_4790k().build();
    let plan = planned("low-latency", &topology, 2, IsolationScope::None).unwrap();
    let moved = [(task(501), (Role::Vcpu(1), set("3")))].into_iter().collect();
    let change = MachineChange { moved, ..MachineChange::default() };
    let new = adopt_moves(&plan, &change);
    assert_eq!(pins(&new), "1,3");
    assert_eq!(new.vnodes[0].threads[1].reason, "moved to CPU 3 by its owner");
    assert_eq!(count_moves(&plan, &new, &change), 0, "Pinfold moves none");
    // One thread of the emulator: the plan names it until it is back with the others.
    let alone = |cpus: &str| {
        let singles = [(task(500), (Role::Emulator, set(cpus)))].into_iter().collect();
        MachineChange { repinned_threads: singles, ..MachineChange::default() }
    };
    let named = adopt_moves(&plan, &alone("0-7"));
    assert_eq!(
        (named.moved.as_slice(), emulator(&named)),
        (&[(task(500), set("0-7"))][..], emulator(&plan))
    );
    let stored = pinfold_plan::schema::to_json_line(&named);
    assert_eq!(pinfold_plan::schema::from_json(&stored).unwrap(), named);
    assert_eq!(again(&topology, &named, &grown()).moved, named.moved);
    let back = alone(&cpus(&plan, &Role::Emulator).to_string());
    assert_eq!(adopt_moves(&named, &back), plan);
    let both = MachineChange { added: added(&[Role::Vcpu(2)]).added, ..change };
    let new = again(&topology, &adopt_moves(&plan, &both), &both);
    assert_eq!(pins(&new), "1,3,0", "{}", emulator(&new));
    let what = describe(&plan, &new, &both);
    assert!(what.ends_with("vcpu(1) stays on CPU 3, where its owner moved it"), "{what}");
}

#[test]
fn cpus_that_the_request_avoids_are_given_to_no_later_thread() {
    let topology = i7_4790k().build();
    let mut request = Request::vm("vm", VcpuCount::Exactly(1));
    request.avoid = set("2,3,6,7");
    let plan = planning::plan(&Claims::default(), Some("balanced"), &topology, &request).unwrap();
    assert_eq!(plan.avoid_pus, set("2,3,6,7"));
    let stored = pinfold_plan::schema::to_json_line(&plan);
    assert_eq!(pinfold_plan::schema::from_json(&stored).unwrap().avoid_pus, plan.avoid_pus);
    let roles = [Role::Vcpu(1), Role::Vcpu(2), Role::Vcpu(3)];
    let new = again(&topology, &plan, &added(&roles));
    assert!(new.pus().is_disjoint(&plan.avoid_pus), "{}", pins(&new));
    assert_eq!(new.avoid_pus, plan.avoid_pus);
    assert!(new.findings.iter().any(|one| one.subject == "degraded"), "{:?}", new.findings);
}

#[test]
fn policies_of_new_threads_are_those_of_their_kind() {
    let topology = i7_4790k().build();
    let plan = planned("low-latency-rt", &topology, 2, IsolationScope::None).unwrap();
    let new = again(&topology, &plan, &grown());
    let policies: Vec<_> = new.vnodes[0].vcpus().map(|vcpu| vcpu.policy).collect();
    assert_eq!(policies, [plan.vnodes[0].threads[0].policy; 3]);
    assert!(policies[0].is_some());
}

fn kept_by_web(cpus: &str) -> Claims {
    let mut claims = Claims::default();
    let owner = Owner::new(&placements::PLACEMENT, "web");
    claims.add(&owner, set(cpus), Exclusivity::Exclusive, &Source::default());
    claims
}

/// The older vCPU floats over CPUs 0 and 1: by its strategy, or because its owner moved it there.
#[test]
fn a_new_vcpu_that_floats_as_an_older_one_leaves_the_cpus_of_other_owners() {
    // CPUs 0 and 1 are of one core.
    let topology = pinfold_samples::from_description("core:3 pu:2");
    for strategy in ["none", "node-shared", "compact"] {
        let mut plan = planned(strategy, &topology, 1, IsolationScope::None).unwrap();
        let moved = [(task(501), (Role::Vcpu(0), set("0-1")))].into_iter().collect();
        plan = adopt_moves(&plan, &MachineChange { moved, ..MachineChange::default() });
        let (vcpu, change) = (Role::Vcpu(1), added(&[Role::Vcpu(1)]));
        assert_eq!(cpus(&again(&topology, &plan, &change), &vcpu), set("0-1"), "{strategy}");
        for exclusivity in [Exclusivity::Exclusive, Exclusivity::Dedicated] {
            let mut claims = Claims::default();
            let web = Owner::new(&placements::PLACEMENT, "web");
            let db = Owner::new(&placements::PLACEMENT, "db");
            claims.add(&web, set("1"), exclusivity, &Source::default());
            let new = plan_again(&topology, &claims, &plan, &change).unwrap();
            assert_eq!(cpus(&new, &vcpu), set("0"), "{strategy}");
            assert_eq!(cpus(&new, &Role::Vcpu(0)), set("0-1"), "{strategy}: its owner's");
            // An owner that does not run leaves its CPU to it.
            let mut stopped = claims.clone();
            let claim = Claim::new(&db, set("0"), exclusivity, &Source::default());
            stopped.push(Claim { active: false, ..claim.clone() });
            let new = plan_again(&topology, &stopped, &plan, &change).unwrap();
            assert_eq!(cpus(&new, &vcpu), set("0"), "{strategy}");
            // Nothing is left: it shares them, and a warning names the owners.
            claims.push(claim);
            let new = plan_again(&topology, &claims, &plan, &change).unwrap();
            assert_eq!(cpus(&new, &vcpu), set("0-1"), "{strategy}");
            let twice = new.findings.iter().filter(|it| it.subject == claims::USED_TWICE);
            let text: String = twice.map(|finding| finding.text.as_str()).collect();
            assert!(text.contains("web") && text.contains("db"), "{strategy}: {:?}", new.findings);
        }
    }
}

/// The emulator floats over CPUs that another machine has got since.
#[test]
fn a_new_iothread_leaves_the_cpus_that_other_machines_keep() {
    let topology = pinfold_samples::from_description("core:6 pu:1");
    let mut request = Request::vm("vm", VcpuCount::Exactly(2));
    request.isolation = IsolationScope::None;
    let plan = pinfold_plan::plan_if_possible("balanced", &topology, &request).unwrap();
    let moved = [(task(501), (Role::Emulator, set("0,3-5")))].into_iter().collect();
    let plan = adopt_moves(&plan, &MachineChange { moved, ..MachineChange::default() });
    let io = Role::Iothread("io1".to_owned());
    let change = added(std::slice::from_ref(&io));
    assert_eq!(cpus(&again(&topology, &plan, &change), &io), set("0,3-5"));
    let kept = kept_by_web("3,5");
    let new = plan_again(&topology, &kept, &plan, &change).unwrap();
    assert_eq!(cpus(&new, &io), set("0,4"));
    assert_eq!(cpus(&new, &Role::Emulator), set("0,3-5"), "its owner's");
    // It has to run somewhere.
    let new = plan_again(&topology, &kept_by_web("0,3-5"), &plan, &change).unwrap();
    assert_eq!(cpus(&new, &io), set("0,3-5"));
}

#[test]
fn a_new_vcpu_never_gets_a_cpu_of_another_owner_over_which_an_older_one_floats() {
    let topology = pinfold_samples::from_description("core:6 pu:1");
    let plan = planned("compact", &topology, 2, IsolationScope::None).unwrap();
    let places = [(task(501), (Role::Vcpu(0), set("0-1"))), (task(502), (Role::Vcpu(1), set("2")))];
    let moved = places.into_iter().collect();
    let plan = adopt_moves(&plan, &MachineChange { moved, ..MachineChange::default() });
    let change = added(&[Role::Vcpu(2)]);
    for (kept, own) in [("0,3-5", "1"), ("1,3-5", "0")] {
        let new = plan_again(&topology, &kept_by_web(kept), &plan, &change).unwrap();
        assert_eq!(pins(&new), format!("0-1,2,{own}"), "{kept}");
    }
}

#[test]
fn a_vcpu_without_a_cpu_of_its_own_gets_one_when_another_machine_leaves() {
    let topology = i7_4790k().build();
    let none = MachineChange::default();
    for isolation in [IsolationScope::None, IsolationScope::Host] {
        let plan = planned("low-latency", &topology, 2, isolation).unwrap();
        let change = added(&[Role::Vcpu(2)]);
        let full = kept_by_web("0,3,4,7");
        let new = plan_again(&topology, &full, &plan, &change).unwrap();
        let label = format!("{isolation}: {}", pins(&new));
        let shared = waiting::thread_of(&new, &Role::Vcpu(2)).unwrap();
        assert!(waiting::is_waiting(shared), "{label}: {}", shared.reason);
        assert_eq!(waiting::give_cpus(&topology, &full, &new, &none).unwrap(), None, "{label}");
        // The other machine keeps one core less: the vCPU has that core, and nothing else moves. The
        // last CPU that no machine has is the host's, if this one has its CPUs alone.
        let less = match isolation {
            IsolationScope::Host => {
                let last = kept_by_web("0,4");
                let found = waiting::give_cpus(&topology, &last, &new, &none).unwrap();
                assert_eq!(found, None, "{label}");
                kept_by_web("4")
            }
            IsolationScope::Own | IsolationScope::None => kept_by_web("0,4"),
        };
        let free = waiting::give_cpus(&topology, &less, &new, &none).unwrap();
        let free = free.unwrap_or_else(|| new.clone());
        let label = format!("{label}, then {}", pins(&free));
        assert_eq!(cpus(&free, &Role::Vcpu(2)), set("3"), "{label}");
        for role in [Role::Vcpu(0), Role::Vcpu(1)] {
            assert_eq!(cpus(&free, &role), cpus(&plan, &role), "{label}: {role} stays");
        }
        assert_eq!(waiting::give_cpus(&topology, &less, &free, &none).unwrap(), None, "{label}");
        assert_eq!(less.conflicts("vm", &free), [], "{label}");
        assert_eq!(pinfold_plan::validate(&free, &topology), [], "{label}");
    }
}

#[test]
fn a_vcpu_whose_cpu_went_offline_gets_one_when_it_comes_back_unless_its_owner_moved_it() {
    let full = i7_4790k().build();
    let plan = planned("low-latency", &full, 3, IsolationScope::Host).unwrap();
    let topology = i7_4790k().offline("2,6").build();
    let change = MachineChange { stranded: vec![Role::Vcpu(1)], ..MachineChange::default() };
    let others = kept_by_web("4");
    let new = again(&topology, &plan, &change);
    let none = MachineChange::default();
    let vcpu = waiting::thread_of(&new, &Role::Vcpu(1)).unwrap();
    assert!(waiting::is_degraded(vcpu), "{}", vcpu.reason);
    // The journal keeps what `status` reports.
    let stored = pinfold_plan::schema::to_json_line(&new);
    let stored = pinfold_plan::schema::from_json(&stored).unwrap();
    assert_eq!(degraded_findings(&stored).count(), 1, "{:?}", stored.findings);
    assert_eq!(waiting::give_cpus(&topology, &others, &new, &none).unwrap(), None);
    let back = waiting::give_cpus(&full, &others, &new, &none).unwrap().unwrap();
    assert_eq!(cpus(&back, &Role::Vcpu(1)), set("2"), "{}", pins(&back));
    assert_eq!(degraded_findings(&back).count(), 0);
    assert_eq!(
        describe(&new, &back, &none),
        "vcpu(1), which ran with the emulator, now runs on CPU 2"
    );
    assert_eq!((pins(&back), &back.exclusive), (pins(&plan), &plan.exclusive));
    let moved = [(task(501), (Role::Vcpu(1), set("0")))].into_iter().collect();
    let change = MachineChange { moved, ..none };
    assert_eq!(waiting::give_cpus(&full, &others, &new, &change).unwrap(), None);
}

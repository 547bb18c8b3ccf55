//! Scheduling policies: each is set and comes back, and what the kernel wants for the real-time
//! ones is prepared or refused by name.

use crate::common::{Bench, Case, assert_same, break_at, set};
use pinfold_apply::{
    ApplyError, Point, Refusal, Replacement, no_observer, plan_steps, replace, status,
};
use pinfold_host::{Host as _, HostMut as _, paths};
use pinfold_model::{IsolationScope, Policy, Tid};
use pinfold_sim::SimHost;

const US: u64 = 1000;
const CPU: &str = "/sys/fs/cgroup/cpu";

/// The machine on a host with run time by group: all its threads in `group`.
fn grouped(groups: &[(&str, i64)], group: &str) -> Case {
    let case = crate::common::alone(
        "run time by group",
        crate::common::v2_builder().real_time_groups(groups),
    );
    let procs = paths::cgroup_procs(&format!("{CPU}{group}"));
    case.host.write(&procs, crate::common::VM.to_string().as_bytes()).unwrap();
    case
}

fn runtime(host: &SimHost, group: &str) -> String {
    host.read_text(&paths::cpu_rt_runtime(&format!("{CPU}{group}"))).unwrap().trim().to_owned()
}

#[test]
fn every_policy_is_set_and_comes_back() {
    check(Policy::Other { nice: -5 }, "2,6");
    check(Policy::Batch { nice: 19 }, "2,6");
    check(Policy::Idle, "2,6");
    check(Policy::Fifo { priority: 99 }, "2,6");
    check(Policy::RoundRobin { priority: 1 }, "2,6");
    check(Policy::Slice { nice: Some(3), slice_ns: 500_000 }, "2,6");
}

/// A slice keeps the nice value that the owner gave a thread, and threads under other policies.
#[test]
fn a_slice_keeps_what_the_owner_set() {
    let slice_ns = 500_000;
    check_slice(Policy::Other { nice: -5 }, Policy::Slice { nice: Some(-5), slice_ns });
    check_slice(Policy::Idle, Policy::Idle);
    let own = Policy::Slice { nice: Some(0), slice_ns: 900_000 };
    check_slice(own, Policy::Slice { nice: Some(0), slice_ns });
}

fn check_slice(of_owner: Policy, expected: Policy) {
    let mut case = crate::common::v2();
    case.host.set_policy(Tid(501), of_owner).unwrap();
    case.plan.vnodes[0].threads[0].policy = Some(Policy::Slice { nice: None, slice_ns: 500_000 });
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    assert_eq!(case.host.policy(Tid(501)).unwrap(), expected);
    let status = status(&case.host, &case.plan, &case.target).unwrap();
    assert!(status.roles.iter().all(|role| role.ok), "{:?}", status.roles);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, &of_owner.to_string());
    assert_eq!(case.host.policy(Tid(501)).unwrap(), of_owner);
}

fn check(policy: Policy, pus: &str) {
    let mut case = crate::common::v2();
    case.plan.vnodes[0].threads[0].policy = Some(policy);
    case.plan.vnodes[0].threads[0].pus = set(pus);
    case.plan.exclusive = set("");
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    assert_eq!(case.host.policy(Tid(501)).unwrap(), policy);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, &policy.to_string());
}

/// Under a policy without a nice value the kernel keeps that of the thread. A plan replaces it, and
/// perhaps a second plan does again; an undo is killed before each of its changes, and repeated.
#[test]
fn a_nice_value_beside_another_policy_comes_back() {
    let (fifo, round_robin) = (Policy::Fifo { priority: 2 }, Policy::RoundRobin { priority: 3 });
    let slice = Policy::Slice { nice: Some(0), slice_ns: 500_000 };
    let [same, other] = [7, 1].map(|nice| Policy::Other { nice });
    let third = Policy::Fifo { priority: 9 };
    for of_owner in [Policy::Idle, fifo, round_robin] {
        for planned in [same, Policy::Batch { nice: -3 }, slice, third, Policy::Idle] {
            for second in [None, Some(other), Some(same), Some(third), Some(Policy::Idle)] {
                let case = with_nice_value(of_owner, planned);
                check_nice_value(case, second, &format!("{of_owner}, {planned}, {second:?}"));
            }
        }
    }
}

fn with_nice_value(of_owner: Policy, planned: Policy) -> Case {
    let mut case = crate::common::v2();
    for policy in [Policy::Other { nice: 7 }, of_owner] {
        case.host.set_policy(Tid(501), policy).unwrap();
    }
    case.plan.vnodes[0].threads[0].policy = Some(planned);
    case
}

fn check_nice_value(case: Case, second: Option<Policy>, what: &str) {
    let before = case.host.snapshot();
    for dies_after in 0.. {
        let case = Case { host: case.host.clone(), ..case.clone() };
        let bench = Bench::new();
        bench.apply(&case).unwrap();
        if let Some(policy) = second {
            let mut plan = case.plan.clone();
            plan.vnodes[0].threads[0].policy = Some(policy);
            let replacement = Replacement { plan: &plan, text: "{}", target: &case.target };
            replace(&case.host, replacement, &mut bench.reopen(&case), &mut no_observer())
                .map_err(|failure| format!("{what}: {failure:?}"))
                .unwrap();
            assert_eq!(case.host.policy(Tid(501)).unwrap(), policy, "{what}");
        }
        case.host.fail_after(dies_after, 5);
        let first = bench.undo(&case);
        case.host.clear_faults();
        if !first.is_complete() {
            assert!(bench.undo(&case).is_complete(), "{what}");
        }
        assert_same(&before, &case.host, &format!("{what}, killed after {dies_after} changes"));
        if first.is_complete() {
            break;
        }
    }
}

/// Its owner restores the policy, beside which the nice value of the plan stays; or has set another.
#[test]
fn a_nice_value_of_the_plan_does_not_stay_beside_the_policy_of_the_owner() {
    for (of_owner, expected) in [(None, 7), (Some(4), 4)] {
        let case = with_nice_value(Policy::Idle, Policy::Batch { nice: 0 });
        let bench = Bench::new();
        bench.apply(&case).unwrap();
        if let Some(nice) = of_owner {
            case.host.set_policy(Tid(501), Policy::Other { nice }).unwrap();
        }
        case.host.set_policy(Tid(501), Policy::Idle).unwrap();
        assert!(bench.undo(&case).is_complete());
        let task = case.host.task(Tid(501)).unwrap();
        assert_eq!((task.policy, task.nice), (Policy::Idle, expected));
    }
}

/// Its owner sets a policy with the original nice value.
#[test]
fn a_policy_of_the_owner_with_the_original_nice_value_stays() {
    let case = with_nice_value(Policy::Idle, Policy::Batch { nice: 0 });
    let (bench, of_owner) = (Bench::new(), Policy::Other { nice: 7 });
    bench.apply(&case).unwrap();
    case.host.set_policy(Tid(501), of_owner).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete());
    assert_eq!(case.host.policy(Tid(501)).unwrap(), of_owner);
    let words = "its original idle with nice 7 was not restored";
    assert!(report.changed.iter().any(|one| one.text.contains(words)), "{report:?}");
}

/// A thread that was created meanwhile gets what its creator had.
#[test]
fn a_nice_value_that_a_new_thread_inherited_comes_back() {
    let case = with_nice_value(Policy::Idle, Policy::Batch { nice: 0 });
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    assert!(case.host.clone_thread(Tid(501), Tid(520)));
    assert_eq!(case.host.policy(Tid(520)).unwrap(), Policy::Batch { nice: 0 });
    assert!(bench.undo(&case).is_complete());
    let text = case.host.snapshot();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.ends_with("policy idle, nice 7")).collect();
    assert_eq!(lines.len(), 2, "{text}");
}

/// Another program gives one thread another policy while the plan is active, also where an undo was
/// killed: it stays, and is reported.
#[test]
fn a_policy_that_another_program_set_stays() {
    for other in [Policy::RoundRobin { priority: 3 }, Policy::Other { nice: 5 }, Policy::Idle] {
        for dies_after in 0.. {
            let what = format!("{other}, killed after {dies_after} changes");
            let (case, bench) = (crate::common::v2(), Bench::new());
            bench.apply(&case).unwrap();
            assert_eq!(case.host.policy(Tid(501)).unwrap(), Policy::Fifo { priority: 1 });
            case.host.set_policy(Tid(501), other).unwrap();
            case.host.fail_after(dies_after, 5);
            let first = bench.undo(&case);
            case.host.clear_faults();
            let report = if first.is_complete() { first.clone() } else { bench.undo(&case) };
            assert!(report.is_complete(), "{what}: {report:?}");
            assert_eq!(case.host.policy(Tid(501)).unwrap(), other, "{what}");
            let is_named = report
                .changed
                .iter()
                .any(|one| one.text.contains("501") && one.text.contains(&other.to_string()));
            assert!(is_named, "{what}: {report:?}");
            if first.is_complete() {
                break;
            }
        }
    }
}

#[test]
fn groups_get_run_time_from_the_root_down_and_lose_it_again() {
    let groups = [("/other", 200_000), ("/machine", 0), ("/machine/vm1", 0)];
    let case = grouped(&groups, "/machine/vm1");
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let refused = case.host.set_policy(Tid(501), Policy::Fifo { priority: 1 }).unwrap_err();
    assert_eq!(refused.errno(), Some(1), "EPERM, as under RT_GROUP_SCHED");
    let applied = bench.apply(&case).unwrap();
    assert_eq!(runtime(&case.host, "/machine"), "750000");
    assert_eq!(runtime(&case.host, "/machine/vm1"), "750000");
    assert_eq!(case.host.policy(Tid(501)).unwrap(), Policy::Fifo { priority: 1 });
    assert!(plan_steps(&case.host, &case.plan, &case.target).unwrap().steps.is_empty());
    for index in 0..applied.steps.len() {
        for point in [Point::AfterJournal, Point::AfterChange] {
            let case = grouped(&groups, "/machine/vm1");
            let bench = Bench::new();
            let broken = bench.apply_watched(&case, &mut break_at(index, point));
            assert!(matches!(broken, Err(ApplyError::Abandoned { .. })));
            assert!(bench.undo(&case).is_complete());
            assert_same(&before, &case.host, &format!("killed at step {index}, {point:?}"));
        }
    }
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undone");
}

#[test]
fn a_group_that_can_get_no_run_time_is_named() {
    let case = grouped(&[("/greedy", 950_000), ("/vm1", 0)], "/vm1");
    let before = case.host.snapshot();
    let error = Bench::new().apply(&case).unwrap_err();
    let refusal = Refusal::NoRunTime { group: format!("{CPU}/vm1"), above: CPU.to_owned() };
    assert!(matches!(&error, ApplyError::Refused(found) if *found == refusal), "{error}");
    assert!(error.hint().unwrap().contains("of the other groups"));
    assert_same(&before, &case.host, "refused");
}

#[test]
fn run_time_that_the_kernel_refuses_ends_with_the_policy_named() {
    let case = grouped(&[("/vm1", 0)], "/vm1");
    let before = case.host.snapshot();
    for errno in [1, 16, 22, 28, 30] {
        case.host.fail_on(&format!("write {CPU}/vm1/cpu.rt_runtime_us"), errno);
        let error = Bench::new().apply(&case).unwrap_err();
        assert!(error.to_string().contains("set policy of task 501"), "{error}");
        assert!(error.hint().unwrap().contains("CONFIG_RT_GROUP_SCHED"), "{:?}", error.hint());
        case.host.clear_faults();
        assert_same(&before, &case.host, "nothing half done");
    }
}

#[test]
fn a_throttle_that_is_off_is_reported_and_can_be_switched() {
    let mut case = crate::common::v2();
    let throttle = paths::sysctl_kernel("sched_rt_runtime_us");
    let bench = Bench::new();
    fn reported(case: &Case) -> bool {
        let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        planned.findings.iter().any(|one| one.subject == "real-time throttle")
    }
    assert!(!reported(&case) && dangers(&case).is_empty());
    case.host.write(&throttle, b"-1").unwrap();
    assert!(reported(&case));
    assert!(dangers(&case)[0].contains("rt-throttle=on"), "{:?}", dangers(&case));
    case.plan.vnodes[0].threads[0].policy = Some(Policy::Idle);
    assert!(dangers(&case).is_empty(), "no thread is real-time");
    case.plan.vnodes[0].threads[0].policy = Some(Policy::Fifo { priority: 1 });
    case.plan.tuning.add("rt-throttle=on").unwrap();
    let before = case.host.snapshot();
    bench.apply(&case).unwrap();
    assert_eq!(case.host.read_text(&throttle).unwrap(), "950000\n");
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "switched on and back");
    case.plan.tuning.add("rt-throttle=off").unwrap();
    case.host.write(&throttle, b"500000").unwrap();
    bench.apply(&case).unwrap();
    assert_eq!(case.host.read_text(&throttle).unwrap(), "-1\n");
    assert!(dangers(&case)[0].contains("the plan requests"), "{:?}", dangers(&case));
    let now = status(&case.host, &case.plan, &case.target).unwrap();
    assert!(now.is_as_planned(), "it is no drift: {now:?}");
    assert!(bench.undo(&case).is_complete());
    assert_eq!(case.host.read_text(&throttle).unwrap(), "500000\n");
}

fn dangers(case: &Case) -> Vec<String> {
    let now = status(&case.host, &case.plan, &case.target).unwrap();
    now.dangers.into_iter().map(|one| one.hint.unwrap()).collect::<Vec<_>>()
}

fn with_deadline(pus: &str, place: usize) -> Case {
    let mut case = crate::common::v2();
    let policy =
        Policy::Deadline { runtime_ns: 500 * US, deadline_ns: 1000 * US, period_ns: 1000 * US };
    let threads = &mut case.plan.vnodes[0].threads;
    threads[0].policy = None;
    threads[place].policy = Some(policy);
    threads[place].pus = set(pus);
    case.plan.exclusive = set("");
    case
}

#[test]
fn a_deadline_on_a_part_of_its_domain_is_refused_by_name() {
    let case = with_deadline("2,6", 0);
    let error = Bench::new().apply(&case).unwrap_err();
    assert!(error.to_string().contains("0-7, their scheduling domain"), "{error}");
    assert!(error.hint().unwrap().contains("partition"), "{:?}", error.hint());
    let error = Bench::new().apply(&with_deadline("0-7", 1)).unwrap_err();
    assert!(matches!(error, ApplyError::Refused(Refusal::DeadlineOf { .. })), "{error}");
    // The kernel's own answer, had it been asked.
    case.host.set_affinity(Tid(501), &set("2,6")).unwrap();
    let policy =
        Policy::Deadline { runtime_ns: 500 * US, deadline_ns: 1000 * US, period_ns: 1000 * US };
    assert_eq!(case.host.set_policy(Tid(501), policy).unwrap_err().errno(), Some(1));
}

/// The machine of [`with_deadline`] in a partition that somebody made before.
fn in_partition(kind: &str, others: &[(&str, &str)], pus: &str) -> Case {
    let mut case = with_deadline(pus, 0);
    let mut partitions = vec![("/sys/fs/cgroup/machine.slice", "2,6", kind)];
    partitions.extend(others.iter().map(|(pus, kind)| ("/sys/fs/cgroup/rival.slice", *pus, *kind)));
    for (group, pus, kind) in partitions {
        if !case.host.exists(group) {
            case.host.make_dir(group).unwrap();
        }
        case.host.write(&paths::cpuset_cpus(group), pus.as_bytes()).unwrap();
        case.host.write(&paths::cpuset_partition(group), kind.as_bytes()).unwrap();
        assert_eq!(case.host.read_text(&paths::cpuset_partition(group)).unwrap().trim(), kind);
    }
    case.plan.vnodes[0].threads[1].pus = set("2,6");
    case.plan.vnodes[0].threads[2].pus = set("2,6");
    case
}

#[test]
fn a_deadline_is_given_where_the_partition_is_the_domain() {
    fn check(kind: &str, others: &[(&str, &str)], pus: &str, domain: Option<&str>) {
        let case = in_partition(kind, others, pus);
        let what = format!("{kind} {others:?} {pus}");
        let (bench, before) = (Bench::new(), case.host.snapshot());
        let policy = case.plan.vnodes[0].threads[0].policy.unwrap();
        match (bench.apply(&case), domain) {
            (Ok(_), None) => assert_eq!(case.host.policy(Tid(501)).unwrap(), policy, "{what}"),
            (Err(error), Some(domain)) => {
                assert!(error.to_string().contains(&format!("all of {domain}, ")), "{error}");
                // The kernel's own answer.
                case.host.set_affinity(Tid(501), &set(pus)).unwrap();
                let refused = case.host.set_policy(Tid(501), policy).unwrap_err();
                assert_eq!(refused.errno(), Some(1), "{what}");
                return;
            }
            (other, _) => panic!("{what}: {other:?}"),
        }
        let moved = case.host.set_affinity(Tid(501), &set("2")).unwrap_err();
        assert_eq!(moved.errno(), Some(16), "it keeps its whole domain");
        assert!(bench.undo(&case).is_complete(), "{what}");
        assert_same(&before, &case.host, &what);
    }

    check("root", &[], "2,6", None);
    check("root", &[("3,7", "isolated")], "2,6", None);
    check("root", &[], "2", Some("2,6"));
    check("isolated", &[], "2,6", None);
    check("isolated", &[("3,7", "isolated")], "2,6", Some("2-3,6-7"));
}

#[test]
fn a_deadline_in_a_partition_that_the_plan_makes_is_refused_with_why() {
    let late = refused("partition=root");
    assert!(matches!(late, Refusal::DeadlineBeforePartition { .. }), "{late}");
    assert!(late.hint().unwrap().contains("cpuset.cpus.partition=root"));
    let isolated = refused("partition=isolated");
    assert!(matches!(isolated, Refusal::DeadlineInIsolated { .. }), "{isolated}");
    assert!(isolated.to_string().contains("all isolated CPUs"), "{isolated}");
}

fn refused(partition: &str) -> pinfold_apply::Refusal {
    let mut case = with_deadline("2,6", 0);
    case.plan.exclusive = set("2,6");
    case.plan.isolation = IsolationScope::Host;
    case.plan.tuning.add(partition).unwrap();
    match Bench::new().apply(&case) {
        Err(ApplyError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

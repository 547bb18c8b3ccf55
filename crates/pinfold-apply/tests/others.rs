//! What others do meanwhile, what a host lacks, what is refused, and what status tells.

mod common;

use common::{Bench, Case, assert_same, set, v1, v1_machine_group, v2};
use pinfold_apply::{ApplyError, Refusal, plan_steps, status};
use pinfold_host::{CgroupVersion, Host as _, HostMut as _, SimHost, SimTask};
use pinfold_model::{Change, IsolationScope, Policy, Role, Tid};

#[test]
fn what_somebody_else_changed_is_left_and_told() {
    let check = |case: &Case, change: &dyn Fn(&SimHost), part: &str, kept: &str| {
        let bench = Bench::new();
        let case = Case { host: case.host.clone(), ..case.clone() };
        bench.apply(&case).unwrap();
        change(&case.host);
        let report = bench.undo(&case);
        assert!(report.is_complete(), "{part}: {report:?}");
        assert!(
            report.changed.iter().any(|finding| finding.text.contains(part)),
            "no {part} in {report:?}"
        );
        let after = case.host.snapshot();
        assert!(after.contains(kept), "no {kept} in\n{after}");
    };
    let case = v1().with(IsolationScope::Host);
    check(
        &case,
        &|host| host.set_policy(Tid(501), Policy::Idle).unwrap(),
        "the policy of task 501 is idle",
        "task 501 (CPU 0/KVM): groups / /, mask 0-1, policy idle",
    );
    check(
        &case,
        &|host| host.set_policy(Tid(400), Policy::Other { nice: 7 }).unwrap(),
        "the policy of task 400 is other nice 7",
        "task 400 (bash): groups / /, mask 0-1, policy other nice 7",
    );
    check(
        &case,
        &|host| host.write("/sys/fs/cgroup/cpuset/docker/b/tasks", b"400").unwrap(),
        "task 400 is in /sys/fs/cgroup/cpuset/docker/b",
        "task 400 (bash): groups /docker/b /",
    );
    let case = v2().with(IsolationScope::Host);
    check(
        &case,
        &|host| host.write("/sys/fs/cgroup/system.slice/cpuset.cpus", b"5").unwrap(),
        "system.slice/cpuset.cpus holds \"5\"",
        "system.slice/cpuset.cpus: \"5\\n\"",
    );
    check(
        &case,
        &|host| host.set_affinity(Tid(500), &set("5")).unwrap(),
        "the mask of task 500 is 5",
        "task 500 (qemu-system-x86): groups /machine.slice/vm1.scope, mask 5",
    );
}

#[test]
fn a_dead_machine_leaves_nothing_to_undo_but_the_groups() {
    let case = v1().with(IsolationScope::Host);
    let (bench, expected) = (Bench::new(), case.host.clone());
    bench.apply(&case).unwrap();
    case.host.exit(Tid(500));
    expected.exit(Tid(500));
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.gone > 0, "{report:?}");
    assert_same(&expected.snapshot(), &case.host, "dead machine");
}

#[test]
fn a_number_that_was_used_again_is_somebody_else() {
    let (case, bench) = (v1(), Bench::new());
    bench.apply(&case).unwrap();
    case.host.exit(Tid(501));
    case.host.add_task(SimTask::new(501, "other").started(9_999).with_affinity(set("1")));
    bench.undo(&case);
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("1"));
}

#[test]
fn groups_of_somebody_else_inside_ours_are_told() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    let before = case.host.snapshot();
    let ours = bench.apply(&case).unwrap().group.unwrap();
    case.host.make_dir(&format!("{ours}/theirs")).unwrap();
    let report = bench.undo(&case);
    assert!(!report.is_complete(), "{report:?}");
    assert!(report.failed.iter().any(|finding| finding.text.contains(&ours)), "{report:?}");
    case.host.remove_dir(&format!("{ours}/theirs")).unwrap();
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "when it is gone");
}

#[test]
fn plans_that_no_host_must_take() {
    let check = |edit: &dyn Fn(&mut Case), part: &str| {
        let mut case = v1().with(IsolationScope::Host);
        let before = case.host.snapshot();
        edit(&mut case);
        let bench = Bench::new();
        let error = bench.apply(&case).unwrap_err();
        assert!(matches!(error, ApplyError::Refused(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.hint().is_some(), "{error}");
        assert_same(&before, &case.host, part);
        assert!(bench.reopen(&case).record().has_ended(), "a refused plan is not in force");
    };
    check(&|case| case.plan.housekeeping = set(""), "no PU for its own tasks");
    check(&|case| case.plan.housekeeping = set("0-1"), "PUs 1 are the host's and");
    check(&|case| case.plan.vnode.threads[0].pus = set(""), "gives vcpu(0) no PU");
    check(
        &|case| case.plan.vnode.threads[1].policy = Some(Policy::RoundRobin { priority: 1 }),
        "leave the host no PU",
    );
    check(
        &|case| {
            let task = case.target.threads[0].0;
            case.target.threads.push((task, Role::Iothread("disk".to_owned())));
        },
        "thread 501 is vcpu(0) and iothread(disk) at once",
    );
}

fn without_cpuset() -> Case {
    let mut case = v1();
    let mounts = case.host.read_text("/proc/self/mountinfo").unwrap();
    let without: String =
        mounts.lines().filter(|line| !line.contains("cpuset")).map(|l| format!("{l}\n")).collect();
    case.host.set_file("/proc/self/mountinfo", &without);
    case.name = "v1 without cpuset";
    case
}

#[test]
fn without_the_controller_own_loads_are_kept_off_by_masks() {
    let case = without_cpuset().with(IsolationScope::Own);
    if case.host.read_text("/proc/self/mountinfo").unwrap().contains("cpuset") {
        eprintln!("skipped: the simulated mount table cannot be replaced");
        return;
    }
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    assert!(applied.group.is_none());
    assert!(applied.findings.iter().any(|finding| finding.text.contains("masks instead")));
    for tid in [600, 601, 610] {
        assert_eq!(case.host.affinity(Tid(tid)).unwrap(), set("0"), "task {tid}");
    }
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "masks");
    let error = plan_steps(&case.host, &case.with(IsolationScope::Host).plan, &case.target);
    assert!(matches!(error, Err(ApplyError::Refused(Refusal::NoCpuset))), "{error:?}");
}

#[test]
fn a_thread_whose_cpuset_lacks_its_pus_is_told() {
    let mut case = v1_machine_group();
    case.host.write("/sys/fs/cgroup/cpuset/machine/vm1/cpuset.cpus", b"0").unwrap();
    let before = case.host.snapshot();
    let error = Bench::new().apply(&case).unwrap_err();
    let ApplyError::Step { change, source, .. } = &error else { panic!("{error}") };
    assert_eq!((change.as_str(), source.errno()), ("set affinity of task 501 to 1", Some(22)));
    assert!(error.hint().unwrap().contains("cpuset"), "{error}");
    assert_same(&before, &case.host, "refused by the cpuset");
    // Half of them is not nothing: it is placed on what there is, and told.
    case.plan.vnode.threads[0].pus = set("0-1");
    let bench = Bench::new();
    let applied = bench.apply(&case).unwrap();
    assert!(applied.findings.iter().any(|finding| finding.text.contains("only 0 of 0-1")));
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "narrowed");
}

#[test]
fn threads_that_end_during_the_apply_are_findings() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    let applied = bench
        .apply_watched(&case, &mut |event: &pinfold_apply::Event<'_>| {
            if event.index == 0 && event.point == pinfold_apply::Point::AfterJournal {
                case.host.exit(Tid(502));
                case.host.exit(Tid(400));
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(applied.findings.iter().any(|finding| finding.text.contains("task 502")));
    let expected = v1().host;
    expected.exit(Tid(502));
    expected.exit(Tid(400));
    assert!(bench.undo(&case).is_complete());
    assert_same(&expected.snapshot(), &case.host, "ended meanwhile");
}

#[test]
fn what_forks_while_the_lists_are_read_is_caught() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    let mut left = 3;
    bench
        .apply_watched(&case, &mut |event: &pinfold_apply::Event<'_>| {
            let is_move = matches!(event.step.change, Change::MoveTasks { .. });
            if is_move && event.point == pinfold_apply::Point::AfterJournal && left > 0 {
                // Born in the root, by a parent that is about to be moved.
                case.host.add_task(SimTask::new(900 + left, "late").child_of(300));
                left -= 1;
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    for tid in 901..=903 {
        assert_eq!(case.host.affinity(Tid(tid)).unwrap(), set("0"), "task {tid}");
    }
}

#[test]
fn iothreads_and_main_come_before_vcpus_and_policies_after() {
    let case = v1();
    let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
    let order: Vec<String> = planned.steps.iter().map(|step| step.change.to_string()).collect();
    let expected = [
        "set affinity of task 500 to 0",
        "set affinity of task 502 to 0",
        "set affinity of task 501 to 1",
        "set policy of task 501 to fifo 1",
    ];
    assert_eq!(order, expected, "and 503 is where it should be");
}

#[test]
fn status_tells_planned_found_and_who_else_is_there() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    let before = status(&case.host, &case.plan, &case.target).unwrap();
    assert!(!before.is_as_planned());
    assert!(before.movable.iter().any(|task| task.name == "bash"));
    bench.apply(&case).unwrap();
    let after = status(&case.host, &case.plan, &case.target).unwrap();
    assert!(after.is_as_planned(), "{after:?}");
    let names = |list: &[pinfold_apply::Intruder]| -> Vec<String> {
        list.iter().map(|task| task.name.clone()).collect()
    };
    assert_eq!(names(&after.immovable), ["kthreadd", "ksoftirqd/1"]);
    assert_eq!(names(&after.movable), ["pinfold", "bound"], "and a container of PU 1 alone");
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    case.host.exit(Tid(502));
    let drifted = status(&case.host, &case.plan, &case.target).unwrap();
    let wrong: Vec<_> =
        drifted.roles.iter().filter(|role| !role.ok).map(|role| role.found.clone()).collect();
    assert_eq!(wrong, [Some(set("0")), None]);
}

#[test]
fn a_host_that_fights_back_is_told_and_left_as_it_was() {
    let case = Case { host: SimHost::builder(CgroupVersion::V1, 2).build(), ..v1() };
    let bench = Bench::new();
    let error = bench.journals().begin(
        &case.host,
        &pinfold_apply::NewJournal { vm_name: "vm1", plan: "{}", target: &case.target },
    );
    assert!(error.is_err(), "there is no such machine");
    let (case, bench) = (v1(), Bench::new());
    let error = bench
        .apply_watched(&case, &mut |event: &pinfold_apply::Event<'_>| {
            if event.point == pinfold_apply::Point::BeforeJournal {
                case.host.set_affinity(Tid(503), &set("0-1")).unwrap();
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap_err();
    assert!(matches!(error, ApplyError::Restless { .. }), "{error}");
    assert!(error.hint().unwrap().contains("keeps changing"));
}

//! What others do meanwhile, what a host lacks, what is refused, and what status tells.

use crate::common::{Bench, Case, assert_same, set, v1, v1_machine_group, v2};
use pinfold_apply::{ApplyError, Refusal, plan_steps, status};
use pinfold_host::{Host, HostError, HostMut as _, ThreadList, ThreadSet, paths};
use pinfold_model::{Change, CpuSet, Finding, IsolationScope, Policy, Role, Tid};
use pinfold_sim::{SimHost, SimTask};

#[test]
fn what_another_program_changed_is_left_and_reported() {
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

fn check(case: &Case, change: &dyn Fn(&SimHost), part: &str, kept: &str) {
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
fn a_number_that_was_used_again_is_another_process() {
    let (case, bench) = (v1(), Bench::new());
    bench.apply(&case).unwrap();
    case.host.exit(Tid(501));
    case.host.add_task(SimTask::new(501, "other").started(9_999).with_affinity(set("1")));
    bench.undo(&case);
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("1"));
}

#[test]
fn groups_of_another_program_inside_ours_are_reported() {
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
fn loads_that_are_started_into_the_group_go_home_to_their_starter() {
    for (mut case, group) in [(v1(), "/"), (v2(), "/user.slice/session-1.scope")] {
        case.target.own = Vec::new();
        let (case, bench) = (case.with(IsolationScope::Own), Bench::new());
        let (expected, ours) = (case.host.clone(), bench.apply(&case).unwrap().group.unwrap());
        for host in [&case.host, &expected] {
            assert!(host.fork(Tid(100), Tid(900)));
        }
        case.host.write(&paths::cgroup_procs(&ours), b"900").unwrap();
        assert!(case.host.fork(Tid(900), Tid(901)) && expected.fork(Tid(900), Tid(901)));
        assert_eq!(case.host.affinity(Tid(901)).unwrap(), case.plan.housekeeping);
        let report = bench.undo(&case);
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(case.host.task(Tid(901)).unwrap().group, group);
        assert_same(&expected.snapshot(), &case.host, group);
    }
}

#[test]
fn plans_that_no_host_must_take() {
    fn check(edit: &dyn Fn(&mut Case), part: &str) {
        let mut case = v1().with(IsolationScope::Host);
        let before = case.host.snapshot();
        edit(&mut case);
        let bench = Bench::new();
        let error = bench.apply(&case).unwrap_err();
        assert!(matches!(error, ApplyError::Refused(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.hint().is_some(), "{error}");
        assert_same(&before, &case.host, part);
        assert!(!bench.has_journal(&case), "a refused plan is not in force");
    }

    check(&|case| case.plan.housekeeping = set(""), "no CPU for its own tasks");
    check(&|case| case.plan.housekeeping = set("0-1"), "gives CPU 1 to the host and");
    check(&|case| case.plan.vnodes[0].threads[0].pus = set(""), "gives vcpu(0) no CPU");
    check(
        &|case| case.plan.vnodes[0].threads[1].policy = Some(Policy::RoundRobin { priority: 1 }),
        "can occupy every CPU of the host",
    );
    let on_vcpu = |role: usize| {
        move |case: &mut Case| {
            case.plan.vnodes[0].threads[role].pus = set("1");
        }
    };
    check(&on_vcpu(1), "real-time on CPU 1, the only CPU of emulator");
    check(&on_vcpu(2), "real-time on CPU 1, the only CPU of iothread(disk)");
    check(
        &|case| {
            let task = case.target.threads[0].0;
            case.target.threads.push((task, Role::Iothread("disk".to_owned())));
        },
        "thread 501 is both vcpu(0) and iothread(disk)",
    );
}

/// A host with another mount table.
struct Mounted<'h>(&'h SimHost, &'h str);

impl Host for Mounted<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError> {
        if path == paths::own_mountinfo() { Ok(self.1.into()) } else { self.0.read(path) }
    }
    fn list(&self, path: &str) -> Result<Vec<String>, HostError> {
        self.0.list(path)
    }
    fn link(&self, path: &str) -> Result<String, HostError> {
        self.0.link(path)
    }
    fn exists(&self, path: &str) -> bool {
        self.0.exists(path)
    }
    fn link_count(&self, path: &str) -> Result<u64, HostError> {
        self.0.link_count(path)
    }
    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError> {
        self.0.affinity(tid)
    }
    fn policy(&self, tid: Tid) -> Result<Policy, HostError> {
        self.0.policy(tid)
    }
    fn is_live(&self) -> bool {
        false
    }
}

#[test]
fn without_a_usable_controller_own_loads_are_kept_off_by_masks() {
    fn check(mounts: &str, refusal: &Refusal) {
        let case = v1().with(IsolationScope::Own);
        let host = Mounted(&case.host, mounts);
        let planned = plan_steps(&host, &case.plan, &case.target).unwrap();
        assert!(
            planned
                .findings
                .iter()
                .any(|finding: &Finding| finding.text.starts_with(&refusal.to_string())),
            "{:?}",
            planned.findings
        );
        for tid in [600, 601, 610] {
            let task = case.host.task(Tid(tid)).unwrap().id();
            let change = Change::SetAffinity { task, mask: set("0") };
            assert!(planned.steps.iter().any(|step| step.change == change), "task {tid}");
        }
        let plan = case.with(IsolationScope::Host).plan;
        match plan_steps(&host, &plan, &case.target) {
            Err(ApplyError::Refused(found)) => assert_eq!(found, *refusal),
            other => panic!("{other:?}"),
        }
    }

    check("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", &Refusal::NoCpuset);
    let path = "/sys/fs/cgroup/cpuset".to_owned();
    check(
        "34 31 0:31 / /sys/fs/cgroup/cpuset ro,nosuid - cgroup cgroup rw,cpuset\n",
        &Refusal::ReadOnly { path },
    );
}

#[test]
fn a_thread_whose_cpuset_lacks_its_pus_is_reported() {
    let mut case = v1_machine_group();
    case.host.write("/sys/fs/cgroup/cpuset/machine/vm1/cpuset.cpus", b"0").unwrap();
    let before = case.host.snapshot();
    let error = Bench::new().apply(&case).unwrap_err();
    let ApplyError::Step { change, source, .. } = &error else { panic!("{error}") };
    assert_eq!((change.as_str(), source.errno()), ("set affinity of task 501 to 1", Some(22)));
    assert!(error.hint().unwrap().contains("cpuset"), "{error}");
    assert_same(&before, &case.host, "refused by the cpuset");
    // Half of them is not nothing: it is placed on what there is, and told.
    case.plan.vnodes[0].threads[0].pus = set("0-1");
    case.plan.vnodes[0].threads[0].policy = None;
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
fn status_reports_planned_found_and_who_else_is_there() {
    let (case, bench) = (v1().with(IsolationScope::Host), Bench::new());
    let before = status(&case.host, &case.plan, &case.target).unwrap();
    assert!(!before.is_as_planned());
    assert!(before.movable.iter().any(|task| task.name == "bash"));
    bench.apply(&case).unwrap();
    let after = status(&case.host, &case.plan, &case.target).unwrap();
    assert!(after.is_as_planned(), "{after:?}");
    assert_eq!(names(&after.immovable), ["kthreadd", "ksoftirqd/1"]);
    assert_eq!(
        names(&after.movable),
        ["pinfold", "bound", "bound"],
        "and containers of CPU 1 alone"
    );
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    case.host.exit(Tid(502));
    let drifted = status(&case.host, &case.plan, &case.target).unwrap();
    let wrong: Vec<_> =
        drifted.roles.iter().filter(|role| !role.ok).map(|role| role.found.clone()).collect();
    assert_eq!(wrong, [Some(set("0")), None]);
}

fn names(list: &[pinfold_apply::ForeignTask]) -> Vec<String> {
    list.iter().map(|task| task.name.clone()).collect()
}

#[test]
fn a_thread_that_was_born_since_the_roll_is_placed() {
    let (mut case, bench) = (v1(), Bench::new());
    let listed = case.host.list(&paths::task_dir(Tid(500))).unwrap();
    let tids: Vec<Tid> = listed.iter().map(|name| Tid(name.parse().unwrap())).collect();
    let thread_set = ThreadSet::read(&case.host, Tid(500)).unwrap();
    assert_eq!(thread_set.threads(), tids.len());
    case.target.known_threads = Some(ThreadList { thread_set, tids });
    assert!(case.host.clone_thread(Tid(501), Tid(510)));
    bench.apply(&case).unwrap();
    assert_eq!(case.host.affinity(Tid(510)).unwrap(), case.host.affinity(Tid(500)).unwrap());
    assert_ne!(case.host.affinity(Tid(510)).unwrap(), case.host.affinity(Tid(501)).unwrap());
}

#[test]
fn a_host_that_fights_back_is_reported_and_left_as_it_was() {
    let (case, bench) = (v1(), Bench::new());
    let error = bench
        .apply_watched(&case, &mut |event: &pinfold_apply::Event<'_>| {
            let Change::SetAffinity { task, .. } = &event.step.change else {
                return std::ops::ControlFlow::Continue(());
            };
            if event.point == pinfold_apply::Point::AfterChange {
                let other = if task.tid.0 == 503 { 502 } else { 503 };
                case.host.set_affinity(Tid(other), &set("0-1")).unwrap();
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap_err();
    assert!(matches!(error, ApplyError::NotConverged { .. }), "{error}");
    assert!(error.hint().unwrap().contains("keeps changing"));
}

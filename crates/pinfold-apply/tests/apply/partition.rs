//! Partitions and CPUs that go offline, on simulated hosts: made, refused, invalid, undone.

use crate::common::{Bench, Case, VM, assert_same, break_at, set};
use pinfold_apply::{
    ApplyError, Extent, Point, Refusal, Replacement, Roles, WatchEvent, Watcher, find_vanished,
    no_observer, plan_steps, replace, status,
};
use pinfold_host::{Host, HostMut as _, paths};
use pinfold_model::tunables::partition;
use pinfold_model::{CpuSet, IsolationScope, PuId, Role, Severity, TaskId, Tid, Tuning};
use pinfold_sim::{CgroupVersion, SimBuilder, SimHost, SimTask};

fn with_partition(case: &Case, scope: IsolationScope) -> Case {
    let mut case = case.with(scope);
    case.plan.tuning.add("partition=isolated").unwrap();
    // One CPU for the one vCPU; its sibling is kept free.
    case.plan.vnodes[0].threads[0].pus = set("2");
    case
}

/// The root holds everything, and the kernel is older than masks that last and remote partitions.
fn old_in_root() -> Case {
    let case = crate::common::v2_in_root();
    let builder = SimHost::builder(CgroupVersion::V2, 8).resets_affinity().local_partitions();
    let builder = [100, 300, 400, VM, 501, 502, 503, 600, 601, 610]
        .into_iter()
        .fold(builder, |builder, tid| builder.task(case.host.task(Tid(tid)).unwrap()));
    let host = builder.build();
    host.set_file(&paths::kernel_release(), "6.1.0-25-amd64\n");
    Case { name: "6.1 in root", host, ..case }
}

fn cases() -> Vec<Case> {
    let hosts = [
        crate::common::v2(),
        crate::common::v2_in_use(crate::common::v2_builder().clears_populated()),
        crate::common::v2_shared(),
        crate::common::v2_in_root(),
        crate::common::v2_cpuset_off(),
        crate::common::v2_systemd(),
        old_in_root(),
    ];
    hosts.iter().map(|host| with_partition(host, IsolationScope::Host)).collect()
}

fn group_of(host: &SimHost, tid: u32) -> String {
    let text = host.read_text(&paths::process_cgroup(Tid(tid))).unwrap();
    let below = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned();
    format!("/sys/fs/cgroup{}", below.trim_end_matches('/'))
}

fn read(host: &SimHost, path: &str) -> String {
    host.read_text(path).unwrap().trim().to_owned()
}

#[test]
fn vcpus_get_a_partition_and_the_rest_stays_outside() {
    for case in cases() {
        let what = format!("{}, {:?}", case.name, case.plan.isolation);
        let (bench, before) = (Bench::new(), case.host.snapshot());
        let dry = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        let applied = bench.apply(&case).unwrap();
        let group = group_of(&case.host, 501);
        assert_eq!(read(&case.host, &paths::cpuset_partition(&group)), "isolated", "{what}");
        assert!(group.ends_with("-part") && group_of(&case.host, VM) != group, "{what}: {group}");
        assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("2"), "{what}");
        assert_eq!(case.host.affinity(Tid(VM)).unwrap(), set("0,4"), "{what}");
        let left = read(&case.host, &paths::cpuset_cpus_effective("/sys/fs/cgroup"));
        assert_eq!(left, "0-1,3-5,7", "{what}");
        let partition =
            applied.steps.iter().find(|step| step.change.to_string().contains("isolated"));
        assert!(
            partition.is_some_and(|step: &pinfold_model::Step| dry.steps.contains(step)),
            "{what}: the dry run does not print it"
        );
        let now = status(&case.host, &case.plan, &case.target).unwrap();
        assert!(now.is_as_planned(), "{what}: {now:?}");
        let report = bench.undo(&case);
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        if report.equivalent.is_empty() {
            assert_same(&before, &case.host, &what);
        }
    }
}

/// A plan with other CPUs, with and without a partition, and the other way round.
#[test]
fn a_partition_is_replaced() {
    for case in cases() {
        let mut other = case.clone();
        other.plan = crate::common::plan("3,7", "0,4");
        other.plan.isolation = IsolationScope::Host;
        let mut moved = other.clone();
        moved.plan.tuning.add("partition=isolated").unwrap();
        moved.plan.vnodes[0].threads[0].pus = set("3");
        for [first, second] in [[&case, &other], [&other, &case], [&case, &moved]] {
            let plans = [first, second].map(|case| case.plan.exclusive.to_string());
            let what = format!("{}: {}", case.name, plans.join(" then "));
            let host = case.host.clone();
            let before = host.snapshot();
            let alone = Case { host: host.clone(), ..second.clone() };
            let first = Case { host, ..first.clone() };
            let host = &first.host;
            Bench::new().apply(&alone).unwrap();
            let bench = Bench::new();
            bench.apply(&first).unwrap();
            let replacement =
                Replacement { plan: &second.plan, text: "{}", target: &second.target };
            let mut journal = bench.reopen(&first);
            replace(host, replacement, &mut journal, &mut no_observer())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(journal);
            assert_eq!(group_of(host, 501), group_of(&alone.host, 501), "{what}");
            let vcpu = &second.plan.vnodes[0].threads[0].pus;
            assert_eq!(host.affinity(Tid(501)).unwrap(), *vcpu, "{what}");
            let now = status(host, &second.plan, &second.target).unwrap();
            assert!(now.is_as_planned(), "{what}: {now:?}");
            let left = read(host, &paths::cpuset_cpus_effective("/sys/fs/cgroup"));
            let alone = read(&alone.host, &paths::cpuset_cpus_effective("/sys/fs/cgroup"));
            assert_eq!(left, alone, "{what}");
            let report = bench.undo(&first);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            if report.equivalent.is_empty() {
                assert_same(&before, host, &what);
            }
        }
    }
}

#[test]
fn a_kill_at_every_point_is_undone() {
    for case in cases() {
        let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps.len();
        for index in 0..steps {
            for point in [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange] {
                let case = case.clone();
                let (bench, before) = (Bench::new(), case.host.snapshot());
                let what =
                    format!("{}, {:?}: {point:?} of {index}", case.name, case.plan.isolation);
                let error = bench.apply_watched(&case, &mut break_at(index, point)).unwrap_err();
                assert!(matches!(error, ApplyError::Abandoned { .. }), "{what}: {error}");
                let report = bench.undo(&case);
                assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
                if report.equivalent.is_empty() {
                    assert_same(&before, &case.host, &what);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_is_reported_with_a_hint() {
    // A group beside it has one of the CPUs, and no other that it could be limited to.
    let mut rival = with_partition(&crate::common::v2_in_root(), IsolationScope::Host);
    let tids = [100, 300, 400, VM, 501, 502, 503, 600, 601, 610];
    let tasks = tids.map(|tid| rival.host.task(Tid(tid)).unwrap());
    let start = builder(SimHost::builder(CgroupVersion::V2, 8));
    rival.host = tasks.into_iter().fold(start, SimBuilder::task).build();
    let narrow = with_partition(&crate::common::v2(), IsolationScope::Own);
    let mut old = with_partition(&crate::common::v2_forgetful(), IsolationScope::Host);
    old.name = "old and not in the root";
    let v1 = with_partition(&crate::common::v1(), IsolationScope::Host);
    let mut nothing = with_partition(&crate::common::v2(), IsolationScope::Host);
    nothing.plan.exclusive = CpuSet::new();
    nothing.plan.isolation = IsolationScope::None;
    for (mut case, text, hint) in [
        (rival, "Cpu list in cpuset.cpus not exclusive", "--avoid"),
        (narrow, "the isolation scope is narrower", "--isolate host"),
        (old, "only directly below another", "6.7"),
        (v1, "version 1", "unified"),
        (nothing, "other tasks from no CPU", "--isolate"),
    ] {
        let what = case.name;
        if what == "v1" {
            case.plan.vnodes[0].threads[0].pus = set("1");
        }
        let (bench, before) = (Bench::new(), case.host.snapshot());
        let applied = bench.apply(&case).unwrap();
        let reported = applied.findings.iter().find(|one| one.text.contains(text));
        let reported = reported.unwrap_or_else(|| panic!("{what}: {applied:?}"));
        assert!(
            reported.hint.as_ref().is_some_and(|one| one.contains(hint)),
            "{what}: {reported:?}"
        );
        assert!(bench.undo(&case).is_complete(), "{what}");
        case.plan.tuning.required = true;
        let error = Bench::new().apply(&case).unwrap_err();
        assert!(
            error.to_string().contains(text) || format!("{error:?}").contains(text),
            "{error:?}"
        );
        assert_same(&before, &case.host, what);
    }
}

fn builder(builder: SimBuilder) -> SimBuilder {
    builder.group("/rival.slice", set("2"), CpuSet::new())
}

struct KnownRoles(Vec<(TaskId, Role)>);

impl Roles for KnownRoles {
    fn roles(&mut self, _: &dyn Host, _: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_worker_that_a_vcpu_makes_leaves_the_partition_and_an_invalid_one_is_reported() {
    let case = with_partition(&crate::common::v2(), IsolationScope::Host);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    let mut journal = bench.reopen(&case);
    let mut watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
    let mut roles = KnownRoles(case.target.threads.clone());
    assert!(case.host.clone_thread(Tid(501), Tid(590)));
    let part = group_of(&case.host, 501);
    assert_eq!(group_of(&case.host, 590), part);
    ticks(&mut watcher, &mut journal, &mut roles, &case);
    assert_eq!(group_of(&case.host, 590), group_of(&case.host, VM));
    assert_eq!(case.host.affinity(Tid(590)).unwrap(), set("0,4"));
    // Somebody takes the CPUs away from the groups above.
    let scope = paths::cpuset_cpus_exclusive("/sys/fs/cgroup/machine.slice/vm1.scope");
    case.host.write(&scope, b"6").unwrap();
    let events = ticks(&mut watcher, &mut journal, &mut roles, &case);
    let reported: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            WatchEvent::Finding(finding) => Some(finding.text.as_str()),
            WatchEvent::Placed { .. }
            | WatchEvent::Repaired { .. }
            | WatchEvent::Contested { .. }
            | WatchEvent::Groups { .. }
            | WatchEvent::Yielded { .. }
            | WatchEvent::Replanned { .. }
            | WatchEvent::Undone
            | WatchEvent::Ended => None,
        })
        .collect();
    assert!(
        reported.iter().filter(|text| text.contains("isolated invalid")).count() == 1,
        "{reported:?}"
    );
    assert!(!status(&case.host, &case.plan, &case.target).unwrap().is_as_planned());
    case.host.write(&scope, b"2,6").unwrap();
    case.host.exit(Tid(590));
    drop(journal);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undo");
}

fn ticks(
    watcher: &mut Watcher,
    journal: &mut pinfold_apply::Journal<'_>,
    roles: &mut KnownRoles,
    case: &Case,
) -> Vec<WatchEvent> {
    let mut all = Vec::new();
    for _ in 0..4 {
        all.extend(watcher.tick(&case.host, journal, roles, Extent::Groups).unwrap());
    }
    all
}

/// One machine in its scope on eight CPUs, of which each but the first can go.
fn hotplug() -> Case {
    let donor = crate::common::v2();
    let mut case = with_partition(&donor, IsolationScope::Host);
    case.plan.tuning.unset(&partition::TUNABLE);
    case.plan.vnodes[0].threads[1].pus = set("0-1");
    case.plan.vnodes[0].threads[2].pus = set("0-1");
    case.plan.housekeeping = set("0-1,3-5,7");
    let builder = crate::common::v2_builder().hotplug();
    let main = SimTask::new(VM, "qemu-system-x86").in_group("/machine.slice/vm1.scope");
    let none = CpuSet::new;
    case.host = builder
        .group("/machine.slice", none(), none())
        .task(main.child_of(400))
        .task(thread(501, "CPU 0/KVM"))
        .task(thread(502, "IO disk"))
        .task(SimTask::new(311, "in:imuxsock").in_group("/system.slice").with_affinity(set("6-7")))
        .build();
    case.target.own.clear();
    case
}

fn thread(tid: u32, name: &str) -> SimTask {
    SimTask::new(tid, name).thread_of(VM).in_group("/machine.slice/vm1.scope")
}

#[test]
fn smt_and_single_pus_go_offline_and_come_back() {
    check(&["smt=off"], "0-3");
    check(&["offline=5,7"], "0-4,6");
    check(&["smt=off", "offline=3"], "0-2");
}

fn check(words: &[&str], online: &str) {
    let mut case = hotplug();
    case.host.set_file("/nothing", "");
    case.host.edit_task(Tid(311), |task| task.asked = None);
    case.plan.tuning = Tuning::from_words(words).unwrap();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    assert_eq!(read(&case.host, &paths::cpu_online()), online, "{applied:?}");
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_same(&before, &case.host, online);
}

#[test]
fn pus_in_use_and_the_last_ones_of_the_host_stay_online() {
    let in_use = refused(&|case| case.plan.tuning.add("offline=2").unwrap());
    assert!(matches!(&in_use, Refusal::OfflineInUse { pus } if *pus == set("2")), "{in_use}");
    assert!(in_use.hint().is_some());
    let last = refused(&|case| {
        case.plan.housekeeping = set("4-5");
        case.plan.tuning.add("offline=4-5").unwrap();
    });
    assert!(matches!(last, Refusal::NoHousekeeping), "{last}");
    // The first thread of a core may be the one that is offline.
    let mut case = hotplug();
    case.host.set_online(&set("0-2,4-7"));
    case.plan.tuning.add("smt=off").unwrap();
    let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
    assert!(planned.findings.iter().any(|one| one.text.contains("with CPU 3 offline")));
    assert!(!planned.steps.iter().any(|step| step.change.to_string().contains("smt/control")));
    // A task that may run nowhere else would lose its mask.
    let mut case = hotplug();
    case.plan.tuning.add("offline=6-7").unwrap();
    let applied = Bench::new().apply(&case).unwrap();
    let reported = applied.findings.iter().find(|one| one.text.contains("311 (in:imuxsock)"));
    assert!(reported.is_some_and(|one| one.hint.is_some()), "{applied:?}");
    assert_eq!(read(&case.host, &paths::cpu_online()), "0-7");
}

fn refused(edit: &dyn Fn(&mut Case)) -> pinfold_apply::Refusal {
    let mut case = hotplug();
    edit(&mut case);
    match plan_steps(&case.host, &case.plan, &case.target) {
        Err(ApplyError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn refusals_of_the_kernel_are_reported_with_a_hint() {
    let file = paths::cpu_is_online(PuId(5));
    for errno in [1, 16, 28, 30] {
        let mut case = hotplug();
        case.plan.tuning.add("offline=5").unwrap();
        let (bench, before) = (Bench::new(), case.host.snapshot());
        case.host.fail_on(&format!("write {file} "), errno);
        let applied = bench.apply(&case).unwrap();
        let reported = applied.findings.iter().find(|one| one.text.contains(&file));
        assert!(reported.is_some_and(|one| one.hint.is_some()), "{errno}: {applied:?}");
        case.host.clear_faults();
        assert!(bench.undo(&case).is_complete());
        assert_same(&before, &case.host, "refused");
    }
}

#[test]
fn a_pu_that_goes_offline_under_a_plan_is_named_and_undo_copes() {
    let case = with_partition(&crate::common::v2(), IsolationScope::Host);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    case.host.set_online(&set("0-1,3-7"));
    let now = status(&case.host, &case.plan, &case.target).unwrap();
    let reported = |part: &str| now.findings.iter().any(|one| one.text.contains(part));
    assert!(
        reported("CPU 2 is offline: vcpu(0)") || reported("CPU 2 is offline: vCPU 0"),
        "{now:?}"
    );
    let report = bench.undo(&case);
    assert!(report.is_complete(), "{report:?}");
    case.host.set_online(&set("0-7"));
    assert_same(&before, &case.host, "undo with a CPU offline");
}

/// A compute service takes dedicated CPUs offline while no machine needs them.
#[test]
fn a_pu_that_a_thread_needs_is_brought_online_and_goes_again_with_undo() {
    let case = hotplug();
    case.host.set_online(&set("0-1,3-7"));
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
    let first = planned.steps[0].change.to_string();
    assert!(first.contains(&paths::cpu_is_online(PuId(2))), "{first}");
    let applied = bench.apply(&case).unwrap();
    assert_eq!(read(&case.host, &paths::cpu_online()), "0-7", "{applied:?}");
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(read(&case.host, &paths::cpu_online()), "0-1,3-7");
    assert_same(&before, &case.host, "brought online");
}

/// The owner takes a CPU of the placement offline while a plan replaces the present one, after it was
/// seen that all its CPUs are online.
#[test]
fn a_plan_that_replaces_another_brings_no_pu_online() {
    let case = hotplug();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    let mut plan = case.plan.clone();
    plan.vnodes[0].threads[1].pus = set("4");
    case.host.set_online(&set("0-1,3-7"));
    let replacement = Replacement { plan: &plan, text: "{}", target: &case.target };
    replace(&case.host, replacement, &mut bench.reopen(&case), &mut no_observer()).unwrap();
    assert_eq!(read(&case.host, &paths::cpu_online()), "0-1,3-7");
    assert_eq!(case.host.affinity(case.target.threads[1].0.tid).unwrap(), set("4"));
    let now = status(&case.host, &plan, &case.target).unwrap();
    assert!(now.findings.iter().any(|one| one.text.contains("CPU 2 is offline")), "{now:?}");
    case.host.set_online(&set("0-7"));
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undone");
}

#[test]
fn kernel_threads_that_came_back_without_an_offline_pu_are_named() {
    assert!(near_without("0-7").is_empty());
    let short = near_without("0-6");
    let (kernel, placed): (Vec<_>, Vec<_>) =
        short.iter().partition(|near| near.text.contains("(rcu_preempt) is restored to 0-3"));
    let [near] = kernel[..] else { panic!("{short:?}") };
    // This kernel does not give the placed threads their CPU back when it comes online.
    assert_eq!(placed.len(), 3, "{short:?}");
    assert!(placed.iter().all(|near| near.text.contains("without CPU 7, which is offline")));
    assert!(near.text.contains("have contained CPU 7"), "{near:?}");
    assert!(near.hint.as_ref().unwrap().ends_with("taskset -p -c 0-3,7 10"), "{near:?}");
}

fn near_without(online: &str) -> Vec<pinfold_model::Finding> {
    let case = crate::common::v2_forgetful().with(IsolationScope::Host);
    case.host.edit_task(Tid(10), |task| task.asked = Some(set("0-3")));
    case.host.set_online(&set(online));
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_same(&before, &case.host, online);
    report.equivalent
}

#[test]
fn a_group_that_vanishes_is_named_and_nothing_else_is_lost() {
    let case = with_partition(&crate::common::v2(), IsolationScope::Host);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    let part = group_of(&case.host, 501);
    let reported = || find_vanished(&case.host, bench.reopen(&case).record()).unwrap();
    assert!(reported().is_empty());
    // Somebody empties it, where its threads are still those of the machine, and removes it.
    let scope = group_of(&case.host, VM);
    case.host.write(&paths::cgroup_threads(&scope), b"501").unwrap();
    case.host.remove_dir(&part).unwrap();
    let [lost] = &reported()[..] else { panic!("{:?}", reported()) };
    assert!(lost.text.contains(&part) && lost.severity == Severity::Warning, "{lost:?}");
    let mut watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
    let mut roles = KnownRoles(case.target.threads.clone());
    let mut journal = bench.reopen(&case);
    watcher.tick(&case.host, &mut journal, &mut roles, Extent::Groups).unwrap();
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("2"), "the watch goes on");
    drop(journal);
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(report.vanished, std::slice::from_ref(lost));
    assert_same(&before, &case.host, "all else is as it was");
}

#[test]
fn a_group_that_the_machine_came_from_and_vanished_is_named_with_where_its_tasks_go() {
    let case = crate::common::v2_shared().with(IsolationScope::Own);
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let home = "/sys/fs/cgroup/user.slice/session-1.scope";
    assert_ne!(group_of(&case.host, 610), home, "the load was moved");
    for tid in case.host.list("/proc").unwrap().iter().filter_map(|pid| pid.parse().ok()) {
        if group_of(&case.host, tid) == home {
            let there = paths::cgroup_procs("/sys/fs/cgroup/system.slice");
            case.host.write(&there, tid.to_string().as_bytes()).unwrap();
        }
    }
    case.host.remove_dir(home).unwrap();
    let reported = find_vanished(&case.host, bench.reopen(&case).record()).unwrap();
    let [gone] = &reported[..] else { panic!("{reported:?}") };
    assert!(gone.text.contains(home) && gone.severity == Severity::Note, "{gone:?}");
    assert!(gone.hint.as_ref().unwrap().contains("moves them to /sys/fs/cgroup,"), "{gone:?}");
    let report = bench.undo(&case);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.vanished, reported);
    // The slice has children with controllers, so that it takes no task.
    assert_eq!(group_of(&case.host, 610), "/sys/fs/cgroup");
}

#[test]
fn a_thread_with_several_pus_is_reported_to_be_unbalanced() {
    let mut case = with_partition(&crate::common::v2(), IsolationScope::Host);
    case.plan.vnodes[0].threads[0].pus = set("2,6");
    fn reported(case: &Case) -> bool {
        let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        planned.findings.iter().any(|one| one.text.contains("has no load balancing"))
    }
    assert!(reported(&case));
    case.plan.tuning.add("partition=root").unwrap();
    assert!(!reported(&case));
}

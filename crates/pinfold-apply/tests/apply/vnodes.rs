//! Groups of emulated cores: threads that were dealt to them go back whence they came.

use crate::common::{Bench, Case, assert_same, plan};
use pinfold_apply::{Target, add_steps, leave_file, no_observer, take_steps, undo};
use pinfold_host::{Host as _, HostMut as _, SnapshotHost, paths};
use pinfold_model::{Change, CpuSet, Step, TaskState, Tid, Undo};
use pinfold_sim::{CgroupVersion, SimHost, SimTask};

const VNODE: &str = "/sys/fs/cgroup/pinfold-vnode-web";

fn step(change: Change, undo: Undo) -> Step {
    Step { change, undo, reason: "a test".to_owned() }
}

fn make(path: &str) -> Step {
    let path = path.to_owned();
    step(Change::MakeGroup { path: path.clone() }, Undo::RemoveGroup { path })
}

fn write(group: &str, name: &str, value: &str) -> Step {
    let change = Change::WriteFile {
        path: paths::cgroup_file(group, name),
        value: value.as_bytes().to_vec(),
    };
    step(change, Undo::RemoveGroup { path: group.to_owned() })
}

/// A vnode of two cores in a threaded tree of version 2, into which process 500 was moved.
fn steps(host: &SimHost) -> Vec<Step> {
    let control = "/sys/fs/cgroup/cgroup.subtree_control";
    let enable = |name: &str| {
        let original = host.read(control).unwrap();
        let change =
            Change::WriteFile { path: control.to_owned(), value: format!("+{name}").into() };
        step(change, Undo::WriteFile { path: control.to_owned(), original })
    };
    let mut steps = vec![enable("cpu"), make(VNODE)];
    steps.push(write(VNODE, "cgroup.subtree_control", "+cpu"));
    steps.push(write(VNODE, "cgroup.subtree_control", "+cpuset"));
    for core in ["0", "1"] {
        let group = format!("{VNODE}/pinfold-core-{core}");
        steps.push(make(&group));
        steps.push(write(&group, "cgroup.type", "threaded"));
        steps.push(write(&group, "cpuset.cpus", core));
    }
    let states = [500, 501, 510].map(|tid| {
        let task = host.task(Tid(tid)).unwrap();
        let mask = host.affinity(Tid(tid)).unwrap();
        TaskState { task: task.id(), group: task.group.clone(), mask, policy: task.policy }
    });
    let moved = [&states[0], &states[2]].map(|state| state.task).to_vec();
    let (group, file) = (format!("{VNODE}/pinfold-core-0"), "cgroup.procs".to_owned());
    let mount = "/sys/fs/cgroup".to_owned();
    let undo = Undo::MoveTasks { mount, file: file.clone(), tasks: states.to_vec() };
    steps.push(step(Change::MoveTasks { group, file, tasks: moved }, undo));
    steps
}

#[test]
fn threads_of_a_threaded_vnode_go_back_with_their_process() {
    let group = "/machine.slice/vm.scope";
    let host = SimHost::builder(CgroupVersion::V2, 2)
        .group("/machine.slice", CpuSet::new(), CpuSet::new())
        .task(SimTask::new(500, "qemu").in_group(group))
        .task(SimTask::new(501, "CPU 0/KVM").in_group(group).thread_of(500))
        .task(SimTask::new(510, "helper").in_group(group).child_of(500))
        .build();
    let target = Target::new(Tid(500), Vec::new());
    let case = Case { name: "vnode", host: host.clone(), target, plan: plan("0", "1") };
    let before = host.snapshot();
    let bench = Bench::new();
    let mut journal = bench.begin(&case);
    take_steps(&case.host, steps(&host), &mut journal, &mut no_observer()).unwrap();
    // The dealer's work, and a birth.
    let dealt = format!("{VNODE}/pinfold-core-1/cgroup.threads");
    case.host.write(&dealt, b"501").unwrap();
    assert!(case.host.fork(Tid(501), Tid(700)));
    let report = undo(&case.host, &mut journal);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(case.host.task(Tid(700)).unwrap().group, group);
    case.host.exit(Tid(700));
    assert_same(&before, &case.host, "vnode");
}

/// What a sentinel would have released, had it not died too.
#[test]
fn what_was_switched_goes_back_without_a_sentinel() {
    let slice = "/sys/fs/cgroup/web.slice";
    let host = SimHost::builder(CgroupVersion::V2, 2)
        .speed_groups()
        .cpufreq(&[CpuSet::first_n(2)], &[1_200_000, 2_400_000])
        .group("/web.slice", CpuSet::new(), CpuSet::new())
        .task(SimTask::new(500, "work").in_group("/web.slice"))
        .task(SimTask::new(510, "by hand").in_group("/web.slice"))
        .build();
    host.edit_task(Tid(510), |task| task.state = 'T');
    let frequency = paths::cpufreq_policy_file("policy0", "scaling_setspeed");
    host.write(&paths::cpufreq_policy_file("policy0", "scaling_governor"), b"userspace").unwrap();
    host.write(&frequency, b"1200000").unwrap();
    let freezer = paths::cgroup_freeze(slice);
    let group = slice.to_owned();
    let stopped = vec![host.task(Tid(510)).unwrap().id()];
    let signals = Change::SignalProcesses { group: group.clone() };
    let steps = vec![
        switch(&frequency, "2400000", &host),
        switch(&freezer, "0", &host),
        step(signals, Undo::ContinueProcesses { group, stopped }),
    ];
    let target = Target::new(Tid(500), Vec::new());
    let case = Case { name: "vnode", host, target, plan: plan("0", "1") };
    let host = &case.host;
    let before = host.snapshot();
    let bench = Bench::new();
    let mut journal = bench.begin(&case);
    take_steps(host, steps, &mut journal, &mut no_observer()).unwrap();
    // The methods' work, until they are killed.
    host.write(&frequency, b"1200000").unwrap();
    host.write(&frequency, b"2400000").unwrap();
    host.write(&freezer, b"1").unwrap();
    let work = host.task(Tid(500)).unwrap().id();
    host.signal(work, pinfold_host::process::Signaled::Stop).unwrap();
    let report = undo(host, &mut journal);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(host.task(Tid(510)).unwrap().state, 'T', "it was stopped by hand");
    assert_ne!(host.task(Tid(500)).unwrap().state, 'T');
    assert_same(&before, host, "vnode");
}

fn switch(path: &str, value: &str, host: &SimHost) -> Step {
    let original = host.read(path).unwrap();
    let path = path.to_owned();
    let change = Change::WriteFile { path: path.clone(), value: value.into() };
    step(change, Undo::WriteFile { path, original })
}

/// Children of a placed process have its mask, and lose it with it.
#[test]
fn children_of_a_process_that_was_held_are_freed() {
    let host = SimHost::builder(CgroupVersion::V2, 2).task(SimTask::new(500, "work")).build();
    let task = host.task(Tid(500)).unwrap().id();
    let (mask, original) = (CpuSet::parse_list("1").unwrap(), host.affinity(Tid(500)).unwrap());
    let change = Change::SetAffinity { task, mask };
    let steps = vec![step(change, Undo::SetAffinity { task, original: original.clone() })];
    // A platform's journal is of no machine.
    let target = Target::new(Tid(100), Vec::new());
    let case = Case { name: "vnode", host, target, plan: plan("0", "1") };
    let host = &case.host;
    let bench = Bench::new();
    let mut journal = bench.begin(&case);
    take_steps(host, steps, &mut journal, &mut no_observer()).unwrap();
    assert!(host.fork(Tid(500), Tid(700)));
    assert_ne!(host.affinity(Tid(700)).unwrap(), original);
    assert!(undo(host, &mut journal).is_complete());
    assert_eq!(host.affinity(Tid(700)).unwrap(), original);
}

/// A limit of a disk in a group of its own and in one of another program, which has a limit of
/// another disk; killed after each change, of the steps and of their undo.
#[test]
fn limits_of_disks_are_undone_wherever_a_kill_happens() {
    const WEB: &str = "/sys/fs/cgroup/web.slice";
    const LIMIT: &str = "254:0 rbps=max wbps=50000000 riops=max wiops=max";
    let mut tree = SnapshotHost::new();
    for (number, name) in [("254:0", "vda"), ("8:0", "sda")] {
        tree.insert_link(&paths::block_device(number), &format!("../../devices/block/{name}"));
    }
    let host = SimHost::builder(CgroupVersion::V2, 2)
        .tree(tree)
        .group("/web.slice", CpuSet::new(), CpuSet::new())
        .task(SimTask::new(500, "work"))
        .build();
    let control = "/sys/fs/cgroup/cgroup.subtree_control";
    host.write(control, b"+io").unwrap();
    host.write(&paths::io_max(WEB), b"8:0 rbps=7").unwrap();
    let original = host.read(control).unwrap();
    let memory = Change::WriteFile { path: control.to_owned(), value: b"+memory".to_vec() };
    let none = b"254:0 rbps=max wbps=max riops=max wiops=max".to_vec();
    let path = paths::io_max(WEB);
    let limit = Change::WriteFile { path: path.clone(), value: LIMIT.into() };
    let steps = vec![
        step(memory, Undo::WriteFile { path: control.to_owned(), original }),
        make(VNODE),
        write(VNODE, "io.max", LIMIT),
        step(limit, Undo::WriteFile { path, original: none }),
    ];
    for dies_after in 0..12 {
        let target = Target::new(Tid(500), Vec::new());
        let case = Case { name: "vnode", host: host.clone(), target, plan: plan("0", "1") };
        let (bench, before) = (Bench::new(), case.host.snapshot());
        let mut journal = bench.begin(&case);
        case.host.fail_after(dies_after, 5);
        let taken = take_steps(&case.host, steps.clone(), &mut journal, &mut no_observer());
        assert_eq!(taken.is_ok(), dies_after >= 4, "{dies_after}: {taken:?}");
        if taken.is_ok() {
            let limits = case.host.read_text(&paths::io_max(WEB)).unwrap();
            assert_eq!(limits, format!("{LIMIT}\n8:0 rbps=7 wbps=max riops=max wiops=max\n"));
        }
        undo(&case.host, &mut journal);
        case.host.clear_faults();
        let report = undo(&case.host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{dies_after}: {report:?}");
        assert_same(&before, &case.host, &format!("killed after {dies_after} changes"));
    }
}

/// A limit that another program has set since is left.
#[test]
fn a_disk_limit_of_another_program_is_left() {
    let mut tree = SnapshotHost::new();
    tree.insert_link(&paths::block_device("254:0"), "../../devices/block/vda");
    let host = SimHost::builder(CgroupVersion::V2, 2)
        .tree(tree)
        .group("/web.slice", CpuSet::new(), CpuSet::new())
        .task(SimTask::new(500, "work"))
        .build();
    host.write("/sys/fs/cgroup/cgroup.subtree_control", b"+io").unwrap();
    let path = paths::io_max("/sys/fs/cgroup/web.slice");
    let limit = Change::WriteFile { path: path.clone(), value: b"254:0 rbps=5000 wbps=max".into() };
    let undo_to = Undo::WriteFile { path: path.clone(), original: b"254:0 rbps=max".to_vec() };
    let target = Target::new(Tid(500), Vec::new());
    let case = Case { name: "vnode", host, target, plan: plan("0", "1") };
    let bench = Bench::new();
    let mut journal = bench.begin(&case);
    let steps = vec![step(limit, undo_to)];
    take_steps(&case.host, steps, &mut journal, &mut no_observer()).unwrap();
    case.host.write(&path, b"254:0 rbps=6000").unwrap();
    let report = undo(&case.host, &mut journal);
    assert_eq!(report.changed.len(), 1, "{report:?}");
    assert!(case.host.read_text(&path).unwrap().contains("rbps=6000"));
}

/// The step that gives a group CPU 1.
fn confine(host: &SimHost, path: &str) -> Vec<Step> {
    let path = path.to_owned();
    let undo = Undo::WriteFile { path: path.clone(), original: host.read(&path).unwrap() };
    vec![step(Change::WriteFile { path, value: b"1".to_vec() }, undo)]
}

/// A runtime writes the CPUs of a group that is part of a vnode, which is then confined again.
#[test]
fn a_list_that_is_left_to_another_program_and_set_again_returns_to_its_value() {
    for theirs in ["0-2", "0-1"] {
        let own = CpuSet::parse_list("0-2").unwrap();
        let host = SimHost::builder(CgroupVersion::V2, 4)
            .group("/web.slice", own, CpuSet::new())
            .task(SimTask::new(500, "work"))
            .build();
        let path = paths::cpuset_cpus("/sys/fs/cgroup/web.slice");
        let target = Target::new(Tid(500), Vec::new());
        let case = Case { name: "vnode", host, target, plan: plan("0", "1") };
        let bench = Bench::new();
        let mut journal = bench.begin(&case);
        take_steps(&case.host, confine(&case.host, &path), &mut journal, &mut no_observer())
            .unwrap();
        case.host.write(&path, theirs.as_bytes()).unwrap();
        leave_file(&mut journal, &path).unwrap();
        add_steps(&case.host, confine(&case.host, &path), &mut journal).unwrap();
        assert_eq!(case.host.read_text(&path).unwrap().trim(), "1");
        let report = undo(&case.host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
        assert_eq!(case.host.read_text(&path).unwrap().trim(), theirs);
    }
}

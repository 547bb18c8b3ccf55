//! Reads `/proc` of simulated tasks with the real parsers.

use pinfold_host::{ThreadSet, mountinfo, paths, proc_cgroup, proc_stat, proc_status, schedstat};
use pinfold_model::Policy;

use super::*;

#[test]
fn tasks_are_shown_as_the_kernel_shows_them() {
    let hostile = SimTask::new(500, "a) R 1 (").child_of(400).with_affinity(set("1"));
    let sim = SimHost::builder(CgroupVersion::V1, 2)
        .task(hostile)
        .task(
            SimTask::new(501, "CPU 0/KVM").thread_of(500).with_policy(Policy::Fifo { priority: 3 }),
        )
        .build();
    let text = |path: String| sim.read_text(&path).unwrap();
    let stat = proc_stat::parse(&text(paths::process_stat(Tid(500)))).unwrap();
    assert_eq!((stat.comm.as_str(), stat.ppid, stat.threads), ("a) R 1 (", Tid(400), 2));
    assert_eq!((stat.start_time, stat.processor), (1500, 0));
    let fields = text(paths::task_stat(Tid(500), Tid(501)));
    assert_eq!(fields.trim_end().rsplit(')').next().unwrap().split_whitespace().count(), 50);
    let status = proc_status::parse(&text(paths::task_status(Tid(500), Tid(500)))).unwrap();
    assert_eq!(
        (status.tgid, status.cpus_allowed, status.threads),
        (Tid(500), Some(set("1")), Some(2))
    );
    let bound = SimHost::v1_two_pus();
    let kernel =
        proc_stat::parse(&bound.read_text(&paths::process_stat(Tid(21))).unwrap()).unwrap();
    assert!(kernel.is_unmovable() && kernel.is_kernel_thread());
    assert!(bound.read(&paths::process_cmdline(Tid(21))).unwrap().is_empty());
    assert_eq!(text(paths::task_comm(Tid(500), Tid(501))), "CPU 0/KVM\n");
    assert!(sim.edit_task(Tid(501), |task| {
        task.schedstat = schedstat::SchedStat { run_ns: 5, delay_ns: 6, slices: 7 };
        task.switches = (3, 4);
    }));
    let counted = schedstat::parse(&text(paths::task_schedstat(Tid(500), Tid(501)))).unwrap();
    assert_eq!((counted.run_ns, counted.delay_ns, counted.slices), (5, 6, 7));
    let status = proc_status::parse(&text(paths::task_status(Tid(500), Tid(501)))).unwrap();
    assert_eq!((status.voluntary_switches, status.involuntary_switches), (Some(3), Some(4)));
}

#[test]
fn directories_count_and_list() {
    let sim = SimHost::v1_two_pus();
    check_list("/proc", &["1", "400", "self", "sys"], &sim);
    check_list("/proc/310/task", &["310", "311"], &sim);
    check_list("/proc/310", &["cgroup", "stat", "task"], &sim);
    check_list("/sys/fs/cgroup", &["cpuset", "unified"], &sim);
    check_list("/sys/fs/cgroup/cpuset", &["cpuset.cpus", "release_agent", "tasks"], &sim);
    check_list("/sys/fs", &["cgroup"], &sim);
    check_list("/sys/devices/system/cpu", &["cpu0", "cpu1", "online"], &sim);
    // A thread that is not a process is accessible, but not listed.
    assert!(!sim.list("/proc").unwrap().contains(&"311".to_owned()));
    assert!(sim.exists("/proc/311/stat") && sim.exists("/sys/fs/cgroup") && sim.exists("/proc"));
    assert_eq!(sim.link_count("/proc/310/task").unwrap(), 4);
    assert_eq!(sim.link_count("/proc/311/task").unwrap(), 4);
    assert_eq!(sim.link("/proc/self").unwrap(), "100");
    assert_eq!(errno(sim.link("/proc/1/stat")), libc::EINVAL);
    assert_eq!(errno(sim.read("/proc/310/task/400/stat")), libc::ENOENT);
    assert_eq!(errno(sim.read("/proc/999/stat")), libc::ENOENT);
    assert_eq!(errno(sim.read("/proc/1/nothing")), libc::ENOENT);
    assert_eq!(errno(sim.read("/proc/1")), libc::EISDIR);
    assert_eq!(errno(sim.list("/proc/1/stat")), libc::ENOTDIR);
    assert_eq!(errno(sim.write("/proc/1/stat", b"x")), libc::EACCES);
    assert!(!sim.is_live());
}

fn check_list(path: &str, part: &[&str], sim: &SimHost) {
    let names = sim.list(path).unwrap();
    for name in part {
        assert!(names.iter().any(|found| found == name), "{path}: no {name} in {names:?}");
    }
    assert!(names.is_sorted(), "{path}");
}

#[test]
fn births_and_ends() {
    let sim = SimHost::v1_two_pus();
    sim.set_affinity(Tid(311), &set("1")).unwrap();
    sim.set_policy(Tid(311), Policy::Batch { nice: 3 }).unwrap();
    assert!(sim.clone_thread(Tid(311), Tid(312)) && sim.fork(Tid(311), Tid(600)));
    assert!(!sim.fork(Tid(999), Tid(601)));
    let thread = sim.task(Tid(312)).unwrap();
    assert_eq!((thread.tgid, thread.asked), (Tid(310), Some(set("1"))));
    let child = sim.task(Tid(600)).unwrap();
    assert_eq!(
        (child.tgid, child.ppid, child.policy),
        (Tid(600), Tid(310), Policy::Batch { nice: 3 })
    );
    assert!(child.start_time > thread.start_time);
    assert_eq!(sim.link_count("/proc/310/task").unwrap(), 5);
    sim.exit(Tid(311));
    assert_eq!(sim.link_count("/proc/310/task").unwrap(), 4);
    sim.exit(Tid(310));
    assert!(!sim.exists("/proc/310") && !sim.exists("/proc/312"));
    let orphan = sim.task(Tid(600)).unwrap();
    assert_eq!((orphan.ppid, orphan.process_group), (Tid(1), Tid(310)), "the group stays");
}

#[test]
fn mounts_and_memberships() {
    let one = cpuset_place(&SimHost::v1_two_pus());
    assert_eq!(
        (one.version, one.mount.path.as_str()),
        (mountinfo::Version::V1, "/sys/fs/cgroup/cpuset")
    );
    let sim = SimHost::v2_eight_pus();
    let two = cpuset_place(&sim);
    assert_eq!((two.version, two.mount.path.as_str()), (mountinfo::Version::V2, "/sys/fs/cgroup"));
    let own = proc_cgroup::parse(&sim.read_text(&paths::own_cgroup()).unwrap()).unwrap();
    assert_eq!(proc_cgroup::v2_path(&own), Some("/user.slice/session-1.scope"));
    let text = SimHost::v1_two_pus().read_text("/proc/400/cgroup").unwrap();
    assert_eq!(text, "3:cpuset:/\n0::/\n");
}

fn cpuset_place(sim: &SimHost) -> mountinfo::ControllerMount {
    mountinfo::controller(sim, "cpuset").unwrap().unwrap()
}

#[test]
fn a_thread_set_reports_new_and_ended_threads() {
    let sim = SimHost::builder(CgroupVersion::V2, 2)
        .task(SimTask::new(500, "qemu"))
        .task(SimTask::new(501, "CPU 0/TCG").thread_of(500))
        .build();
    let thread_set = || ThreadSet::read(&sim, Tid(500));
    let before = thread_set();
    assert!(before.is_some());
    assert_eq!(before, thread_set());
    assert!(sim.clone_thread(Tid(500), Tid(502)));
    let born = thread_set();
    assert_ne!(before, born);
    sim.exit(Tid(502));
    assert_ne!(born, thread_set());
    // The same number of threads as before, but another newest PID.
    assert_ne!(before, thread_set());
    sim.exit(Tid(500));
    assert_eq!(thread_set(), None);
}

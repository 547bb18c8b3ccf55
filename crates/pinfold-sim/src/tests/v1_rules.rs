//! Rules of cpuset in cgroup v1.

use super::*;

const ROOT: &str = "/sys/fs/cgroup/cpuset";

fn at(rest: &str) -> String {
    format!("{ROOT}/{rest}")
}

#[test]
fn a_new_group_takes_no_task_until_it_has_pus_and_memory() {
    let sim = SimHost::v1_two_pus();
    sim.make_dir(&at("a")).unwrap();
    assert_eq!(errno(sim.make_dir(&at("a"))), libc::EEXIST);
    assert_eq!(errno(sim.make_dir(&at("none/b"))), libc::ENOENT);
    assert_eq!(errno(sim.make_dir(&at("tasks"))), libc::EEXIST);
    check_read(&sim, &at("a/cpuset.cpus"), "\n");
    check_at("a/tasks", "400", libc::ENOSPC, &sim);
    check_at("a/cpuset.cpus", "1", 0, &sim);
    check_at("a/tasks", "400", libc::ENOSPC, &sim);
    check_at("a/cpuset.mems", "0", 0, &sim);
    check_at("a/tasks", "400\n", 0, &sim);
    check_read(&sim, &at("a/tasks"), "400\n");
    assert_eq!(sim.affinity(Tid(400)).unwrap(), set("1"));
    check_at("a/tasks", "400", 0, &sim);
    check_at("a/tasks", "999", libc::ESRCH, &sim);
    check_at("a/tasks", "-1", libc::EINVAL, &sim);
    check_at("a/tasks", "x", libc::EINVAL, &sim);
    check_at("a/tasks", "", 0, &sim);
    check_at("a/tasks", "2", libc::EINVAL, &sim);
    check_at("a/tasks", "20", libc::EINVAL, &sim);
    check_at("a/tasks", "10", 0, &sim);
    // 0 means the writing process.
    check_at("a/tasks", "0", 0, &sim);
    assert_eq!(sim.task(Tid(100)).unwrap().group, "/a");
}

fn check_at(file: &str, value: &str, expected: i32, sim: &SimHost) {
    check_write(sim, &at(file), value, expected);
}

#[test]
fn one_thread_or_the_whole_process() {
    let sim = SimHost::v1_two_pus();
    sim.make_dir(&at("a")).unwrap();
    sim.write(&at("a/cpuset.cpus"), b"0").unwrap();
    sim.write(&at("a/cpuset.mems"), b"0").unwrap();
    check_write(&sim, &at("a/tasks"), "311", 0);
    check_read(&sim, &at("a/tasks"), "311\n");
    check_read(&sim, &at("a/cgroup.procs"), "310\n");
    check_write(&sim, &at("a/cgroup.procs"), "311", 0);
    check_read(&sim, &at("a/tasks"), "310\n311\n");
    check_write(&sim, &at("cgroup.procs"), "310", 0);
    check_read(&sim, &at("a/tasks"), "");
}

#[test]
fn a_group_lies_inside_its_parent_and_around_its_children() {
    let sim = SimHost::builder(CgroupVersion::V1, 8)
        .group("/a", set("0-3"), set("0"))
        .group("/a/b", set("1"), set("0"))
        .task(SimTask::new(500, "vm").in_group("/a/b"))
        .build();
    check_at("cpuset.cpus", "0-3", libc::EACCES, &sim);
    check_at("cpuset.mems", "0", libc::EACCES, &sim);
    check_at("a/b/cpuset.cpus", "4", libc::EACCES, &sim);
    check_at("a/cpuset.cpus", "0", libc::EBUSY, &sim);
    check_at("a/cpuset.cpus", "0-7", 0, &sim);
    check_at("a/b/cpuset.cpus", "\n", libc::ENOSPC, &sim);
    check_at("a/b/cpuset.cpus", "", 0, &sim);
    check_at("a/b/cpuset.cpus", "8", libc::ERANGE, &sim);
    check_at("a/b/cpuset.cpus", "x", libc::EINVAL, &sim);
    check_at("a/b/cpuset.mems", "1", libc::EINVAL, &sim);
    check_at("a/b/cpuset.mems", "5000", libc::ERANGE, &sim);
    check_at("a/b/cpuset.effective_cpus", "1", libc::EINVAL, &sim);
    check_at("a/b/cpuset.memory_pressure", "1", libc::EINVAL, &sim);
    check_at("a/b/none", "1", libc::ENOENT, &sim);
    check_read(&sim, &at("a/b/cpuset.cpus"), "1\n");
    check_read(&sim, &at("a/b/cpuset.effective_cpus"), "1\n");
}

#[test]
fn exclusive_groups_share_nothing_with_siblings() {
    let sim = SimHost::builder(CgroupVersion::V1, 8)
        .group("/a", set("0-3"), set("0"))
        .group("/b", set("2-5"), set("0"))
        .build();
    check_at("cpuset.cpu_exclusive", "0", 0, &sim);
    check_at("a/cpuset.cpu_exclusive", "1", libc::EACCES, &sim);
    check_at("cpuset.cpu_exclusive", "1", 0, &sim);
    check_at("a/cpuset.cpu_exclusive", "1", libc::EINVAL, &sim);
    check_at("b/cpuset.cpus", "4-5", 0, &sim);
    check_at("a/cpuset.cpu_exclusive", "1", 0, &sim);
    check_at("b/cpuset.cpus", "3-5", libc::EINVAL, &sim);
    check_at("cpuset.cpu_exclusive", "0", libc::EBUSY, &sim);
    check_read(&sim, &at("a/cpuset.cpu_exclusive"), "1\n");
    check_at("a/cpuset.sched_load_balance", "0", 0, &sim);
    check_at("a/cpuset.sched_load_balance", " 1", libc::EINVAL, &sim);
    check_at("a/cpuset.sched_relax_domain_level", "-1", 0, &sim);
    check_at("a/cpuset.sched_relax_domain_level", "9", libc::EINVAL, &sim);
    check_read(&sim, &at("a/cpuset.sched_load_balance"), "0\n");
}

#[test]
fn removal_needs_an_empty_group() {
    let sim = SimHost::builder(CgroupVersion::V1, 2)
        .group("/a/b", set("1"), set("0"))
        .task(SimTask::new(500, "vm").in_group("/a/b"))
        .build();
    check_removal("a", libc::EBUSY, &sim);
    check_removal("a/b", libc::EBUSY, &sim);
    check_removal("a/b/tasks", libc::ENOTDIR, &sim);
    check_removal("none", libc::ENOENT, &sim);
    check_removal("", libc::EBUSY, &sim);
    check_write(&sim, &at("tasks"), "500", 0);
    check_removal("a/b/", 0, &sim);
    check_removal("a", 0, &sim);
    assert!(!sim.exists(&at("a")));
}

fn check_removal(group: &str, expected: i32, sim: &SimHost) {
    assert_eq!(errno(sim.remove_dir(&at(group))), expected, "{group}");
}

#[test]
fn children_may_be_made_like_their_parent() {
    let sim = SimHost::v1_two_pus();
    sim.write(&at("cgroup.clone_children"), b"1").unwrap();
    sim.make_dir(&at("a")).unwrap();
    check_read(&sim, &at("a/cpuset.cpus"), "0-1\n");
    check_read(&sim, &at("a/cgroup.clone_children"), "1\n");
    check_write(&sim, &at("a/tasks"), "400", 0);
}

//! Rules of cgroup v2 and its cpuset.

use super::*;

const ROOT: &str = "/sys/fs/cgroup";

fn at(rest: &str) -> String {
    format!("{ROOT}/{rest}")
}

fn machine() -> SimHost {
    SimHost::builder(CgroupVersion::V2, 8)
        .group("/a", set(""), set(""))
        .task(SimTask::new(500, "vm").in_group("/a/vm"))
        .task(SimTask::new(501, "CPU 0/KVM").thread_of(500).in_group("/a/vm"))
        .build()
}

#[test]
fn a_request_is_cut_to_what_the_parent_has_without_an_error() {
    let sim = machine();
    let check = |value: &str, expected: i32, asked: &str, got: &str| {
        check_write(&sim, &at("a/cpuset.cpus"), value, expected);
        check_read(&sim, &at("a/cpuset.cpus"), &format!("{asked}\n"));
        check_read(&sim, &at("a/cpuset.cpus.effective"), &format!("{got}\n"));
        assert_eq!(sim.affinity(Tid(500)).unwrap(), set(got));
    };
    check_read(&sim, &at("a/cpuset.cpus"), "\n");
    check("2-3\n", 0, "2-3", "2-3");
    check("9", libc::ERANGE, "2-3", "2-3");
    check("x", libc::EINVAL, "2-3", "2-3");
    check("", 0, "2-3", "2-3");
    check("\n", libc::ENOSPC, "2-3", "2-3");
    sim.exit(Tid(500));
    check_write(&sim, &at("a/cpuset.cpus"), "\n", 0);
    sim.add_task(SimTask::new(500, "vm").in_group("/a/vm"));
    check("0-7", 0, "0-7", "0-7");
    sim.set_online(&set("0-3"));
    check("3-5", 0, "3-5", "3");
    check("4-5", 0, "4-5", "0-3");
    sim.set_online(&set("0-7"));
    check_read(&sim, &at("a/cpuset.cpus.effective"), "4-5\n");
}

#[test]
fn a_group_with_tasks_gives_its_set_up_only_since_linux_7_0() {
    check(SimHost::builder(CgroupVersion::V2, 8), libc::ENOSPC);
    check(SimHost::builder(CgroupVersion::V2, 8).clears_populated(), 0);
}

fn check(builder: SimBuilder, expected: i32) {
    let sim = builder
        .group("/a", set("2-3"), set("0"))
        .task(SimTask::new(500, "vm").in_group("/a/vm"))
        .build();
    check_write(&sim, &at("a/cpuset.cpus"), "\n", expected);
    check_write(&sim, &at("a/cpuset.mems"), "\n", expected);
    sim.exit(Tid(500));
    check_write(&sim, &at("a/cpuset.cpus"), "\n", 0);
}

#[test]
fn files_appear_with_the_controller() {
    let sim = machine();
    assert!(
        has("cpuset.cpus.effective", &sim)
            && !has("cpuset.cpus", &sim)
            && !has("cgroup.type", &sim)
    );
    assert!(
        has("a/cpuset.cpus", &sim)
            && !has("a/vm/cpuset.cpus", &sim)
            && has("a/vm/cgroup.type", &sim)
    );
    check_at("a/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_read(&sim, &at("a/cgroup.subtree_control"), "cpuset\n");
    check_read(&sim, &at("a/vm/cgroup.controllers"), "cpuset\n");
    check_at("a/vm/cpuset.cpus", "1", 0, &sim);
    check_at("a/cgroup.subtree_control", "+memory", libc::ENOENT, &sim);
    check_at("a/cgroup.subtree_control", "+nonsense", libc::EINVAL, &sim);
    check_at("a/cgroup.subtree_control", "cpuset", libc::EINVAL, &sim);
    check_at("cgroup.subtree_control", "-cpuset", libc::EBUSY, &sim);
    check_at("a/cgroup.subtree_control", "-cpuset", 0, &sim);
    assert!(!has("a/vm/cpuset.cpus", &sim));
    // The group's request was lost with the controller.
    check_at("a/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_read(&sim, &at("a/vm/cpuset.cpus"), "\n");
}

fn has(path: &str, sim: &SimHost) -> bool {
    sim.exists(&at(path))
}

fn check_at(file: &str, value: &str, expected: i32, sim: &SimHost) {
    check_write(sim, &at(file), value, expected);
}

#[test]
fn processes_stay_out_of_inner_groups() {
    let sim = machine();
    check_at("cgroup.subtree_control", "+memory +cpuset", 0, &sim);
    sim.make_dir(&at("a/vm/inner")).unwrap();
    check_at("a/vm/cgroup.subtree_control", "+memory", libc::ENOENT, &sim);
    check_at("a/cgroup.subtree_control", "+memory", 0, &sim);
    check_at("a/vm/cgroup.subtree_control", "+memory", libc::EBUSY, &sim);
    check_at("a/cgroup.procs", "100", libc::EBUSY, &sim);
    check_at("cgroup.procs", "500", 0, &sim);
    check_at("a/vm/cgroup.subtree_control", "+memory", 0, &sim);
    check_at("a/vm/cgroup.procs", "500", libc::EBUSY, &sim);
    check_at("a/vm/inner/cgroup.procs", "500", 0, &sim);
    check_read(&sim, &at("a/vm/inner/cgroup.procs"), "500\n");
    check_read(&sim, &at("a/cgroup.events"), "populated 1\nfrozen 0\n");
    check_at("a/vm/inner/cgroup.procs", "20", libc::ESRCH, &sim);
}

#[test]
fn single_threads_move_only_inside_a_threaded_subtree() {
    let sim = machine();
    sim.make_dir(&at("a/vm/vcpu0")).unwrap();
    check_read(&sim, &at("a/vm/vcpu0/cgroup.type"), "domain\n");
    check_at("a/vm/vcpu0/cgroup.threads", "501", libc::EOPNOTSUPP, &sim);
    check_at("a/vm/vcpu0/cgroup.type", "domain", libc::EINVAL, &sim);
    check_at("a/vm/vcpu0/cgroup.type", "threaded", 0, &sim);
    check_read(&sim, &at("a/vm/cgroup.type"), "domain threaded\n");
    check_at("a/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_at("a/vm/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_at("a/vm/vcpu0/cpuset.cpus", "3", 0, &sim);
    check_at("a/vm/vcpu0/cgroup.threads", "501", 0, &sim);
    check_read(&sim, &at("a/vm/vcpu0/cgroup.threads"), "501\n");
    assert_eq!(errno(sim.read(&at("a/vm/vcpu0/cgroup.procs"))), libc::EOPNOTSUPP);
    check_read(&sim, &at("a/vm/cgroup.procs"), "500\n");
    assert_eq!(sim.affinity(Tid(501)).unwrap(), set("3"));
    assert_eq!(sim.affinity(Tid(500)).unwrap(), set("0-7"));
    check_at("cgroup.threads", "501", libc::EOPNOTSUPP, &sim);
    // A group below a threaded one cannot be used until it is threaded too.
    sim.make_dir(&at("a/vm/vcpu0/deep")).unwrap();
    check_read(&sim, &at("a/vm/vcpu0/deep/cgroup.type"), "domain invalid\n");
    check_at("a/vm/vcpu0/deep/cgroup.threads", "501", libc::EOPNOTSUPP, &sim);
    check_at("a/vm/vcpu0/deep/cgroup.type", "threaded\n", 0, &sim);
    check_at("a/vm/vcpu0/deep/cgroup.threads", "501", 0, &sim);
    assert_eq!(errno(sim.remove_dir(&at("a/vm/vcpu0/deep"))), libc::EBUSY);
    // The process leaves the subtree with all its threads.
    check_at("cgroup.procs", "500", 0, &sim);
    assert_eq!(errno(sim.remove_dir(&at("a/vm/vcpu0/deep"))), 0);
    check_read(&sim, &at("cgroup.stat"), "nr_descendants 3\nnr_dying_descendants 0\n");
}

#[test]
fn threaded_controllers_over_tasks_make_a_thread_root() {
    let sim = machine();
    check_at("a/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_at("a/vm/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_read(&sim, &at("a/vm/cgroup.type"), "domain threaded\n");
    sim.make_dir(&at("a/vm/x")).unwrap();
    check_read(&sim, &at("a/vm/x/cgroup.type"), "domain invalid\n");
    check_at("a/vm/x/cgroup.procs", "500", libc::EOPNOTSUPP, &sim);
}

#[test]
fn partitions_take_their_pus_or_say_why_not() {
    let sim = machine();
    for group in ["b", "c"] {
        sim.make_dir(&at(group)).unwrap();
    }
    check_at("b/cpuset.cpus.partition", "isolated", 0, &sim);
    check_shown(
        "b/cpuset.cpus.partition",
        "isolated invalid (cpuset.cpus and cpuset.cpus.exclusive are empty)",
        &sim,
    );
    check_at("b/cpuset.cpus", "4-7", 0, &sim);
    check_shown("b/cpuset.cpus.partition", "isolated", &sim);
    check_shown("cpuset.cpus.effective", "0-3", &sim);
    check_shown("cpuset.cpus.isolated", "4-7", &sim);
    check_shown("a/cpuset.cpus.effective", "0-3", &sim);
    assert_eq!(sim.affinity(Tid(500)).unwrap(), set("0-3"));
    check_at("b/cgroup.procs", "500", 0, &sim);
    assert_eq!(sim.affinity(Tid(500)).unwrap(), set("4-7"));
    // A conflicting sibling invalidates it, without an error.
    check_at("c/cpuset.cpus", "3-4", 0, &sim);
    check_shown(
        "b/cpuset.cpus.partition",
        "isolated invalid (Cpu list in cpuset.cpus not exclusive)",
        &sim,
    );
    check_shown("cpuset.cpus.effective", "0-7", &sim);
    check_at("c/cpuset.cpus", "3", 0, &sim);
    check_shown("b/cpuset.cpus.partition", "isolated", &sim);
    // The root's tasks must keep a CPU.
    check_at("b/cpuset.cpus", "0-2,4-7", 0, &sim);
    check_shown("b/cpuset.cpus.partition", "isolated", &sim);
    check_at("c/cpuset.cpus", "\n", 0, &sim);
    check_at("b/cpuset.cpus", "0-7", 0, &sim);
    check_shown(
        "b/cpuset.cpus.partition",
        "isolated invalid (Parent unable to distribute cpu downstream)",
        &sim,
    );
    check_at("b/cpuset.cpus.partition", "nonsense", libc::EINVAL, &sim);
    check_at("b/cpuset.cpus.partition", "member", 0, &sim);
    check_shown("b/cpuset.cpus.partition", "member", &sim);
    check_at("a/cgroup.subtree_control", "+cpuset", 0, &sim);
    check_at("a/vm/cpuset.cpus", "1", 0, &sim);
    check_at("a/vm/cpuset.cpus.partition", "root\n", 0, &sim);
    check_shown(
        "a/vm/cpuset.cpus.partition",
        "root invalid (Parent is not a partition root)",
        &sim,
    );
    check_at("a/cpuset.cpus.exclusive", "1", 0, &sim);
    check_at("b/cpuset.cpus.exclusive", "1-2", libc::EINVAL, &sim);
}

fn check_shown(file: &str, text: &str, sim: &SimHost) {
    check_read(sim, &at(file), &format!("{text}\n"));
}

//! Tests of the simulated machine's rules, as tables of operations and results.

mod live_v1;
mod proc_view;
mod speed;
mod v1_rules;
mod v2_rules;

use pinfold_host::{Host as _, HostError, HostMut as _};
use pinfold_model::{CpuSet, Policy, Tid};
use rustix::io::Errno;

use super::*;

fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

/// The error number of an operation; 0 for success.
fn errno<T>(result: Result<T, HostError>) -> i32 {
    result.map_or_else(|error| error.errno().unwrap(), |_| 0)
}

/// Writes and compares the error number (0 is success).
fn check_write(sim: &SimHost, path: &str, value: &str, expected: i32) {
    let got = errno(sim.write(path, value.as_bytes()));
    assert_eq!(got, expected, "write {value:?} to {path}");
}

/// Reads and compares the text.
fn check_read(sim: &SimHost, path: &str, expected: &str) {
    assert_eq!(sim.read_text(path).unwrap(), expected, "{path}");
}

#[test]
fn affinity_is_what_was_asked_within_the_cpuset() {
    let sim = SimHost::v2_eight_pus();
    let check = |tid: u32, mask: &str, expected: i32, shown: &str| {
        assert_eq!(errno(sim.set_affinity(Tid(tid), &set(mask))), expected, "{tid} {mask}");
        assert_eq!(sim.affinity(Tid(tid)).unwrap(), set(shown), "{tid} {mask}");
    };
    check(400, "2-3", 0, "2-3");
    check(400, "3,900", 0, "3");
    check(400, "900", libc::EINVAL, "3");
    check(400, "", libc::EINVAL, "3");
    // Affinity of bound kernel threads cannot be set, that of movable ones can.
    check(20, "1", libc::EINVAL, "0");
    check(10, "1", 0, "1");
    assert_eq!(errno(sim.set_affinity(Tid(999), &set("0"))), libc::ESRCH);
    assert_eq!(errno(sim.affinity(Tid(999))), libc::ESRCH);
}

#[test]
fn what_was_asked_outlives_a_narrower_cpuset_since_linux_6_2() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        check(SimHost::builder(version, 8), "4-5", "2-5");
        check(SimHost::builder(version, 8).resets_affinity(), "4-7", "0-7");
    }
}

fn check(builder: SimBuilder, narrow: &str, back: &str) {
    let sim = builder
        .group("/a", set("0-7"), set("0"))
        .task(SimTask::new(500, "vm").in_group("/a"))
        .build();
    let cpus = if sim.exists("/sys/fs/cgroup/cpuset") {
        "/sys/fs/cgroup/cpuset/a/cpuset.cpus"
    } else {
        "/sys/fs/cgroup/a/cpuset.cpus"
    };
    sim.set_affinity(Tid(500), &set("2-5")).unwrap();
    sim.write(cpus, b"4-7").unwrap();
    assert_eq!(sim.affinity(Tid(500)).unwrap(), set(narrow));
    // Nothing of the requested mask remains: the whole cpuset.
    sim.write(cpus, b"6-7").unwrap();
    assert_eq!(sim.affinity(Tid(500)).unwrap(), set("6-7"));
    sim.write(cpus, b"0-7").unwrap();
    assert_eq!(sim.affinity(Tid(500)).unwrap(), set(back));
}

#[test]
fn policies_by_the_kernels_rules() {
    let sim = SimHost::v1_two_pus();
    let check = |policy: Policy, expected: i32| {
        assert_eq!(errno(sim.set_policy(Tid(400), policy)), expected, "{policy}");
        if expected == 0 {
            assert_eq!(sim.policy(Tid(400)).unwrap(), policy);
        }
    };
    check(Policy::Other { nice: -20 }, 0);
    check(Policy::Batch { nice: 5 }, 0);
    check(Policy::Idle, 0);
    check(Policy::Fifo { priority: 99 }, 0);
    check(Policy::RoundRobin { priority: 1 }, 0);
    check(Policy::Fifo { priority: 0 }, libc::EINVAL);
    check(Policy::RoundRobin { priority: 100 }, libc::EINVAL);
    check(Policy::Unknown { number: 7 }, libc::EINVAL);
    check(deadline(500, 1_000_000, 1_000_000), libc::EINVAL);
    check(deadline(2_000_000, 1_000_000, 1_000_000), libc::EINVAL);
    check(deadline(100_000, 1_000_000, 1_000_000), 0);
    // A deadline thread needs all CPUs of its root domain.
    assert_eq!(errno(sim.set_affinity(Tid(400), &set("0"))), libc::EBUSY);
    sim.set_affinity(Tid(300), &set("0")).unwrap();
    let refused = sim.set_policy(Tid(300), deadline(100_000, 1_000_000, 1_000_000));
    assert_eq!(errno(refused), libc::EPERM);
    assert_eq!(errno(sim.policy(Tid(999))), libc::ESRCH);
}

fn deadline(runtime_ns: u64, deadline_ns: u64, period_ns: u64) -> Policy {
    Policy::Deadline { runtime_ns, deadline_ns, period_ns }
}

#[test]
fn tunables_take_what_their_kind_takes() {
    let sim = SimHost::builder(CgroupVersion::V1, 8)
        .writable_file("/proc/irq/default_smp_affinity", WriteRule::Mask, "ff\n")
        .writable_file("/proc/irq/5/smp_affinity_list", WriteRule::List, "0-7\n")
        .writable_file("/sys/kernel/mm/ksm/run", WriteRule::Text, "0\n")
        .file("/sys/block/x/size", "8\n")
        .build();
    let check = |path: &str, value: &str, expected: i32, shown: &str| {
        check_write(&sim, path, value, expected);
        check_read(&sim, path, shown);
    };
    check("/proc/irq/default_smp_affinity", "3", 0, "3\n");
    check("/proc/irq/default_smp_affinity", "0", libc::EINVAL, "3\n");
    check("/proc/irq/default_smp_affinity", "zz", libc::EINVAL, "3\n");
    check("/proc/irq/default_smp_affinity", "100", libc::EOVERFLOW, "3\n");
    check("/proc/irq/default_smp_affinity", "", 0, "3\n");
    check("/proc/irq/5/smp_affinity_list", "1,2\n", 0, "1-2\n");
    check("/proc/irq/5/smp_affinity_list", "8", libc::ERANGE, "1-2\n");
    check("/proc/sys/kernel/numa_balancing", "1\n", 0, "1\n");
    check("/proc/sys/kernel/numa_balancing", "x", libc::EINVAL, "1\n");
    check("/sys/kernel/mm/ksm/run", "2", 0, "2");
    check("/sys/block/x/size", "9", libc::EACCES, "8\n");
    check_write(&sim, "/sys/block/x/none", "9", libc::ENOENT);
    check_write(&sim, "/sys/block/x", "9", libc::EISDIR);
    assert_eq!(errno(sim.make_dir("/sys/block/y")), libc::EPERM);
    assert_eq!(errno(sim.make_dir("/sys/block")), libc::EEXIST);
    assert_eq!(errno(sim.remove_dir("/sys/block/x")), libc::EPERM);
    assert_eq!(errno(sim.remove_dir("/sys/block/none")), libc::ENOENT);
}

#[test]
fn faults_are_planted_and_changes_counted() {
    let sim = SimHost::v1_two_pus();
    let group = "/sys/fs/cgroup/cpuset/a";
    sim.fail_on("read /proc/400/stat", libc::EIO);
    sim.fail_on("set_affinity 400", libc::EPERM);
    assert_eq!(errno(sim.read("/proc/400/status")), libc::EIO);
    assert_eq!(errno(sim.set_affinity(Tid(400), &set("0"))), libc::EPERM);
    assert_eq!(errno(sim.set_affinity(Tid(300), &set("0"))), 0);
    sim.clear_faults();
    assert_eq!(errno(sim.set_affinity(Tid(400), &set("0"))), 0);
    sim.fail_after(2, libc::EIO);
    assert_eq!(errno(sim.make_dir(group)), 0);
    assert_eq!(errno(sim.write(&format!("{group}/cpuset.mems"), b"0\n")), 0);
    assert_eq!(errno(sim.write(&format!("{group}/cpuset.cpus"), b"0\n")), libc::EIO);
    assert_eq!(errno(sim.remove_dir(group)), libc::EIO);
    assert_eq!(errno(sim.read(&format!("{group}/cpuset.cpus"))), 0);
    assert_eq!(
        sim.changes(),
        [
            "set_affinity 300 0",
            "set_affinity 400 0",
            "make_dir /sys/fs/cgroup/cpuset/a",
            "write /sys/fs/cgroup/cpuset/a/cpuset.mems 0",
        ]
    );
}

#[test]
fn a_snapshot_distinguishes_two_machines() {
    for sim in [SimHost::v1_two_pus(), SimHost::v2_eight_pus()] {
        let before = sim.snapshot();
        let twin = sim.clone();
        let all = sim.affinity(Tid(400)).unwrap();
        sim.set_affinity(Tid(400), &set("1")).unwrap();
        assert_ne!(sim.snapshot(), before);
        assert_eq!(twin.snapshot(), before);
        sim.set_affinity(Tid(400), &all).unwrap();
        assert_eq!(sim.snapshot(), before);
        sim.write("/proc/sys/kernel/numa_balancing", b"1").unwrap();
        assert_ne!(sim.snapshot(), before);
    }
}

#[test]
fn pus_that_go_offline() {
    let sim = SimHost::builder(CgroupVersion::V1, 4)
        .group("/a", set("2-3"), set("0"))
        .group("/a/b", set("3"), set("0"))
        .task(SimTask::new(500, "vm").in_group("/a/b"))
        .build();
    sim.set_online(&set("0-2"));
    check_read(&sim, "/sys/fs/cgroup/cpuset/a/cpuset.cpus", "2\n");
    check_read(&sim, "/sys/fs/cgroup/cpuset/a/b/cpuset.cpus", "\n");
    assert_eq!(sim.task(Tid(500)).unwrap().group, "/a");
    sim.set_online(&set("0-3"));
    check_read(&sim, "/sys/fs/cgroup/cpuset/a/cpuset.cpus", "2\n");
    check_read(&sim, "/sys/devices/system/cpu/online", "0-3\n");
    let sim = SimHost::v2_eight_pus();
    sim.write("/sys/fs/cgroup/user.slice/cpuset.cpus", b"6-7").unwrap();
    sim.set_online(&set("0-6"));
    check_read(&sim, "/sys/fs/cgroup/user.slice/cpuset.cpus.effective", "6\n");
    sim.set_online(&set("0-7"));
    check_read(&sim, "/sys/fs/cgroup/user.slice/cpuset.cpus.effective", "6-7\n");
}

#[test]
fn lists_as_the_kernel_reads_them() {
    fn check(text: &str, expected: Result<&str, Errno>) {
        assert_eq!(parse::list(text, 8), expected.map(set), "{text:?}");
    }

    check("0-3,7\n", Ok("0-3,7"));
    check("0 1\t2", Ok("0-2"));
    check("0,,1,", Ok("0-1"));
    check("\n", Ok(""));
    check("all", Ok("0-7"));
    check("N", Ok("7"));
    check("4-N", Ok("4-7"));
    check("0-7:2/4", Ok("0-1,4-5"));
    check("0-0:0/1", Ok(""));
    check("0\u{0}junk", Ok("0"));
    check("3-1", Err(Errno::INVAL));
    check("8", Err(Errno::RANGE));
    check("0-8", Err(Errno::RANGE));
    check("99999999999", Err(Errno::OVERFLOW));
    check("^0", Err(Errno::INVAL));
    check("0-", Err(Errno::INVAL));
    check("0x1", Err(Errno::INVAL));
    check("0-7:5/4", Err(Errno::INVAL));
    check("0-7:2/0", Err(Errno::INVAL));
    assert_eq!(parse::unsigned("0x10\n"), Ok(16));
    assert_eq!(parse::unsigned("010"), Ok(8));
    assert_eq!(parse::unsigned(" 1"), Err(Errno::INVAL));
    assert_eq!(parse::unsigned("99999999999999999999"), Err(Errno::RANGE));
    assert_eq!(parse::signed("-1\n"), Ok(-1));
    assert_eq!(parse::signed("-"), Err(Errno::INVAL));
}

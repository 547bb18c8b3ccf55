//! Tests with real and malicious texts.

use crate::mountinfo::Version;
use crate::proc_stat::ProcStat;
use pinfold_model::{CpuSet, Tid};

use super::*;
use crate::SnapshotHost;

const TAIL: &str = "S 1 42 42 0 -1 69206016 1 2 3 4 5 6 7 8 20 0 3 0 9912 0 0 18446744073709551615 \
                    0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0";

#[test]
fn stat_with_any_name() {
    fn check(comm: &str) {
        check_as(comm, comm)
    }

    check("bash");
    check("CPU 0/KVM");
    check("a) R 1 (");
    check(") S 1 1 1 0 -1");
    check("(((");
    check(")))");
    check_as("two\nlines) Z 0", "two\\u000alines) Z 0");
    check_as("a\u{1b}[2J\u{202e}", "a\\u001b[2J\\u202e");
    check("");
    check("\u{fffd}\u{fffd}");
}

fn check_as(comm: &str, shown: &str) {
    let stat = proc_stat::parse(&format!("42 ({comm}) {TAIL}\n")).unwrap();
    assert_eq!((stat.tid, stat.comm.as_str()), (Tid(42), shown));
    assert_eq!((stat.state, stat.ppid, stat.threads), ('S', Tid(1), 3));
    assert_eq!((stat.process_group, stat.start_time, stat.processor), (Tid(42), 9912, 5));
}

#[test]
fn stat_of_a_real_time_task_and_of_a_nice_one() {
    let nice = format!("42 (a) R) {TAIL}");
    let found = proc_stat::scheduling(&nice).unwrap();
    assert_eq!(found, proc_stat::Scheduling { policy: 0, priority: 120 });
    // SCHED_FIFO with priority 50.
    let fifo = nice.replacen(" 20 0 3 ", " -51 0 3 ", 1).replacen(" 17 5 0 0 ", " 17 5 50 1 ", 1);
    let found = proc_stat::scheduling(&fifo).unwrap();
    assert_eq!(found, proc_stat::Scheduling { policy: 1, priority: 49 });
    assert!(proc_stat::scheduling("42 (a) S 1 42").is_err());
}

#[test]
fn stat_flags() {
    let unmovable = stat_with("69238848", "I");
    assert!(unmovable.is_kernel_thread() && unmovable.is_unmovable() && !unmovable.has_ended());
    let movable = stat_with("2129984", "I");
    assert!(movable.is_kernel_thread() && !movable.is_unmovable());
    let ended = stat_with("4194304", "Z");
    assert!(!ended.is_kernel_thread() && ended.has_ended());
    assert_eq!(ended.task().start_time, 9912);
}

fn stat_with(flags: &str, state: &str) -> ProcStat {
    let tail = TAIL.replacen("69206016", flags, 1).replacen('S', state, 1);
    proc_stat::parse(&format!("7 (x) {tail}")).unwrap()
}

#[test]
fn stat_of_a_task_that_is_being_taken_away() {
    // Seen on Linux 6.18, between the end of a shell and its removal.
    let zeros = " 0".repeat(30);
    let text =
        format!("26534 (sh) X 0 -1 -1 0 -1 4227084 100 0 0 0 0 0 0 0 20 0 0 0 1560094{zeros}");
    let stat = proc_stat::parse(&text).unwrap();
    assert!(stat.has_ended());
    assert_eq!((stat.process_group, stat.start_time), (Tid(0), 1_560_094));
}

#[test]
fn stats_that_are_refused() {
    check("");
    check("42");
    check("42 (a");
    check("42 (a) S 1 42");
    check(&format!("x (a) {TAIL}"));
    check(&format!("42 (a) {}", TAIL.replace("9912", "-1")));
    let error = proc_stat::parse("42 (a) S").unwrap_err().at("/proc/42/stat");
    assert_eq!(error.to_string(), "/proc/42/stat: cannot parse the stat of a task: \"42 (a) S\"");
}

fn check(text: &str) {
    assert!(proc_stat::parse(text).is_err(), "{text:?}")
}

#[test]
fn status_fields() {
    let text = "Name:\tCpus_allowed_list:\\n\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t42\n\
                Pid:\t43\nPPid:\t1\nUid:\t1000\t1001\t0\t0\nThreads:\t3\nCpus_allowed:\tf\n\
                Cpus_allowed_list:\t0-3\nvoluntary_ctxt_switches:\t17\n\
                nonvoluntary_ctxt_switches:\t4\n";
    let status = proc_status::parse(text).unwrap();
    assert_eq!((status.tgid, status.ppid, status.uid), (Tid(42), Tid(1), 1001));
    assert_eq!(status.name, "Cpus_allowed_list:\\n");
    assert_eq!(status.cpus_allowed, Some(CpuSet::first_n(4)));
    assert_eq!((status.voluntary_switches, status.involuntary_switches), (Some(17), Some(4)));
    assert_eq!(proc_status::field(text, "Threads"), Some("3"));
    assert_eq!(proc_status::field(text, "Thread"), None);
    assert_eq!(proc_status::page_tables_kib("VmPTE:\t     532 kB\n"), Ok(Some(532)));
    assert_eq!(proc_status::page_tables_kib(text), Ok(None), "a kernel thread");
    assert!(proc_status::page_tables_kib("VmPTE:\t many kB\n").is_err());
    let zombie = proc_status::parse("Name:\tx\nTgid:\t1\nPPid:\t0\nUid:\t0 0 0 0\n").unwrap();
    assert_eq!((zombie.threads, zombie.cpus_allowed), (None, None));
    assert!(proc_status::parse("Name:\tx\n").is_err());
    assert!(proc_status::parse(&text.replace("17", "many")).is_err());
}

#[test]
fn cgroup_memberships() {
    fn check(line: &str) {
        assert!(proc_cgroup::parse(line).is_err(), "{line:?}")
    }

    let text =
        "9:name=systemd:/\n4:cpu,cpuacct:/a\n3:cpuset:/machine/vm:1\n0::/user.slice/x (deleted)\n";
    let memberships = proc_cgroup::parse(text).unwrap();
    assert_eq!(memberships.len(), 4);
    assert_eq!(memberships[1].controllers, ["cpu", "cpuacct"]);
    assert_eq!(proc_cgroup::v1_path(&memberships, "cpuset"), Some("/machine/vm:1"));
    assert_eq!(proc_cgroup::v1_path(&memberships, "cpu"), Some("/a"));
    assert_eq!(proc_cgroup::v1_path(&memberships, "memory"), None);
    assert_eq!(proc_cgroup::v2_path(&memberships), Some("/user.slice/x (deleted)"));
    assert_eq!(proc_cgroup::parse("").unwrap(), []);
    check("x:cpuset:/");
    check("3:cpuset");
    check("3:cpuset:relative");
}

#[test]
fn schedstat_numbers() {
    let stat = schedstat::parse("81352041 1206913 327\n").unwrap();
    assert_eq!((stat.run_ns, stat.delay_ns, stat.slices), (81_352_041, 1_206_913, 327));
    for text in ["", "1 2", "1 2 x", "-1 2 3"] {
        assert!(schedstat::parse(text).is_err(), "{text:?}");
    }
}

const HYBRID: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:12 master:1 - cgroup cgroup rw,cpuset
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:13 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 /lxc/a /sys/fs/cgroup/unified ro,relatime - cgroup2 cgroup2 rw
50 27 0:40 / /mnt/with\\040blank\\134x rw - ext4 /dev/a\\040b rw
";

#[test]
fn mounts() {
    let mounts = mountinfo::parse(HYBRID).unwrap();
    assert_eq!(mounts.len(), 6);
    assert_eq!((mounts[5].path.as_str(), mounts[5].kind.as_str()), ("/mnt/with blank\\x", "ext4"));
    let cpuset = mountinfo::v1_mount(&mounts, "cpuset").unwrap();
    assert_eq!(
        (cpuset.version, cpuset.mount.path.as_str()),
        (mountinfo::Version::V1, "/sys/fs/cgroup/cpuset")
    );
    assert_eq!(
        mountinfo::v1_mount(&mounts, "cpuacct").unwrap().mount.path,
        "/sys/fs/cgroup/cpu,cpuacct"
    );
    assert_eq!(mountinfo::v1_mount(&mounts, "memory"), None);
    let unified = mountinfo::v2_mount(&mounts).unwrap();
    assert!(unified.mount.is_read_only() && !cpuset.mount.is_read_only());
    for line in ["", "1 2 0:1 / /x rw", "1 2 0:1 / - ext4 /dev/a rw", "x - y"] {
        assert!(mountinfo::parse(&format!("{line}\n")).is_err(), "{line:?}");
    }
}

#[test]
fn group_directories_below_a_partial_mount() {
    fn check(mount: &mountinfo::ControllerMount, path: &str, expected: Option<&str>) {
        assert_eq!(mount.group_dir(path).as_deref(), expected, "{path}");
    }

    let mounts = mountinfo::parse(HYBRID).unwrap();
    let whole = mountinfo::v1_mount(&mounts, "cpuset").unwrap();
    check(&whole, "/", Some("/sys/fs/cgroup/cpuset"));
    check(&whole, "/a/b", Some("/sys/fs/cgroup/cpuset/a/b"));
    let part = mountinfo::v2_mount(&mounts).unwrap();
    check(&part, "/lxc/a", Some("/sys/fs/cgroup/unified"));
    check(&part, "/lxc/a/x", Some("/sys/fs/cgroup/unified/x"));
    check(&part, "/lxc/ab", None);
    check(&part, "/", None);
}

#[test]
fn controllers_are_found_each_on_its_own() {
    let host = SnapshotHost::from_files([
        ("/proc/self/mountinfo", HYBRID),
        ("/sys/fs/cgroup/unified/cgroup.controllers", "memory pids\n"),
    ]);
    assert_eq!(find(&host, "cpuset"), Some(mountinfo::Version::V1));
    assert_eq!(find(&host, "memory"), Some(mountinfo::Version::V2));
    assert_eq!(find(&host, "hugetlb"), None);
    assert!(mountinfo::controller(&SnapshotHost::new(), "cpuset").is_err());
}

fn find(host: &SnapshotHost, name: &str) -> Option<Version> {
    mountinfo::controller(host, name).unwrap().map(|found| found.version)
}

#[test]
fn mappings() {
    let text = "55d0c0a00000-55d0c0a28000 r-xp 00001000 fe:00 1310      /usr/bin/a b (deleted)\n\
        7f1c2c000000-7f1c2c021000 rw-p 00000000 00:00 0 \n\
        7ffd1c000000-7ffd1c002000 r-xp 00000000 00:00 0                          [vdso]\n";
    let found = maps::parse(text).unwrap();
    assert_eq!(found.len(), 3);
    let first = maps::Mapping {
        start: 0x55d0_c0a0_0000,
        end: 0x55d0_c0a2_8000,
        executable: true,
        offset: 0x1000,
        file: Some("/usr/bin/a b (deleted)".to_owned()),
    };
    assert_eq!(found[0], first);
    assert_eq!((found[1].executable, &found[1].file), (false, &None));
    assert_eq!((found[2].executable, &found[2].file), (true, &None));
    for wrong in ["x", "1-2", "2-1 r-xp 0 0:0 0", "1-2 r-xp g 0:0 0", "1-2 r-xp 0 0:0"] {
        assert!(maps::parse(wrong).is_err(), "{wrong}");
    }
}

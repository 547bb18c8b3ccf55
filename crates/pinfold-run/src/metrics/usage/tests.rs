//! Times from the files of a captured machine, and their lines on the page.

use pinfold_host::SnapshotHost;
use pinfold_model::{CpuSet, TaskId};

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

fn target(threads: &[(u32, Role)]) -> Target {
    let threads = threads.iter().map(|(tid, role)| {
        let task = TaskId { tid: Tid(*tid), start_time: 0 };
        (task, role.clone())
    });
    Target::new(Tid(40), threads.collect())
}

/// A machine with these threads: TID, run time and run delay.
fn host(threads: &[(u32, u64, u64)], stats: &[(&str, &str)]) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    tree.insert_file("/proc/self/mountinfo", mounts);
    tree.insert_file("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    for (tid, run, ready) in threads {
        let folder = format!("/proc/40/task/{tid}");
        tree.insert_file(&format!("{folder}/schedstat"), format!("{run} {ready} 7\n"));
        let group = if *tid == 40 { "emulator" } else { "vcpu0" };
        let path = format!("0::/machine.slice/a.scope/libvirt/{group}\n");
        tree.insert_file(&format!("{folder}/cgroup"), path);
    }
    for (group, text) in stats {
        let path = format!("/sys/fs/cgroup/machine.slice{group}/cpu.stat");
        tree.insert_file(&path, (*text).to_owned());
    }
    tree
}

#[test]
fn times_of_ended_threads_stay_in_the_sum() {
    let roles = [(41, Role::Vcpu(0)), (50, Role::Vhost(0))];
    let mut sampler = Sampler::default();
    let mut tree = host(&[(40, 5, 1), (41, 100, 10), (42, 30, 3)], &[]);
    tree.insert_file("/proc/50/schedstat", "9 2 1\n");
    let mut of = |tree: &SnapshotHost, seconds: u64| {
        let times = sampler.sample(tree, &target(&roles), seconds * SECOND_NS);
        [Role::Vcpu(0), Role::Emulator, Role::Vhost(0)].map(|role| {
            let times = times.roles.get(&role).copied().unwrap_or_default();
            (times.run_ns, times.ready_ns)
        })
    };
    assert_eq!(of(&tree, 10), [(100, 10), (35, 4), (9, 2)]);
    // A worker has ended, and another thread got its number.
    let later = host(&[(40, 6, 1), (41, 150, 12), (42, 2, 0)], &[]);
    assert_eq!(of(&later, 11), [(150, 12), (38, 4), (9, 2)]);
    // Within a second nothing is read again.
    assert_eq!(of(&host(&[], &[]), 11), [(150, 12), (38, 4), (9, 2)]);
    assert_eq!(of(&host(&[], &[]), 12), [(150, 12), (38, 4), (9, 2)]);
}

#[test]
fn quotas_of_all_groups_of_a_machine_count_and_those_of_slices_do_not() {
    let threads = [(40, 1, 1), (41, 1, 1)];
    let of = |stats: &[(&str, &str)]| {
        Sampler::default().sample(&host(&threads, stats), &target(&[]), 0).throttled_ns
    };
    assert_eq!(of(&[]), None);
    let v2 = "usage_usec 5\nnr_throttled 3\nthrottled_usec 7\n";
    let stats = [("/a.scope", v2), ("/a.scope/libvirt/vcpu0", v2), ("", v2), ("/b.scope", v2)];
    assert_eq!(of(&stats), Some(14_000));
    assert_eq!(of(&[("/a.scope", "usage_usec 5\n")]), None);
}

#[test]
fn a_page_has_the_pool_and_the_machines() {
    let set = |list: &str| CpuSet::parse_list(list).unwrap();
    let pool = CpuUsage {
        owned: set("4-7"),
        shared: set("2-3"),
        free: set("0-1"),
        twice: set("5"),
        ..CpuUsage::default()
    };
    let times = |run_ns, ready_ns| ThreadTimes { run_ns, ready_ns, migrations: None };
    let roles = [
        (Role::Vcpu(0), times(1_500_000_000, 20_000_000)),
        (Role::Vcpu(1), times(SECOND_NS, 1)),
        (Role::Emulator, times(3, 4)),
    ];
    let machine = MachineUse {
        id: "40-7".to_owned(),
        vm: "a\"b".to_owned(),
        strategy: "compact".to_owned(),
        is_degraded: true,
        times: MachineTimes {
            roles: roles.into(),
            throttled_ns: Some(2_000),
            exits: BTreeMap::new(),
        },
        gaps: None,
    };
    let page = page(Some(&pool), &[machine]);
    let own = r#"id="40-7",vm="a\"b""#;
    for expected in [
        r#"pinfold_pool_cpus{state="free"} 2"#.to_owned(),
        r#"pinfold_pool_cpus{state="exclusive"} 4"#.to_owned(),
        r#"pinfold_pool_cpus{state="shared"} 2"#.to_owned(),
        "pinfold_pool_cpus_used_twice 1".to_owned(),
        format!("pinfold_vm_info{{{own},strategy=\"compact\"}} 1"),
        format!("pinfold_vm_degraded{{{own}}} 1"),
        format!("pinfold_vm_throttled_seconds_total{{{own}}} 0.000002000"),
        format!("pinfold_vcpu_ready_seconds_total{{{own},vcpu=\"0\"}} 0.020000000"),
        format!("pinfold_thread_run_seconds_total{{{own},role=\"vcpu\"}} 2.500000000"),
        format!("pinfold_thread_ready_seconds_total{{{own},role=\"emulator\"}} 0.000000004"),
    ] {
        assert!(page.lines().any(|line| line == expected), "{expected}:\n{page}");
    }
}

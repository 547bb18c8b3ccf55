//! The cgroups whose CPU quotas bound a task, and `cpu.stat`, how often these stopped it.
//!
//! ```text
//! nr_periods 812           nr_periods 812
//! nr_throttled 39          nr_throttled 39
//! throttled_usec 351002    throttled_time 351002113
//! ```
//! Version 2 on the left, version 1 on the right. A quota of any group above the task stops it too,
//! and is counted only in the `cpu.stat` of that group.
//! <https://docs.kernel.org/scheduler/sched-bwc.html>

use super::mountinfo::{ControllerMount, Version};
use super::proc_cgroup;

/// How often and for how long a group had used up its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Number of periods in which it was throttled.
    pub periods: u64,
    /// Sum over its CPUs (ns).
    pub ns: u64,
}

/// The directories of the groups of a task: its own first, then those above it, without the root
/// of the hierarchy, which has no quota. `cgroup` is the text of `/proc/PID/task/TID/cgroup`,
/// `mount` that of the controller `cpu`. Empty if the text has no such hierarchy.
pub fn dirs(mount: &ControllerMount, cgroup: &str) -> Vec<String> {
    let Ok(memberships) = proc_cgroup::parse(cgroup) else { return Vec::new() };
    let path = match mount.version {
        Version::V1 => proc_cgroup::v1_path(&memberships, "cpu"),
        Version::V2 => proc_cgroup::v2_path(&memberships),
    };
    let mut path = path.unwrap_or_default().trim_end_matches('/');
    let mut dirs = Vec::new();
    while !path.is_empty() {
        dirs.extend(mount.group_dir(path));
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
    dirs
}

/// Parses `cpu.stat`; `None` if the group has no statistics of a quota. Version 2 shows such a file
/// also where the controller is off.
pub fn throttling(cpu_stat: &str) -> Option<Throttling> {
    let ns = match field(cpu_stat, "throttled_usec") {
        Some(us) => us.saturating_mul(1000),
        None => field(cpu_stat, "throttled_time")?,
    };
    Some(Throttling { periods: field(cpu_stat, "nr_throttled").unwrap_or(0), ns })
}

fn field(cpu_stat: &str, name: &str) -> Option<u64> {
    let mut lines = cpu_stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(own, _)| *own == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo;

    #[test]
    fn all_groups_above_a_task_count_but_the_root() {
        let mounts = mountinfo::parse(
            "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
             42 31 0:39 /docker/x /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
        )
        .unwrap();
        let v2 = mountinfo::v2_mount(&mounts).unwrap();
        let v1 = mountinfo::v1_mount(&mounts, "cpu").unwrap();
        let text = "2:cpu,cpuacct:/docker/x/a/b\n0::/machine.slice/a:1.scope/vcpu0\n";
        let root = "/sys/fs/cgroup";
        let found =
            ["/machine.slice/a:1.scope/vcpu0", "/machine.slice/a:1.scope", "/machine.slice"];
        assert_eq!(dirs(&v2, text), found.map(|path| format!("{root}{path}")));
        // What is above the mounted part is out of reach.
        assert_eq!(dirs(&v1, text), ["/a/b", "/a", ""].map(|path| format!("{root}/cpu{path}")));
        assert_eq!(dirs(&v2, "0::/\n"), [""; 0]);
        assert_eq!(dirs(&v1, "0::/a\n"), [""; 0]);
        assert_eq!(dirs(&v1, "a\n"), [""; 0]);
        let deep = "/a".repeat(9);
        assert_eq!(dirs(&v2, &format!("0::{deep}\n")).len(), 9);
    }

    #[test]
    fn both_versions_of_cpu_stat() {
        let v2 = "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 7\nnr_bursts 0\n";
        assert_eq!(throttling(v2), Some(Throttling { periods: 3, ns: 7000 }));
        let v1 = "nr_periods 0\nnr_throttled 2\nthrottled_time 12\n";
        assert_eq!(throttling(v1), Some(Throttling { periods: 2, ns: 12 }));
        assert_eq!(throttling("usage_usec 5\n"), None);
        assert_eq!(throttling("throttled_usec -1\n"), None);
    }
}

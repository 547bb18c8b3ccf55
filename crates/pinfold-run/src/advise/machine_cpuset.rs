//! The cpuset in which libvirt's machines run: `machine.slice`, or all CPUs that partitions leave.
//!
//! ```text
//! /sys/fs/cgroup/machine.slice/cpuset.cpus.effective    8-15
//! /sys/fs/cgroup/machine.slice/cpuset.mems.effective    1
//! ```
//! With nodes outside of it alone libvirt cannot start a machine.

use pinfold_host::Host;
use pinfold_host::mountinfo::{self, Version};
use pinfold_host::paths;
use pinfold_model::{CpuSet, NodeId, Topology};
use pinfold_plan::node_advice::NodeState;

const GROUP: &str = "/machine.slice";

/// Excludes the CPUs and the memory outside of that cpuset.
pub(super) fn exclude(host: &dyn Host, topology: &Topology, nodes: &mut NodeState) {
    let Ok(Some(mount)) = mountinfo::controller(host, "cpuset") else { return };
    let root = mount.mount.path.trim_end_matches('/');
    // The slice exists while a machine runs.
    let groups = [format!("{root}{GROUP}"), root.to_owned()];
    let files = match mount.version {
        Version::V1 => [paths::cpuset_effective_cpus, paths::cpuset_effective_mems],
        Version::V2 => [paths::cpuset_cpus_effective, paths::cpuset_mems_effective],
    };
    let [cpus, mems] = files.map(|file| list(host, &groups, file));
    if let Some(cpus) = cpus {
        nodes.unbalanced.add(&topology.online().difference(&cpus));
    }
    if let Some(mems) = mems {
        let allowed: Vec<u32> = mems.iter().map(|node| node.0).collect();
        let ids = topology.nodes.iter().map(|node| node.id);
        nodes.without_memory.extend(ids.filter(|NodeId(id)| !allowed.contains(id)));
    }
}

/// The list in this file of the first group that has it.
fn list(host: &dyn Host, groups: &[String], file: fn(&str) -> String) -> Option<CpuSet> {
    let text = groups.iter().find_map(|group| host.read_text(&file(group)).ok())?;
    CpuSet::parse_list(text.trim()).ok().filter(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_host::SnapshotHost;

    fn check(files: &[(&str, &str)], cpus: &str, nodes: &[u32]) {
        let topology =
            pinfold_topology::read_input(&SnapshotHost::new(), "node:2 core:4 pu:1").unwrap();
        let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let own = [
            ("/proc/self/mountinfo", mount),
            ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n"),
        ];
        let host = SnapshotHost::from_files(own.iter().chain(files).copied());
        let mut state = NodeState::default();
        exclude(&host, &topology, &mut state);
        assert_eq!(state.unbalanced.to_string(), cpus);
        let without: Vec<u32> = state.without_memory.iter().map(|node| node.0).collect();
        assert_eq!(without, nodes);
    }

    #[test]
    fn what_machines_may_not_use_is_excluded() {
        let cpus = "/sys/fs/cgroup/machine.slice/cpuset.cpus.effective";
        let mems = "/sys/fs/cgroup/machine.slice/cpuset.mems.effective";
        check(&[(cpus, "4-7\n"), (mems, "1\n")], "0-3", &[0]);
        check(&[(cpus, "0-7\n"), (mems, "0-1\n")], "", &[]);
        // Before the first machine: what partitions leave.
        check(&[("/sys/fs/cgroup/cpuset.cpus.effective", "0-5\n")], "6-7", &[]);
        check(&[(cpus, "\n"), (mems, "nonsense")], "", &[]);
        check(&[], "", &[]);
    }
}

//! Restricts a group of another program, or a process, to the CPUs of its vnode.
//!
//! A method slows down only the vnode's CPUs, so a task that may run elsewhere is not slowed down.
//! If cpuset is v2, the CPUs are set for the group itself. If it is v1, on a hybrid machine, the
//! group's processes are moved to one of Pinfold's groups in that hierarchy and stay in their own
//! group in all others. If there is no cpuset, each thread gets an affinity mask.

use pinfold_host::{Host, HostError, paths, proc_stat};
use pinfold_model::text::cpus_text;
use pinfold_model::{Change, CpuSet, Step, Tid, Undo};

use super::{GROUP_PREFIX, VnodeCgroup, confine};
use crate::SpeedError;
use crate::hierarchies::{Hierarchies, MountedHierarchy};
use crate::node::Node;

impl VnodeCgroup {
    /// The steps that prepare the restriction of an attached group; its processes are moved later.
    pub(super) fn hold(
        &mut self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<Vec<Step>, SpeedError> {
        let (Some(place), Some(group)) = (&hierarchies.cpuset, &self.perf) else {
            return Ok(Vec::new());
        };
        if place.unified {
            return Ok(lists(host, place, node, group)?);
        }
        let path = paths::cgroup_file(&place.root, &format!("{GROUP_PREFIX}{}", node.name));
        if host.exists(&path) {
            return Err(SpeedError::Occupied { path });
        }
        let mut steps = vec![Step {
            change: Change::MakeGroup { path: path.clone() },
            undo: Undo::RemoveGroup { path: path.clone() },
            reason: format!("this keeps vnode {} on its CPUs", node.name),
        }];
        steps.extend(confine(host, place, node, &path, &node.pus())?);
        self.cpuset = Some(path);
        Ok(steps)
    }
}

/// Sets CPUs and nodes of the group itself, and enables cpuset for it in each ancestor.
fn lists(
    host: &dyn Host,
    place: &MountedHierarchy,
    node: &Node,
    group: &str,
) -> Result<Vec<Step>, HostError> {
    let mut steps = Vec::new();
    let mut above = place.root.clone();
    let below = group.strip_prefix(&place.root).unwrap_or_default();
    for name in below.split('/').filter(|name| !name.is_empty()) {
        let path = paths::cgroup_subtree_control(&above);
        let original = host.read(&path)?;
        let held = String::from_utf8_lossy(&original);
        if !held.split_ascii_whitespace().any(|at| at == "cpuset") {
            steps.push(Step {
                change: Change::WriteFile { path: path.clone(), value: b"+cpuset".to_vec() },
                undo: Undo::WriteFile { path, original },
                reason: format!("vnode {} needs cpuset", node.name),
            });
        }
        above = paths::cgroup_file(&above, name);
    }
    if let Some(memory) = node.memory_node {
        let reason = format!("memory of vnode {}", node.name);
        steps.push(list(host, paths::cpuset_mems(group), &memory.to_string(), reason)?);
    }
    let pus = node.pus();
    let reason = format!("vnode {} has {} here", node.name, cpus_text(&pus));
    steps.push(list(host, paths::cpuset_cpus(group), &pus.to_string(), reason)?);
    Ok(steps)
}

/// Sets a list of a group that stays; undo restores the original.
fn list(host: &dyn Host, path: String, value: &str, reason: String) -> Result<Step, HostError> {
    // Without the controller the file does not exist yet; it will be empty once it does.
    let original = if host.exists(&path) { host.read(&path)? } else { b"\n".to_vec() };
    let change = Change::WriteFile { path: path.clone(), value: value.as_bytes().to_vec() };
    Ok(Step { change, undo: Undo::WriteFile { path, original }, reason })
}

/// Sets the masks of all threads that may run elsewhere. Children inherit them.
pub(super) fn masks(
    host: &dyn Host,
    processes: &[Tid],
    pus: &CpuSet,
    reason: &str,
) -> Result<Vec<Step>, HostError> {
    let mut steps = Vec::new();
    for process in processes {
        let names = match host.list(&paths::task_dir(*process)) {
            Err(error) if error.is_gone() => continue,
            answer => answer?,
        };
        for tid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
            let Some(stat) = proc_stat::read(host, tid)?.filter(|stat| !stat.has_ended()) else {
                continue;
            };
            let original = match host.affinity(tid) {
                Err(error) if error.is_gone() => continue,
                answer => answer?,
            };
            if original.is_subset(pus) {
                continue;
            }
            let within = original.intersection(pus);
            let mask = if within.is_empty() { pus.clone() } else { within };
            let task = stat.task();
            steps.push(Step {
                change: Change::SetAffinity { task, mask },
                undo: Undo::SetAffinity { task, original },
                reason: reason.to_owned(),
            });
        }
    }
    Ok(steps)
}

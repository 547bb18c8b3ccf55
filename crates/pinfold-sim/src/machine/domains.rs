//! Domains and threads of the simulated cgroup v2.
//!
//! Which controllers a group may enable for its children, which groups may be threaded, and which
//! moves that permits: `kernel/cgroup/cgroup.c`, function by function.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#threads>

use std::collections::BTreeSet;

use pinfold_model::Tid;
use rustix::io::Errno;

use super::Machine;
use super::cgroup::{Cpuset, GroupFile, Hierarchy, THREADED, parent};

/// All known v2 controllers; others are `EINVAL` in `cgroup.subtree_control`.
const KNOWN: [&str; 9] =
    ["cpu", "cpuset", "dmem", "hugetlb", "io", "memory", "misc", "pids", "rdma"];

impl Machine {
    fn has_tasks(&self, index: usize, group: &str) -> bool {
        self.tasks.values().any(|task| task.groups[index] == group)
    }

    /// `cgroup_is_thread_root`.
    pub(crate) fn is_thread_root(&self, index: usize, group: &str) -> bool {
        let hierarchy = &self.hierarchies[index];
        if hierarchy.is_threaded(group) {
            return false;
        }
        let threaded_child = hierarchy.children(group).any(|child| hierarchy.is_threaded(child));
        threaded_child
            || (self.has_tasks(index, group) && controls(hierarchy, group, Kind::Threaded))
    }

    /// `cgroup_is_valid_domain`.
    pub(crate) fn is_valid_domain(&self, index: usize, group: &str) -> bool {
        let hierarchy = &self.hierarchies[index];
        if hierarchy.is_threaded(group) {
            return false;
        }
        let mut at = group;
        while let Some(above) = parent(at) {
            let shares = above != "/" && self.is_thread_root(index, above);
            if shares || hierarchy.is_threaded(above) {
                return false;
            }
            at = above;
        }
        true
    }

    /// `cgroup_can_be_thread_root`.
    fn can_be_thread_root(&self, index: usize, group: &str) -> bool {
        let hierarchy = &self.hierarchies[index];
        if group == "/" {
            return true;
        }
        let populated_domain_child = hierarchy
            .children(group)
            .any(|child| !hierarchy.is_threaded(child) && self.is_populated(index, child));
        !populated_domain_child
            && !controls(hierarchy, group, Kind::Domain)
            && self.is_valid_domain(index, group)
    }

    /// `cgroup_migrate_vet_dst` and the domain rule of `cgroup.threads`.
    pub(crate) fn vet_move(&self, file: GroupFile<'_>, movers: &[Tid]) -> Result<(), Errno> {
        let GroupFile { index, group: target, name } = file;
        let hierarchy = &self.hierarchies[index];
        if !self.is_valid_domain(index, hierarchy.domain(target)) {
            return Err(Errno::OPNOTSUPP);
        }
        let shares = self.can_be_thread_root(index, target) || hierarchy.is_threaded(target);
        if target != "/" && !shares && controls(hierarchy, target, Kind::Any) {
            return Err(Errno::BUSY);
        }
        let leaves_domain = movers.iter().any(|tid| {
            self.tasks.get(tid).is_some_and(|task| {
                hierarchy.domain(&task.groups[index]) != hierarchy.domain(target)
            })
        });
        if name == "cgroup.threads" && leaves_domain {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// `cgroup_enable_threaded`.
    pub(crate) fn make_threaded(&mut self, index: usize, group: &str) -> Result<(), Errno> {
        let hierarchy = &self.hierarchies[index];
        if hierarchy.is_threaded(group) {
            return Ok(());
        }
        if self.is_populated(index, group) || controls(hierarchy, group, Kind::Domain) {
            return Err(Errno::OPNOTSUPP);
        }
        let domain = hierarchy.domain(parent(group).ok_or(Errno::INVAL)?).to_owned();
        if !self.is_valid_domain(index, &domain) || !self.can_be_thread_root(index, &domain) {
            return Err(Errno::OPNOTSUPP);
        }
        if let Some(group) = self.hierarchies[index].groups.get_mut(group) {
            group.threaded = true;
        }
        Ok(())
    }

    /// `cgroup_subtree_control_write`: all or nothing.
    pub(crate) fn write_subtree_control(
        &mut self,
        index: usize,
        group: &str,
        text: &str,
    ) -> Result<(), Errno> {
        let (enable, disable) = parse_controls(text)?;
        let hierarchy = &self.hierarchies[index];
        let now = &hierarchy.groups.get(group).ok_or(Errno::NODEV)?.subtree_control;
        let enable: BTreeSet<_> = enable.difference(now).copied().collect();
        let disable: BTreeSet<_> = disable.intersection(now).copied().collect();
        let available = hierarchy.enabled_controllers(group);
        if enable.iter().any(|name| !available.contains(name)) {
            return Err(Errno::NOENT);
        }
        let used_below = hierarchy.children(group).any(|child| {
            hierarchy
                .groups
                .get(child)
                .is_some_and(|child| !child.subtree_control.is_disjoint(&disable))
        });
        if used_below {
            return Err(Errno::BUSY);
        }
        self.vet_enable(index, group, &enable)?;
        let hierarchy = &mut self.hierarchies[index];
        if disable.contains("cpuset") {
            // The state of the controller in every child is lost.
            let children: Vec<String> = hierarchy.children(group).map(str::to_owned).collect();
            for child in children {
                if let Some(child) = hierarchy.groups.get_mut(&child) {
                    child.cpuset = Cpuset::default();
                }
            }
        }
        if let Some(group) = hierarchy.groups.get_mut(group) {
            group.subtree_control.extend(&enable);
            group.subtree_control.retain(|name| !disable.contains(name));
        }
        Ok(())
    }

    /// `cgroup_vet_subtree_control_enable`: the rule against processes in inner groups.
    fn vet_enable(
        &self,
        index: usize,
        group: &str,
        enable: &BTreeSet<&'static str>,
    ) -> Result<(), Errno> {
        let hierarchy = &self.hierarchies[index];
        if enable.is_empty() {
            return Ok(());
        }
        if !self.is_valid_domain(index, hierarchy.domain(group)) {
            return Err(Errno::OPNOTSUPP);
        }
        if group == "/" {
            return Ok(());
        }
        let threaded = hierarchy.is_threaded(group);
        if enable.iter().any(|name| !THREADED.contains(name)) {
            if threaded || self.is_thread_root(index, group) {
                return Err(Errno::OPNOTSUPP);
            }
        } else if threaded || self.can_be_thread_root(index, group) {
            return Ok(());
        }
        if self.has_tasks(index, group) { Err(Errno::BUSY) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Any,
    Threaded,
    Domain,
}

/// True if the group enables a controller of this kind for its children.
fn controls(hierarchy: &Hierarchy, group: &str, kind: Kind) -> bool {
    hierarchy.groups.get(group).is_some_and(|group| {
        group.subtree_control.iter().any(|name| match kind {
            Kind::Any => true,
            Kind::Threaded => THREADED.contains(name),
            Kind::Domain => !THREADED.contains(name),
        })
    })
}

type Controls = BTreeSet<&'static str>;

/// Parses `+cpuset -memory` into controllers to enable and to disable; the last entry for a
/// controller counts.
fn parse_controls(text: &str) -> Result<(Controls, Controls), Errno> {
    let (mut enable, mut disable) = (Controls::new(), Controls::new());
    for word in text.split_ascii_whitespace() {
        let name = word.get(1..).unwrap_or_default();
        let name = KNOWN.into_iter().find(|known| *known == name).ok_or(Errno::INVAL)?;
        match word.as_bytes()[0] {
            b'+' => {
                enable.insert(name);
                disable.remove(name);
            }
            b'-' => {
                disable.insert(name);
                enable.remove(name);
            }
            _ => return Err(Errno::INVAL),
        }
    }
    Ok((enable, disable))
}

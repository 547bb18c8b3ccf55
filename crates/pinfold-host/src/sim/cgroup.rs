//! Simulated cgroup hierarchies: groups, files, and who may go where.
//!
//! The core rules that both versions share, or that v2 adds without regard to a controller:
//! `kernel/cgroup/cgroup.c` (`cgroup_migrate_vet_dst`, `cgroup_vet_subtree_control_enable`,
//! `cgroup_enable_threaded`, `cgroup_destroy_locked`). What cpuset says is in `v1` and `v2`.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CpuSet, Tid};
use rustix::io::Errno;

use super::state::Machine;
use super::{list, v1, v2};

/// Which cgroup version has cpuset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A cpuset hierarchy of its own, and a v2 without it beside (a hybrid mount).
    V1,
    /// The unified hierarchy.
    V2,
}

/// One hierarchy.
#[derive(Clone, Debug)]
pub(super) struct Hierarchy {
    pub(super) version: CgroupVersion,
    /// Where it is mounted.
    pub(super) mount: String,
    /// Its number in `/proc/PID/cgroup`.
    pub(super) id: u32,
    /// The controllers that it has.
    pub(super) controllers: Vec<&'static str>,
    /// Groups by their path below the mount; the root is `/`.
    pub(super) groups: BTreeMap<String, Group>,
}

/// One group.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// v2: `threaded` was written to its type.
    pub(super) threaded: bool,
    /// v2: controllers that its children have.
    pub(super) subtree_control: BTreeSet<&'static str>,
    pub(super) cpuset: Cpuset,
    /// Other files that only keep what is written, by name.
    pub(super) values: BTreeMap<&'static str, String>,
}

/// The cpuset controller's part of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpuset {
    pub(super) cpus: CpuSet,
    pub(super) mems: CpuSet,
    /// v2: `cpuset.cpus.exclusive`.
    pub(super) exclusive: CpuSet,
    pub(super) partition: Partition,
}

/// v2: what was written to `cpuset.cpus.partition`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Partition {
    #[default]
    Member,
    Root,
    Isolated,
}

/// All v2 controllers that a kernel may know; others are `EINVAL` in `cgroup.subtree_control`.
const KNOWN: [&str; 9] =
    ["cpu", "cpuset", "dmem", "hugetlb", "io", "memory", "misc", "pids", "rdma"];
/// Those that work on threads (`CGRP_DFL_THREADED`).
const THREADED: [&str; 4] = ["cpu", "cpuset", "perf_event", "pids"];

impl Hierarchy {
    /// The path below the mount of something in this hierarchy.
    pub(super) fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.mount.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(&controller)
    }

    /// Names of the groups directly below one.
    pub(super) fn children<'h>(&'h self, group: &'h str) -> impl Iterator<Item = &'h str> {
        let prefix = if group == "/" { "/".to_owned() } else { format!("{group}/") };
        self.groups.keys().filter_map(move |path| {
            let name = path.strip_prefix(prefix.as_str())?;
            (!name.is_empty() && !name.contains('/')).then_some(path.as_str())
        })
    }

    /// The other groups with the same parent.
    pub(super) fn siblings<'h>(&'h self, group: &'h str) -> impl Iterator<Item = &'h str> {
        parent(group)
            .into_iter()
            .flat_map(|above| self.children(above))
            .filter(move |sibling| *sibling != group)
    }

    /// True if nothing above or here was made threaded, from this group's type alone.
    fn is_threaded(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|group| group.threaded)
    }

    /// The group whose resources a threaded one shares; itself for a domain.
    pub(super) fn domain<'g>(&self, group: &'g str) -> &'g str {
        let mut at = group;
        while self.is_threaded(at) {
            match parent(at) {
                Some(above) => at = above,
                None => break,
            }
        }
        at
    }

    pub(super) fn enabled(&self, group: &str) -> Vec<&'static str> {
        match parent(group) {
            None => self.controllers.clone(),
            Some(above) => {
                let given = self.groups.get(above).map(|above| &above.subtree_control);
                self.controllers
                    .iter()
                    .copied()
                    .filter(|name| given.is_some_and(|given| given.contains(name)))
                    .filter(|name| !self.is_threaded(group) || THREADED.contains(name))
                    .collect()
            }
        }
    }
}

/// The group above; `None` for the root.
pub(super) fn parent(group: &str) -> Option<&str> {
    match group.rsplit_once('/') {
        _ if group == "/" => None,
        Some(("", _)) => Some("/"),
        Some((above, _)) => Some(above),
        None => None,
    }
}

pub(super) fn is_inside(group: &str, ancestor: &str) -> bool {
    ancestor == "/"
        || group == ancestor
        || group.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with('/'))
}

/// What a path below a hierarchy's mount is.
pub(super) enum Place {
    Group(String),
    File { group: String, name: String },
}

impl Machine {
    /// The hierarchy that a path lies in, and what it is there.
    pub(super) fn cgroup_place(&self, path: &str) -> Option<(usize, Result<Place, Errno>)> {
        let (index, below) = self
            .hierarchies
            .iter()
            .enumerate()
            .filter_map(|(index, hierarchy)| Some((index, hierarchy.below(path)?)))
            .min_by_key(|(_, below)| below.len())?;
        let hierarchy = &self.hierarchies[index];
        let group = if below.is_empty() { "/" } else { below };
        if hierarchy.groups.contains_key(group) {
            return Some((index, Ok(Place::Group(group.to_owned()))));
        }
        let place = parent(group).and_then(|above| {
            let name = group.rsplit('/').next()?;
            let known = hierarchy.groups.contains_key(above);
            (known && self.file_names(index, above).iter().any(|file| file == name))
                .then(|| Place::File { group: above.to_owned(), name: name.to_owned() })
        });
        Some((index, place.ok_or(Errno::NOENT)))
    }

    /// Names of a group's files, without its children.
    pub(super) fn file_names(&self, index: usize, group: &str) -> Vec<String> {
        let hierarchy = &self.hierarchies[index];
        match hierarchy.version {
            CgroupVersion::V1 => v1::file_names(group),
            CgroupVersion::V2 => v2::file_names(hierarchy, group),
        }
    }

    pub(super) fn make_group(&mut self, index: usize, path: &str) -> Result<(), Errno> {
        let below = self.hierarchies[index].below(path).ok_or(Errno::NOENT)?.to_owned();
        match self.cgroup_place(path) {
            Some((_, Ok(_))) => return Err(Errno::EXIST),
            Some((_, Err(_))) | None => {}
        }
        let above = parent(&below).ok_or(Errno::EXIST)?.to_owned();
        if below.contains('\n') {
            return Err(Errno::INVAL);
        }
        let hierarchy = &mut self.hierarchies[index];
        let from = hierarchy.groups.get(&above).ok_or(Errno::NOENT)?;
        let group = match hierarchy.version {
            CgroupVersion::V1 => v1::new_group(from),
            CgroupVersion::V2 => Group::default(),
        };
        hierarchy.groups.insert(below, group);
        Ok(())
    }

    pub(super) fn remove_group(&mut self, index: usize, group: &str) -> Result<(), Errno> {
        let busy = group == "/"
            || self.hierarchies[index].children(group).next().is_some()
            || self.tasks.values().any(|task| task.groups[index] == group);
        if busy {
            return Err(Errno::BUSY);
        }
        self.hierarchies[index].groups.remove(group);
        Ok(())
    }

    pub(super) fn read_group_file(
        &self,
        index: usize,
        group: &str,
        name: &str,
    ) -> Result<String, Errno> {
        match self.hierarchies[index].version {
            CgroupVersion::V1 => v1::read(self, index, group, name),
            CgroupVersion::V2 => v2::read(self, index, group, name),
        }
    }

    pub(super) fn write_group_file(
        &mut self,
        index: usize,
        place: (&str, &str),
        text: &str,
    ) -> Result<(), Errno> {
        // The kernel never sees a write of no bytes: nothing happens, whatever the file.
        if text.is_empty() {
            return Ok(());
        }
        match self.hierarchies[index].version {
            CgroupVersion::V1 => v1::write(self, index, place, text),
            CgroupVersion::V2 => v2::write(self, index, place, text),
        }
    }

    /// Threads in a group itself.
    pub(super) fn tids_in(&self, index: usize, group: &str) -> Vec<Tid> {
        self.tasks
            .values()
            .filter(|task| task.groups[index] == group)
            .map(|task| task.task.tid)
            .collect()
    }

    /// One number per line.
    pub(super) fn lines(tids: impl IntoIterator<Item = Tid>) -> String {
        tids.into_iter().map(|tid| format!("{tid}\n")).collect()
    }

    /// The threads that a write to a membership file moves.
    pub(super) fn movers(&self, text: &str, whole: Whole) -> Result<Vec<Tid>, Errno> {
        let number = list::signed(text.trim()).map_err(|_| Errno::INVAL)?;
        let number = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        // 0 is the writer.
        let tid = if number == 0 { self.own } else { Tid(number) };
        let first = self.tasks.get(&tid).ok_or(Errno::SRCH)?;
        if first.task.is_unmovable() || first.task.tid == Tid(2) {
            return Err(Errno::INVAL);
        }
        Ok(match whole {
            Whole::Thread => vec![tid],
            Whole::Process => self.threads_of(first.task.tgid),
        })
    }

    /// True if a task is in the group or below it.
    pub(super) fn is_populated(&self, index: usize, group: &str) -> bool {
        self.tasks.values().any(|task| is_inside(&task.groups[index], group))
    }

    fn has_tasks(&self, index: usize, group: &str) -> bool {
        self.tasks.values().any(|task| task.groups[index] == group)
    }

    /// `cgroup_is_thread_root`.
    pub(super) fn is_thread_root(&self, index: usize, group: &str) -> bool {
        let hierarchy = &self.hierarchies[index];
        if hierarchy.is_threaded(group) {
            return false;
        }
        let threaded_child = hierarchy.children(group).any(|child| hierarchy.is_threaded(child));
        threaded_child || (self.has_tasks(index, group) && controls(hierarchy, group, Kind::Threaded))
    }

    /// `cgroup_is_valid_domain`.
    pub(super) fn is_valid_domain(&self, index: usize, group: &str) -> bool {
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
    pub(super) fn vet_move(
        &self,
        index: usize,
        target: &str,
        movers: &[Tid],
        whole: Whole,
    ) -> Result<(), Errno> {
        let hierarchy = &self.hierarchies[index];
        if !self.is_valid_domain(index, hierarchy.domain(target)) {
            return Err(Errno::OPNOTSUPP);
        }
        let shares = self.can_be_thread_root(index, target) || hierarchy.is_threaded(target);
        if target != "/" && !shares && controls(hierarchy, target, Kind::Any) {
            return Err(Errno::BUSY);
        }
        let leaves_domain = movers.iter().any(|tid| {
            self.tasks
                .get(tid)
                .is_some_and(|task| hierarchy.domain(&task.groups[index]) != hierarchy.domain(target))
        });
        if whole == Whole::Thread && leaves_domain {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// `cgroup_enable_threaded`.
    pub(super) fn make_threaded(&mut self, index: usize, group: &str) -> Result<(), Errno> {
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
    pub(super) fn write_subtree_control(
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
        let available = hierarchy.enabled(group);
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
            // The controller's state of every child ends with it.
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

/// What a write to a membership file moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    Thread,
    Process,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Any,
    Threaded,
    Domain,
}

/// True if the group gives its children a controller of this kind.
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

/// `+cpuset -memory`: what to enable and what to disable; the last word on one counts.
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

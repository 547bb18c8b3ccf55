//! Simulated cgroup hierarchies: groups, files, and permitted moves.
//!
//! Rules that both versions share (`kernel/cgroup/cgroup.c`): groups are directories with files, a
//! group with tasks or children cannot be removed, a number written to a membership file moves a
//! thread or a process. What differs is [`Rules`]: one file per controller of v1, and `unified` for
//! v2, whose additional rules for moves are in `domains`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use pinfold_model::{CpuSet, Tid};
use rustix::io::Errno;

use super::Machine;
use crate::parse;

/// Threaded controllers of v2 (`CGRP_DFL_THREADED`).
pub(crate) const THREADED: [&str; 4] = ["cpu", "cpuset", "perf_event", "pids"];

/// The cgroup version of the cpuset controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A separate cpuset hierarchy, and a v2 hierarchy without cpuset (a hybrid mount).
    V1,
    /// The unified hierarchy.
    V2,
}

/// A file of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupFile<'p> {
    /// Index of the hierarchy.
    pub(crate) index: usize,
    pub(crate) group: &'p str,
    pub(crate) name: &'p str,
}

/// What differs between hierarchies: a controller of v1, or v2. Membership files are not included.
pub(crate) trait Rules: Debug + Sync {
    /// Names of a group's files, in any order.
    fn file_names(&self, machine: &Machine, index: usize, group: &str) -> Vec<&'static str>;

    /// A new group, as `mkdir` creates it.
    fn new_group(&self, _above: &Group) -> Group {
        Group::default()
    }

    fn read(&self, machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno>;

    fn write(&self, machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno>;

    /// Checks a move before the tasks that are already in the group are left out.
    fn vet_move(
        &self,
        _machine: &Machine,
        _file: GroupFile<'_>,
        _movers: &[Tid],
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// Checks whether the group accepts tasks that are not in it yet.
    fn can_attach(
        &self,
        _machine: &Machine,
        _file: GroupFile<'_>,
        _movers: &[Tid],
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// The CPUs that a group's tasks may use.
    fn effective(&self, machine: &Machine, _hierarchy: &Hierarchy, _group: &str) -> CpuSet {
        machine.online.clone()
    }

    /// The CPUs that a SCHED_DEADLINE task of the group must be allowed to use.
    fn root_domain(&self, machine: &Machine, _hierarchy: &Hierarchy, _group: &str) -> CpuSet {
        machine.online.clone()
    }
}

/// A hierarchy.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchy {
    pub(crate) version: CgroupVersion,
    pub(crate) rules: &'static dyn Rules,
    /// Mount point.
    pub(crate) mount: String,
    /// Its ID in `/proc/PID/cgroup`.
    pub(crate) id: u32,
    /// Its controllers.
    pub(crate) controllers: Vec<&'static str>,
    /// Groups by path below the mount; the root is `/`.
    pub(crate) groups: BTreeMap<String, Group>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// v2: `threaded` was written to its type.
    pub(crate) threaded: bool,
    /// v2: controllers that are enabled for its children.
    pub(crate) subtree_control: BTreeSet<&'static str>,
    pub(crate) cpuset: Cpuset,
    /// Other files that only store what is written, by name.
    pub(crate) values: BTreeMap<&'static str, String>,
}

/// State of the cpuset controller for a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpuset {
    pub(crate) cpus: CpuSet,
    pub(crate) mems: CpuSet,
    /// v2: `cpuset.cpus.exclusive`.
    pub(crate) exclusive: CpuSet,
    pub(crate) partition: Partition,
}

/// v2: the value written to `cpuset.cpus.partition`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Partition {
    #[default]
    Member,
    Root,
    Isolated,
}

impl Hierarchy {
    /// The part of a path below this hierarchy's mount; `None` if the path is outside.
    pub(crate) fn strip_mount<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.mount.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    pub(crate) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(&controller)
    }

    /// Paths of the direct children of a group.
    pub(crate) fn children<'h>(&'h self, group: &'h str) -> impl Iterator<Item = &'h str> {
        let prefix = if group == "/" { "/".to_owned() } else { format!("{group}/") };
        self.groups.keys().filter_map(move |path| {
            let name = path.strip_prefix(prefix.as_str())?;
            (!name.is_empty() && !name.contains('/')).then_some(path.as_str())
        })
    }

    /// The other groups with the same parent.
    pub(crate) fn siblings<'h>(&'h self, group: &'h str) -> impl Iterator<Item = &'h str> {
        parent(group)
            .into_iter()
            .flat_map(|above| self.children(above))
            .filter(move |sibling| *sibling != group)
    }

    /// True if `threaded` was written to this group's type.
    pub(crate) fn is_threaded(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|group| group.threaded)
    }

    /// The domain to which a threaded group belongs; the group itself if it is a domain.
    pub(crate) fn domain<'g>(&self, group: &'g str) -> &'g str {
        let mut at = group;
        while self.is_threaded(at) {
            match parent(at) {
                Some(above) => at = above,
                None => break,
            }
        }
        at
    }

    pub(crate) fn enabled_controllers(&self, group: &str) -> Vec<&'static str> {
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

/// The parent group; `None` for the root.
pub(crate) fn parent(group: &str) -> Option<&str> {
    match group.rsplit_once('/') {
        _ if group == "/" => None,
        Some(("", _)) => Some("/"),
        Some((above, _)) => Some(above),
        None => None,
    }
}

pub(crate) fn is_inside(group: &str, ancestor: &str) -> bool {
    ancestor == "/"
        || group == ancestor
        || group.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with('/'))
}

/// Kind of a path below a hierarchy's mount.
pub(crate) enum CgroupPath {
    Group(String),
    File { group: String, name: String },
}

impl Machine {
    /// The hierarchy that contains a path, and the kind of the path.
    pub(crate) fn cgroup_place(&self, path: &str) -> Option<(usize, Result<CgroupPath, Errno>)> {
        let (index, below) = self
            .hierarchies
            .iter()
            .enumerate()
            .filter_map(|(index, hierarchy)| Some((index, hierarchy.strip_mount(path)?)))
            .min_by_key(|(_, below)| below.len())?;
        let hierarchy = &self.hierarchies[index];
        let group = if below.is_empty() { "/" } else { below };
        if hierarchy.groups.contains_key(group) {
            return Some((index, Ok(CgroupPath::Group(group.to_owned()))));
        }
        let place = parent(group).and_then(|above| {
            let name = group.rsplit('/').next()?;
            let known = hierarchy.groups.contains_key(above);
            (known && self.file_names(index, above).iter().any(|file| file == name))
                .then(|| CgroupPath::File { group: above.to_owned(), name: name.to_owned() })
        });
        Some((index, place.ok_or(Errno::NOENT)))
    }

    /// Names of a group's files, ascending, without child groups.
    pub(crate) fn file_names(&self, index: usize, group: &str) -> Vec<String> {
        let mut names = self.hierarchies[index].rules.file_names(self, index, group);
        names.sort_unstable();
        names.into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn make_group(&mut self, index: usize, path: &str) -> Result<(), Errno> {
        let below = self.hierarchies[index].strip_mount(path).ok_or(Errno::NOENT)?.to_owned();
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
        let group = hierarchy.rules.new_group(from);
        hierarchy.groups.insert(below, group);
        Ok(())
    }

    pub(crate) fn remove_group(&mut self, index: usize, group: &str) -> Result<(), Errno> {
        let busy = group == "/"
            || self.hierarchies[index].children(group).next().is_some()
            || self.tasks.values().any(|task| task.groups[index] == group);
        if busy {
            return Err(Errno::BUSY);
        }
        self.hierarchies[index].groups.remove(group);
        Ok(())
    }

    pub(crate) fn read_group_file(&self, file: GroupFile<'_>) -> Result<String, Errno> {
        let hierarchy = &self.hierarchies[file.index];
        match file.name {
            "tasks" | "cgroup.threads" => Ok(Self::lines(self.tids_in(file.index, file.group))),
            "cgroup.procs" if hierarchy.version == CgroupVersion::V1 => {
                Ok(Self::lines(self.tgids_in(file.index, file.group)))
            }
            _ => hierarchy.rules.read(self, file),
        }
    }

    pub(crate) fn write_group_file(
        &mut self,
        file: GroupFile<'_>,
        text: &str,
    ) -> Result<(), Errno> {
        match file.name {
            // The kernel ignores an empty write, whatever the file.
            _ if text.is_empty() => Ok(()),
            "tasks" | "cgroup.threads" | "cgroup.procs" => self.attach(file, text),
            _ => self.hierarchies[file.index].rules.write(self, file, text),
        }
    }

    /// A write to a membership file.
    fn attach(&mut self, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        let rules = self.hierarchies[file.index].rules;
        let movers = self.movers(text, file.name == "cgroup.procs")?;
        rules.vet_move(self, file, &movers)?;
        let movers = self.tasks_outside(file.index, file.group, movers);
        if movers.is_empty() {
            return Ok(());
        }
        rules.can_attach(self, file, &movers)?;
        self.move_tasks(file.index, file.group, &movers)
    }

    /// Stores a value that no rule depends on.
    pub(crate) fn store(
        &mut self,
        file: GroupFile<'_>,
        name: &'static str,
        value: String,
    ) -> Result<(), Errno> {
        let groups = &mut self.hierarchies[file.index].groups;
        groups.get_mut(file.group).ok_or(Errno::NODEV)?.values.insert(name, value);
        Ok(())
    }

    /// Threads that are direct members of a group.
    pub(crate) fn tids_in(&self, index: usize, group: &str) -> Vec<Tid> {
        self.tasks
            .values()
            .filter(|task| task.groups[index] == group)
            .map(|task| task.task.tid)
            .collect()
    }

    /// One TID per line.
    pub(crate) fn lines(tids: impl IntoIterator<Item = Tid>) -> String {
        tids.into_iter().map(|tid| format!("{tid}\n")).collect()
    }

    /// The threads that are moved by a write to a membership file.
    fn movers(&self, text: &str, whole_process: bool) -> Result<Vec<Tid>, Errno> {
        let number = parse::signed(text.trim()).map_err(|_| Errno::INVAL)?;
        let number = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        // 0 means the writing process.
        let tid = if number == 0 { self.own } else { Tid(number) };
        let first = self.tasks.get(&tid).ok_or(Errno::SRCH)?;
        if first.task.is_unmovable() || first.task.tid == Tid(2) {
            return Err(Errno::INVAL);
        }
        Ok(if whole_process { self.threads_of(first.task.tgid) } else { vec![tid] })
    }

    /// True if the group or one below it has a task.
    pub(crate) fn is_populated(&self, index: usize, group: &str) -> bool {
        self.tasks.values().any(|task| is_inside(&task.groups[index], group))
    }
}

//! Simulated cgroup hierarchies: groups, files, and permitted moves.
//!
//! Rules that both versions share (`kernel/cgroup/cgroup.c`): groups are directories with files, a
//! group with tasks or children cannot be removed, a number written to a membership file moves a
//! thread or a process. Additional rules of v2 are in `domains`, those of cpuset in `v1` and `v2`.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CpuSet, Tid};
use rustix::io::Errno;

use super::domains::THREADED;
use super::state::Machine;
use super::{freezer, parse, real_time, v1, v2};

/// The cgroup version of the cpuset controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A separate cpuset hierarchy, and a v2 hierarchy without cpuset (a hybrid mount).
    V1,
    /// The unified hierarchy.
    V2,
}

/// A hierarchy.
#[derive(Clone, Debug)]
pub(super) struct Hierarchy {
    pub(super) version: CgroupVersion,
    /// Mount point.
    pub(super) mount: String,
    /// Its ID in `/proc/PID/cgroup`.
    pub(super) id: u32,
    /// Its controllers.
    pub(super) controllers: Vec<&'static str>,
    /// Groups by path below the mount; the root is `/`.
    pub(super) groups: BTreeMap<String, Group>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// v2: `threaded` was written to its type.
    pub(super) threaded: bool,
    /// v2: controllers that are enabled for its children.
    pub(super) subtree_control: BTreeSet<&'static str>,
    pub(super) cpuset: Cpuset,
    /// Other files that only store what is written, by name.
    pub(super) values: BTreeMap<&'static str, String>,
}

/// State of the cpuset controller for a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpuset {
    pub(super) cpus: CpuSet,
    pub(super) mems: CpuSet,
    /// v2: `cpuset.cpus.exclusive`.
    pub(super) exclusive: CpuSet,
    pub(super) partition: Partition,
}

/// v2: the value written to `cpuset.cpus.partition`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Partition {
    #[default]
    Member,
    Root,
    Isolated,
}

impl Hierarchy {
    /// The part of a path below this hierarchy's mount; `None` if the path is outside.
    pub(super) fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.mount.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(&controller)
    }

    /// Paths of the direct children of a group.
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

    /// True if `threaded` was written to this group's type.
    pub(super) fn is_threaded(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|group| group.threaded)
    }

    /// The domain to which a threaded group belongs; the group itself if it is a domain.
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

/// The parent group; `None` for the root.
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

/// Kind of a path below a hierarchy's mount.
pub(super) enum CgroupPath {
    Group(String),
    File { group: String, name: String },
}

impl Machine {
    /// The hierarchy that contains a path, and the kind of the path.
    pub(super) fn cgroup_place(&self, path: &str) -> Option<(usize, Result<CgroupPath, Errno>)> {
        let (index, below) = self
            .hierarchies
            .iter()
            .enumerate()
            .filter_map(|(index, hierarchy)| Some((index, hierarchy.below(path)?)))
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

    /// Names of a group's files, without child groups.
    pub(super) fn file_names(&self, index: usize, group: &str) -> Vec<String> {
        let hierarchy = &self.hierarchies[index];
        match hierarchy.version {
            CgroupVersion::V1 if hierarchy.has(real_time::CONTROLLER) => {
                self.bandwidth_files(index)
            }
            CgroupVersion::V1 if hierarchy.has(freezer::CONTROLLER) => freezer::file_names(group),
            CgroupVersion::V1 => v1::file_names(group),
            CgroupVersion::V2 => v2::file_names(self, hierarchy, group),
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
        let is_real_time = self.is_real_time(index);
        let hierarchy = &mut self.hierarchies[index];
        let from = hierarchy.groups.get(&above).ok_or(Errno::NOENT)?;
        let group = match hierarchy.version {
            CgroupVersion::V1 if is_real_time => real_time::with_runtime(0),
            CgroupVersion::V1 if hierarchy.has("cpuset") => v1::new_group(from),
            CgroupVersion::V1 => Group::default(),
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
        let hierarchy = &self.hierarchies[index];
        match hierarchy.version {
            CgroupVersion::V1 if hierarchy.has(real_time::CONTROLLER) => {
                self.read_bandwidth(index, group, name)
            }
            CgroupVersion::V1 if hierarchy.has(freezer::CONTROLLER) => {
                self.read_freezer(index, group, name)
            }
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
        // The kernel ignores an empty write, whatever the file.
        if text.is_empty() {
            return Ok(());
        }
        let hierarchy = &self.hierarchies[index];
        match hierarchy.version {
            CgroupVersion::V1 if hierarchy.has(real_time::CONTROLLER) => {
                self.write_bandwidth(index, place, text)
            }
            CgroupVersion::V1 if hierarchy.has(freezer::CONTROLLER) => {
                self.write_freezer(index, place, text)
            }
            CgroupVersion::V1 => v1::write(self, index, place, text),
            CgroupVersion::V2 => v2::write(self, index, place, text),
        }
    }

    /// Threads that are direct members of a group.
    pub(super) fn tids_in(&self, index: usize, group: &str) -> Vec<Tid> {
        self.tasks
            .values()
            .filter(|task| task.groups[index] == group)
            .map(|task| task.task.tid)
            .collect()
    }

    /// One TID per line.
    pub(super) fn lines(tids: impl IntoIterator<Item = Tid>) -> String {
        tids.into_iter().map(|tid| format!("{tid}\n")).collect()
    }

    /// The threads that are moved by a write to a membership file.
    pub(super) fn movers(&self, text: &str, whole: WriteScope) -> Result<Vec<Tid>, Errno> {
        let number = parse::signed(text.trim()).map_err(|_| Errno::INVAL)?;
        let number = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        // 0 means the writing process.
        let tid = if number == 0 { self.own } else { Tid(number) };
        let first = self.tasks.get(&tid).ok_or(Errno::SRCH)?;
        if first.task.is_unmovable() || first.task.tid == Tid(2) {
            return Err(Errno::INVAL);
        }
        Ok(match whole {
            WriteScope::Thread => vec![tid],
            WriteScope::Process => self.threads_of(first.task.tgid),
        })
    }

    /// True if the group or one below it has a task.
    pub(super) fn is_populated(&self, index: usize, group: &str) -> bool {
        self.tasks.values().any(|task| is_inside(&task.groups[index], group))
    }
}

/// What a write to a membership file moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteScope {
    Thread,
    Process,
}

//! Files of tasks in the simulated `/proc`.

use pinfold_model::Tid;
use rustix::io::Errno;

use super::machine::cgroup::CgroupVersion;
use super::machine::{Machine, TaskGroups};

const TASK_FILES: [&str; 8] =
    ["cgroup", "cmdline", "comm", "numa_maps", "sched", "schedstat", "stat", "status"];

/// A path below `/proc/PID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProcPath {
    /// `/proc/PID` or `/proc/PID/task/TID`.
    Directory {
        tid: Tid,
        /// True for the directory of a process, which contains `task`.
        with_threads: bool,
    },
    /// `/proc/PID/task`.
    Threads(Tid),
    /// `/proc/PID/fd`.
    Descriptors(Tid),
    /// A link in it, with its target.
    Descriptor(String),
    /// A file of a task.
    File(Tid, String),
}

impl Machine {
    /// Interprets a path of a task; `None` for everything else below `/proc`.
    pub(super) fn proc_place(&self, path: &str) -> Option<Result<ProcPath, Errno>> {
        let rest = path.strip_prefix("/proc/")?;
        let mut names = rest.split('/').filter(|name| !name.is_empty());
        let tid = match names.next()? {
            "self" => self.own,
            number => Tid(number.parse().ok()?),
        };
        let names: Vec<&str> = names.collect();
        Some(self.proc_place_of(tid, &names))
    }

    fn proc_place_of(&self, tid: Tid, names: &[&str]) -> Result<ProcPath, Errno> {
        let held = self.tasks.get(&tid).ok_or(Errno::NOENT)?;
        match names {
            [] => Ok(ProcPath::Directory { tid, with_threads: true }),
            ["task"] => Ok(ProcPath::Threads(held.task.tgid)),
            ["fd"] => Ok(ProcPath::Descriptors(tid)),
            ["fd", number] => {
                let number: usize = number.parse().map_err(|_| Errno::NOENT)?;
                let target = held.task.descriptors.get(number).ok_or(Errno::NOENT)?;
                Ok(ProcPath::Descriptor(target.clone()))
            }
            ["task", thread, rest @ ..] => {
                let thread = Tid(thread.parse().map_err(|_| Errno::NOENT)?);
                let inside =
                    self.tasks.get(&thread).is_some_and(|other| other.task.tgid == held.task.tgid);
                match rest {
                    _ if !inside => Err(Errno::NOENT),
                    [] => Ok(ProcPath::Directory { tid: thread, with_threads: false }),
                    [file] => known_file(thread, file),
                    [_, ..] => Err(Errno::NOTDIR),
                }
            }
            [file] => known_file(tid, file),
            [_, ..] => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn read_proc(&self, tid: Tid, file: &str) -> Result<Vec<u8>, Errno> {
        let held = self.tasks.get(&tid).ok_or(Errno::SRCH)?;
        let threads = self.threads_of(held.task.tgid).len();
        let text = match file {
            "stat" => held.task.stat(threads),
            "status" => held.task.status(threads, &self.mask_in_status(held), &self.mems),
            "comm" => format!("{}\n", held.task.comm),
            "sched" => held.task.sched(threads),
            "schedstat" => held.task.schedstat_text(),
            "cgroup" => self.cgroup_text(held),
            "numa_maps" => held.task.numa_maps(),
            "mountinfo" => self.mountinfo(),
            "cmdline" => return Ok(held.task.cmdline_bytes()),
            _ => return Err(Errno::NOENT),
        };
        Ok(text.into_bytes())
    }

    pub(super) fn list_proc(&self, place: &ProcPath) -> Result<Vec<String>, Errno> {
        let mut names: Vec<String> = match place {
            ProcPath::Directory { with_threads, .. } => TASK_FILES
                .into_iter()
                .chain(["mountinfo"])
                .chain(with_threads.then_some("task"))
                .chain(with_threads.then_some("fd"))
                .map(str::to_owned)
                .collect(),
            ProcPath::Threads(process) => {
                self.threads_of(*process).iter().map(Tid::to_string).collect()
            }
            ProcPath::Descriptors(tid) => {
                let count = self.tasks.get(tid).map_or(0, |held| held.task.descriptors.len());
                (0..count).map(|number| number.to_string()).collect()
            }
            ProcPath::Descriptor(_) | ProcPath::File(..) => return Err(Errno::NOTDIR),
        };
        names.sort_unstable();
        Ok(names)
    }

    /// Processes that `/proc` lists; other threads are accessible by TID, but not listed.
    pub(super) fn processes(&self) -> impl Iterator<Item = Tid> + '_ {
        self.tasks.values().filter(|held| held.task.tid == held.task.tgid).map(|held| held.task.tid)
    }

    fn cgroup_text(&self, held: &TaskGroups) -> String {
        let mut hierarchies: Vec<_> = self.hierarchies.iter().zip(&held.groups).collect();
        hierarchies.sort_by_key(|(hierarchy, _)| std::cmp::Reverse(hierarchy.id));
        hierarchies
            .into_iter()
            .map(|(hierarchy, group)| match hierarchy.version {
                CgroupVersion::V1 => {
                    format!("{}:{}:{group}\n", hierarchy.id, hierarchy.controllers.join(","))
                }
                CgroupVersion::V2 => format!("0::{group}\n"),
            })
            .collect()
    }

    fn mountinfo(&self) -> String {
        let mut text = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                        22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                        23 27 0:22 / /sys rw,relatime - sysfs sysfs rw\n"
            .to_owned();
        if self.hierarchies.iter().any(|hierarchy| hierarchy.version == CgroupVersion::V1) {
            text.push_str("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n");
        }
        for (number, hierarchy) in (32..).zip(&self.hierarchies) {
            let (kind, options) = match hierarchy.version {
                CgroupVersion::V1 => ("cgroup", format!("rw,{}", hierarchy.controllers.join(","))),
                CgroupVersion::V2 => ("cgroup2", "rw".to_owned()),
            };
            text.push_str(&format!(
                "{number} 31 0:{number} / {} rw,relatime - {kind} {kind} {options}\n",
                hierarchy.mount
            ));
        }
        text
    }
}

fn known_file(tid: Tid, file: &str) -> Result<ProcPath, Errno> {
    if file == "mountinfo" || TASK_FILES.contains(&file) {
        Ok(ProcPath::File(tid, file.to_owned()))
    } else {
        Err(Errno::NOENT)
    }
}

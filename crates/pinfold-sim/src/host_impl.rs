//! The simulated machine as a [`Host`] and [`HostMut`].
//!
//! Each operation determines what its path refers to (a cgroup, a task, a file of the tree),
//! applies the rules there, and converts the kernel's error number to a [`HostError`].

use std::collections::BTreeSet;

use pinfold_host::process::Signaled;
use pinfold_host::{Host, HostError, HostMut, Writable, paths};
use pinfold_model::{CpuSet, NodeId, Policy, Setting, SettingsFile, TaskId, Tid};
use rustix::io::Errno;

use super::SimHost;
use super::machine::Machine;
use super::machine::cgroup::{CgroupPath, GroupFile};
use super::proc_files::ProcPath;

/// Removes double slashes, `.` components and a trailing slash from a path.
fn tidy(path: &str) -> String {
    let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    format!("/{}", names.join("/"))
}

impl Machine {
    fn read_any(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let path = tidy(path);
        if let Some(answer) = self.read_resctrl(&path) {
            return answer;
        }
        if let Some((index, place)) = self.cgroup_place(&path) {
            return match place? {
                CgroupPath::Group(_) => Err(Errno::ISDIR),
                CgroupPath::File { group, name } => self
                    .read_group_file(GroupFile { index, group: &group, name: &name })
                    .map(String::into_bytes),
            };
        }
        if path == paths::sysctl_kernel("ns_last_pid") {
            return Ok(format!("{}\n", self.newest).into_bytes());
        }
        match self.proc_place(&path) {
            Some(Ok(ProcPath::File(tid, file))) => self.read_proc(tid, &file),
            Some(Ok(_)) => Err(Errno::ISDIR),
            Some(Err(errno)) => Err(errno),
            None => self.tree.read(&path).map_err(errno_of),
        }
    }

    fn list_any(&self, path: &str) -> Result<Vec<String>, Errno> {
        let path = tidy(path);
        if let Some(answer) = self.list_resctrl(&path) {
            return answer;
        }
        if let Some((index, place)) = self.cgroup_place(&path) {
            let CgroupPath::Group(group) = place? else {
                return Err(Errno::NOTDIR);
            };
            let mut names = self.file_names(index, &group);
            let children = self.hierarchies[index].children(&group);
            names.extend(children.filter_map(|child| Some(child.rsplit('/').next()?.to_owned())));
            names.sort_unstable();
            return Ok(names);
        }
        if let Some(place) = self.proc_place(&path) {
            return self.list_proc(&place?);
        }
        let mut names: BTreeSet<String> = match self.tree.list(&path) {
            Ok(names) => names.into_iter().collect(),
            Err(_) if path == "/proc" => BTreeSet::new(),
            Err(error) => return self.mount_points(&path).ok_or(errno_of(error)),
        };
        if path == "/proc" {
            names.extend(self.processes().map(|tid| tid.to_string()));
            names.insert("self".to_owned());
        }
        names.extend(self.mount_points(&path).unwrap_or_default());
        Ok(names.into_iter().collect())
    }

    /// Entries of a directory that lead to a cgroup mount.
    fn mount_points(&self, path: &str) -> Option<Vec<String>> {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let names: BTreeSet<String> = self
            .hierarchies
            .iter()
            .filter_map(|hierarchy| {
                hierarchy.mount.strip_prefix(prefix.as_str())?.split('/').next()
            })
            .map(str::to_owned)
            .collect();
        (!names.is_empty()).then(|| names.into_iter().collect())
    }

    fn link_count_any(&self, path: &str) -> Result<u64, Errno> {
        let count = |names: usize| Ok(u64::try_from(names).unwrap_or(u64::MAX));
        let tidied = tidy(path);
        if let Some(answer) = self.list_resctrl(&tidied) {
            let is_file = matches!(self.read_resctrl(&tidied), Some(Ok(_)));
            return if is_file { Ok(1) } else { answer.map(|_| 2) };
        }
        if let Some((index, place)) = self.cgroup_place(&tidied) {
            return match place? {
                CgroupPath::Group(group) => {
                    count(2 + self.hierarchies[index].children(&group).count())
                }
                CgroupPath::File { .. } => Ok(1),
            };
        }
        match self.proc_place(&tidied) {
            Some(Ok(ProcPath::Threads(process))) => count(2 + self.threads_of(process).len()),
            Some(Ok(ProcPath::Directory { .. })) => Ok(9),
            Some(Ok(ProcPath::Descriptors(_))) => Ok(2),
            Some(Ok(ProcPath::Descriptor(_) | ProcPath::File(..))) => Ok(1),
            Some(Err(errno)) => Err(errno),
            None => self.tree.link_count(&tidied).map_err(errno_of),
        }
    }

    pub(super) fn write_any(&mut self, path: &str, value: &[u8]) -> Result<(), Errno> {
        let path = tidy(path);
        let text = String::from_utf8_lossy(value).into_owned();
        if let Some(answer) = self.write_resctrl(&path, &text) {
            return answer;
        }
        if let Some((index, place)) = self.cgroup_place(&path) {
            return match place? {
                CgroupPath::Group(_) => Err(Errno::ISDIR),
                CgroupPath::File { group, name } => {
                    self.write_group_file(GroupFile { index, group: &group, name: &name }, &text)
                }
            };
        }
        match self.proc_place(&path) {
            Some(Ok(ProcPath::File(..))) => Err(Errno::ACCESS),
            Some(Ok(_)) => Err(Errno::ISDIR),
            Some(Err(errno)) => Err(errno),
            None => self.write_tunable(&path, &text),
        }
    }
}

/// Errors of the tree always have an errno.
fn errno_of(error: HostError) -> Errno {
    error.errno().map_or(Errno::IO, Errno::from_raw_os_error)
}

impl Host for SimHost {
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError> {
        self.ask(&format!("read {path}"), |machine| machine.read_any(path))
            .map_err(|errno| HostError::file("read", path, errno))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, HostError> {
        self.ask(&format!("list {path}"), |machine| machine.list_any(path))
            .map_err(|errno| HostError::file("list", path, errno))
    }

    fn link(&self, path: &str) -> Result<String, HostError> {
        self.ask(&format!("link {path}"), |machine| match tidy(path).as_str() {
            "/proc/self" => Ok(machine.own.to_string()),
            path => match machine.proc_place(path) {
                Some(Ok(ProcPath::Descriptor(target))) => Ok(target),
                None if machine.cgroup_place(path).is_none() => {
                    machine.tree.link(path).map_err(errno_of)
                }
                Some(_) | None => Err(match machine.link_count_any(path) {
                    Ok(_) => Errno::INVAL,
                    Err(_) => Errno::NOENT,
                }),
            },
        })
        .map_err(|errno| HostError::file("read link", path, errno))
    }

    fn exists(&self, path: &str) -> bool {
        self.ask(&format!("exists {path}"), |machine| {
            machine
                .link_count_any(path)
                .map(|_| ())
                .or_else(|errno| machine.mount_points(&tidy(path)).map(|_| ()).ok_or(errno))
        })
        .is_ok()
    }

    fn link_count(&self, path: &str) -> Result<u64, HostError> {
        self.ask(&format!("link_count {path}"), |machine| machine.link_count_any(path))
            .map_err(|errno| HostError::file("count links of", path, errno))
    }

    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError> {
        self.ask(&format!("affinity {tid}"), |machine| {
            let held = machine.tasks.get(&tid).ok_or(Errno::SRCH)?;
            Ok(machine.mask(held).intersection(&machine.online))
        })
        .map_err(|errno| thread_fault("sched_getaffinity", tid, errno))
    }

    fn policy(&self, tid: Tid) -> Result<Policy, HostError> {
        self.ask(&format!("policy {tid}"), |machine| {
            machine.tasks.get(&tid).map(|held| held.task.policy).ok_or(Errno::SRCH)
        })
        .map_err(|errno| thread_fault("sched_getattr", tid, errno))
    }

    fn setting(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        self.ask(&format!("setting {setting}"), |machine| {
            machine.settings.get(setting).map(|kept| kept.value.clone()).ok_or(Errno::NOENT)
        })
        .map_err(|errno| setting_fault(setting, errno))
    }

    fn setting_files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        self.ask(&format!("setting_files {setting}"), |machine| machine.kept_files(setting))
            .map_err(|errno| setting_fault(setting, errno))
    }

    fn is_live(&self) -> bool {
        false
    }
}

impl Writable for SimHost {}

impl HostMut for SimHost {
    fn write(&self, path: &str, value: &[u8]) -> Result<(), HostError> {
        let shown = String::from_utf8_lossy(value);
        self.alter(format!("write {path} {}", shown.trim_end()), |machine| {
            machine.write_any(path, value)
        })
        .map_err(|errno| HostError::file("write", path, errno).with_value(value))
    }

    fn make_dir(&self, path: &str) -> Result<(), HostError> {
        self.alter(format!("make_dir {path}"), |machine| {
            let path = tidy(path);
            if let Some(answer) = machine.make_resctrl(&path) {
                return answer;
            }
            match machine.cgroup_place(&path) {
                Some((index, _)) => machine.make_group(index, &path),
                None if machine.link_count_any(&path).is_ok() => Err(Errno::EXIST),
                None if path.starts_with("/proc/") => Err(Errno::NOENT),
                None => Err(Errno::PERM),
            }
        })
        .map_err(|errno| HostError::file("make directory", path, errno))
    }

    fn remove_dir(&self, path: &str) -> Result<(), HostError> {
        self.alter(format!("remove_dir {path}"), |machine| {
            let path = tidy(path);
            if let Some(answer) = machine.remove_resctrl(&path) {
                return answer;
            }
            match machine.cgroup_place(&path) {
                Some((index, place)) => match place? {
                    CgroupPath::Group(group) => machine.remove_group(index, &group),
                    CgroupPath::File { .. } => Err(Errno::NOTDIR),
                },
                None => machine.link_count_any(&path).and(Err(Errno::PERM)),
            }
        })
        .map_err(|errno| HostError::file("remove directory", path, errno))
    }

    fn set_affinity(&self, tid: Tid, mask: &CpuSet) -> Result<(), HostError> {
        self.alter(format!("set_affinity {tid} {mask}"), |machine| machine.set_affinity(tid, mask))
            .map_err(|errno| thread_fault("sched_setaffinity", tid, errno))
    }

    fn set_policy(&self, tid: Tid, policy: Policy) -> Result<(), HostError> {
        self.alter(format!("set_policy {tid} {policy}"), |machine| machine.set_policy(tid, policy))
            .map_err(|errno| thread_fault("sched_setattr", tid, errno))
    }

    fn migrate_pages(&self, pid: Tid, from: &[NodeId], to: &[NodeId]) -> Result<u64, HostError> {
        let mut left = 0;
        self.alter(format!("migrate_pages {pid}"), |machine| {
            left = machine.migrate_pages(pid, from, to)?;
            Ok(())
        })
        .map_err(|errno| thread_fault("migrate_pages", pid, errno))?;
        Ok(left)
    }

    fn signal(&self, process: TaskId, signal: Signaled) -> Result<(), HostError> {
        self.alter(format!("signal {} {signal:?}", process.tid), |machine| {
            machine.signal(process, signal)
        })
        .map_err(|errno| thread_fault("pidfd_send_signal", process.tid, errno))
    }

    fn set_setting(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError> {
        self.alter(format!("set_setting {setting} {}", value.unwrap_or("none")), |machine| {
            machine.keep(setting, value)
        })
        .map_err(|errno| setting_fault(setting, errno))
    }

    fn put_setting_files(
        &self,
        setting: &Setting,
        files: &[SettingsFile],
    ) -> Result<bool, HostError> {
        let mut differed = false;
        self.alter(format!("put_setting_files {setting}"), |machine| {
            differed = machine.put_kept_files(setting, files)?;
            Ok(())
        })
        .map_err(|errno| setting_fault(setting, errno))?;
        Ok(differed)
    }
}

fn setting_fault(setting: &Setting, errno: Errno) -> HostError {
    HostError::Kept {
        setting: Box::new(setting.clone()),
        why: errno.to_string(),
        gone: errno == Errno::NOENT,
        hint: None,
    }
}

fn thread_fault(call: &'static str, tid: Tid, errno: Errno) -> HostError {
    HostError::Thread { call, tid: tid.0, source: errno.into() }
}

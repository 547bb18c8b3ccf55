//! The hierarchy with the cpuset controller: group membership, and the CPUs of each group.
//!
//! Versions 1 and 2 differ in file names and rules. This module hides the names; the rules are in
//! `steps`. A group is named by its absolute directory without a trailing slash. In
//! [`pinfold_model::TaskState`] it is named by its path below the mount.
//! <https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html>,
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>

use std::cell::OnceCell;

use pinfold_host::mountinfo::{self, ControllerMount, Version};
use pinfold_host::{Host, HostError, paths, proc_cgroup};
use pinfold_model::{CpuSet, Tid};

use crate::files::Files;
use crate::tasks;

/// Name of the controller.
pub(crate) const CPUSET: &str = "cpuset";

/// The file of a v2 group that moves single threads.
pub(crate) const THREADS_FILE: &str = "cgroup.threads";

/// The hierarchy with the cpuset controller.
#[derive(Clone, Debug)]
pub(crate) struct Cpusets {
    mount: ControllerMount,
    root: String,
}

/// The hierarchy of a host, found on first use. A plan that only sets masks does not need it, and
/// reading the mount table takes as long as setting a hundred masks.
pub(crate) struct Hierarchy<'h> {
    host: &'h dyn Host,
    found: OnceCell<Option<Cpusets>>,
}

impl<'h> Hierarchy<'h> {
    pub(crate) fn read(host: &'h dyn Host) -> Self {
        Self { host, found: OnceCell::new() }
    }

    /// The hierarchy; `None` on a host without the controller.
    pub(crate) fn get(&self) -> Result<Option<&Cpusets>, HostError> {
        self.get_or_find(|| mountinfo::controller(self.host, CPUSET))
    }

    /// The same, if the caller knows the mount of the controller.
    pub(crate) fn get_or_find(
        &self,
        find: impl FnOnce() -> Result<Option<ControllerMount>, HostError>,
    ) -> Result<Option<&Cpusets>, HostError> {
        if let Some(found) = self.found.get() {
            return Ok(found.as_ref());
        }
        let found = find()?.map(Cpusets::at);
        Ok(self.found.get_or_init(|| found).as_ref())
    }
}

impl Cpusets {
    /// Finds the hierarchy; `None` on a host without the controller.
    pub(crate) fn find(host: &dyn Host) -> Result<Option<Self>, HostError> {
        Ok(mountinfo::controller(host, CPUSET)?.map(Self::at))
    }

    fn at(mount: ControllerMount) -> Self {
        let root = mount.mount.path.trim_end_matches('/').to_owned();
        Self { mount, root }
    }

    /// The cgroup version of the hierarchy.
    pub(crate) fn version(&self) -> Version {
        self.mount.version
    }

    /// The root directory of the hierarchy.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// True if a directory is in this hierarchy.
    pub(crate) fn is_below(&self, group: &str) -> bool {
        group.strip_prefix(&self.root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// True if the hierarchy is mounted read-only, as in many containers.
    pub(crate) fn is_read_only(&self) -> bool {
        self.mount.mount.is_read_only()
    }

    /// The group of a thread; `None` if it has ended or is in a group that is not mounted here.
    pub(crate) fn group_of<F: Files + ?Sized>(
        &self,
        host: &F,
        tid: Tid,
    ) -> Result<Option<String>, HostError> {
        self.group_from(host, &paths::process_cgroup(tid))
    }

    /// The group of this process.
    pub(crate) fn own_group<F: Files + ?Sized>(
        &self,
        host: &F,
    ) -> Result<Option<String>, HostError> {
        self.group_from(host, &paths::own_cgroup())
    }

    fn group_from<F: Files + ?Sized>(
        &self,
        host: &F,
        path: &str,
    ) -> Result<Option<String>, HostError> {
        let Some(bytes) = host.file(path)? else { return Ok(None) };
        let memberships =
            proc_cgroup::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| error.at(path))?;
        let group = match self.version() {
            Version::V1 => proc_cgroup::v1_path(&memberships, CPUSET),
            Version::V2 => proc_cgroup::v2_path(&memberships),
        };
        Ok(group.and_then(|group| self.mount.group_dir(group)))
    }

    /// A group's path below the mount, `/` for the root.
    pub(crate) fn relative_path(&self, group: &str) -> String {
        match group.strip_prefix(&self.root) {
            Some("") | None => "/".to_owned(),
            Some(path) => path.to_owned(),
        }
    }

    /// The directory of a path below the mount.
    pub(crate) fn dir_of(&self, below: &str) -> String {
        format!("{}{}", self.root, below.trim_end_matches('/'))
    }

    /// The group itself, or its nearest ancestor that accepts tasks if it no longer exists. On
    /// version 2 only the root may have both tasks and children with controllers.
    pub(crate) fn nearest(&self, host: &dyn Host, group: &str) -> Result<String, HostError> {
        let lineage = self.lineage(group);
        for (group, is_ancestor) in lineage.iter().rev().zip((0..).map(|depth| depth > 0)) {
            let takes_tasks = self.version() == Version::V1
                || !is_ancestor
                || tasks::ignore_gone(host.read(&paths::cgroup_subtree_control(group)))?
                    .is_some_and(|controllers| controllers.trim_ascii().is_empty());
            if host.exists(group) && takes_tasks {
                return Ok(group.clone());
            }
        }
        Ok(self.root.clone())
    }

    /// The child groups' directories, as absolute paths.
    pub(crate) fn children<F: Files + ?Sized>(
        &self,
        host: &F,
        group: &str,
    ) -> Result<Vec<String>, HostError> {
        let names = host.names(group)?;
        Ok(names
            .iter()
            .map(|name| paths::cgroup_file(group, name))
            .filter(|path| host.exists(&paths::cgroup_procs(path)))
            .collect())
    }

    /// The group and its ancestors, root first.
    pub(crate) fn lineage(&self, group: &str) -> Vec<String> {
        let mut lineage = vec![self.root.clone()];
        let below = self.relative_path(group);
        for part in below.split('/').filter(|part| !part.is_empty()) {
            let last = lineage.last().map_or("", String::as_str);
            lineage.push(format!("{last}/{part}"));
        }
        lineage
    }

    /// The group whose CPUs a thread of a machine cannot leave: not the one by which libvirt pins it,
    /// but that of its domain.
    pub(crate) fn limiting_group<'g>(&'g self, group: &'g str) -> &'g str {
        if is_pin_group(group) { self.parent(group) } else { group }
    }

    /// The group by which libvirt pins a thread; `None` if it is in no such group, or has ended.
    pub(crate) fn pin_group(
        &self,
        host: &dyn Host,
        tid: Tid,
    ) -> Result<Option<PinGroup>, HostError> {
        let Some(path) = self.group_of(host, tid)?.filter(|group| is_pin_group(group)) else {
            return Ok(None);
        };
        let own = tasks::ignore_gone(self.effective(host, &path))?;
        let machine = tasks::ignore_gone(self.effective(host, self.limiting_group(&path)))?;
        let (Some(own), Some(machine)) = (own, machine) else { return Ok(None) };
        Ok(Some(PinGroup { path, own, machine }))
    }

    /// The parent group; the root is its own parent.
    pub(crate) fn parent<'g>(&'g self, group: &'g str) -> &'g str {
        match group.rsplit_once('/') {
            Some((parent, _)) if group != self.root => parent,
            _ => &self.root,
        }
    }

    /// Path of the file with the effective CPUs of a group.
    pub(crate) fn effective_path(&self, group: &str) -> String {
        match self.version() {
            Version::V1 => paths::cpuset_effective_cpus(group),
            Version::V2 => paths::cpuset_cpus_effective(group),
        }
    }

    /// The effective CPUs of a group. If a v2 group lacks the controller, those of its nearest
    /// ancestor that has it.
    pub(crate) fn effective<F: Files + ?Sized>(
        &self,
        host: &F,
        group: &str,
    ) -> Result<CpuSet, HostError> {
        for group in self.lineage(group).iter().skip(1).rev() {
            let path = self.effective_path(group);
            if let Some(bytes) = host.file(&path)? {
                return parse(&path, &bytes);
            }
        }
        let path = self.effective_path(&self.root);
        parse(&path, &host.read_required(&path)?)
    }

    /// The effective CPUs of a thread's group; `None` if the thread has ended.
    pub(crate) fn effective_of(
        &self,
        host: &dyn Host,
        tid: Tid,
    ) -> Result<Option<CpuSet>, HostError> {
        let Some(group) = self.group_of(host, tid)? else {
            return tasks::confirm_ended(host, tid).map(|()| None);
        };
        let shown = tasks::ignore_gone(self.effective(host, &group))?;
        if shown.is_none() {
            // The group may have been removed together with its last thread.
            tasks::confirm_ended(host, tid)?;
        }
        Ok(shown)
    }

    /// The threads (v1, and v2 where it is threaded) or processes (v2) directly in a group.
    pub(crate) fn members<F: Files + ?Sized>(
        &self,
        host: &F,
        group: &str,
    ) -> Result<Vec<Tid>, HostError> {
        let path = if self.is_threaded(host, group)? {
            paths::cgroup_threads(group)
        } else {
            self.members_path(group)
        };
        let text = host.file(&path)?.unwrap_or_default();
        Ok(tasks::numbers(String::from_utf8_lossy(&text).lines()))
    }

    /// The file that lists the members of a group and through which tasks join it.
    pub(crate) fn members_path(&self, group: &str) -> String {
        paths::cgroup_file(group, self.members_file())
    }

    /// Name of the members file: `tasks` moves single threads, `cgroup.procs` whole processes.
    pub(crate) fn members_file(&self) -> &'static str {
        match self.version() {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.procs",
        }
    }

    /// True for a v2 group in a threaded subtree, whose members are single threads.
    pub(crate) fn is_threaded<F: Files + ?Sized>(
        &self,
        host: &F,
        group: &str,
    ) -> Result<bool, HostError> {
        if self.version() == Version::V1 || group == self.root {
            return Ok(false);
        }
        let kind = host.file(&paths::cgroup_type(group))?;
        Ok(kind.is_some_and(|kind| kind.trim_ascii() == b"threaded"))
    }

    /// True if a v2 group may have processes in addition to child groups with controllers. Only the
    /// real root may, which is the one group without a `cgroup.type`.
    pub(crate) fn is_real_root<F: Files + ?Sized>(&self, host: &F, group: &str) -> bool {
        group == self.root && !host.exists(&paths::cgroup_type(group))
    }
}

/// A group by which libvirt pins the threads of one role.
pub(crate) struct PinGroup {
    pub(crate) path: String,
    /// The CPUs of the group.
    pub(crate) own: CpuSet,
    /// The CPUs of the machine.
    pub(crate) machine: CpuSet,
}

/// True for a group in which libvirt keeps the threads of one role, below the group of their domain.
/// It writes a pin to the group's list of CPUs, so this list is the pin and no limit of the machine.
/// <https://libvirt.org/cgroups.html>
pub(crate) fn is_pin_group(group: &str) -> bool {
    let name = group.rsplit('/').next().unwrap_or(group);
    let is_numbered = |prefix: &str| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|text| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit()))
    };
    name == "emulator" || is_numbered("vcpu") || is_numbered("iothread")
}

/// Reads a file that contains a list of CPUs.
pub(crate) fn list(host: &dyn Host, path: &str) -> Result<CpuSet, HostError> {
    parse(path, &host.read(path)?)
}

/// Parses the content of such a file. Memory nodes have the same format.
pub(crate) fn parse(path: &str, bytes: &[u8]) -> Result<CpuSet, HostError> {
    CpuSet::parse_list(&String::from_utf8_lossy(bytes))
        .map_err(|error| HostError::Unexpected { path: path.to_owned(), why: error.to_string() })
}

/// The first kernel that remembers the mask that a task requested and applies it within each new
/// cpuset (da019032819a1). Older kernels overwrite the mask when the cpuset changes.
pub(crate) const MASKS_SURVIVE: (u32, u32) = (6, 2);

/// True if the running kernel is at least [`MASKS_SURVIVE`].
pub(crate) fn masks_survive(host: &dyn Host) -> Result<bool, HostError> {
    Ok(release(host)? >= MASKS_SURVIVE)
}

/// Major and minor number of the running kernel.
pub(crate) fn release(host: &dyn Host) -> Result<(u32, u32), HostError> {
    parse_release(&host.read(&paths::kernel_release())?)
}

/// The same from the content of the file.
pub(crate) fn parse_release(bytes: &[u8]) -> Result<(u32, u32), HostError> {
    let path = paths::kernel_release();
    let release = String::from_utf8_lossy(bytes);
    let mut parts = release.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => {
            Err(HostError::Unexpected { path, why: format!("{release:?} is not a kernel release") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_pin_group;

    #[test]
    fn the_groups_by_which_libvirt_pins_threads_are_known_by_name() {
        let domain = "/c/machine.slice/machine-qemu\\x2d1\\x2dweb.scope";
        for name in ["emulator", "vcpu0", "vcpu12", "iothread1"] {
            assert!(is_pin_group(&format!("{domain}/{name}")), "{name}");
            assert!(is_pin_group(&format!("{domain}/libvirt/{name}")), "{name}");
        }
        for name in ["libvirt", "vcpu", "vcpus", "vcpu-1", "iothread", "emulators", ""] {
            assert!(!is_pin_group(&format!("{domain}/{name}")), "{name}");
        }
    }
}

//! The paths of cgroups by the IDs that BPF programs record: a task that has exited is in no file of
//! `/proc`, but its group is still there.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};

use rustix::fs::{Mode, OFlags};

use crate::mountinfo::{self, ControllerMount};
use crate::raw::open_cgroup;
use crate::{Host, HostError, paths};

/// The hierarchy of cgroups in which the kernel divides CPU time: that of the controller `cpu`, or
/// version 2 if no hierarchy has it.
///
/// # Errors
/// [`HostError`] if the mounts cannot be read.
pub fn cpu_hierarchy(host: &dyn Host) -> Result<Option<ControllerMount>, HostError> {
    if let Some(found) = mountinfo::controller(host, "cpu")? {
        return Ok(Some(found));
    }
    let path = paths::own_mountinfo();
    let mounts = mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
    Ok(mountinfo::v2_mount(&mounts))
}

/// The paths of groups, each read once.
#[derive(Clone, Debug, Default)]
pub struct CgroupPaths {
    mount: Option<ControllerMount>,
    known: BTreeMap<u64, Option<String>>,
}

impl CgroupPaths {
    /// Of the hierarchy of [`cpu_hierarchy`].
    pub fn new(host: &dyn Host) -> Self {
        let mount = cpu_hierarchy(host).ok().flatten().filter(|_| host.is_live());
        Self { mount, known: BTreeMap::new() }
    }

    /// Reads the path of a group while it exists, as in `/proc/PID/cgroup`.
    pub fn learn(&mut self, id: u64) {
        let mount = self.mount.as_ref();
        self.known.entry(id).or_insert_with(|| mount.and_then(|mount| read(mount, id)));
    }

    /// The path of a group that was learned; `None` without permission, or if it was removed before.
    pub fn path(&self, id: u64) -> Option<&str> {
        self.known.get(&id)?.as_deref()
    }

    /// With this path, for tests.
    pub fn insert(&mut self, id: u64, path: &str) {
        self.known.insert(id, Some(path.to_owned()));
    }
}

fn read(mount: &ControllerMount, id: u64) -> Option<String> {
    let at = mount.mount.path.trim_end_matches('/');
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(at, flags, Mode::empty()).ok()?;
    let group = open_cgroup(directory.as_fd(), id).ok()?;
    let link = paths::own_fd(group.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new()).ok()?.into_string().ok()?;
    let below = path.strip_prefix(at)?;
    Some(format!("{}{below}", mount.mount.root.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LiveHost, proc_cgroup, process};

    #[test]
    fn the_group_of_this_process_is_found_by_its_inode() {
        let host = LiveHost::new().expect("this host");
        let Some(mount) = cpu_hierarchy(&host).expect("mounts") else {
            return println!("skipped: no cgroups");
        };
        let text = host.read_text(&paths::own_cgroup()).expect("groups");
        let groups = proc_cgroup::parse(&text).expect("groups");
        let own = match mount.version {
            mountinfo::Version::V1 => proc_cgroup::v1_path(&groups, "cpu"),
            mountinfo::Version::V2 => proc_cgroup::v2_path(&groups),
        };
        let own = own.expect("a group");
        let directory = mount.group_dir(own).expect("a directory");
        let id = rustix::fs::stat(directory).expect("a directory").st_ino;
        let mut paths = CgroupPaths::new(&host);
        paths.learn(id);
        paths.learn(u64::MAX);
        if process::is_root() {
            assert_eq!(
                paths.path(id).map(|path| path.trim_end_matches('/')),
                Some(own.trim_end_matches('/'))
            );
        }
        assert_eq!(paths.path(u64::MAX), None);
    }
}

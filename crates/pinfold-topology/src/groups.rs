//! The cgroups of this process: hierarchy and version of each controller, and the CPUs of its
//! cpuset.
//!
//! The version is determined per controller: a machine may have cpuset on v1 and also a v2
//! hierarchy without it. In a container the mount shows only a part of the hierarchy. A group
//! outside of that part has no visible directory; then only the affinity mask (which the kernel
//! keeps within the cpuset) shows which CPUs may be used.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>

use pinfold_host::mountinfo::{self, ControllerMount, Mount, Version};
use pinfold_host::proc_cgroup::{self, Membership};
use pinfold_host::{Host, HostError, paths};
use pinfold_model::CpuSet;

/// The hierarchies visible to this process.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    mounts: Vec<Mount>,
    own: Vec<Membership>,
    v2_controllers: Vec<String>,
}

/// The group of this process for one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnGroup {
    /// The hierarchy.
    pub at: ControllerMount,
    /// Directory of the group; `None` if it is not visible.
    pub directory: Option<String>,
}

impl Groups {
    /// Reads the mount table, this process's groups and the controllers of the v2 root.
    pub(crate) fn read(host: &dyn Host) -> Result<Self, HostError> {
        let path = paths::own_mountinfo();
        let mounts = mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
        let path = paths::own_cgroup();
        let own = proc_cgroup::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
        let v2_controllers = match mountinfo::v2_mount(&mounts) {
            None => Vec::new(),
            Some(v2) => host
                .read_text(&paths::cgroup_controllers(&v2.mount.path))?
                .split_ascii_whitespace()
                .map(str::to_owned)
                .collect(),
        };
        Ok(Self { mounts, own, v2_controllers })
    }

    /// The mount table, for callers that need other file systems.
    pub(crate) fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// This process's group for a controller; `None` if no mounted hierarchy has it.
    pub(crate) fn own(&self, controller: &str) -> Option<OwnGroup> {
        let v1 = mountinfo::v1_mount(&self.mounts, controller);
        let (at, path) = match v1 {
            Some(at) => (at, proc_cgroup::v1_path(&self.own, controller)),
            None if self.v2_controllers.iter().any(|name| name == controller) => {
                (mountinfo::v2_mount(&self.mounts)?, proc_cgroup::v2_path(&self.own))
            }
            None => return None,
        };
        // The kernel shows a group outside of the cgroup namespace as a path with `..`.
        let directory = path
            .filter(|path| !path.split('/').any(|name| name == ".."))
            .and_then(|path| at.group_dir(path));
        Some(OwnGroup { at, directory })
    }
}

/// The CPUs that this process's cpuset allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cpuset {
    /// These CPUs.
    Of(CpuSet),
    /// There is no cpuset hierarchy.
    None,
    /// The group or its file is not visible.
    Hidden,
}

/// The effective CPUs of this process's cpuset.
pub(crate) fn effective_cpus(host: &dyn Host, groups: &Groups) -> Result<Cpuset, HostError> {
    let Some(OwnGroup { at, directory }) = groups.own("cpuset") else {
        return Ok(Cpuset::None);
    };
    let Some(directory) = directory else {
        return Ok(Cpuset::Hidden);
    };
    let found = match at.version {
        Version::V1 => {
            // `effective_cpus` exists since Linux 3.17; before, a group had exactly the CPUs that
            // it requested.
            let effective = read_list(host, &paths::cpuset_effective_cpus(&directory))?;
            match effective {
                Some(set) => Some(set),
                None => read_list(host, &paths::cpuset_cpus(&directory))?,
            }
        }
        Version::V2 => nearest_effective(host, &directory, at.mount.path.trim_end_matches('/'))?,
    };
    Ok(found.map_or(Cpuset::Hidden, Cpuset::Of))
}

/// On v2, a group without the enabled controller has no files: the nearest ancestor with the files
/// counts.
fn nearest_effective(
    host: &dyn Host,
    directory: &str,
    top: &str,
) -> Result<Option<CpuSet>, HostError> {
    let mut group = directory;
    loop {
        if let Some(set) = read_list(host, &paths::cpuset_cpus_effective(group))? {
            return Ok(Some(set));
        }
        match group.rsplit_once('/') {
            Some((parent, _)) if group.len() > top.len() => group = parent,
            Some(_) | None => return Ok(None),
        }
    }
}

fn read_list(host: &dyn Host, path: &str) -> Result<Option<CpuSet>, HostError> {
    match host.read_text(path) {
        Ok(text) => CpuSet::parse_list(&text).map(Some).map_err(|error| HostError::Unexpected {
            path: path.to_owned(),
            why: error.to_string(),
        }),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

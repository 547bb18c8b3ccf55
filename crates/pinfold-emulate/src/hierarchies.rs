//! The cgroup hierarchy of each controller.
//!
//! On a hybrid machine a vnode is one directory in each hierarchy that it uses: version 1 for
//! cpuset, cpu and freezer, and version 2 for `perf_event`, unless that was mounted as version 1.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#perf-event>

use pinfold_host::mountinfo::{self, ControllerMount, Version};
use pinfold_host::{Host, HostError, paths};

/// A hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MountedHierarchy {
    /// Directory of its root.
    pub(crate) root: String,
    /// Path of the group that is mounted there; `/` except in containers.
    pub(crate) mounted: String,
    /// True for version 2.
    pub(crate) unified: bool,
}

impl MountedHierarchy {
    /// A group's path below the mount, from its path in `/proc/PID/cgroup`.
    pub(crate) fn path_below(&self, path: &str) -> Option<String> {
        let below = path.strip_prefix(self.mounted.trim_end_matches('/'))?;
        (below.is_empty() || below.starts_with('/'))
            .then(|| format!("/{}", below.trim_matches('/')))
    }

    /// The directory of a group.
    pub(crate) fn directory(&self, below: &str) -> String {
        match below.trim_matches('/') {
            "" => self.root.clone(),
            below => paths::cgroup_file(&self.root, below),
        }
    }
}

/// The hierarchies that emulation uses; `None` if the host lacks the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    pub(crate) cpuset: Option<MountedHierarchy>,
    pub(crate) cpu: Option<MountedHierarchy>,
    pub(crate) freezer: Option<MountedHierarchy>,
    pub(crate) perf: Option<MountedHierarchy>,
    /// `io` of version 2, `blkio` of version 1.
    pub(crate) io: Option<MountedHierarchy>,
    pub(crate) memory: Option<MountedHierarchy>,
}

impl Hierarchies {
    /// Finds them.
    ///
    /// # Errors
    /// [`HostError`] if the mount table cannot be read.
    pub fn find(host: &dyn Host) -> Result<Self, HostError> {
        let path = paths::own_mountinfo();
        let mounts = mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
        let listed = |name| -> Result<_, HostError> {
            Ok(mountinfo::controller(host, name)?.and_then(|at| place(&at)))
        };
        // These two are not in `cgroup.controllers`, because version 2 always has them.
        let always = |name| {
            let found = mountinfo::v1_mount(&mounts, name).or_else(|| mountinfo::v2_mount(&mounts));
            found.and_then(|at| place(&at))
        };
        let blkio = listed("blkio")?;
        Ok(Self {
            io: blkio.map_or_else(|| listed("io"), |place| Ok(Some(place)))?,
            memory: listed("memory")?,
            cpuset: listed("cpuset")?,
            cpu: listed("cpu")?,
            freezer: always("freezer"),
            perf: always("perf_event"),
        })
    }
}

/// A hierarchy that is writable.
fn place(at: &ControllerMount) -> Option<MountedHierarchy> {
    let root = at.mount.path.trim_end_matches('/').to_owned();
    let (mounted, unified) = (at.mount.root.clone(), at.version == Version::V2);
    (!at.mount.is_read_only()).then_some(MountedHierarchy { root, mounted, unified })
}

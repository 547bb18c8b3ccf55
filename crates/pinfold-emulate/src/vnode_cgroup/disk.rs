//! The limit of a vnode's disk: `io.max` of version 2, `blkio.throttle.*` of version 1.
//!
//! The kernel limits whole disks and not partitions. A file system without a block device (tmpfs,
//! overlay, btrfs, NFS) has a device number of its own with major 0, which cannot be limited.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#io-interface-files>

use pinfold_host::{Host, HostError, mountinfo, paths};
use pinfold_model::{Change, DiskLimit, Step, Undo};

use super::{GROUP_PREFIX, VnodeCgroup, write};
use crate::SpeedError;
use crate::hierarchies::Hierarchies;
use crate::node::Node;

/// The disk that the limit of a vnode applies to, as `major:minor`.
///
/// # Errors
/// [`SpeedError::Disk`] if it cannot be limited or the vnode has no limit.
pub fn limited_disk(
    host: &dyn Host,
    hierarchies: &Hierarchies,
    node: &Node,
) -> Result<String, SpeedError> {
    let path = node.disk.as_ref().map_or(".", |limit| limit.path.as_str());
    let refuse = |why: String, hint: &str| SpeedError::Disk {
        vnode: node.name.clone(),
        path: path.to_owned(),
        why,
        hint: hint.to_owned(),
    };
    let Some(place) = &hierarchies.io else {
        let why = "there is no writable cgroup hierarchy with io (version 2) or blkio (version 1)";
        let hint = "mount it, run outside the container, or remove disk and iops";
        return Err(refuse(why.to_owned(), hint));
    };
    let throttle = paths::blkio_throttle(&place.root, "read_bps_device");
    if !place.unified && !host.exists(&throttle) {
        let hint = "use a kernel with CONFIG_BLK_DEV_THROTTLING, or remove disk and iops";
        return Err(refuse(format!("{throttle} does not exist"), hint));
    }
    let table = paths::own_mountinfo();
    let mounts = mountinfo::parse(&host.read_text(&table)?).map_err(|error| error.at(&table))?;
    let mount = mounts.iter().filter(|mount| is_below(path, &mount.path));
    let Some(mount) = mount.max_by_key(|mount| mount.path.len()) else {
        return Err(refuse("it is on no mounted file system".to_owned(), "mount it"));
    };
    if mount.device.starts_with("0:") {
        let why = format!("its file system ({} at {}) has no block device", mount.kind, mount.path);
        let hint = "name a folder on a disk with ext4, xfs or f2fs: disk-path = \"/FOLDER\"; or \
                    remove disk and iops";
        return Err(refuse(why, hint));
    }
    match whole_disk(host, &mount.device) {
        Ok(disk) => Ok(disk),
        Err(error) if error.is_gone() => {
            let why = format!("its device {} is not in sysfs", mount.device);
            Err(refuse(why, "run outside the container, or remove disk and iops"))
        }
        Err(error) => Err(error.into()),
    }
}

fn is_below(path: &str, mount: &str) -> bool {
    let rest = path.strip_prefix(mount.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The disk of a partition; any other device is its own.
fn whole_disk(host: &dyn Host, device: &str) -> Result<String, HostError> {
    let link = paths::block_device(device);
    // `../../devices/pci0000:00/…/block/vda/vda1`
    let target = host.link(&link)?;
    let directory = paths::sysfs(target.trim_start_matches("../"));
    if !host.exists(&format!("{directory}/partition")) {
        return Ok(device.to_owned());
    }
    let disk = directory.rsplit_once('/').map_or(directory.as_str(), |(disk, _)| disk);
    Ok(host.read_text(&format!("{disk}/dev"))?.trim().to_owned())
}

/// The files of a group with their values for a disk.
fn values(group: &str, is_unified: bool, limit: &DiskLimit, disk: &str) -> Vec<(String, String)> {
    let bytes = limit.bytes.map(|bytes| bytes.to_string());
    let operations = limit.operations.map(|operations| operations.to_string());
    if is_unified {
        let [bytes, operations] =
            [&bytes, &operations].map(|value| value.as_deref().unwrap_or("max"));
        let value =
            format!("{disk} rbps={bytes} wbps={bytes} riops={operations} wiops={operations}");
        return vec![(paths::io_max(group), value)];
    }
    let files = [
        ("read_bps_device", &bytes),
        ("write_bps_device", &bytes),
        ("read_iops_device", &operations),
        ("write_iops_device", &operations),
    ];
    let limited = files.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    limited
        .map(|(name, value)| (paths::blkio_throttle(group, name), format!("{disk} {value}")))
        .collect()
}

/// The limits of a disk in a group of another program.
fn original(host: &dyn Host, node: &Node, group: &str, disk: &str) -> Result<Vec<u8>, SpeedError> {
    let path = paths::io_max(group);
    if !host.exists(&path) {
        return Err(SpeedError::Unattached {
            vnode: node.name.clone(),
            what: format!("group {group}"),
            why: "cannot have a disk limit, because io is not enabled for it".to_owned(),
            hint:
                "enable it, for example `systemctl set-property UNIT IOAccounting=yes`, attach a \
                   process instead, or remove disk and iops"
                    .to_owned(),
        });
    }
    let text = host.read_text(&path)?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(disk));
    let line = line.map_or_else(
        || format!("{disk} rbps=max wbps=max riops=max wiops=max"),
        |line| line.trim().to_owned(),
    );
    Ok(line.into_bytes())
}

/// What the kernel does not limit.
pub(crate) fn caution(hierarchies: &Hierarchies, node: &Node) -> Option<String> {
    let (_, place) = node.disk.as_ref().zip(hierarchies.io.as_ref())?;
    let is_attributed = place.unified && hierarchies.memory.as_ref().is_some_and(|at| at.unified);
    (!is_attributed).then(|| {
        format!(
            "vnode {}: the disk limit applies to reads, and to direct and synchronous writes; what \
             the kernel writes back later from its page cache is not limited, because that needs \
             io and memory of cgroup version 2",
            node.name
        )
    })
}

impl VnodeCgroup {
    /// What another program has set since as the limits of the vnode's disk in an attached group, in
    /// the words of `io.max`; `None` if they are still those of the vnode.
    ///
    /// # Errors
    /// [`SpeedError`] if they cannot be read, or the disk cannot be limited any more.
    pub fn changed_disk(
        &self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<Option<String>, SpeedError> {
        let is_set = hierarchies.io.as_ref().is_some_and(|place| place.unified) && self.is_attached;
        let (Some(limit), Some(group)) = (&node.disk, self.perf.as_ref().filter(|_| is_set)) else {
            return Ok(None);
        };
        let disk = limited_disk(host, hierarchies, node)?;
        let now = String::from_utf8_lossy(&original(host, node, group, &disk)?).into_owned();
        let is_kept = values(group, true, limit, &disk).iter().any(|(_, value)| *value == now);
        Ok((!is_kept).then_some(now))
    }

    /// The group with the disk's limit, if processes join it separately from the others.
    pub(super) fn io_outside(&self) -> Option<&String> {
        self.io.as_ref().filter(|group| !self.unified.contains(*group))
    }

    /// The steps that limit the disk of a vnode. An attached group gets the limit itself in version
    /// 2; in version 1 its processes are moved to a group of Pinfold's.
    pub(super) fn limit_disk(
        &mut self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<Vec<Step>, SpeedError> {
        let (Some(limit), Some(place)) = (&node.disk, &hierarchies.io) else {
            return Ok(Vec::new());
        };
        let disk = limited_disk(host, hierarchies, node)?;
        let reason = format!("the disk of vnode {} has {limit}", node.name);
        let mut steps = Vec::new();
        if self.is_attached && place.unified {
            let group = self.perf.clone().unwrap_or_default();
            let original = original(host, node, &group, &disk)?;
            steps.extend(values(&group, true, limit, &disk).into_iter().map(|(path, value)| {
                Step {
                    undo: Undo::WriteFile { path: path.clone(), original: original.clone() },
                    change: Change::WriteFile { path, value: value.into_bytes() },
                    reason: reason.clone(),
                }
            }));
            return Ok(steps);
        }
        if self.is_attached {
            let path = paths::cgroup_file(&place.root, &format!("{GROUP_PREFIX}{}", node.name));
            if host.exists(&path) {
                return Err(SpeedError::Occupied { path });
            }
            steps.push(Step {
                change: Change::MakeGroup { path: path.clone() },
                undo: Undo::RemoveGroup { path: path.clone() },
                reason: reason.clone(),
            });
            self.io = Some(path);
        }
        let Some(group) = &self.io else { return Ok(steps) };
        let values = values(group, place.unified, limit, &disk);
        steps.extend(
            values.into_iter().map(|(path, value)| write(group, path, &value, reason.clone())),
        );
        Ok(steps)
    }
}

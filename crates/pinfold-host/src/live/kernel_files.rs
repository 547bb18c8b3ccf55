//! The file systems on which a host is changed.
//!
//! A journal names the files that undo writes, and root executes it. Whatever it contains, values
//! are written only to files of the kernel, and directories are made and removed only where the
//! kernel keeps groups. The open descriptor is checked, not the path: a link cannot lead elsewhere.
//! Magic numbers: <https://man7.org/linux/man-pages/man2/statfs.2.html>

use std::os::fd::OwnedFd;

use crate::HostError;

const GROUPS: [u64; 3] = [CGROUP_V1, CGROUP_V2, RESCTRL];
const VALUES: [u64; 7] = [PROC, SYSFS, DEBUGFS, TRACEFS, CGROUP_V1, CGROUP_V2, RESCTRL];

const PROC: u64 = 0x9fa0;
const SYSFS: u64 = 0x6265_6572;
const DEBUGFS: u64 = 0x6462_6720;
const TRACEFS: u64 = 0x7472_6163;
const CGROUP_V1: u64 = 0x27_e0eb;
const CGROUP_V2: u64 = 0x6367_7270;
const RESCTRL: u64 = 0x0765_5821;

/// Fails unless the open file is one of the kernel that takes values.
pub(super) fn require_values(file: &OwnedFd, path: &str) -> Result<(), HostError> {
    require(file, path, &VALUES, "it is not a file of the kernel; nothing was written")
}

/// Fails unless the open directory holds groups of the kernel.
pub(super) fn require_groups(directory: &OwnedFd, path: &str) -> Result<(), HostError> {
    let why = "its directory is neither in a cgroup hierarchy nor in resctrl; nothing was changed";
    require(directory, path, &GROUPS, why)
}

fn require(file: &OwnedFd, path: &str, kinds: &[u64], why: &str) -> Result<(), HostError> {
    let stat = rustix::fs::fstatfs(file).map_err(|errno| HostError::file("check", path, errno))?;
    // The field has another type on each architecture; no magic number is negative.
    if u64::try_from(stat.f_type).is_ok_and(|kind| kinds.contains(&kind)) {
        return Ok(());
    }
    Err(HostError::Unexpected { path: path.to_owned(), why: why.to_owned() })
}

//! `/proc/PID/mountinfo`, and the cgroup hierarchies of the controllers.
//!
//! ```text
//! 34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:12 - cgroup cgroup rw,cpuset
//! 41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
//! ```
//!
//! The cgroup version is determined per controller, not per machine: on a hybrid mount cpuset may
//! be v1 while a v2 hierarchy without it also exists. Paths contain octal escapes (`\040`).
//! <https://docs.kernel.org/filesystems/proc.html#proc-pid-mountinfo-information-about-mounts>

use super::ProcError;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount point.
    pub path: String,
    /// The part of the file system that is mounted; `/` is all of it. In a container, the cgroup
    /// that appears as the root.
    pub root: String,
    /// File system type (`cgroup`, `cgroup2`, `resctrl`, …).
    pub kind: String,
    /// Number of its device, `major:minor`; major 0 if the file system has no block device.
    pub device: String,
    /// Options of the mount and of the file system (`rw`, `cpuset`, …).
    pub options: Vec<String>,
}

impl Mount {
    /// True if it is read-only.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}

/// Version of a cgroup hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// One hierarchy per controller or set of controllers.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The mount of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerMount {
    /// Version of its hierarchy.
    pub version: Version,
    /// Its mount.
    pub mount: Mount,
}

impl ControllerMount {
    /// Directory of a task's group, from its path in [`super::proc_cgroup`]; `None` if the group is
    /// outside of the mounted part.
    pub fn group_dir(&self, path: &str) -> Option<String> {
        let root = self.mount.root.trim_end_matches('/');
        let below = path.strip_prefix(root)?;
        if !below.is_empty() && !below.starts_with('/') {
            return None;
        }
        let below = below.trim_end_matches('/');
        Some(format!("{}{below}", self.mount.path.trim_end_matches('/')))
    }
}

/// Parses the file, in the kernel's order (later mounts cover earlier ones).
///
/// # Errors
/// [`ProcError`] if a line lacks a field.
pub fn parse(text: &str) -> Result<Vec<Mount>, ProcError> {
    text.lines().map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<Mount, ProcError> {
    // The optional fields end at the single hyphen; the escaped fields cannot contain " - ".
    let (head, tail) = line.split_once(" - ").ok_or_else(|| fail(line))?;
    let head: Vec<&str> = head.split(' ').collect();
    let tail: Vec<&str> = tail.split(' ').collect();
    let (device, root, path, options) = match head.as_slice() {
        [_, _, device, root, path, options, ..] => (device, root, path, options),
        _ => return Err(fail(line)),
    };
    let (kind, super_options) = match tail.as_slice() {
        [kind, _, options, ..] => (kind, *options),
        [kind, _] => (kind, ""),
        _ => return Err(fail(line)),
    };
    Ok(Mount {
        path: unescape(path),
        root: unescape(root),
        kind: (*kind).to_owned(),
        device: (*device).to_owned(),
        options: options
            .split(',')
            .chain(super_options.split(','))
            .filter(|option| !option.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

fn fail(line: &str) -> ProcError {
    ProcError::new("a line of mountinfo", line)
}

/// The v1 hierarchy with a controller, if it is mounted.
pub fn v1_mount(mounts: &[Mount], controller: &str) -> Option<ControllerMount> {
    mounts
        .iter()
        .rev()
        .find(|mount| {
            mount.kind == "cgroup" && mount.options.iter().any(|option| option == controller)
        })
        .map(|mount| ControllerMount { version: Version::V1, mount: mount.clone() })
}

/// The v2 hierarchy, if it is mounted; its `cgroup.controllers` lists its controllers.
pub fn v2_mount(mounts: &[Mount]) -> Option<ControllerMount> {
    mounts
        .iter()
        .rev()
        .find(|mount| mount.kind == "cgroup2")
        .map(|mount| ControllerMount { version: Version::V2, mount: mount.clone() })
}

/// Finds a controller: in its v1 hierarchy, else in the v2 hierarchy if that has it; `None` if
/// neither does.
///
/// # Errors
/// [`crate::HostError`] if the mount table or the v2 root's controllers cannot be read.
pub fn controller(
    host: &dyn crate::Host,
    controller: &str,
) -> Result<Option<ControllerMount>, crate::HostError> {
    controller_in(&mut |path| host.read_text(path), controller)
}

/// The same for files that `read` returns.
///
/// # Errors
/// Those of `read`; [`crate::HostError::Unexpected`].
pub fn controller_in(
    read: &mut dyn FnMut(&str) -> Result<String, crate::HostError>,
    controller: &str,
) -> Result<Option<ControllerMount>, crate::HostError> {
    let path = crate::paths::own_mountinfo();
    let mounts = parse(&read(&path)?).map_err(|error| error.at(&path))?;
    if let Some(found) = v1_mount(&mounts, controller) {
        return Ok(Some(found));
    }
    let Some(found) = v2_mount(&mounts) else {
        return Ok(None);
    };
    let controllers = read(&crate::paths::cgroup_controllers(&found.mount.path))?;
    Ok(controllers.split_ascii_whitespace().any(|name| name == controller).then_some(found))
}

/// Decodes octal escapes: `\040` is a blank, `\011` a tab, `\012` a newline, `\134` a backslash.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

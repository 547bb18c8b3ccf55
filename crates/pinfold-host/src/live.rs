//! The running host.
//!
//! Files are opened relative to one descriptor of `/` with `openat2(RESOLVE_IN_ROOT)`. A kernel
//! file is opened once and read to its end, without its size: `/proc` and `/sys` report 0 or 4096.
//! A value is written with one `write(2)`, without truncation or creation, because the kernel takes
//! each write as one command. Only files and groups of the kernel are changed.

mod kernel_files;

use std::os::fd::OwnedFd;

use pinfold_model::{CpuSet, NodeId, Policy, Setting, SettingsFile, TaskId, Tid};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::fd::{read_at_most, read_into, read_to_end};
use crate::process::Signaled;
use crate::{EachFile, Host, HostError, HostMut, SettingBackend, Writable, files, raw};

/// Buffer size for directory entries, in bytes; each entry takes about 32.
const LIST_BYTES: usize = 16 << 10;

/// The running host.
///
/// ```
/// use pinfold_host::{Host, LiveHost, process};
///
/// let host = LiveHost::new()?;
/// let mask = host.affinity(process::own_tid())?;
/// assert!(!mask.is_empty());
/// # Ok::<(), pinfold_host::HostError>(())
/// ```
#[derive(Debug)]
pub struct LiveHost {
    root: OwnedFd,
    setting_backends: Vec<Box<dyn SettingBackend>>,
}

impl LiveHost {
    /// Opens the host.
    ///
    /// # Errors
    /// [`HostError`] if `/` cannot be opened or the kernel is older than 5.6 (no `openat2`).
    pub fn new() -> Result<Self, HostError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty())
            .map_err(|errno| HostError::file("open", "/", errno))?;
        let host = Self { root, setting_backends: Vec::new() };
        host.open("/", flags, "open")?;
        Ok(host)
    }

    /// Adds an interface to the program that manages settings.
    #[must_use]
    pub fn with_setting_backend(mut self, keeper: impl SettingBackend + 'static) -> Self {
        self.setting_backends.push(Box::new(keeper));
        self
    }

    fn keeper(&self, setting: &Setting) -> Result<&dyn SettingBackend, HostError> {
        let keeper = self.setting_backends.iter().find(|one| one.is(&setting.keeper));
        keeper.map(Box::as_ref).ok_or_else(|| HostError::no_setting_backend(setting))
    }

    fn open(
        &self,
        path: &str,
        flags: OFlags,
        operation: &'static str,
    ) -> Result<OwnedFd, HostError> {
        let flags = flags | OFlags::CLOEXEC;
        loop {
            let opened =
                rustix::fs::openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
            match opened {
                Ok(descriptor) => return Ok(descriptor),
                // EAGAIN: because of a concurrent rename or mount, the kernel could not ensure that
                // `..` stays inside; openat2(2) says to try again.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(HostError::file(operation, path, errno)),
            }
        }
    }

    /// Opens the parent directory of a path; also returns the last component.
    fn open_parent<'p>(
        &self,
        path: &'p str,
        operation: &'static str,
    ) -> Result<(OwnedFd, &'p str), HostError> {
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        if name.is_empty() || name == "." || name == ".." {
            return Err(HostError::file(operation, path, Errno::INVAL));
        }
        let parent = if parent.is_empty() { "/" } else { parent };
        let descriptor = self
            .open(parent, OFlags::PATH | OFlags::DIRECTORY, operation)
            .map_err(|error| error.with_path(path))?;
        Ok((descriptor, name))
    }
}

/// Opens a file for reading below a directory, without following links.
fn open_below(directory: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    loop {
        match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve) {
            // As in `LiveHost::open`.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

impl Host for LiveHost {
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError> {
        let descriptor = self.open(path, OFlags::RDONLY, "read")?;
        read_to_end(&descriptor).map_err(|errno| HostError::file("read", path, errno))
    }

    fn read_at_most(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, HostError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let descriptor = self.open(path, flags, "read")?;
        let fail = |errno| HostError::file("read", path, errno);
        let stat = rustix::fs::fstat(&descriptor).map_err(fail)?;
        if let Some(kind) = files::why_not_regular(FileType::from_raw_mode(stat.st_mode)) {
            let why = format!("is {kind}, not a regular file");
            return Err(HostError::Unexpected { path: path.to_owned(), why });
        }
        if usize::try_from(stat.st_size).is_ok_and(|size| size > most) {
            return Ok(None);
        }
        // A file of the kernel has no size, and another one may grow.
        read_at_most(&descriptor, most).map_err(fail)
    }

    fn read_each(
        &self,
        directory: &str,
        names: &[String],
        file: &str,
        each: &mut EachFile<'_>,
    ) -> Result<(), HostError> {
        // The directory's path is resolved once, not for each name.
        let directory_at = match self.open(directory, OFlags::PATH | OFlags::DIRECTORY, "read") {
            Ok(descriptor) => descriptor,
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error),
        };
        let (mut path, mut bytes) = (String::new(), Vec::new());
        for name in names {
            path.clear();
            path.extend([name, "/", file]);
            let read = open_below(&directory_at, &path)
                .and_then(|descriptor| read_into(&descriptor, &mut bytes))
                .map_err(|errno| HostError::file("read", &format!("{directory}/{path}"), errno));
            match read {
                Ok(()) => each(name, &bytes)?,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>, HostError> {
        let descriptor = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY, "list")?;
        let mut names = Vec::new();
        // Large enough for all threads of a large machine: the kernel walks `/proc/PID/task` from
        // the start for each call.
        let mut room = Vec::with_capacity(LIST_BYTES);
        let mut entries = rustix::fs::RawDir::new(descriptor, room.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| HostError::file("list", path, errno))?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn link(&self, path: &str) -> Result<String, HostError> {
        // One call instead of three: no component of a path to a kernel link leads out of `/`.
        rustix::fs::readlinkat(&self.root, path.trim_start_matches('/'), Vec::new())
            .map(|target| target.to_string_lossy().into_owned())
            .map_err(|errno| HostError::file("read link", path, errno))
    }

    fn exists(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH, "find").is_ok()
    }

    fn link_count(&self, path: &str) -> Result<u64, HostError> {
        let descriptor = self.open(path, OFlags::PATH, "count links of")?;
        rustix::fs::statx(&descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK)
            .map(|stat| u64::from(stat.stx_nlink))
            .map_err(|errno| HostError::file("count links of", path, errno))
    }

    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError> {
        raw::sched_getaffinity(tid).map_err(|source| HostError::Thread {
            call: "sched_getaffinity",
            tid: tid.0,
            source,
        })
    }

    fn policy(&self, tid: Tid) -> Result<Policy, HostError> {
        raw::sched_getattr(tid).map(raw::SchedAttr::policy).map_err(|source| HostError::Thread {
            call: "sched_getattr",
            tid: tid.0,
            source,
        })
    }

    fn setting(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        self.keeper(setting)?.get(setting)
    }

    fn setting_files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        self.keeper(setting)?.files(setting)
    }

    fn is_live(&self) -> bool {
        true
    }
}

impl Writable for LiveHost {}

impl HostMut for LiveHost {
    fn write(&self, path: &str, value: &[u8]) -> Result<(), HostError> {
        let fail = |errno| HostError::file("write", path, errno).with_value(value);
        let descriptor =
            self.open(path, OFlags::WRONLY, "write").map_err(|error| error.with_value(value))?;
        kernel_files::require_values(&descriptor, path)?;
        let written = loop {
            match rustix::io::write(&descriptor, value) {
                // A signal interrupted before anything was written: repeat the same single write.
                Err(Errno::INTR) => {}
                other => break other.map_err(fail)?,
            }
        };
        if written == value.len() { Ok(()) } else { Err(fail(Errno::IO)) }
    }

    fn make_dir(&self, path: &str) -> Result<(), HostError> {
        let (parent, name) = self.open_parent(path, "make directory")?;
        kernel_files::require_groups(&parent, path)?;
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))
            .map_err(|errno| HostError::file("make directory", path, errno))
    }

    fn remove_dir(&self, path: &str) -> Result<(), HostError> {
        let (parent, name) = self.open_parent(path, "remove directory")?;
        kernel_files::require_groups(&parent, path)?;
        rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)
            .map_err(|errno| HostError::file("remove directory", path, errno))
    }

    fn set_affinity(&self, tid: Tid, mask: &CpuSet) -> Result<(), HostError> {
        raw::sched_setaffinity(tid, mask).map_err(|source| HostError::Thread {
            call: "sched_setaffinity",
            tid: tid.0,
            source,
        })
    }

    fn set_policy(&self, tid: Tid, policy: Policy) -> Result<(), HostError> {
        raw::sched_getattr(tid)
            .and_then(|current| raw::sched_setattr(tid, &current.with_policy(policy)))
            .map_err(|source| HostError::Thread { call: "sched_setattr", tid: tid.0, source })
    }

    fn migrate_pages(&self, pid: Tid, from: &[NodeId], to: &[NodeId]) -> Result<u64, HostError> {
        raw::migrate_pages(pid, from, to).map_err(|source| HostError::Thread {
            call: "migrate_pages",
            tid: pid.0,
            source,
        })
    }

    /// Uses a pidfd, so that the PID cannot be reused before the signal is sent.
    fn signal(&self, process: TaskId, signal: Signaled) -> Result<(), HostError> {
        let pid = i32::try_from(process.tid.0).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| fail(process, Errno::SRCH))?;
        let held = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| fail(process, errno))?;
        if !crate::process::task_alive(self, process)? {
            return Err(fail(process, Errno::SRCH));
        }
        rustix::process::pidfd_send_signal(held, signal.number())
            .map_err(|errno| fail(process, errno))
    }

    fn set_setting(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError> {
        self.keeper(setting)?.set(setting, value)
    }

    fn put_setting_files(
        &self,
        setting: &Setting,
        files: &[SettingsFile],
    ) -> Result<bool, HostError> {
        self.keeper(setting)?.put_files(setting, files)
    }
}

fn fail(process: TaskId, errno: Errno) -> HostError {
    HostError::Thread { call: "pidfd_send_signal", tid: process.tid.0, source: errno.into() }
}

#[cfg(test)]
mod tests;

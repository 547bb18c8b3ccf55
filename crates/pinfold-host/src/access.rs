//! Read and write access to a host, as traits.

use std::borrow::Cow;

use pinfold_model::{CpuSet, NodeId, Policy, Setting, SettingsFile, TaskId, Tid};

use crate::{HostError, process};

/// Callback of [`Host::read_each`]: takes a name and the content of its file.
pub type EachFile<'e> = dyn FnMut(&str, &[u8]) -> Result<(), HostError> + 'e;

/// Read access to a host. Paths are absolute.
pub trait Host {
    /// Reads a whole file.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError>;

    /// Reads a whole regular file, unless it is longer than `most` bytes: then `None`. Never waits,
    /// as for a writer of a pipe.
    ///
    /// # Errors
    /// [`HostError`] with path and errno; `EINVAL` if it is no regular file.
    fn read_at_most(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, HostError> {
        self.read(path).map(|bytes| Some(bytes).filter(|bytes| bytes.len() <= most))
    }

    /// Lists the entries of a directory by name, sorted.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn list(&self, path: &str) -> Result<Vec<String>, HostError>;

    /// Target of a symbolic link, as stored.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn link(&self, path: &str) -> Result<String, HostError>;

    /// True if the path exists.
    fn exists(&self, path: &str) -> bool;

    /// Hard-link count of a directory. That of `/proc/PID/task` is 2 plus the number of threads,
    /// which makes it the cheapest way to detect new threads.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn link_count(&self, path: &str) -> Result<u64, HostError>;

    /// Affinity mask of a thread (`sched_getaffinity(2)`).
    ///
    /// # Errors
    /// [`HostError`], `ESRCH` if the thread no longer exists.
    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError>;

    /// Scheduling policy of a thread (`sched_getattr(2)`).
    ///
    /// # Errors
    /// [`HostError`], `ESRCH` if the thread no longer exists.
    fn policy(&self, tid: Tid) -> Result<Policy, HostError>;

    /// Value of a setting that another program manages; `None` if it has none.
    ///
    /// # Errors
    /// [`HostError::Kept`]; [`HostError::is_gone`] is true if the object does not exist.
    fn setting(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        Err(HostError::no_setting_backend(setting))
    }

    /// The files in which that program stores the setting, if they have to be restored in addition
    /// to the value; else empty.
    ///
    /// # Errors
    /// [`HostError`] if a file exists and cannot be read.
    fn setting_files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        Err(HostError::no_setting_backend(setting))
    }

    /// Reads the file `DIRECTORY/NAME/FILE` for each name, such as those of all threads of a
    /// process, and passes it to `each`. Names that no longer exist are skipped.
    ///
    /// # Errors
    /// As [`Host::read`], at the first file that cannot be read for another reason; also any error
    /// of `each`.
    fn read_each(
        &self,
        directory: &str,
        names: &[String],
        file: &str,
        each: &mut EachFile<'_>,
    ) -> Result<(), HostError> {
        for name in names {
            match self.read(&format!("{directory}/{name}/{file}")) {
                Ok(bytes) => each(name, &bytes)?,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// True if this is the running host.
    fn is_live(&self) -> bool;

    /// Reads a file as text; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// As [`Host::read`].
    fn read_text(&self, path: &str) -> Result<String, HostError> {
        self.read(path).map(|bytes| lossy(&bytes).into_owned())
    }
}

/// Converts bytes to text; those that are not UTF-8 become U+FFFD. Valid UTF-8, the usual case, is
/// checked in one pass.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

/// Write access to a host: the live one or a simulated one.
pub trait HostMut: Host + Writable {
    /// One `write(2)` of the whole value to an existing file, opened without truncation.
    ///
    /// # Errors
    /// [`HostError`] with path, value and errno.
    fn write(&self, path: &str, value: &[u8]) -> Result<(), HostError>;

    /// Creates one directory.
    ///
    /// # Errors
    /// [`HostError`] with path and errno; `EEXIST` if it exists already.
    fn make_dir(&self, path: &str) -> Result<(), HostError>;

    /// Removes one empty directory (or cgroup).
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn remove_dir(&self, path: &str) -> Result<(), HostError>;

    /// Sets a thread's affinity mask.
    ///
    /// # Errors
    /// [`HostError`]; `EINVAL` if no CPU of the mask is in the thread's cpuset.
    fn set_affinity(&self, tid: Tid, mask: &CpuSet) -> Result<(), HostError>;

    /// Sets a thread's scheduling policy.
    ///
    /// # Errors
    /// [`HostError`]; `EPERM` without permission, or under `RT_GROUP_SCHED` without real-time run
    /// time.
    fn set_policy(&self, tid: Tid, policy: Policy) -> Result<(), HostError>;

    /// Moves the pages of a process from the nodes `from` to the nodes `to` (`migrate_pages(2)`).
    /// Returns the number of pages that could not be moved; the kernel does not count pages that it
    /// considers unmovable from the start.
    ///
    /// # Errors
    /// [`HostError`]; `EPERM` for another user's process, `EINVAL` if no node of `to` has memory.
    fn migrate_pages(&self, pid: Tid, from: &[NodeId], to: &[NodeId]) -> Result<u64, HostError>;

    /// Sends a signal to a process, but not to a later process with the same PID.
    ///
    /// # Errors
    /// [`HostError::Thread`]: `ESRCH` if it no longer exists, `EPERM` without permission.
    fn signal(&self, process: TaskId, signal: process::Signaled) -> Result<(), HostError>;

    /// Changes a setting through the program that manages it; `None` removes it, as far as that
    /// program supports removal.
    ///
    /// # Errors
    /// [`HostError::Kept`].
    fn set_setting(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError>;

    /// Restores the files of a setting; true if one of them differed.
    ///
    /// # Errors
    /// [`HostError`]; [`HostError::Kept`] if the program does not reload them.
    fn put_setting_files(
        &self,
        setting: &Setting,
        files: &[SettingsFile],
    ) -> Result<bool, HostError>;
}

/// Marks the hosts that can be changed. Only [`LiveHost`](crate::LiveHost) and the simulated host
/// implement it, and [`RecordingHost`](crate::RecordingHost) of one of these.
#[doc(hidden)]
pub trait Writable {}

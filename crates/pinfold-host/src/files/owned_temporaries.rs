//! Temporary files and folders that belong to one process.
//!
//! A killed process leaves them behind. Their names contain its PID and start time (PIDs are
//! reused), so that the next process and `pinfold undo` can remove them: `vm-4711-982734-0` belongs
//! to process 4711, started 982734 ticks after boot. The process also holds a lock on each, because
//! PIDs and start times differ in another PID or time namespace that shares the folder.

use std::os::fd::OwnedFd;

use pinfold_model::{TaskId, Tid};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::temporary::writer_of;
use super::{cache_dir, dirs, list, remove, remove_tree};
use crate::{Host, HostError, paths, proc_stat, process};

/// Kinds of temporary files and folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemporaryKind {
    /// A folder in memory with a guest's disks.
    Memory,
    /// A folder with the sockets of a virtual machine.
    Sockets,
    /// A folder with files of a benchmark.
    Measured,
    /// A copy of a program.
    Program,
}

/// The lock on a temporary file or folder, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct OwnedLock(#[expect(dead_code, reason = "it is locked")] OwnedFd);

impl TemporaryKind {
    const ALL: [Self; 4] = [Self::Memory, Self::Sockets, Self::Measured, Self::Program];

    /// The usual parent folder; it may not exist.
    ///
    /// # Errors
    /// [`HostError::Untrusted`] if the user has no cache directory.
    pub fn folder(self) -> Result<String, HostError> {
        Ok(match self {
            Self::Memory => paths::shared_memory(),
            Self::Sockets => dirs::runtime_path(&dirs::User::current()),
            Self::Measured => format!("{}/measure", cache_dir()?),
            Self::Program => format!("{}/bin", cache_dir()?),
        })
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Memory => "pinfold-",
            Self::Sockets => "vm-",
            Self::Measured => "files-",
            Self::Program => "pinload-",
        }
    }

    /// The name of the temporary with this number, for this process.
    ///
    /// # Errors
    /// [`HostError`] if the start time of this process cannot be read.
    pub fn name(self, host: &dyn Host, number: u32) -> Result<String, HostError> {
        let own = proc_stat::at(host, &paths::own_stat())?.map_or(0, |stat| stat.task().start_time);
        Ok(format!("{}{}-{own}-{number}", self.prefix(), process::own_pid()))
    }

    /// Locks a temporary that this process has just created.
    ///
    /// # Errors
    /// [`HostError::File`] if it cannot be opened or locked.
    pub fn hold(path: &str) -> Result<OwnedLock, HostError> {
        lock(path).map(OwnedLock).map_err(|errno| HostError::file("lock", path, errno))
    }

    /// Paths of the temporaries in a folder whose process has ended. Those of other users are left
    /// out.
    ///
    /// # Errors
    /// [`HostError`] if the folder, or a process, cannot be read.
    pub fn orphans(self, host: &dyn Host, folder: &str) -> Result<Vec<String>, HostError> {
        let mut found = Vec::new();
        let names = match list(folder) {
            // A folder that this user may not read, such as one in root's HOME, contains none of his.
            Err(error) if error.is_gone() || error.is_permission() => return Ok(found),
            names => names?,
        };
        for name in names {
            let Some(owner) = name.strip_prefix(self.prefix()).and_then(owner_of) else { continue };
            let path = format!("{}/{name}", folder.trim_end_matches('/'));
            if is_own(&path) && !process::task_alive(host, owner)? && lock(&path).is_ok() {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Removes the temporaries in a folder whose process has ended.
    ///
    /// # Errors
    /// [`HostError`] if the folder cannot be read or an entry cannot be removed.
    pub fn remove_orphans(self, host: &dyn Host, folder: &str) -> Result<(), HostError> {
        self.orphans(host, folder)?.iter().try_for_each(|path| remove_orphan(path))
    }
}

/// Paths of all temporaries in the usual folders whose process has ended.
///
/// # Errors
/// [`HostError`] if a folder cannot be read.
pub fn orphans(host: &dyn Host) -> Result<Vec<String>, HostError> {
    let mut found = Vec::new();
    for kind in TemporaryKind::ALL {
        // A user without a home directory has none.
        let Ok(folder) = kind.folder() else { continue };
        found.extend(kind.orphans(host, &folder)?);
    }
    Ok(found)
}

/// Paths of temporary files of [`write_atomic`](super::write_atomic) in a folder, left by a killed
/// process or a power failure; the target still has its old content.
///
/// # Errors
/// [`HostError`] if the folder cannot be read.
pub fn temporaries(host: &dyn Host, folder: &str) -> Result<Vec<String>, HostError> {
    let names = match list(folder) {
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        names => names?,
    };
    let paths = names
        .into_iter()
        .filter(|name| has_ended(host, name))
        .map(|name| format!("{folder}/{name}"));
    Ok(paths.filter(|path| is_own(path) && lock(path).is_ok()).collect())
}

fn has_ended(host: &dyn Host, name: &str) -> bool {
    writer_of(name).is_some_and(|tid| !host.exists(&paths::task_stat(tid, tid)))
}

/// Locks such a file while it is written, because a TID has no meaning in another PID namespace
/// that shares the folder. Does nothing on a file system without locks.
pub(super) fn mark_in_use(file: &OwnedFd) {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(_) => {}
    }
}

/// Removes a file or folder that [`orphans`] found; it may already be gone.
///
/// # Errors
/// [`HostError::File`] if it cannot be removed.
pub fn remove_orphan(path: &str) -> Result<(), HostError> {
    let removed = if super::is_dir(path) { remove_tree(path) } else { remove(path) };
    match removed {
        Err(error) if error.is_gone() => Ok(()),
        answer => answer,
    }
}

fn owner_of(rest: &str) -> Option<TaskId> {
    let parts: Vec<&str> = rest.split('-').collect();
    let [tid, start, number] = parts.as_slice() else { return None };
    number.parse::<u32>().ok()?;
    Some(TaskId { tid: Tid(tid.parse().ok()?), start_time: start.parse().ok()? })
}

fn lock(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// True if the file or folder belongs to this user; false for a link.
fn is_own(path: &str) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        stat.st_uid == process::own_uid()
            && matches!(kind, FileType::Directory | FileType::RegularFile)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::LiveHost;
    use crate::files::{make_dirs, write_atomic};

    #[test]
    fn what_a_process_left_is_reported_by_number_and_start_time() {
        let (folder, host) = (tempfile::tempdir().unwrap(), LiveHost::new().unwrap());
        let folder = folder.path().to_str().unwrap();
        let own = TemporaryKind::Sockets.name(&host, 0).unwrap();
        // PID of a running process, with a different start time.
        let pid = process::own_pid();
        let left = [format!("vm-{pid}-1-0"), "vm-4194999-5-0".to_owned()];
        // A locked one belongs to a process in another namespace; the last has another name format.
        let locked = "vm-4194999-7-0".to_owned();
        for name in left.iter().chain([&own, &locked, &"vm-4194999-0".to_owned()]) {
            make_dirs(&format!("{folder}/{name}")).unwrap();
            write_atomic(&format!("{folder}/{name}/qmp"), b"").unwrap();
        }
        let held = TemporaryKind::hold(&format!("{folder}/{locked}")).unwrap();
        make_dirs(&format!("{folder}/vm-x-1-0")).unwrap();
        std::os::unix::fs::symlink("/etc", format!("{folder}/vm-4194999-6-0")).unwrap();
        let mut expected: Vec<String> =
            left.iter().map(|name| format!("{folder}/{name}")).collect();
        expected.sort();
        assert_eq!(TemporaryKind::Sockets.orphans(&host, folder).unwrap(), expected);
        TemporaryKind::Sockets.remove_orphans(&host, folder).unwrap();
        let stay = ["vm-4194999-0", "vm-4194999-6-0", &locked, &own, "vm-x-1-0"];
        let stay: BTreeSet<&str> = stay.into_iter().collect();
        assert_eq!(list(folder).unwrap(), stay.into_iter().collect::<Vec<_>>());
        drop(held);
        assert_eq!(TemporaryKind::Sockets.orphans(&host, folder).unwrap().len(), 1);
        assert!(TemporaryKind::Sockets.orphans(&host, "/nonexistent").unwrap().is_empty());
    }

    #[test]
    fn a_file_whose_replacement_was_cut_off_is_found_and_one_that_is_written_is_not() {
        let (folder, host) = (tempfile::tempdir().unwrap(), LiveHost::new().unwrap());
        let folder = folder.path().to_str().unwrap();
        let (ended, own) = (".1-2.jsonl.4194999.tmp", super::super::temporary::name("1-2.jsonl"));
        let locked = ".a.jsonl.4194998.tmp";
        for name in [ended, &own, locked, "1-2.jsonl", ".hidden", ".x.tmp"] {
            std::fs::write(format!("{folder}/{name}"), b"half").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", format!("{folder}/.b.4194997.tmp")).unwrap();
        let held = TemporaryKind::hold(&format!("{folder}/{locked}")).unwrap();
        assert_eq!(temporaries(&host, folder).unwrap(), [format!("{folder}/{ended}")]);
        drop(held);
        assert_eq!(temporaries(&host, folder).unwrap().len(), 2);
        assert!(temporaries(&host, "/nonexistent").unwrap().is_empty());
        assert_eq!(writer_of(&own), Some(process::own_tid()));
    }
}

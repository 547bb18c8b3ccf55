//! Temporary files and folders that belong to one process and go with it.
//!
//! A process that is killed leaves them behind. Their names say whose they are, by its number and
//! its start time (a number alone is used again), so that the next one, and `pinfold undo`, can
//! remove them: `vm-4711-982734-0` is of process 4711, started 982734 ticks after boot. The
//! process also holds a lock on it as long as it lives, because from another PID or time
//! namespace, which may share the folder, its number or its start time is not what it is here.

use std::os::fd::OwnedFd;

use pinfold_model::{TaskId, Tid};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{cache_dir, dirs, list, remove, remove_tree};
use crate::{Host, HostError, paths, proc_stat, process};

/// What they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// A folder in memory with a guest's disks.
    Memory,
    /// A folder with the sockets of a virtual machine.
    Sockets,
    /// A folder of files that are measured.
    Measured,
    /// A copy of a program.
    Program,
}

/// The lock on one of them, held until this is dropped or the process ends.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "it is held")] OwnedFd);

impl Owned {
    const ALL: [Self; 4] = [Self::Memory, Self::Sockets, Self::Measured, Self::Program];

    /// The folder in which they usually lie; it need not be there.
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

    /// The name of this process's `number`th.
    ///
    /// # Errors
    /// [`HostError`] if the start time of this process cannot be read.
    pub fn name(self, host: &dyn Host, number: u32) -> Result<String, HostError> {
        let own = proc_stat::at(host, &paths::own_stat())?.map_or(0, |stat| stat.task().start_time);
        Ok(format!("{}{}-{own}-{number}", self.prefix(), process::own_pid()))
    }

    /// Locks one that this process has just made.
    ///
    /// # Errors
    /// [`HostError::File`].
    pub fn hold(path: &str) -> Result<Held, HostError> {
        lock(path).map(Held).map_err(|errno| HostError::file("lock", path, errno))
    }

    /// Those in a folder whose process has ended, with their paths. What another user made is
    /// left out.
    ///
    /// # Errors
    /// [`HostError`] if the folder, or a process, cannot be read.
    pub fn orphans(self, host: &dyn Host, folder: &str) -> Result<Vec<String>, HostError> {
        let mut found = Vec::new();
        let names = match list(folder) {
            Err(error) if error.is_gone() => return Ok(found),
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

    /// Removes those in a folder whose process has ended.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn remove_orphans(self, host: &dyn Host, folder: &str) -> Result<(), HostError> {
        self.orphans(host, folder)?.iter().try_for_each(|path| remove_orphan(path))
    }
}

/// All in their usual folders whose process has ended.
///
/// # Errors
/// [`HostError`] if a folder cannot be read.
pub fn orphans(host: &dyn Host) -> Result<Vec<String>, HostError> {
    let mut found = Vec::new();
    for kind in Owned::ALL {
        // A user without a home has none there.
        let Ok(folder) = kind.folder() else { continue };
        found.extend(kind.orphans(host, &folder)?);
    }
    Ok(found)
}

/// Files of a folder that were being replaced when their process was killed or the power went, with
/// their paths; the old content is where it was.
///
/// # Errors
/// [`HostError`] if the folder cannot be read.
pub fn temporaries(host: &dyn Host, folder: &str) -> Result<Vec<String>, HostError> {
    let names = match list(folder) {
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        names => names?,
    };
    let has_ended = |name: &String| {
        writer_of(name).is_some_and(|tid| !host.exists(&paths::task_stat(tid, tid)))
    };
    let paths = names.into_iter().filter(has_ended).map(|name| format!("{folder}/{name}"));
    Ok(paths.filter(|path| is_own(path) && lock(path).is_ok()).collect())
}

/// Name of the file that takes the place of `name` once it is whole.
pub(super) fn temporary(name: &str) -> String {
    format!(".{name}.{}.tmp", process::own_tid())
}

/// The thread that writes such a file.
pub(super) fn writer_of(temporary: &str) -> Option<Tid> {
    let (_, tid) = temporary.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    tid.parse().ok().map(Tid)
}

/// Locks such a file while it is written: in another PID namespace, which may share the folder, the
/// thread's number says nothing. A file system without locks has none.
pub(super) fn mark_in_use(file: &OwnedFd) {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(_) => {}
    }
}

/// Removes a file or folder that [`orphans`] found; another process may be faster.
///
/// # Errors
/// [`HostError::File`].
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

/// True for a file or folder of this user; a link is not one.
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
        let own = Owned::Sockets.name(&host, 0).unwrap();
        // The number of a process that runs, with the start time of another one.
        let pid = process::own_pid();
        let left = [format!("vm-{pid}-1-0"), "vm-4194999-5-0".to_owned()];
        // One that is locked is of a process of another namespace; the last is named otherwise.
        let locked = "vm-4194999-7-0".to_owned();
        for name in left.iter().chain([&own, &locked, &"vm-4194999-0".to_owned()]) {
            make_dirs(&format!("{folder}/{name}")).unwrap();
            write_atomic(&format!("{folder}/{name}/qmp"), b"").unwrap();
        }
        let held = Owned::hold(&format!("{folder}/{locked}")).unwrap();
        make_dirs(&format!("{folder}/vm-x-1-0")).unwrap();
        std::os::unix::fs::symlink("/etc", format!("{folder}/vm-4194999-6-0")).unwrap();
        let mut expected: Vec<String> =
            left.iter().map(|name| format!("{folder}/{name}")).collect();
        expected.sort();
        assert_eq!(Owned::Sockets.orphans(&host, folder).unwrap(), expected);
        Owned::Sockets.remove_orphans(&host, folder).unwrap();
        let stay = ["vm-4194999-0", "vm-4194999-6-0", &locked, &own, "vm-x-1-0"];
        let stay: BTreeSet<&str> = stay.into_iter().collect();
        assert_eq!(list(folder).unwrap(), stay.into_iter().collect::<Vec<_>>());
        drop(held);
        assert_eq!(Owned::Sockets.orphans(&host, folder).unwrap().len(), 1);
        assert!(Owned::Sockets.orphans(&host, "/nonexistent").unwrap().is_empty());
    }

    #[test]
    fn a_file_whose_replacement_was_cut_off_is_found_and_one_that_is_written_is_not() {
        let (folder, host) = (tempfile::tempdir().unwrap(), LiveHost::new().unwrap());
        let folder = folder.path().to_str().unwrap();
        let (ended, own) = (".1-2.jsonl.4194999.tmp", temporary("1-2.jsonl"));
        let locked = ".a.jsonl.4194998.tmp";
        for name in [ended, &own, locked, "1-2.jsonl", ".hidden", ".x.tmp"] {
            std::fs::write(format!("{folder}/{name}"), b"half").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", format!("{folder}/.b.4194997.tmp")).unwrap();
        let held = Owned::hold(&format!("{folder}/{locked}")).unwrap();
        assert_eq!(temporaries(&host, folder).unwrap(), [format!("{folder}/{ended}")]);
        drop(held);
        assert_eq!(temporaries(&host, folder).unwrap().len(), 2);
        assert!(temporaries(&host, "/nonexistent").unwrap().is_empty());
        assert_eq!(writer_of(&own), Some(process::own_tid()));
    }
}

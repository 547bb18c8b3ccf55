//! Temporary files and folders that belong to one process and go with it.
//!
//! A process that is killed leaves them behind. Their names say whose they are, by its number and
//! its start time (a number alone is used again), so that the next one, and `pinfold undo`, can
//! remove them: `vm-4711-982734-0-4026531836.4026531834` is the first of process 4711, started
//! 982734 ticks after boot, both as its PID and time namespace count them. In others the same
//! numbers are another process's or none's, so that what belongs to another namespace is left alone.

use pinfold_model::{TaskId, Tid};
use rustix::fs::{AtFlags, CWD, FileType};

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
        let here = namespaces(host);
        Ok(format!("{}{}-{own}-{number}-{here}", self.prefix(), process::own_pid()))
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
        let here = namespaces(host);
        for name in names {
            // Names of older versions say nothing of namespaces.
            if name.rsplit('-').next().is_some_and(|at| at.contains('.') && at != here) {
                continue;
            }
            let Some(owner) = name.strip_prefix(self.prefix()).and_then(owner_of) else { continue };
            let path = format!("{}/{name}", folder.trim_end_matches('/'));
            if is_own(&path) && !process::task_alive(host, owner)? {
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

/// The PID and time namespace of this process, `4026531836.4026531834`.
fn namespaces(host: &dyn Host) -> String {
    let number = |kind: &str| {
        // Kernels without time namespaces have no such link.
        let link = host.link(&paths::own_namespace(kind)).unwrap_or_default();
        link.chars().filter(char::is_ascii_digit).collect::<String>()
    };
    format!("{}.{}", number("pid"), number("time"))
}

fn owner_of(rest: &str) -> Option<TaskId> {
    let mut parts = rest.split('-');
    let (tid, start) = (parts.next()?, parts.next()?);
    Some(TaskId { tid: Tid(tid.parse().ok()?), start_time: start.parse().ok()? })
}

/// True for a file or folder of this user; links are nobody's.
fn is_own(path: &str) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        stat.st_uid == process::own_uid()
            && matches!(kind, FileType::Directory | FileType::RegularFile)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LiveHost;
    use crate::user::{make_dirs, write_atomic};

    #[test]
    fn what_a_process_left_is_told_by_number_and_start_time() {
        let (folder, host) = (tempfile::tempdir().unwrap(), LiveHost::new().unwrap());
        let folder = folder.path().to_str().unwrap();
        let own = Owned::Sockets.name(&host, 0).unwrap();
        // The number of a process that runs, with the start time of another one.
        let pid = process::own_pid();
        let left = [format!("vm-{pid}-1-0"), "vm-4194999-5-0".to_owned()];
        for name in left.iter().chain([&own]) {
            make_dirs(&format!("{folder}/{name}")).unwrap();
            write_atomic(&format!("{folder}/{name}/qmp"), b"").unwrap();
        }
        make_dirs(&format!("{folder}/vm-x-1-0")).unwrap();
        // Of a process that this one cannot see: its namespace is another.
        make_dirs(&format!("{folder}/vm-4194999-5-0-1.2")).unwrap();
        std::os::unix::fs::symlink("/etc", format!("{folder}/vm-4194999-6-0")).unwrap();
        let mut expected: Vec<String> =
            left.iter().map(|name| format!("{folder}/{name}")).collect();
        expected.sort();
        assert_eq!(Owned::Sockets.orphans(&host, folder).unwrap(), expected);
        Owned::Sockets.remove_orphans(&host, folder).unwrap();
        let kept = ["vm-4194999-5-0-1.2", "vm-4194999-6-0", "vm-x-1-0"];
        let mut stay: Vec<String> = kept.map(str::to_owned).into_iter().chain([own]).collect();
        stay.sort();
        assert_eq!(list(folder).unwrap(), stay);
        assert!(Owned::Sockets.orphans(&host, "/nonexistent").unwrap().is_empty());
    }
}

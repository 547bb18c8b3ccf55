//! Marks of the placements on this machine, in a directory that is independent of the state
//! directory.
//!
//! A journal is visible only to processes that use its state directory. Without a mark, a second
//! placement of the same virtual machine from another state directory would record the first one's
//! masks as the original, and restore them permanently after both were undone. A mark is named
//! after the process (PID namespace, number, start time) and contains the path of the journal. It
//! is locked like the journal, written before the journal's file is created, and removed before the
//! journal's end is written. So a mark whose journal is missing or has ended is void. Processes
//! that become vnodes of a platform have marks too, which name the platform's journal.

use std::collections::BTreeSet;

use pinfold_host::files::{self, Lock, StateDir};
use pinfold_host::{Host, HostError, paths, proc_status, process};
use pinfold_model::{TaskId, Tid};

use super::{Header, JournalError, JournalId, Record, SUFFIX};
use crate::tasks;

/// The mark directories that this user can read.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    /// The mark directory of a user ID.
    folder_of: fn(u32) -> String,
    own: String,
}

/// A locked mark.
#[derive(Debug)]
pub(super) struct Mark {
    folder: StateDir,
    name: String,
    _lock: Lock,
}

impl Marks {
    pub(super) fn of_this_machine() -> Self {
        Self { folder_of: files::placed_dir, own: files::placed_dir(process::own_uid()) }
    }

    #[cfg(test)]
    pub(super) fn in_folder(own: &str) -> Self {
        // No other user has a directory.
        Self { folder_of: |uid| format!("/nonexistent/{uid}"), own: own.to_owned() }
    }

    /// Takes the mark of a process before it is placed.
    ///
    /// # Errors
    /// [`JournalError::Busy`], [`JournalError::Placed`] or [`JournalError::Held`] if another
    /// journal has a placement of it, [`JournalError::Store`].
    pub(super) fn begin(
        &self,
        host: &dyn Host,
        JournalId { path: journal, header }: JournalId<'_>,
        task: TaskId,
    ) -> Result<Mark, JournalError> {
        let name = name_of(header, task);
        if let Some(found) = self.of_others(host, task.tid, &name)? {
            return Err(JournalError::Placed { pid: task.tid, journal: found });
        }
        remove_stale(host, &StateDir::open_visible(&self.own)?, header)?;
        loop {
            let mark = match self.lock(name.clone(), &id_of(task)) {
                Err(busy @ JournalError::Busy { .. }) => {
                    let holder = self.holder(host, JournalId { path: journal, header }, task);
                    return Err(holder.unwrap_or(busy));
                }
                mark => mark?,
            };
            let noted = mark.read()?;
            if noted.is_empty() {
                return Ok(mark);
            }
            if noted != journal && is_active(host, &noted) {
                return Err(placed(task.tid, noted, journal));
            }
            mark.remove()?;
        }
    }

    /// The error about a process whose mark names another journal, independent of the lock.
    pub(super) fn holder(
        &self,
        host: &dyn Host,
        JournalId { path: journal, header }: JournalId<'_>,
        task: TaskId,
    ) -> Option<JournalError> {
        let folder = StateDir::open_visible(&self.own).ok()?;
        let noted = folder.read(&name_of(header, task)).ok()?;
        let noted = String::from_utf8_lossy(&noted).into_owned();
        let is_held = !noted.is_empty() && noted != journal && is_active(host, &noted);
        is_held.then(|| placed(task.tid, noted, journal))
    }

    /// Takes the marks of a journal that is opened again. Empty if marks cannot be stored, which
    /// does not prevent an undo.
    ///
    /// # Errors
    /// [`JournalError::Busy`].
    pub(super) fn reopen(&self, header: &Header, journal: &str) -> Result<Vec<Mark>, JournalError> {
        let own = name_of(header, header.vm);
        let mut marks = Vec::new();
        let Ok(folder) = StateDir::open_visible(&self.own) else { return Ok(marks) };
        let names_it = |name: &String| {
            *name != own && folder.read(name).is_ok_and(|noted| noted == journal.as_bytes())
        };
        let others: Vec<String> =
            folder.list().unwrap_or_default().into_iter().filter(names_it).collect();
        for name in std::iter::once(own).chain(others) {
            match self.lock(name, &header.id) {
                Ok(mark) => marks.push(mark),
                Err(busy @ JournalError::Busy { .. }) => return Err(busy),
                Err(_) => {}
            }
        }
        // Marks that name another journal belong to that journal.
        marks.retain(|mark| mark.read().is_ok_and(|noted| noted.is_empty() || noted == journal));
        Ok(marks)
    }

    /// Paths of the marks whose journal is missing or has ended.
    pub(super) fn void(&self, host: &dyn Host) -> Result<Vec<String>, JournalError> {
        self.each_void(host, |_| Ok(()))
    }

    /// Removes void marks and returns their paths.
    pub(super) fn remove_void(&self, host: &dyn Host) -> Result<Vec<String>, JournalError> {
        self.each_void(host, |mark| Ok(mark.remove()?))
    }

    /// Calls `act` for each void mark. Locked ones are skipped: a Pinfold process is using them.
    fn each_void(
        &self,
        host: &dyn Host,
        act: impl Fn(&Mark) -> Result<(), JournalError>,
    ) -> Result<Vec<String>, JournalError> {
        let mut found = Vec::new();
        if !files::exists(&self.own) {
            return Ok(found);
        }
        let folder = StateDir::open_visible(&self.own)?;
        let is_void =
            |noted: &[u8]| !noted.is_empty() && !is_active(host, &String::from_utf8_lossy(noted));
        for name in folder.list()? {
            // A mark that disappears meanwhile belongs to a placement that was reverted.
            if !folder.read(&name).is_ok_and(|noted| is_void(&noted)) {
                continue;
            }
            let Ok(mark) = self.lock(name, "") else { continue };
            if is_void(mark.read()?.as_bytes()) {
                act(&mark)?;
                found.push(mark.folder.path_of(&mark.name));
            }
        }
        Ok(found)
    }

    fn lock(&self, name: String, id: &str) -> Result<Mark, JournalError> {
        let folder = StateDir::open_visible(&self.own)?;
        let lock = folder.lock(&name)?.ok_or_else(|| JournalError::Busy { id: id.to_owned() })?;
        Ok(Mark { folder, name, _lock: lock })
    }

    /// The path of the mark that root or the owner of a process has for it.
    fn of_others(
        &self,
        host: &dyn Host,
        pid: Tid,
        name: &str,
    ) -> Result<Option<String>, JournalError> {
        let path = paths::process_status(pid);
        let status = host.read_text(&path).map_err(JournalError::Host)?;
        let owner =
            proc_status::parse(&status).map_err(|error| JournalError::Host(error.at(&path)))?.uid;
        let folders = [0, owner].into_iter().map(self.folder_of).filter(|path| *path != self.own);
        let mut marks = folders.map(|folder| format!("{folder}/{name}"));
        Ok(marks.find(|path| files::size(path).is_some_and(|size| size > 0)))
    }
}

impl Mark {
    /// True if this is the mark of the given process.
    pub(super) fn is_of(&self, header: &Header, task: TaskId) -> bool {
        self.name == name_of(header, task)
    }

    /// The journals that the other marks of this user name.
    pub(super) fn journals_elsewhere(&self) -> Result<Vec<String>, HostError> {
        let names = self.folder.list()?.into_iter().filter(|name| *name != self.name);
        // A mark that disappears meanwhile belongs to a placement that was reverted.
        let read = names.filter_map(|name| self.folder.read(&name).ok());
        let paths = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let paths: BTreeSet<String> = paths.filter(|path| !path.is_empty()).collect();
        Ok(paths.into_iter().collect())
    }

    fn read(&self) -> Result<String, HostError> {
        Ok(String::from_utf8_lossy(&self.folder.read(&self.name)?).into_owned())
    }

    /// Writes the path of the placement's journal into the mark.
    pub(super) fn write(&self, journal: &str) -> Result<(), HostError> {
        match self.read()?.is_empty() {
            true => self.folder.append_unsynced(&self.name, journal.as_bytes()),
            false => Ok(()),
        }
    }

    /// Removes the mark, after the placement was reverted.
    pub(super) fn remove(&self) -> Result<(), HostError> {
        match self.folder.contains(&self.name) {
            true => self.folder.remove(&self.name),
            false => Ok(()),
        }
    }
}

/// An empty mark is only a lock and is removed.
impl Drop for Mark {
    fn drop(&mut self) {
        if self.folder.contains(&self.name) && self.read().is_ok_and(|noted| noted.is_empty()) {
            match self.remove() {
                // An empty mark that remains blocks nothing.
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// Name prefix per PID namespace: process numbers are valid in one namespace, and several may share
/// the directory.
fn prefix(header: &Header) -> String {
    let number = header.namespaces.get("pid").into_iter().flat_map(|name| name.chars());
    format!("{}-", number.filter(char::is_ascii_digit).collect::<String>())
}

fn name_of(header: &Header, task: TaskId) -> String {
    format!("{}{}", prefix(header), id_of(task))
}

fn id_of(task: TaskId) -> String {
    format!("{}-{}", task.tid, task.start_time)
}

/// The error about a process that belongs to the journal `noted`, for the journal at `journal`.
fn placed(pid: Tid, noted: String, journal: &str) -> JournalError {
    match (noted.rsplit_once('/'), journal.rsplit_once('/')) {
        (Some((folder, name)), Some((own, _))) if folder == own => {
            let id = name.strip_suffix(SUFFIX).unwrap_or(name).to_owned();
            JournalError::Held { pid, id }
        }
        _ => JournalError::Placed { pid, journal: noted },
    }
}

/// False for a journal that is missing, has ended or is of an earlier boot. One that cannot be read
/// counts as active.
fn is_active(host: &dyn Host, journal: &str) -> bool {
    if !files::exists(journal) {
        return false;
    }
    let bytes = files::require_own(journal).and_then(|()| files::read(journal));
    let Ok(record) = bytes.map(|bytes| Record::parse(journal, &bytes)) else {
        return files::exists(journal);
    };
    match record {
        Ok(Some(record)) => !record.has_ended() && record.is_of_this_boot(host).unwrap_or(true),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Removes the marks of processes that have ended.
fn remove_stale(host: &dyn Host, folder: &StateDir, header: &Header) -> Result<(), JournalError> {
    let prefix = prefix(header);
    for name in folder.list()? {
        let Some(task) = name.strip_prefix(&prefix).and_then(task_of) else { continue };
        if task == header.vm || tasks::is_alive(host, task).map_err(JournalError::Host)? {
            continue;
        }
        // Another Pinfold process is removing a locked one.
        if let Some(lock) = folder.lock(&name)? {
            folder.remove(&name)?;
            drop(lock);
        }
    }
    Ok(())
}

fn task_of(id: &str) -> Option<TaskId> {
    let (tid, start_time) = id.split_once('-')?;
    Some(TaskId { tid: Tid(tid.parse().ok()?), start_time: start_time.parse().ok()? })
}

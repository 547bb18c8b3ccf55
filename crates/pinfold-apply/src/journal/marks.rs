//! Marks of what is placed on this machine, in a folder that does not depend on the state folder.
//!
//! A journal is known only to those who use its state folder. Without a mark a second placement of
//! the same virtual machine from another state folder would note the first one's masks as the
//! original, and put them back for ever after both were undone. A mark is named after the process
//! (PID namespace, number, start time) and holds the path of the journal. It is locked like the
//! journal, written before the journal's file is made, and removed before its end is written, so a
//! mark whose journal is not there is void.

use pinfold_host::user::{self, Lock, StateDir};
use pinfold_host::{Host, HostError, paths, proc_status, process};
use pinfold_model::{TaskId, Tid};

use super::{Header, JournalError};
use crate::tasks;

/// The folders of marks that this user may see.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    /// The folder of a user.
    folder_of: fn(u32) -> String,
    own: String,
}

/// A mark that is locked.
#[derive(Debug)]
pub(super) struct Mark {
    folder: StateDir,
    name: String,
    _lock: Lock,
}

impl Marks {
    pub(super) fn of_this_machine() -> Self {
        Self { folder_of: user::placed_dir, own: user::placed_dir(process::own_uid()) }
    }

    #[cfg(test)]
    pub(super) fn in_folder(own: &str) -> Self {
        // No folder of another user is there.
        Self { folder_of: |uid| format!("/nonexistent/{uid}"), own: own.to_owned() }
    }

    /// Takes the mark of a process that is about to be placed.
    ///
    /// # Errors
    /// [`JournalError::Busy`], [`JournalError::Placed`] if another journal holds a placement of
    /// it, [`JournalError::Store`].
    pub(super) fn begin(
        &self,
        host: &dyn Host,
        (header, journal): (&Header, &str),
    ) -> Result<Mark, JournalError> {
        let pid = header.vm.tid;
        let name = name_of(header);
        if let Some(found) = self.of_others(host, pid, &name)? {
            return Err(JournalError::Placed { pid, journal: found });
        }
        remove_stale(host, &StateDir::open_visible(&self.own)?, header)?;
        loop {
            let mark = self.lock(name.clone(), &header.id)?;
            let noted = mark.read()?;
            if noted.is_empty() {
                return Ok(mark);
            }
            if noted != journal && user::exists(&noted) {
                return Err(JournalError::Placed { pid, journal: noted });
            }
            mark.remove()?;
        }
    }

    /// Takes the mark of a journal that is opened again; `None` where no marks can be kept, which
    /// is no reason not to undo.
    ///
    /// # Errors
    /// [`JournalError::Busy`].
    pub(super) fn reopen(&self, header: &Header) -> Result<Option<Mark>, JournalError> {
        match self.lock(name_of(header), &header.id) {
            Ok(mark) => Ok(Some(mark)),
            Err(busy @ JournalError::Busy { .. }) => Err(busy),
            Err(_) => Ok(None),
        }
    }

    fn lock(&self, name: String, id: &str) -> Result<Mark, JournalError> {
        let folder = StateDir::open_visible(&self.own)?;
        let lock = folder.lock(&name)?.ok_or_else(|| JournalError::Busy { id: id.to_owned() })?;
        Ok(Mark { folder, name, _lock: lock })
    }

    /// The mark that root or the owner of a process has for it.
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
        Ok(marks.find(|path| user::size(path).is_some_and(|size| size > 0)))
    }
}

impl Mark {
    /// The journals that the other marks of this user name.
    pub(super) fn journals_elsewhere(&self) -> Result<Vec<String>, HostError> {
        let names = self.folder.list()?.into_iter().filter(|name| *name != self.name);
        // A mark that goes meanwhile is of a placement that was reverted.
        let read = names.filter_map(|name| self.folder.read(&name).ok());
        let paths = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(paths.filter(|path| !path.is_empty()).collect())
    }

    fn read(&self) -> Result<String, HostError> {
        Ok(String::from_utf8_lossy(&self.folder.read(&self.name)?).into_owned())
    }

    /// Notes the journal of the placement.
    pub(super) fn write(&self, journal: &str) -> Result<(), HostError> {
        match self.read()?.is_empty() {
            true => self.folder.append_unsynced(&self.name, journal.as_bytes()),
            false => Ok(()),
        }
    }

    /// The placement was reverted.
    pub(super) fn remove(&self) -> Result<(), HostError> {
        match self.folder.contains(&self.name) {
            true => self.folder.remove(&self.name),
            false => Ok(()),
        }
    }
}

/// A mark in which nothing was noted is only a lock.
impl Drop for Mark {
    fn drop(&mut self) {
        if self.folder.contains(&self.name) && self.read().is_ok_and(|noted| noted.is_empty()) {
            match self.remove() {
                // An empty mark that stays refuses nothing.
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// Numbers of processes hold in one PID namespace, and the folder may be shared by several.
fn prefix(header: &Header) -> String {
    let number = header.namespaces.get("pid").into_iter().flat_map(|name| name.chars());
    format!("{}-", number.filter(char::is_ascii_digit).collect::<String>())
}

fn name_of(header: &Header) -> String {
    format!("{}{}", prefix(header), header.id)
}

/// Removes the marks of processes that have ended.
fn remove_stale(host: &dyn Host, folder: &StateDir, header: &Header) -> Result<(), JournalError> {
    let prefix = prefix(header);
    for name in folder.list()? {
        let Some(task) = name.strip_prefix(&prefix).and_then(task_of) else { continue };
        if task == header.vm || tasks::is_alive(host, task).map_err(JournalError::Host)? {
            continue;
        }
        // One that is locked is being removed by its own Pinfold.
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

//! Marks of the placements on this machine, in a directory that is independent of the state
//! directory.
//!
//! A journal is visible only to processes that use its state directory. Without a mark, a second
//! placement of the same virtual machine from another state directory would record the first one's
//! masks as the original, and restore them permanently after both were undone. A mark is named
//! after the process (PID namespace, number, start time) and contains the path of the journal. It
//! is locked like the journal, written after the journal's file is created, and removed before the
//! journal's end is written. So a mark whose journal has ended is void, unless the threads still
//! have the masks of that placement: then the end was not written by an undo. One whose journal is
//! missing is void only if its process has ended: a mount namespace may hide the journal, or it was
//! removed while its placement is active. Processes that become vnodes of a platform have marks
//! too, which name the platform's journal. After a complete apply a further line has the number of
//! its steps: a journal with fewer of them was cut.

use std::collections::BTreeSet;

use pinfold_host::files::{self, Lock, StateDir};
use pinfold_host::{Host, HostError, paths, proc_status, process};
use pinfold_model::{TaskId, Tid, Undo};

use super::lost::{LostPlacement, LostReason};
use super::mark_names::MarkNames;
use super::{Header, JournalError, JournalId, Record, SUFFIX, record};
use crate::tasks;

/// The marks of the placements of this user, and those of others that count for this user.
#[derive(Clone, Debug)]
pub(super) enum Marks {
    /// Those of this machine.
    OfMachine,
    /// Those in a directory of a test, where no other user has any.
    #[cfg(test)]
    InFolder(String),
}

/// A locked mark.
#[derive(Debug)]
pub(super) struct Mark {
    folder: StateDir,
    name: String,
    _lock: Lock,
}

/// An answer about a mark: from the journal that it names, and its process if that is of this PID
/// namespace.
type Judge<T> = fn(&dyn Host, &str, Option<TaskId>) -> Result<Option<T>, JournalError>;

/// The journal that a mark names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// It is active, or cannot be read.
    Active,
    /// It cannot be used to revert the placement.
    Lost(LostReason),
    /// It has ended, or is of an earlier boot.
    Ended,
}

impl Marks {
    /// Takes the mark of a process before it is placed.
    ///
    /// # Errors
    /// [`JournalError::Busy`], [`JournalError::Placed`], [`JournalError::Held`] or
    /// [`JournalError::Lost`] if another journal has a placement of it, [`JournalError::Store`].
    pub(super) fn begin(
        &self,
        host: &dyn Host,
        own: JournalId<'_>,
        task: TaskId,
    ) -> Result<Mark, JournalError> {
        let names = MarkNames::read(host, &own.header.namespaces).map_err(JournalError::Host)?;
        let (name, folder) = (names.name(task), self.open()?);
        if let Some(found) = self.of_others(host, task.tid, &folder.path_of(&name))? {
            return Err(JournalError::Placed { pid: task.tid, journal: found });
        }
        remove_stale(host, &folder, &names, own.header.vm)?;
        loop {
            let mark = match lock(self.open()?, name.clone(), &id_of(task)) {
                Err(busy @ JournalError::Busy { .. }) => {
                    return Err(self.holder(host, own, task)?.unwrap_or(busy));
                }
                mark => mark?,
            };
            let noted = mark.read()?;
            if noted.is_empty() {
                return Ok(mark);
            }
            if let Some(error) = held_by(host, &noted, own, task)? {
                return Err(error);
            }
            mark.remove()?;
        }
    }

    /// The error about a process whose mark names another journal, independent of the lock.
    pub(super) fn holder(
        &self,
        host: &dyn Host,
        own: JournalId<'_>,
        task: TaskId,
    ) -> Result<Option<JournalError>, JournalError> {
        let names = MarkNames::read(host, &own.header.namespaces).map_err(JournalError::Host)?;
        let name = names.name(task);
        for folder in self.existing()? {
            // A mark that disappears meanwhile belongs to a placement that was reverted.
            let Some(noted) = tasks::ignore_gone(folder.read(&name))? else { continue };
            if let Some(error) = held_by(host, &journal_in(&noted), own, task)? {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }

    /// Takes the marks of a journal that is opened again. Empty if marks cannot be stored, which
    /// does not prevent an undo.
    ///
    /// # Errors
    /// [`JournalError::Busy`].
    pub(super) fn reopen(&self, header: &Header, journal: &str) -> Result<Vec<Mark>, JournalError> {
        let mut marks = Vec::new();
        let Ok(folders) = self.existing() else { return Ok(marks) };
        for folder in folders {
            let Ok(names) = folder.list() else { continue };
            for name in names
                .into_iter()
                .filter(|name| folder.read(name).is_ok_and(|noted| journal_in(&noted) == journal))
            {
                let Ok(again) = StateDir::open_visible(folder.path()) else { continue };
                match lock(again, name, &header.id) {
                    Ok(mark) => marks.push(mark),
                    Err(busy @ JournalError::Busy { .. }) => return Err(busy),
                    Err(_) => {}
                }
            }
        }
        // One may have been removed before it was locked.
        marks.retain(|mark| mark.read().is_ok_and(|noted| noted == journal));
        Ok(marks)
    }

    /// The number of steps that the marks of a journal record, without locking them; 0 if its apply
    /// has not completed.
    ///
    /// A mark that cannot be read or that ends meanwhile is not counted: undo reads all again, under
    /// their locks, and reports what it cannot read.
    pub(super) fn count_steps(&self, journal: &str) -> usize {
        let folders = self.existing().unwrap_or_default();
        let marks = folders.iter().flat_map(|folder| {
            let names = folder.list().unwrap_or_default().into_iter();
            names.filter_map(|name| folder.read(&name).ok())
        });
        let own = marks.filter(|mark| journal_in(mark) == journal);
        own.filter_map(|mark| steps_in(&mark)).max().unwrap_or(0)
    }

    /// Paths of the void marks.
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
        for (folder, name, _, ()) in self.judge_marks(host, void)? {
            let Ok(mark) = lock(folder, name, "") else { continue };
            let names = names_here(host)?;
            if void(host, &mark.read()?, names.task(&mark.name))?.is_some() {
                act(&mark)?;
                found.push(mark.folder.path_of(&mark.name));
            }
        }
        Ok(found)
    }

    /// Paths of the active journals that the own marks name.
    pub(super) fn active(&self, host: &dyn Host) -> Result<Vec<String>, JournalError> {
        Ok(self.judge_marks(host, active)?.into_iter().map(|(_, _, journal, ())| journal).collect())
    }

    /// The active placements of this user whose journal is missing or wrong.
    pub(super) fn find_lost(&self, host: &dyn Host) -> Result<Vec<LostPlacement>, JournalError> {
        let names = names_here(host)?;
        let lost = self.judge_marks(host, lost_reason)?.into_iter().filter_map(
            |(_, name, journal, reason)| {
                Some(LostPlacement { process: names.task(&name)?, journal, reason })
            },
        );
        Ok(lost.collect())
    }

    /// Fails if a mark of a process names an active journal outside of a directory.
    pub(super) fn require_not_elsewhere(
        &self,
        host: &dyn Host,
        task: TaskId,
        directory: &str,
    ) -> Result<(), JournalError> {
        let own = names_here(host)?.name(task);
        for (_, name, journal, ()) in self.judge_marks(host, active)? {
            if name == own && !journal.starts_with(&format!("{directory}/")) {
                return Err(JournalError::Placed { pid: task.tid, journal });
            }
        }
        Ok(())
    }

    /// Removes the marks of a process whose journal is missing or wrong.
    pub(super) fn remove_lost(&self, host: &dyn Host, task: TaskId) -> Result<(), JournalError> {
        let own = names_here(host)?.name(task);
        for (folder, name, _, _) in self.judge_marks(host, lost_reason)? {
            if name == own {
                lock(folder, name, &id_of(task))?.remove()?;
            }
        }
        Ok(())
    }

    /// The own marks for which `judge` has an answer: their directory, name, journal, and the
    /// answer.
    fn judge_marks<T>(
        &self,
        host: &dyn Host,
        judge: Judge<T>,
    ) -> Result<Vec<(StateDir, String, String, T)>, JournalError> {
        let names = names_here(host)?;
        let mut found = Vec::new();
        for folder in self.existing()? {
            for name in folder.list()? {
                // A mark that disappears meanwhile belongs to a placement that was reverted.
                let Some(noted) = tasks::ignore_gone(folder.read(&name))? else { continue };
                let noted = journal_in(&noted);
                if let Some(answer) = judge(host, &noted, names.task(&name))? {
                    found.push((StateDir::open_visible(folder.path())?, name, noted, answer));
                }
            }
        }
        Ok(found)
    }

    /// The own directory, which is created if it does not exist.
    fn open(&self) -> Result<StateDir, HostError> {
        match self {
            Marks::OfMachine => files::own_placed_dir(),
            #[cfg(test)]
            Marks::InFolder(path) => StateDir::open_visible(path),
        }
    }

    /// The own directories that exist.
    fn existing(&self) -> Result<Vec<StateDir>, HostError> {
        let mut found = Vec::new();
        for path in self.folders_of(process::own_uid())? {
            found.extend(StateDir::open_existing(&path)?);
        }
        Ok(found)
    }

    /// Another mark that root, the owner of a process, or this user has for it.
    fn of_others(
        &self,
        host: &dyn Host,
        pid: Tid,
        own: &str,
    ) -> Result<Option<String>, JournalError> {
        let path = paths::process_status(pid);
        let status = host.read_text(&path).map_err(JournalError::Host)?;
        let owner =
            proc_status::parse(&status).map_err(|error| JournalError::Host(error.at(&path)))?.uid;
        let name = own.rsplit('/').next().unwrap_or(own);
        for uid in BTreeSet::from([0, owner, process::own_uid()]) {
            let mut folders = self.folders_of(uid)?;
            folders.extend(files::placed_dir_seen_by(pid).filter(|_| uid == 0 && host.is_live()));
            let mut marks = folders.iter().map(|folder| format!("{folder}/{name}"));
            if let Some(found) =
                marks.find(|path| path != own && files::is_filled_file_of(path, uid))
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn folders_of(&self, uid: u32) -> Result<Vec<String>, HostError> {
        match self {
            Marks::OfMachine => files::placed_dirs(uid),
            #[cfg(test)]
            Marks::InFolder(path) if uid == process::own_uid() => Ok(vec![path.clone()]),
            #[cfg(test)]
            Marks::InFolder(_) => Ok(Vec::new()),
        }
    }
}

impl Mark {
    /// True if this is the mark of the given process.
    pub(super) fn is_of(&self, host: &dyn Host, task: TaskId) -> Result<bool, JournalError> {
        Ok(self.name == names_here(host)?.name(task))
    }

    /// The journals that the other marks of this user name.
    pub(super) fn journals_elsewhere(&self) -> Result<Vec<String>, HostError> {
        let names = self.folder.list()?.into_iter().filter(|name| *name != self.name);
        // A mark that disappears meanwhile belongs to a placement that was reverted.
        let read = names.filter_map(|name| self.folder.read(&name).ok());
        let paths = read.map(|bytes| journal_in(&bytes));
        let paths: BTreeSet<String> = paths.filter(|path| !path.is_empty()).collect();
        Ok(paths.into_iter().collect())
    }

    /// Path of the journal that it names; empty while it is only a lock.
    fn read(&self) -> Result<String, HostError> {
        Ok(journal_in(&self.folder.read(&self.name)?))
    }

    /// Records how many steps a complete apply has written, so that an undo notices a journal whose
    /// last lines are missing.
    pub(super) fn record_steps(&self, count: usize) -> Result<(), HostError> {
        self.folder.append_unsynced(&self.name, format!("\n{count}").as_bytes())
    }

    /// The recorded number of steps; `None` if the apply has not completed.
    pub(super) fn steps(&self) -> Result<Option<usize>, HostError> {
        Ok(steps_in(&self.folder.read(&self.name)?))
    }

    /// Writes the path of the placement's journal into the mark.
    pub(super) fn write(&self, journal: &str) -> Result<(), HostError> {
        if self.read()?.is_empty() {
            self.folder.append_unsynced(&self.name, journal.as_bytes())
        } else {
            Ok(())
        }
    }

    /// Removes the mark, after the placement was reverted.
    pub(super) fn remove(&self) -> Result<(), HostError> {
        if self.folder.contains(&self.name) { self.folder.remove(&self.name) } else { Ok(()) }
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

/// The number of steps that the text of a mark records.
fn steps_in(mark: &[u8]) -> Option<usize> {
    String::from_utf8_lossy(mark).lines().skip(1).filter_map(|line| line.parse().ok()).max()
}

/// The journal that the text of a mark names: its first line.
fn journal_in(mark: &[u8]) -> String {
    String::from_utf8_lossy(mark).lines().next().unwrap_or("").to_owned()
}

fn lock(folder: StateDir, name: String, id: &str) -> Result<Mark, JournalError> {
    let lock = folder.lock(&name)?.ok_or_else(|| JournalError::Busy { id: id.to_owned() })?;
    Ok(Mark { folder, name, _lock: lock })
}

fn names_here(host: &dyn Host) -> Result<MarkNames, JournalError> {
    let here = record::namespaces(host).map_err(JournalError::Host)?;
    MarkNames::read(host, &here).map_err(JournalError::Host)
}

fn id_of(task: TaskId) -> String {
    format!("{}-{}", task.tid, task.start_time)
}

/// The error about a live process whose mark names `noted`, for a journal of another path.
fn held_by(
    host: &dyn Host,
    noted: &str,
    own: JournalId<'_>,
    task: TaskId,
) -> Result<Option<JournalError>, JournalError> {
    if noted.is_empty() || noted == own.path && files::exists(noted) {
        return Ok(None);
    }
    let journal = noted.to_owned();
    Ok(match read_named(host, noted)? {
        Named::Active => Some(placed_error(task.tid, journal, own.path)),
        Named::Lost(reason) => {
            Some(JournalError::Lost(LostPlacement { process: task, journal, reason }))
        }
        Named::Ended => None,
    })
}

/// An answer for a mark that has no meaning. A process of another PID namespace counts as living.
fn void(host: &dyn Host, noted: &str, task: Option<TaskId>) -> Result<Option<()>, JournalError> {
    if noted.is_empty() {
        return Ok(None);
    }
    let is_void = match read_named(host, noted)? {
        Named::Active => false,
        Named::Ended => true,
        Named::Lost(_) => match task {
            Some(task) => !tasks::is_alive(host, task).map_err(JournalError::Host)?,
            None => false,
        },
    };
    Ok(is_void.then_some(()))
}

/// The judge of marks that name an active journal.
fn active(host: &dyn Host, noted: &str, _: Option<TaskId>) -> Result<Option<()>, JournalError> {
    Ok((!noted.is_empty() && read_named(host, noted)? == Named::Active).then_some(()))
}

/// The reason for a mark of a live process whose journal is missing or wrong.
fn lost_reason(
    host: &dyn Host,
    noted: &str,
    task: Option<TaskId>,
) -> Result<Option<LostReason>, JournalError> {
    let Some(task) = task.filter(|_| !noted.is_empty()) else { return Ok(None) };
    let Named::Lost(reason) = read_named(host, noted)? else { return Ok(None) };
    Ok(tasks::is_alive(host, task).map_err(JournalError::Host)?.then_some(reason))
}

/// The error about a process that belongs to the journal `noted`, for the journal at `journal`.
fn placed_error(pid: Tid, noted: String, journal: &str) -> JournalError {
    match (noted.rsplit_once('/'), journal.rsplit_once('/')) {
        (Some((folder, name)), Some((own, _))) if folder == own => {
            let id = name.strip_suffix(SUFFIX).unwrap_or(name).to_owned();
            JournalError::Held { pid, id }
        }
        _ => JournalError::Placed { pid, journal: noted },
    }
}

fn read_named(host: &dyn Host, journal: &str) -> Result<Named, JournalError> {
    if !files::exists(journal) {
        return Ok(Named::Lost(LostReason::Missing));
    }
    let bytes = files::require_own(journal).and_then(|()| files::read(journal));
    let Ok(record) = bytes.map(|bytes| Record::parse(journal, &bytes)) else {
        let is_there = files::exists(journal);
        return Ok(if is_there { Named::Active } else { Named::Lost(LostReason::Missing) });
    };
    Ok(match record {
        Ok(Some(record)) => match record.is_of_this_boot(host) {
            Ok(false) => Named::Ended,
            Ok(true) | Err(_) if !record.has_ended() => Named::Active,
            Ok(true) if is_in_force(host, &record)? => Named::Lost(LostReason::Ended),
            Ok(true) | Err(_) => Named::Ended,
        },
        Ok(None) => Named::Lost(LostReason::Cut),
        Err(_) => Named::Active,
    })
}

/// True if a thread still has a mask of this record that is not its original one.
fn is_in_force(host: &dyn Host, record: &Record) -> Result<bool, JournalError> {
    for (_, step) in record.steps() {
        let Some((task, mask)) = step.change.as_set_affinity() else { continue };
        let is_original =
            matches!(&step.undo, Undo::SetAffinity { original, .. } if original == mask);
        if is_original || !tasks::is_alive(host, task).map_err(JournalError::Host)? {
            continue;
        }
        let own = tasks::ignore_gone(host.affinity(task.tid)).map_err(JournalError::Host)?;
        if own.as_ref() == Some(mask) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the marks of processes that have ended.
fn remove_stale(
    host: &dyn Host,
    folder: &StateDir,
    names: &MarkNames,
    vm: TaskId,
) -> Result<(), JournalError> {
    for name in folder.list()? {
        let Some(task) = names.task(&name) else { continue };
        if task == vm || tasks::is_alive(host, task).map_err(JournalError::Host)? {
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

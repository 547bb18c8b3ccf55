//! The journal: every step of an apply, on disk before it is done.
//!
//! There is one file per virtual machine in the directory `journal/` of Pinfold's state, in
//! readable JSON lines. A Pinfold process that works on the machine holds a lock next to the file
//! until it exits. A journal without an `end` line is active: the machine cannot be placed again
//! before that journal is undone.
//!
//! The file is created together with its first steps, so that this costs one wait for the disk and
//! not two. A journal without a file means that nothing was done. Only what `undo` needs is synced:
//! outcomes are notes for the reader, and their loss is harmless. What a step does to the host is
//! not known here.

mod checksum;
mod damaged;
mod error;
mod ids;
mod lost;
mod mark_names;
mod marks;
mod prune;
mod read;
mod record;
mod schema;
mod storage;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use pinfold_host::files::{self, Lock, StateDir};
use pinfold_host::{Clock, Host, HostError, LiveHost, process};
use pinfold_model::{CpuSet, Step, TaskId, Tid};

pub use error::JournalError;
pub use prune::HISTORY;
pub(crate) use record::{ENDED, GONE, JournalId, RESTARTED, UNDONE_LATER};
pub use record::{EarlierUndo, Entry, Header, Namespaces, NewPlan, Outcome, Record};
pub(crate) use storage::Storage;

pub use self::lost::{LostPlacement, LostReason};
use self::marks::{Mark, Marks};
use crate::other_placements::OtherPlacements;
use crate::tasks::{self, Target};

/// Bytes that a replacement of a plan reserves in addition to what two plans with their steps take.
const SPARE_ROOM: u64 = 256 << 10;

/// Name of the journal directory below Pinfold's state directory.
pub const JOURNALS: &str = "journal";
const SUFFIX: &str = ".jsonl";
const LOCK_SUFFIX: &str = ".lock";

/// The directory of journals.
pub struct Journals<'c> {
    files: Arc<dyn Storage>,
    clock: &'c dyn Clock,
    /// Marks of placements made from other state directories; `None` for a simulated host.
    marks: Option<Marks>,
}

/// Initial content of a new journal.
#[derive(Clone, Copy, Debug)]
pub struct NewJournal<'a> {
    /// Name of the virtual machine, for messages.
    pub vm_name: &'a str,
    /// The plan as JSON text.
    pub plan: &'a str,
    /// The machine and the threads to which the plan is applied.
    pub target: &'a Target,
    /// Whether the placement ends when this process exits.
    pub supervised: bool,
}

/// A journal of the directory, as `pinfold journal` lists it.
#[derive(Debug)]
pub struct Summary {
    /// The journal's ID.
    pub id: String,
    /// The journal's content; `None` if the file was cut off in its first line, which means that
    /// nothing was done.
    pub record: Result<Option<Record>, JournalError>,
}

/// An open journal. While it is open, no other Pinfold process can work on the same machine.
pub struct Journal<'c> {
    files: Arc<dyn Storage>,
    clock: &'c dyn Clock,
    name: String,
    record: Record,
    bytes: Vec<u8>,
    pending: Vec<Entry>,
    // The file exists, at least with its header.
    is_made: bool,
    // A failed write may have left half a line. The next write then replaces the file instead of
    // appending.
    needs_rewrite: bool,
    /// Bytes that are reserved in the file for the steps of a plan that replaces another one, and
    /// for the way back.
    room: u64,
    bound: Option<Marks>,
    marks: Vec<Mark>,
    reaper: Option<Tid>,
    _lock: Lock,
}

/// Paths of this user's placement marks whose journal has ended, or is missing together with the
/// process.
pub fn stale_marks(host: &dyn Host) -> Result<Vec<String>, JournalError> {
    Marks::OfMachine.void(host)
}

/// Removes the marks that [`stale_marks`] returns, and returns their paths.
pub fn remove_void_marks(host: &dyn Host) -> Result<Vec<String>, JournalError> {
    Marks::OfMachine.remove_void(host)
}

/// Paths of the journals of this user's active placements, of all state directories.
pub fn active_journals(host: &dyn Host) -> Result<Vec<String>, JournalError> {
    Marks::OfMachine.active(host)
}

/// The placements of live processes whose journal is missing or wrong. Only their marks show them.
pub fn lost_placements(host: &dyn Host) -> Result<Vec<LostPlacement>, JournalError> {
    Marks::OfMachine.find_lost(host)
}

/// Fails if a journal outside of a directory has an active placement of a process.
pub(crate) fn require_not_elsewhere(
    host: &dyn Host,
    process: TaskId,
    directory: &str,
) -> Result<(), JournalError> {
    Marks::OfMachine.require_not_elsewhere(host, process, directory)
}

/// Removes the mark of a process whose journal is missing or wrong.
pub(crate) fn remove_lost_mark(host: &dyn Host, process: TaskId) -> Result<(), JournalError> {
    Marks::OfMachine.remove_lost(host, process)
}

/// Whether a write must reach the disk before the caller continues.
#[derive(Clone, Copy)]
enum Wait {
    ForDisk,
    No,
}

impl<'c> Journals<'c> {
    /// Opens the journal directory below Pinfold's state directory.
    ///
    /// # Errors
    /// [`JournalError::Store`] if it cannot be created or another user has access to it.
    pub fn open(state: &StateDir, clock: &'c dyn Clock) -> Result<Self, JournalError> {
        let directory = StateDir::open(&state.path_of(JOURNALS))?;
        Ok(Self::over(Arc::new(directory), clock))
    }

    /// The same for a reader: `None` if there are no journals. Nothing is created.
    ///
    /// # Errors
    /// As [`Journals::open`].
    pub fn open_existing(
        state: &StateDir,
        clock: &'c dyn Clock,
    ) -> Result<Option<Self>, JournalError> {
        let directory = StateDir::open_existing(&state.path_of(JOURNALS))?;
        Ok(directory.map(|directory| Self::over(Arc::new(directory), clock)))
    }

    pub(crate) fn over(files: Arc<dyn Storage>, clock: &'c dyn Clock) -> Self {
        Self { files, clock, marks: None }
    }

    /// Enables marks, for journals of the machine on which this process runs. Placements from other
    /// state directories are then considered too.
    #[must_use]
    pub fn with_marks(self) -> Self {
        Self { marks: Some(Marks::OfMachine), ..self }
    }

    #[cfg(test)]
    pub(crate) fn with_marks_in(self, folder: &str) -> Self {
        Self { marks: Some(Marks::InFolder(folder.to_owned())), ..self }
    }

    /// The state directory that contains the journal directory.
    #[must_use]
    pub fn state_dir(&self) -> String {
        let folder = self.files.path_of("");
        let folder = folder.trim_end_matches('/');
        folder.rsplit_once('/').map_or(".", |(state, _)| state).to_owned()
    }

    /// Begins a journal for a virtual machine. The first write creates its file.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if another Pinfold process works on the machine,
    /// [`JournalError::Active`] if an earlier placement of it is still active,
    /// [`JournalError::Placed`] if that was made from another state directory,
    /// [`JournalError::Held`] if the machine is part of another placement,
    /// [`JournalError::VmGone`], [`JournalError::Host`], [`JournalError::Store`];
    /// [`JournalError::Malformed`] or [`JournalError::Newer`] if an old journal cannot be read.
    pub fn begin(
        &self,
        host: &dyn Host,
        new: &NewJournal<'_>,
    ) -> Result<Journal<'c>, JournalError> {
        let target = new.target;
        let vm = tasks::stat(host, target.pid)
            .map_err(JournalError::Host)?
            .ok_or(JournalError::VmGone { pid: target.pid })?
            .task();
        let machine = ids::of_machine(vm);
        let lock = self.lock(&machine)?;
        let earlier = self.of_machine(&machine)?;
        for id in &earlier {
            self.require_ended(host, id)?;
        }
        self.prune(host, &machine)?;
        let id = ids::next(&machine, &earlier);
        let name = format!("{id}{SUFFIX}");
        let header = Header {
            id,
            boot_id: record::boot_id(host).map_err(JournalError::Host)?,
            namespaces: record::namespaces(host).map_err(JournalError::Host)?,
            created_unix_s: self.clock.unix_seconds(),
            supervisor: supervisor(host)?,
            supervised: new.supervised,
            vm,
            vm_name: new.vm_name.to_owned(),
            threads: present(host, target)?,
            pins: target.pins.clone(),
            plan: new.plan.to_owned(),
        };
        let path = self.files.path_of(&name);
        let mark = self
            .marks
            .as_ref()
            .map(|marks| marks.begin(host, JournalId { path: &path, header: &header }, vm));
        let marks = mark.transpose()?.into_iter().collect();
        let mut bytes = Vec::new();
        put_line(&mut bytes, &schema::HeaderLine::from(&header), &path, true)?;
        let journal = self.journal(name, Record::new(header, true), bytes, lock);
        Ok(Journal { is_made: false, marks, ..journal })
    }

    /// All journals, sorted by ID.
    ///
    /// # Errors
    /// [`JournalError::Store`]. An error of a single journal is in its summary.
    pub fn list(&self) -> Result<Vec<Summary>, JournalError> {
        let names = self.files.list()?;
        let mut summaries = Vec::new();
        for id in names.iter().filter_map(|name| name.strip_suffix(SUFFIX)) {
            match self.read(id) {
                // Another Pinfold process has removed an ended journal meanwhile.
                Err(JournalError::Store(error)) if error.is_gone() => {}
                record => summaries.push(Summary { id: id.to_owned(), record }),
            }
        }
        Ok(summaries)
    }

    /// Path of the journal directory.
    #[must_use]
    pub fn path(&self) -> String {
        self.files.path_of("").trim_end_matches('/').to_owned()
    }

    /// Path of the journal with this ID.
    #[must_use]
    pub fn path_of(&self, id: &str) -> String {
        self.files.path_of(&format!("{id}{SUFFIX}"))
    }

    /// The active placements, without the one with this ID.
    pub(crate) fn active_but(
        &self,
        host: &dyn Host,
        id: Option<&str>,
    ) -> Result<OtherPlacements, JournalError> {
        let own = id.map(|id| format!("{id}{SUFFIX}"));
        others_in(self.files.as_ref(), host, own.as_deref(), &[])
    }

    /// The ID of the active journal of a process on this boot, if there is one that can be read.
    ///
    /// # Errors
    /// [`JournalError::Store`]; [`JournalError::Host`] if the process or the boot ID cannot be
    /// read.
    pub fn active_of(&self, host: &dyn Host, pid: Tid) -> Result<Option<String>, JournalError> {
        let Some(stat) = tasks::stat(host, pid).map_err(JournalError::Host)? else {
            return Ok(None);
        };
        let vm = stat.task();
        for id in self.of_machine(&ids::of_machine(vm))? {
            if let Ok(Some(record)) = self.read(&id)
                && !record.has_ended()
                && record.is_of_this_boot(host).map_err(JournalError::Host)?
            {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// A number that changes when a journal is begun, replaced or removed. A caller that waits for
    /// new journals compares it instead of reading all of them.
    ///
    /// # Errors
    /// [`JournalError::Store`].
    pub fn mark(&self) -> Result<u64, JournalError> {
        Ok(self.files.mark()?)
    }

    /// Reads a journal without taking its lock; `None` if nothing was done.
    ///
    /// # Errors
    /// [`JournalError::Store`], [`JournalError::Malformed`], [`JournalError::Newer`].
    pub fn read(&self, id: &str) -> Result<Option<Record>, JournalError> {
        let name = format!("{id}{SUFFIX}");
        self.parse(id, &self.files.read(&name)?)
    }

    /// Parses a journal. If not even its header is there, nothing was done, unless its machine is
    /// alive: its file is created whole, so something has cut it.
    fn parse(&self, id: &str, bytes: &[u8]) -> Result<Option<Record>, JournalError> {
        let path = self.files.path_of(&format!("{id}{SUFFIX}"));
        let record = Record::parse(&path, bytes)?;
        let Some(task) = ids::task(id).filter(|_| record.is_none() && self.marks.is_some()) else {
            return Ok(record);
        };
        let host = LiveHost::new().map_err(JournalError::Host)?;
        if tasks::is_alive(&host, task).map_err(JournalError::Host)? {
            let why = format!("it is truncated, and process {} is running", task.tid);
            return Err(JournalError::Malformed { path, line: 1, why });
        }
        Ok(None)
    }

    /// Opens a journal in order to undo it or to continue watching. If nothing was done, removes
    /// the file and returns `None`.
    ///
    /// # Errors
    /// [`JournalError::Busy`] while the Pinfold process that wrote it runs; else as
    /// [`Journals::read`].
    pub fn reopen(&self, id: &str) -> Result<Option<Journal<'c>>, JournalError> {
        let name = format!("{id}{SUFFIX}");
        let lock = self.lock(id)?;
        let mut bytes = self.files.read(&name)?;
        let Some(mut record) = self.parse(id, &bytes)? else {
            self.files.remove(&name)?;
            return Ok(None);
        };
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(whole);
        let torn = std::mem::replace(&mut record.torn, false);
        let path = self.files.path_of(&name);
        let marks = self.marks.as_ref().map(|marks| marks.reopen(&record.header, &path));
        let marks = marks.transpose()?.into_iter().flatten().collect::<Vec<_>>();
        for mark in &marks {
            damaged::require_steps(&record, mark.steps()?.unwrap_or(0), path.clone())?;
        }
        let mut journal = self.journal(name, record, bytes, lock);
        journal.needs_rewrite = torn;
        journal.marks = marks;
        Ok(Some(journal))
    }

    fn journal(&self, name: String, record: Record, bytes: Vec<u8>, lock: Lock) -> Journal<'c> {
        Journal {
            files: Arc::clone(&self.files),
            clock: self.clock,
            name,
            record,
            bytes,
            pending: Vec::new(),
            is_made: true,
            needs_rewrite: false,
            room: 0,
            bound: self.marks.clone(),
            marks: Vec::new(),
            reaper: None,
            _lock: lock,
        }
    }

    /// Takes the lock of a machine, which all of its journals share.
    fn lock(&self, id: &str) -> Result<Lock, JournalError> {
        let lock = self.files.lock(&format!("{}{LOCK_SUFFIX}", ids::machine(id)))?;
        lock.ok_or_else(|| JournalError::Busy { id: id.to_owned() })
    }

    /// The IDs of a machine's journals.
    fn of_machine(&self, machine: &str) -> Result<Vec<String>, JournalError> {
        let names = self.files.list()?;
        let ids = names.iter().filter_map(|name| name.strip_suffix(SUFFIX));
        Ok(ids.filter(|id| ids::machine(id) == machine).map(str::to_owned).collect())
    }

    /// Fails while an earlier journal of the machine is active.
    fn require_ended(&self, host: &dyn Host, id: &str) -> Result<(), JournalError> {
        if let Some(old) = self.read(id)?
            && !old.has_ended()
            && (old.is_of_this_boot(host).map_err(JournalError::Host)?
                || old.steps().any(|(_, step)| step.is_lasting()))
        {
            return Err(JournalError::Active { id: old.header.id, vm_name: old.header.vm_name });
        }
        Ok(())
    }
}

impl<'c> Journal<'c> {
    /// The journal's content.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Path of the journal file.
    #[must_use]
    pub fn path(&self) -> String {
        self.files.path_of(&self.name)
    }

    /// Records in its marks that the apply is complete, with the number of its steps.
    ///
    /// # Errors
    /// [`JournalError::Store`].
    pub fn record_complete(&self) -> Result<(), JournalError> {
        let count = self.record.step_count();
        self.marks.iter().try_for_each(|mark| mark.record_steps(count))?;
        Ok(())
    }

    /// Records that this process is the child subreaper of the placed processes: undo then also
    /// releases those of its descendants that lost their parents.
    pub fn reap(&mut self) {
        self.reaper = Some(process::own_pid());
    }

    pub(crate) fn reaper(&self) -> Option<Tid> {
        self.reaper
    }

    pub(crate) fn clock(&self) -> &'c dyn Clock {
        self.clock
    }

    /// Sets marks for further processes that the next steps place.
    ///
    /// # Errors
    /// [`JournalError::Held`] or [`JournalError::Placed`] if another placement includes one of them
    /// or an ancestor, [`JournalError::Busy`], [`JournalError::Host`], [`JournalError::Store`].
    pub fn bind(&mut self, host: &dyn Host, processes: &[TaskId]) -> Result<(), JournalError> {
        let Some(bound) = self.bound.clone() else { return Ok(()) };
        let (path, header) = (self.path(), self.record.header.clone());
        for process in processes {
            if self.has_mark_of(host, *process)? {
                continue;
            }
            let own = JournalId { path: &path, header: &header };
            for ancestor in tasks::ancestors(host, process.tid).map_err(JournalError::Host)? {
                if let Some(held) = bound.holder(host, own, ancestor)? {
                    return Err(held);
                }
            }
            let mark = bound.begin(host, own, *process)?;
            if self.is_made {
                mark.write(&path)?;
            }
            self.marks.push(mark);
        }
        Ok(())
    }

    fn has_mark_of(&self, host: &dyn Host, process: TaskId) -> Result<bool, JournalError> {
        for mark in &self.marks {
            if mark.is_of(host, process)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes a plan that replaces the present one, before any of its steps. The whole file is
    /// written again, so that a watcher of the directory notices it.
    ///
    /// # Errors
    /// [`JournalError::Store`]; [`JournalError::Host`] if this process cannot be read.
    pub(crate) fn replace_plan(&mut self, host: &dyn Host, plan: &str) -> Result<(), JournalError> {
        let new = NewPlan {
            unix_s: self.clock.unix_seconds(),
            supervisor: supervisor(host)?,
            plan: plan.to_owned(),
        };
        let has_room = self.room > 0;
        let content = u64::try_from(self.bytes.len() + plan.len()).unwrap_or(u64::MAX);
        self.room = content.saturating_mul(2).saturating_add(SPARE_ROOM);
        self.needs_rewrite = self.is_made;
        let written = self.write(vec![Entry::Plan(new.clone())], Wait::ForDisk);
        if written.is_ok() {
            return written;
        }
        if !has_room {
            self.room = 0;
            return written;
        }
        // The disk is full. What is reserved since the failed replacement is for the way back.
        self.needs_rewrite = false;
        self.write(vec![Entry::Plan(new)], Wait::ForDisk)
    }

    /// Gives the space back that was reserved for a replacement.
    fn release_room(&mut self) {
        if std::mem::take(&mut self.room) > 0 {
            // The space is released together with the file, if not now.
            match self.files.release_room(&self.name) {
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Writes steps to disk before any of them is done, each with the earlier values of other
    /// placements if those are known. Returns the index of the first step.
    pub(crate) fn write_steps(
        &mut self,
        steps: &[Step],
        earlier: Vec<Vec<EarlierUndo>>,
    ) -> Result<usize, JournalError> {
        let first = self.record.step_count();
        let earlier = earlier.into_iter().chain(std::iter::repeat_with(Vec::new));
        let entries = steps.iter().zip(first..).zip(earlier);
        let entries = entries.map(|((step, index), earlier)| Entry::Step {
            index,
            step: step.clone(),
            earlier,
        });
        self.write(entries.collect(), Wait::ForDisk)?;
        Ok(first)
    }

    /// The other active placements, of this state directory and of those that the marks name. A
    /// damaged or foreign journal, which `pinfold journal` lists, is ignored.
    pub(crate) fn others(&self, host: &dyn Host) -> Result<OtherPlacements, JournalError> {
        let elsewhere = match self.marks.first() {
            Some(mark) => mark.journals_elsewhere()?,
            None => Vec::new(),
        };
        others_in(self.files.as_ref(), host, Some(&self.name), &elsewhere)
    }

    /// Writes bystanders' masks to disk.
    pub(crate) fn write_masks(&mut self, masks: Vec<(TaskId, CpuSet)>) -> Result<(), JournalError> {
        self.write(vec![Entry::Masks(masks)], Wait::ForDisk)
    }

    /// Records the outcome of a step. It is written with the next step or by `flush`.
    pub(crate) fn note(&mut self, index: usize, outcome: Outcome, detail: Option<String>) {
        self.pending.push(Entry::Outcome { index, outcome, detail });
    }

    /// Records that the apply of the present plan is complete, with the recorded outcomes.
    pub(crate) fn complete(&mut self) -> Result<(), JournalError> {
        self.pending.push(Entry::Applied);
        self.flush()?;
        self.release_room();
        Ok(())
    }

    /// Records that an undo begins. Without this line, it would be taken for one that has not.
    pub(crate) fn begin_undo(&mut self) -> Result<(), JournalError> {
        if !self.is_made {
            return Ok(());
        }
        self.pending.push(Entry::Undoing);
        self.flush()
    }

    /// Writes recorded outcomes without waiting for the disk. Creates the file if no step has.
    pub(crate) fn flush(&mut self) -> Result<(), JournalError> {
        if self.pending.is_empty() && self.is_made {
            return Ok(());
        }
        self.write(Vec::new(), Wait::No)
    }

    /// Marks the journal as undone. On a full disk it removes the whole journal instead, which has
    /// the same meaning. A journal without a file stays without one.
    pub(crate) fn end(&mut self, why: &str) -> Result<(), JournalError> {
        let end = Entry::End { unix_s: self.clock.unix_seconds(), why: why.to_owned() };
        if !self.is_made {
            self.record.entries.push(end);
            return Ok(());
        }
        // Before the end is written, so that a process that starts in between finds no marks of
        // this placement.
        for mark in &self.marks {
            mark.remove()?;
        }
        match self.write(vec![end.clone()], Wait::ForDisk) {
            Ok(()) => {
                self.release_room();
                Ok(())
            }
            Err(_) => {
                self.files.remove(&self.name)?;
                self.record.entries.push(end);
                Ok(())
            }
        }
    }

    /// Creates the file, then the marks: a mark without a journal would be taken for a placement
    /// whose journal was removed.
    fn make(&self) -> Result<(), HostError> {
        // A kill leaves the whole file or none.
        self.files.replace(&self.name, &self.bytes, 0)?;
        for mark in &self.marks {
            mark.write(&self.path())?;
        }
        Ok(())
    }

    /// Removes what [`Self::make`] wrote before it failed. The first error is reported.
    fn unmake(&self) {
        for mark in &self.marks {
            match mark.remove() {
                Ok(()) | Err(_) => {}
            }
        }
        if self.files.contains(&self.name) {
            match self.files.remove(&self.name) {
                Ok(()) | Err(_) => {}
            }
        }
    }

    fn write(&mut self, entries: Vec<Entry>, wait: Wait) -> Result<(), JournalError> {
        let path = self.path();
        let mut lines = Vec::new();
        for entry in self.pending.iter().chain(&entries) {
            put_line(&mut lines, entry, &path, self.record.has_checksums)?;
        }
        let before = self.bytes.len();
        self.bytes.extend(&lines);
        let written = if !self.is_made {
            self.make()
        } else if self.needs_rewrite {
            self.files.replace(&self.name, &self.bytes, self.room)
        } else {
            match wait {
                Wait::ForDisk => self.files.append(&self.name, &lines),
                Wait::No => self.files.append_unsynced(&self.name, &lines),
            }
        };
        if let Err(error) = written {
            self.bytes.truncate(before);
            if !self.is_made {
                self.unmake();
            }
            // A failed append gives the reserved space back.
            if !self.needs_rewrite {
                self.room = 0;
            }
            self.needs_rewrite = self.is_made;
            return Err(error.into());
        }
        self.is_made = true;
        self.needs_rewrite = false;
        for entry in self.pending.drain(..).chain(entries) {
            self.record.add(entry).map_err(|why| JournalError::Malformed {
                path: path.clone(),
                line: self.record.entries.len() + 2,
                why: why.to_owned(),
            })?;
        }
        Ok(())
    }
}

/// The active placements of the journals in a directory, without the one in the file `own`, and of
/// those at the paths `elsewhere`.
fn others_in(
    files: &dyn Storage,
    host: &dyn Host,
    own: Option<&str>,
    elsewhere: &[String],
) -> Result<OtherPlacements, JournalError> {
    let boot_id = record::boot_id(host).map_err(JournalError::Host)?;
    let names = files.list()?.into_iter();
    let names = names.filter(|name| name.ends_with(SUFFIX) && Some(name.as_str()) != own);
    let here = names.map(|name| (files.path_of(&name), files.read(&name)));
    let folder = files.path_of("");
    let elsewhere = elsewhere.iter().filter(|path| !path.starts_with(&folder));
    let elsewhere = elsewhere.map(|path| {
        let bytes = files::require_own(path).and_then(|()| files::read(path));
        (path.clone(), bytes)
    });
    let records = here.chain(elsewhere).filter_map(|(path, bytes)| {
        let bytes = bytes.ok()?;
        if has_end_line(&bytes) {
            return None;
        }
        let record = Record::parse(&path, &bytes).ok()??;
        let is_active = !record.has_ended() && record.header.boot_id == boot_id;
        is_active.then_some((path, record))
    });
    Ok(OtherPlacements::new(records.collect()))
}

/// True if the last line is an `end` line. Most journals have ended and need not be parsed to know
/// that.
fn has_end_line(bytes: &[u8]) -> bool {
    let mut lines = bytes.trim_ascii_end().rsplit(|byte| *byte == b'\n');
    lines.next().is_some_and(|line| line.starts_with(b"{\"end\""))
}

/// This process as seen from the host.
fn supervisor(host: &dyn Host) -> Result<TaskId, JournalError> {
    let own = tasks::own_process(host).map_err(JournalError::Host)?;
    // If this process does not run on the host (a simulated one), all of the host's tasks count as
    // younger than it.
    Ok(own.unwrap_or(TaskId { tid: process::own_pid(), start_time: 0 }))
}

/// The threads that exist now, so that threads created later can be recognised.
fn present(host: &dyn Host, target: &Target) -> Result<Vec<TaskId>, JournalError> {
    let mut present: Vec<TaskId> = target.threads.iter().map(|(task, _)| *task).collect();
    let processes = std::iter::once(target.pid).chain(target.own.iter().map(|task| task.tid));
    let known: BTreeSet<Tid> = present.iter().map(|task| task.tid).collect();
    for pid in processes {
        let listed = if pid == target.pid {
            target.list_threads(host)
        } else {
            tasks::threads_of(host, pid)
        };
        for tid in listed.map_err(JournalError::Host)? {
            if known.contains(&tid) {
                continue;
            }
            present.extend(
                tasks::stat(host, tid).map_err(JournalError::Host)?.map(|stat| stat.task()),
            );
        }
    }
    present.sort();
    Ok(present)
}

fn put_line<T: serde::Serialize>(
    bytes: &mut Vec<u8>,
    line: &T,
    path: &str,
    has_checksum: bool,
) -> Result<(), JournalError> {
    let mut text = serde_json::to_vec(line)
        .map_err(|source| JournalError::Unwritable { path: path.to_owned(), source })?;
    if has_checksum {
        checksum::add(&mut text);
    }
    bytes.append(&mut text);
    bytes.push(b'\n');
    Ok(())
}

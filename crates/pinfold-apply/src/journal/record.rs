//! The content of a journal: its header, steps and their outcomes.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{CpuSet, Step, TaskId, Undo, serde_formats};
use serde::{Deserialize, Serialize};

use super::JournalError;
use crate::tasks::{self, RecordedPin};

/// First line of a journal: which process applied which plan to which virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// ID of the journal: the machine's process ID and its start time, and a number from the second
    /// placement of the machine on (`812-9912-2`). Unique within a boot.
    pub id: String,
    /// Boot ID of the host at that time.
    pub boot_id: String,
    /// The namespaces in which its numbers, times and paths are valid. Empty in journals before
    /// version 3, which do not record them.
    pub namespaces: Namespaces,
    /// When it began, in Unix seconds.
    pub created_unix_s: u64,
    /// The Pinfold process that wrote it.
    pub supervisor: TaskId,
    /// True if the placement ends with that process; false in journals of version 1, which do not
    /// record it.
    pub supervised: bool,
    /// The virtual machine's process.
    pub vm: TaskId,
    /// The virtual machine's name, for messages.
    pub vm_name: String,
    /// Threads of the machine and processes started by Pinfold that existed when it began.
    pub threads: Vec<TaskId>,
    /// What libvirt had as the CPUs of the machine's threads when it began. Empty in journals before
    /// version 6, and if the plan was not applied behind libvirt's back.
    pub pins: Vec<RecordedPin>,
    /// The plan as JSON text; opaque here.
    pub plan: String,
}

impl Header {
    fn replace_plan(&mut self, new: &NewPlan) {
        self.plan.clone_from(&new.plan);
        // The placement still ends with the process that wrote the journal.
        self.supervised &= new.supervisor == self.supervisor;
    }
}

/// A journal among others: its path, which another journal may reuse later, and its header.
#[derive(Clone, Copy)]
pub(crate) struct JournalId<'j> {
    pub(crate) path: &'j str,
    pub(crate) header: &'j Header,
}

/// Reason in the `end` line of a journal whose steps a reboot made void.
pub(crate) const RESTARTED: &str = "the host was restarted";
/// Reason in the `end` line of a journal whose machine had ended before the undo.
pub(crate) const ENDED: &str = "ended with its process";
/// The same for a placement that changed the definition of its machine, which only an undo reverts.
pub(crate) const UNDONE_LATER: &str = "undone after its process had ended";

/// Detail of [`Outcome::Restored`] for a step whose task, group or file no longer existed.
pub(crate) const GONE: &str = "gone";

/// Namespaces of a process, as the kernel names them (`pid:[4026531836]`), by kind. Thread numbers
/// are valid in one PID namespace, start times in one time namespace, group paths in one cgroup
/// namespace. Kinds that the kernel lacks are missing.
/// <https://man7.org/linux/man-pages/man7/namespaces.7.html>
pub type Namespaces = BTreeMap<String, String>;

/// The kinds of namespaces that are recorded.
const NAMESPACES: [&str; 3] = ["pid", "time", "cgroup"];

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The step was done and read back.
    Done,
    /// The step's task had ended.
    Skipped,
    /// The step failed.
    Failed,
    /// The step was undone, or there was nothing to undo.
    Restored,
    /// The step was not undone: another program changed the value since, or the kernel refused.
    Kept,
    /// The step was undone because the plan that replaced the placement's first one does not need
    /// it. An undo of the placement skips it.
    Dropped,
    /// The owner of the machine has changed the value since. An undo of the placement leaves it,
    /// also if it is again the one that the step has set.
    Yielded,
}

impl Outcome {
    /// True if what the step changed no longer existed when it was undone; `detail` is that of its
    /// line.
    #[must_use]
    pub fn is_gone(self, detail: Option<&str>) -> bool {
        self == Outcome::Restored && detail == Some(GONE)
    }
}

/// One line of a journal after its header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// A step, written before it is done.
    #[serde(with = "step_line")]
    Step {
        /// Index of the step, from 0.
        index: usize,
        /// The step.
        step: Step,
        /// How other active placements would revert the same setting whose value this step found,
        /// the latest first.
        earlier: Vec<EarlierUndo>,
    },
    /// The outcome of a step.
    Outcome {
        /// Index of the step.
        index: usize,
        /// The outcome.
        #[serde(rename = "result")]
        outcome: Outcome,
        /// For a step that was done: the number that the kernel set instead of the requested one,
        /// which undo accepts as Pinfold's. For one that yielded: the value of the owner. Else
        /// details for the reader.
        detail: Option<String>,
    },
    /// Masks of bystanders, recorded on kernels that overwrite them when a cpuset changes.
    Masks(#[serde(with = "serde_formats::masks")] Vec<(TaskId, CpuSet)>),
    /// Another plan of the same placement replaces the plan before it. It is written before the
    /// first change.
    Plan(NewPlan),
    /// The apply of the present plan is complete.
    #[serde(with = "empty_line")]
    Applied,
    /// An undo has begun.
    #[serde(with = "empty_line")]
    Undoing,
    /// Everything was undone, or dropped after a reboot.
    End {
        /// When it ended, in Unix seconds.
        unix_s: u64,
        /// Why it ended.
        why: String,
    },
}

/// A step, with the keys of its change in its line.
mod step_line {
    use pinfold_model::{Change, Step, Undo};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::EarlierUndo;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct StepLine {
        index: usize,
        reason: String,
        change: Change,
        undo: Undo,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        earlier: Vec<EarlierUndo>,
    }

    pub fn serialize<S: Serializer>(
        index: &usize,
        step: &Step,
        earlier: &[EarlierUndo],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let Step { change, undo, reason } = step.clone();
        StepLine { index: *index, reason, change, undo, earlier: earlier.to_vec() }.serialize(to)
    }

    type StepEntry = (usize, Step, Vec<EarlierUndo>);

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<StepEntry, D::Error> {
        let StepLine { index, reason, change, undo, earlier } = StepLine::deserialize(from)?;
        Ok((index, Step { change, undo, reason }, earlier))
    }
}

/// An entry without data: `{}`.
mod empty_line {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Empty {}

    pub fn serialize<S: Serializer>(to: S) -> Result<S::Ok, S::Error> {
        Empty {}.serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<(), D::Error> {
        Empty::deserialize(from).map(drop)
    }
}

/// A plan that replaces the earlier one of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPlan {
    /// When it replaced the earlier one, in Unix seconds.
    pub unix_s: u64,
    /// The Pinfold process that applied it.
    pub supervisor: TaskId,
    /// The plan as JSON text; opaque here.
    pub plan: String,
}

/// The undo of another placement that had set the same thing before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierUndo {
    /// Path of its journal.
    pub journal: String,
    /// When it began, in Unix seconds: a later placement may have a journal at the same path.
    pub created_unix_s: u64,
    /// How that placement would revert the setting.
    pub undo: Undo,
}

/// A journal's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The first line, with the plan of the last [`Entry::Plan`].
    pub header: Header,
    /// The other lines, in order.
    pub entries: Vec<Entry>,
    /// True if the last line was cut off.
    pub torn: bool,
    /// True if each line has a checksum (since version 5).
    pub(super) has_checksums: bool,
    steps: usize,
    void: BTreeSet<usize>,
}

impl Record {
    pub(super) fn new(header: Header, has_checksums: bool) -> Self {
        Self {
            header,
            entries: Vec::new(),
            torn: false,
            has_checksums,
            steps: 0,
            void: BTreeSet::new(),
        }
    }

    /// Number of steps.
    #[must_use]
    pub fn step_count(&self) -> usize {
        self.steps
    }

    /// The steps with their numbers, in the order in which they were done.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = (usize, &Step)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Step { index, step, .. } => Some((*index, step)),
            Entry::Outcome { .. }
            | Entry::Masks(_)
            | Entry::Plan(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => None,
        })
    }

    /// The process that applied the present plan.
    #[must_use]
    pub fn last_supervisor(&self) -> TaskId {
        let last = self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Plan(new) => Some(new.supervisor),
            Entry::Step { .. }
            | Entry::Outcome { .. }
            | Entry::Masks(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => None,
        });
        last.unwrap_or(self.header.supervisor)
    }

    /// True if there is nothing to undo of a step: its last outcome is [`Outcome::Dropped`] or
    /// [`Outcome::Yielded`].
    #[must_use]
    pub fn is_void(&self, step: usize) -> bool {
        self.void.contains(&step)
    }

    /// A copy with only some of the steps.
    pub(crate) fn with_steps(&self, indices: &BTreeSet<usize>) -> Self {
        let mut part = self.clone();
        part.entries.retain(|entry| match entry {
            Entry::Step { index, .. } => indices.contains(index),
            Entry::Outcome { .. }
            | Entry::Masks(_)
            | Entry::Plan(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => true,
        });
        part
    }

    /// Masks of bystanders.
    pub fn masks(&self) -> impl Iterator<Item = &(TaskId, CpuSet)> {
        self.entries.iter().flat_map(|entry| match entry {
            Entry::Masks(masks) => masks.as_slice(),
            Entry::Step { .. }
            | Entry::Outcome { .. }
            | Entry::Plan(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => &[],
        })
    }

    /// The mask of a task that was recorded since the last complete apply, before it could be lost.
    pub(crate) fn mask_before_undo(&self, task: TaskId) -> Option<&CpuSet> {
        let undone = self.entries.iter().rev();
        let undone = undone.take_while(|entry| !matches!(entry, Entry::Applied));
        let mut masks = undone.filter_map(|entry| match entry {
            Entry::Masks(masks) => masks.iter().find(|(own, _)| *own == task),
            Entry::Step { .. }
            | Entry::Outcome { .. }
            | Entry::Plan(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => None,
        });
        masks.next().map(|(_, mask)| mask)
    }

    /// The number that the kernel set instead of the one that a step requested, if it differs.
    #[must_use]
    pub fn normalized_value(&self, step: usize) -> Option<&str> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Outcome { index, outcome: Outcome::Done, detail } if *index == step => {
                detail.as_deref()
            }
            Entry::Outcome { .. }
            | Entry::Step { .. }
            | Entry::Masks(_)
            | Entry::Plan(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => None,
        })
    }

    /// The last outcome of a step; `None` if it was in progress when the journal was last written.
    #[must_use]
    pub fn last_outcome(&self, step: usize) -> Option<Outcome> {
        self.last_outcome_line(step).map(|(outcome, _)| outcome)
    }

    /// The value that the owner of the machine has given a setting, if a step has yielded to that.
    #[must_use]
    pub fn owner_value(&self, step: usize) -> Option<&str> {
        let (outcome, detail) = self.last_outcome_line(step)?;
        detail.filter(|_| outcome == Outcome::Yielded)
    }

    fn last_outcome_line(&self, step: usize) -> Option<(Outcome, Option<&str>)> {
        self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Outcome { index, outcome, detail } if *index == step => {
                Some((*outcome, detail.as_deref()))
            }
            Entry::Outcome { .. }
            | Entry::Step { .. }
            | Entry::Masks(_)
            | Entry::Plan(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => None,
        })
    }

    /// True if what a step changed no longer existed when the step was undone.
    #[must_use]
    pub fn was_gone(&self, step: usize) -> bool {
        let last = self.last_outcome_line(step);
        last.is_some_and(|(outcome, detail)| outcome.is_gone(detail))
    }

    /// True if the last outcome of a step says that it was done.
    pub(crate) fn was_set(&self, step: usize) -> bool {
        match self.last_outcome(step) {
            Some(Outcome::Done | Outcome::Kept | Outcome::Yielded) => true,
            Some(Outcome::Skipped | Outcome::Failed | Outcome::Restored | Outcome::Dropped)
            | None => false,
        }
    }

    /// True if the placement is no longer active.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.entries.last(), Some(Entry::End { .. }))
    }

    /// When the placement ended, in Unix seconds, and why; `None` while it is active.
    #[must_use]
    pub fn end(&self) -> Option<(u64, &str)> {
        match self.entries.last() {
            Some(Entry::End { unix_s, why }) => Some((*unix_s, why)),
            Some(_) | None => None,
        }
    }

    /// True if it ended because of a reboot: only lasting changes were restored.
    #[must_use]
    pub fn was_ended_by_restart(&self) -> bool {
        matches!(self.entries.last(), Some(Entry::End { why, .. }) if why == RESTARTED)
    }

    /// True if it was written since the host's last boot.
    ///
    /// # Errors
    /// [`HostError`] if the boot ID cannot be read.
    pub fn is_of_this_boot(&self, host: &dyn Host) -> Result<bool, HostError> {
        Ok(self.header.boot_id == boot_id(host)?)
    }

    /// Fails if the journal's numbers, times or paths have another meaning here than where it was
    /// written: in another namespace of the same boot.
    ///
    /// # Errors
    /// [`JournalError::OtherNamespace`] with the namespace, [`JournalError::Host`].
    pub fn require_here(&self, host: &dyn Host) -> Result<(), JournalError> {
        let noted = &self.header.namespaces;
        if noted.is_empty() || !self.is_of_this_boot(host).map_err(JournalError::Host)? {
            return Ok(());
        }
        let here = namespaces(host).map_err(JournalError::Host)?;
        let Some(kind) =
            NAMESPACES.iter().find(|kind: &&&str| here.get(**kind) != noted.get(**kind))
        else {
            return Ok(());
        };
        let name = |of: &Namespaces| of.get(*kind).cloned().unwrap_or_else(|| "none".to_owned());
        Err(JournalError::OtherNamespace {
            id: self.header.id.clone(),
            kind: (*kind).to_owned(),
            noted: name(noted),
            here: name(&here),
        })
    }

    /// True if its numbers, times and paths have the same meaning here as where it was written.
    ///
    /// # Errors
    /// [`HostError`] if the namespaces of this process cannot be read.
    pub fn is_of_these_namespaces(&self, host: &dyn Host) -> Result<bool, HostError> {
        let noted = &self.header.namespaces;
        let here = namespaces(host)?;
        Ok(noted.is_empty() || NAMESPACES.iter().all(|kind| here.get(*kind) == noted.get(*kind)))
    }

    /// True if this journal was left behind: it is of another boot, or its process has ended
    /// although it had to undo the journal or had not completed its apply or undo, or the machine
    /// has ended and no process has to undo it.
    ///
    /// # Errors
    /// [`HostError`] if the boot ID or a process cannot be read.
    pub fn is_left(&self, host: &dyn Host) -> Result<bool, HostError> {
        if self.has_ended() {
            return Ok(false);
        }
        if !self.is_of_this_boot(host)? {
            return Ok(true);
        }
        let is_supervised = tasks::is_alive(host, self.last_supervisor())?;
        if (self.header.supervised || self.is_broken_off()) && !is_supervised {
            return Ok(true);
        }
        let is_awaited = self.header.supervised && is_supervised;
        Ok(!is_awaited
            && self.is_of_these_namespaces(host)?
            && !tasks::is_alive(host, self.header.vm)?)
    }

    /// True if an undo has begun and no apply since.
    #[must_use]
    pub fn is_being_undone(&self) -> bool {
        matches!(self.marks().next(), Some(Entry::Undoing))
    }

    /// True if the last apply was complete when the present undo began, or now if none has begun.
    pub(crate) fn is_first_undo(&self) -> bool {
        let mut marks = self.marks();
        match marks.next() {
            Some(Entry::Undoing) => matches!(marks.next(), Some(Entry::Applied)),
            mark => matches!(mark, Some(Entry::Applied)),
        }
    }

    /// The beginnings and ends of applies and undos, the last first.
    fn marks(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.entries.iter().rev();
        entries.filter(|entry| matches!(entry, Entry::Plan(_) | Entry::Applied | Entry::Undoing))
    }

    /// True if an apply or an undo has begun that is not complete: a step has no outcome or was
    /// undone, and journals since version 5 have lines for the end of an apply and the beginning of
    /// an undo.
    fn is_broken_off(&self) -> bool {
        let mut last: Vec<Option<Outcome>> = Vec::with_capacity(self.steps);
        let mut is_complete = !self.has_checksums;
        for entry in &self.entries {
            match entry {
                Entry::Outcome { index, outcome, .. } => last[*index] = Some(*outcome),
                Entry::Step { .. } => last.push(None),
                // Steps of a plan that was put back have no outcome.
                Entry::Applied => {
                    is_complete = true;
                    last.iter_mut().for_each(|outcome| *outcome = outcome.or(Some(Outcome::Done)));
                }
                Entry::Plan(_) | Entry::Undoing => is_complete = false,
                Entry::Masks(_) | Entry::End { .. } => {}
            }
        }
        !is_complete
            || last.iter().any(|outcome| match outcome {
                None | Some(Outcome::Restored | Outcome::Kept) => true,
                Some(
                    Outcome::Done
                    | Outcome::Skipped
                    | Outcome::Failed
                    | Outcome::Dropped
                    | Outcome::Yielded,
                ) => false,
            })
    }

    /// Adds an entry if it is valid after the existing ones.
    pub(super) fn add(&mut self, entry: Entry) -> Result<(), &'static str> {
        if self.has_ended() {
            return Err("there are lines after the end record");
        }
        match &entry {
            Entry::Step { index, .. } if *index != self.steps => return Err("a step is missing"),
            Entry::Outcome { index, .. } if *index >= self.steps => {
                return Err("an outcome without its step");
            }
            Entry::Plan(new) => self.header.replace_plan(new),
            Entry::Outcome { index, outcome: Outcome::Dropped | Outcome::Yielded, .. } => {
                self.void.insert(*index);
            }
            Entry::Outcome { index, .. } => {
                self.void.remove(index);
            }
            Entry::Step { .. }
            | Entry::Masks(_)
            | Entry::Applied
            | Entry::Undoing
            | Entry::End { .. } => {}
        }
        self.steps += usize::from(matches!(entry, Entry::Step { .. }));
        self.entries.push(entry);
        Ok(())
    }
}

/// The boot id of a host.
pub(super) fn boot_id(host: &dyn Host) -> Result<String, HostError> {
    Ok(host.read_text(&paths::boot_id())?.trim().to_owned())
}

/// The namespaces of this process.
pub(super) fn namespaces(host: &dyn Host) -> Result<Namespaces, HostError> {
    let mut found = Namespaces::new();
    for kind in NAMESPACES {
        if let Some(name) = tasks::ignore_gone(host.link(&paths::own_namespace(kind)))? {
            found.insert(kind.to_owned(), name);
        }
    }
    Ok(found)
}

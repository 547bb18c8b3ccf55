//! Settings of the host that several placements set one after the other.
//!
//! A governor, huge pages or the CPUs of a slice do not belong to one placement. If a placement
//! finds the value that another active one has set, that value is not the original, and the two may
//! be undone in any order:
//!
//! ```text
//! original 0     A sets 1     B finds 1, sets 2     undo A     undo B → 0, not 1
//! ```
//! So the step of B is journalled with the undo of A, and with those that A had recorded itself
//! ([`EarlierUndo`]). An undo restores the value of the nearest of them that is still active, or
//! the original of the last one if none is. If another placement has replaced a placement's value
//! since, the undo of that other one restores it. A placement never writes to another placement's
//! journal, because that one's process may be writing to it.

use std::borrow::Cow;

use pinfold_host::paths;
use pinfold_model::{Change, Setting, SettingManager, Step, TaskId, Undo};

use crate::actuators;
use crate::journal::{EarlierUndo, Entry, JournalId, Outcome, Record};

/// The other active placements, each with the path of its journal.
#[derive(Debug, Default)]
pub(crate) struct OtherPlacements(Vec<(String, Record)>);

impl OtherPlacements {
    pub(crate) fn new(active: Vec<(String, Record)>) -> Self {
        Self(active)
    }

    /// The processes of their machines.
    pub(crate) fn machines(&self) -> impl Iterator<Item = TaskId> {
        self.0.iter().map(|(_, record)| record.header.vm)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The undos of those placements whose value a step has found, the latest first.
    pub(crate) fn earlier(&self, step: &Step) -> Vec<EarlierUndo> {
        let holders: Vec<(&String, &Record)> = self
            .0
            .iter()
            .filter(|(_, of)| holds(of, &step.undo))
            .map(|(at, of)| (at, of))
            .collect();
        let Some((path, last)) = holders.iter().find(|(path, of)| {
            !holders.iter().any(|(_, other)| {
                is_above(other, JournalId { path, header: &of.header }, &step.undo)
            })
        }) else {
            return Vec::new();
        };
        let Some(undo) = first_undo(last, &step.undo) else { return Vec::new() };
        let one = EarlierUndo {
            journal: (*path).clone(),
            created_unix_s: last.header.created_unix_s,
            undo: undo.clone(),
        };
        std::iter::once(one).chain(earlier_of(last, &step.undo).iter().cloned()).collect()
    }

    /// For a thread whose mask equals its whole cpuset: the undo of the placement that has narrowed
    /// one of these groups. When that is reverted, the thread has all CPUs.
    pub(crate) fn narrowing(&self, lineage: &[String], undo: &Undo) -> Option<EarlierUndo> {
        let sets = |record: &Record| {
            let mut lists = lineage.iter().map(|group| paths::cpuset_cpus(group));
            lists.any(|list| {
                record.steps().any(|(index, step)| {
                    step.change.as_write_file().is_some_and(|(path, _)| path == list)
                        && record.was_set(index)
                })
            })
        };
        let (journal, record) = self.0.iter().find(|(_, record)| sets(record))?;
        let created_unix_s = record.header.created_unix_s;
        Some(EarlierUndo { journal: journal.clone(), created_unix_s, undo: undo.clone() })
    }

    /// The placement that changed the setting of a step after `own` did.
    pub(crate) fn find_later(&self, own: JournalId<'_>, step: &Step) -> Option<&Record> {
        let mut all = self.0.iter().map(|(_, record)| record);
        all.find(|record| is_above(record, own, &step.undo))
    }

    /// A copy of the record whose steps restore the values that are the original ones now.
    pub(crate) fn resolve<'r>(&self, record: &'r Record) -> Cow<'r, Record> {
        let mut resolved = Cow::Borrowed(record);
        for place in 0..record.entries.len() {
            let Entry::Step { step, .. } = &record.entries[place] else { continue };
            let ended = earlier_of(record, &step.undo).iter().take_while(|one| {
                !self.0.iter().any(|(path, of)| {
                    *path == one.journal && of.header.created_unix_s == one.created_unix_s
                })
            });
            let Some(last) = ended.last().map(|one| one.undo.clone()) else { continue };
            if let Entry::Step { step, .. } = &mut resolved.to_mut().entries[place] {
                step.undo = last;
            }
        }
        resolved
    }
}

/// True for a step whose setting another placement may change too.
pub(crate) fn is_shared(step: &Step, own: &[TaskId]) -> bool {
    match &step.undo {
        Undo::WriteFile { .. } => true,
        Undo::WriteSetting { setting, .. } => setting.keeper == SettingManager::Systemd,
        Undo::SetAffinity { task, .. } | Undo::SetPolicy { task, .. } => !own.contains(task),
        Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => false,
    }
}

/// The last step that changed the same setting.
pub(crate) fn last_step(record: &Record, undo: &Undo) -> Option<usize> {
    let (index, _) = record.steps().rfind(|(_, step)| is_same_thing(undo, &step.undo))?;
    Some(index)
}

/// The undo of the first step that changed the same setting and was not undone since.
pub(crate) fn first_undo<'r>(record: &'r Record, undo: &Undo) -> Option<&'r Undo> {
    let in_force = record.steps().filter(|(index, _)| !record.is_void(*index));
    in_force.map(|(_, step)| &step.undo).find(|earlier| is_same_thing(undo, earlier))
}

/// A setting that a step changes and that another step may change too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UndoTarget<'u> {
    File(&'u str),
    Setting(&'u Setting),
    Mask(TaskId),
    Policy(TaskId),
}

pub(crate) fn undo_target(undo: &Undo) -> Option<UndoTarget<'_>> {
    match undo {
        Undo::WriteFile { path, .. } => Some(UndoTarget::File(path)),
        Undo::WriteSetting { setting, .. } => Some(UndoTarget::Setting(setting)),
        Undo::SetAffinity { task, .. } => Some(UndoTarget::Mask(*task)),
        Undo::SetPolicy { task, .. } => Some(UndoTarget::Policy(*task)),
        Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => None,
    }
}

pub(crate) fn is_same_thing(undo: &Undo, earlier: &Undo) -> bool {
    undo_target(undo).is_some_and(|changed| undo_target(earlier) == Some(changed))
}

/// The earlier placements that the first step for a setting has recorded.
fn earlier_of<'r>(record: &'r Record, undo: &Undo) -> &'r [EarlierUndo] {
    let noted = record.entries.iter().find_map(|entry| match entry {
        Entry::Step { step, earlier, .. } if is_same_thing(undo, &step.undo) => Some(earlier),
        Entry::Step { .. }
        | Entry::Outcome { .. }
        | Entry::Masks(_)
        | Entry::Plan(_)
        | Entry::Applied
        | Entry::Undoing
        | Entry::End { .. } => None,
    });
    noted.map_or(&[], Vec::as_slice)
}

/// True if a placement has recorded another one as earlier for a setting that it still has set
/// itself.
fn is_above(record: &Record, lower: JournalId<'_>, undo: &Undo) -> bool {
    earlier_of(record, undo)
        .iter()
        .any(|one| one.journal == lower.path && one.created_unix_s == lower.header.created_unix_s)
        && record
            .steps()
            .any(|(index, step)| is_same_thing(undo, &step.undo) && record.was_set(index))
}

/// True if the value that a step found is the one that another placement set last.
fn holds(record: &Record, found: &Undo) -> bool {
    let Some((index, step)) =
        record.steps().rfind(|(_, step): &(usize, &Step)| is_same_thing(found, &step.undo))
    else {
        return false;
    };
    // A step without an outcome may have been done before a crash.
    let is_void = record.entries.iter().any(|entry| match entry {
        Entry::Outcome { index: of, outcome, .. } => {
            let is_void = match outcome {
                Outcome::Skipped
                | Outcome::Failed
                | Outcome::Restored
                | Outcome::Dropped
                | Outcome::Yielded => true,
                Outcome::Done | Outcome::Kept => false,
            };
            *of == index && is_void
        }
        Entry::Step { .. }
        | Entry::Masks(_)
        | Entry::Plan(_)
        | Entry::Applied
        | Entry::Undoing
        | Entry::End { .. } => false,
    });
    !is_void && is_value_of(record.normalized_value(index), step, found)
}

fn is_value_of(given: Option<&str>, step: &Step, found: &Undo) -> bool {
    match (&step.change, found, &step.undo) {
        (
            Change::WriteFile { path, value },
            Undo::WriteFile { original: now, .. },
            Undo::WriteFile { original, .. },
        ) => {
            given.is_some_and(|given| now.trim_ascii() == given.as_bytes())
                // Text that is no list or number does not count as the set value.
                || actuators::still_holds(path, now, value, original).unwrap_or(false)
        }
        (Change::WriteSetting { value, .. }, Undo::WriteSetting { original: now, .. }, _) => {
            now.as_deref() == Some(value)
        }
        (Change::SetAffinity { mask, .. }, Undo::SetAffinity { original: now, .. }, _) => {
            mask == now
        }
        (Change::SetPolicy { policy, .. }, Undo::SetPolicy { original: now, .. }, _) => {
            policy == now
        }
        _ => false,
    }
}

//! Damaged journals, which no command can undo.

use pinfold_model::TaskId;

use super::{JournalError, Journals, Record, SUFFIX, ids};

/// Suffix of a journal that was set aside, which no command reads.
const DAMAGED: &str = ".damaged";

impl Journals<'_> {
    /// Fails if an undo of an active journal would fail because its last lines are missing.
    ///
    /// # Errors
    /// [`JournalError::Malformed`].
    pub fn require_all_steps(&self, record: &Record) -> Result<(), JournalError> {
        let path = self.files.path_of(&format!("{}{SUFFIX}", record.header.id));
        let applied = self.marks.as_ref().map_or(0, |marks| marks.count_steps(&path));
        require_steps(record, applied, path)
    }

    /// Renames the journals of a process that cannot be undone because they are damaged, so that it
    /// can be placed again. Returns their new paths.
    ///
    /// # Errors
    /// [`JournalError::Store`].
    pub fn quarantine_damaged(&self, process: TaskId) -> Result<Vec<String>, JournalError> {
        let mut paths = Vec::new();
        for id in self.of_machine(&ids::of_machine(process))? {
            let Err(JournalError::Malformed { .. }) = self.reopen(&id) else { continue };
            let (old, new) = (format!("{id}{SUFFIX}"), format!("{id}{DAMAGED}"));
            self.files.replace(&new, &self.files.read(&old)?, 0)?;
            self.files.remove(&old)?;
            paths.push(self.files.path_of(&new));
        }
        Ok(paths)
    }
}

/// Fails if a journal has fewer steps than its apply recorded in a mark: its last lines are
/// missing.
pub(super) fn require_steps(
    record: &Record,
    applied: usize,
    path: String,
) -> Result<(), JournalError> {
    let count = record.step_count();
    if count >= applied || record.has_ended() {
        return Ok(());
    }
    let why = format!("it ends after {count} of {applied} steps: lines are missing");
    Err(JournalError::Malformed { path, line: count + 2, why })
}

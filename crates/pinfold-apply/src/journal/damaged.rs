//! Damaged journals, which no command can undo.

use pinfold_model::TaskId;

use super::{JournalError, Journals, SUFFIX, ids};

/// Suffix of a journal that was set aside, which no command reads.
const DAMAGED: &str = ".damaged";

impl Journals<'_> {
    /// Renames the journals of a process that cannot be undone because they are damaged, so that it
    /// can be placed again. Returns their new paths.
    ///
    /// # Errors
    /// [`JournalError::Store`].
    pub fn set_damaged_aside(&self, process: TaskId) -> Result<Vec<String>, JournalError> {
        let mut paths = Vec::new();
        for id in self.of_machine(&ids::of_machine(process))? {
            let Err(JournalError::Malformed { .. }) = self.reopen(&id) else { continue };
            let (old, new) = (format!("{id}{SUFFIX}"), format!("{id}{DAMAGED}"));
            self.files.replace(&new, &self.files.read(&old)?)?;
            self.files.remove(&old)?;
            paths.push(self.files.path_of(&new));
        }
        Ok(paths)
    }
}

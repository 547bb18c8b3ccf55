//! Removal of old journals that have ended.

use pinfold_host::Host;

use super::{JournalError, Journals, LOCK_SUFFIX, SUFFIX, ids};
use crate::tasks;

/// Number of ended journals that are kept for the reader. Older ones are removed once there are
/// more than twice as many.
pub const HISTORY: usize = 16;

impl Journals<'_> {
    /// Limits the number of ended journals to the latest [`HISTORY`]. Active and unreadable
    /// journals always stay, and the latest of a machine that is alive, so that no ID is used
    /// twice. The caller holds the lock of the machine `held`.
    pub(super) fn prune(&self, host: &dyn Host, held: &str) -> Result<(), JournalError> {
        // Reading all journals takes longer than an apply, so most applies skip this.
        let names = self.files.list()?;
        if names.iter().filter(|name| name.ends_with(SUFFIX)).count() <= 2 * HISTORY {
            return Ok(());
        }
        let mut ended = Vec::new();
        for summary in self.list()? {
            if let Ok(Some(record)) = &summary.record
                && record.has_ended()
            {
                ended.push((record.header.created_unix_s, summary.id));
            }
        }
        ended.sort();
        let surplus = ended.len().saturating_sub(HISTORY);
        for (_, id) in ended.drain(..surplus) {
            self.remove_ended(host, &id, held)?;
        }
        Ok(())
    }

    fn remove_ended(&self, host: &dyn Host, id: &str, held: &str) -> Result<(), JournalError> {
        let machine = ids::machine(id);
        if ids::is_latest(id, &self.of_machine(machine)?)
            && let Some(task) = ids::task(id)
            && tasks::is_alive(host, task).map_err(JournalError::Host)?
        {
            return Ok(());
        }
        if machine == held {
            return Ok(self.files.remove(&format!("{id}{SUFFIX}"))?);
        }
        let lock_name = format!("{machine}{LOCK_SUFFIX}");
        // The Pinfold process that just ends still holds the lock; a later call removes this
        // journal.
        let Some(lock) = self.files.lock(&lock_name)? else { return Ok(()) };
        // The machine may have been placed again before the lock was taken.
        if self.has_ended(id)? {
            self.files.remove(&format!("{id}{SUFFIX}"))?;
        }
        if self.of_machine(machine)?.is_empty() {
            self.files.remove(&lock_name)?;
        }
        drop(lock);
        Ok(())
    }
}

impl Journals<'_> {
    /// True if the journal has ended now; false if another Pinfold process has removed it.
    fn has_ended(&self, id: &str) -> Result<bool, JournalError> {
        if !self.files.contains(&format!("{id}{SUFFIX}")) {
            return Ok(false);
        }
        Ok(self.read(id)?.is_some_and(|record| record.has_ended()))
    }
}

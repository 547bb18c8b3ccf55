//! What an undo restored and what it could not restore.

use pinfold_host::{HostError, with_causes};
use pinfold_model::{Command, Finding, TaskId};

use crate::actuators::Reverted;

/// Result of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoReport {
    /// Number of values that were restored.
    pub restored: usize,
    /// Number of values that were already right.
    pub already_right: usize,
    /// Number of tasks and groups that no longer exist.
    pub gone: usize,
    /// Number of steps that a reboot made void.
    pub dropped: usize,
    /// Values that have the same effect as the original but not the same bytes, because the kernel
    /// does not accept the original.
    pub equivalent: Vec<Finding>,
    /// Groups that no longer existed when the undo began.
    pub vanished: Vec<Finding>,
    /// Values that another program changed since and that were therefore left.
    pub changed: Vec<Finding>,
    /// Values that could not be restored; another undo may try again.
    pub failed: Vec<Finding>,
}

impl UndoReport {
    /// True if nothing remains to be undone.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }

    /// Counts a result; true if the value is no longer Pinfold's.
    pub(crate) fn count(&mut self, what: &str, answer: Result<Reverted, HostError>) -> bool {
        match answer {
            Ok(Reverted::Restored) => self.restored += 1,
            // Counted when the step is finished.
            Ok(Reverted::Later) => {}
            Ok(Reverted::Nothing) => self.already_right += 1,
            Ok(Reverted::Gone) => self.gone += 1,
            Ok(Reverted::Near(finding)) => {
                self.restored += 1;
                self.equivalent.push(finding);
            }
            Ok(Reverted::Changed(finding)) => {
                self.changed.push(finding);
                return false;
            }
            Err(error) => {
                self.fail(what, &error);
                return false;
            }
        }
        true
    }

    /// The same for tasks that are not in the journal. Most have no value of Pinfold's, so only
    /// actual changes count.
    pub(crate) fn count_done(&mut self, task: TaskId, answer: Result<Reverted, HostError>) {
        match answer {
            Ok(Reverted::Nothing | Reverted::Gone) => {}
            answer => {
                self.count(&task.to_string(), answer);
            }
        }
    }

    pub(crate) fn fail(&mut self, what: &str, error: &(dyn std::error::Error + 'static)) {
        let text = format!("{what} could not be restored: {}", with_causes(error));
        let remedy = match error.downcast_ref() {
            Some(HostError::Kept { hint: Some(hint), .. }) => hint,
            _ => "remove the cause",
        };
        let hint = format!("{remedy}, then run `{}` again", Command::new("undo"));
        self.failed.push(Finding::problem("undo", text).with_hint(hint));
    }
}

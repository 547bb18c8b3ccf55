//! Active placements without a usable journal.

use std::fmt;

use pinfold_model::{Command, TaskId};

/// Why a placement cannot be reverted by its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// The file does not exist.
    Missing,
    /// The file has no complete first line.
    Cut,
    /// The file says that the placement was reverted, but threads still have its masks.
    Ended,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Missing => "the journal of that placement is missing",
            LostReason::Cut => "the journal of that placement is truncated in its first line",
            LostReason::Ended => {
                "the journal of that placement records its end, but its threads still have the \
                 masks of the plan"
            }
        })
    }
}

/// An active placement whose journal is missing or wrong: its mark is the last trace of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPlacement {
    /// The placed process, which lives.
    pub process: TaskId,
    /// Path of its journal.
    pub journal: String,
    /// What is wrong with the journal.
    pub reason: LostReason,
}

impl LostPlacement {
    /// ID of the journal.
    #[must_use]
    pub fn id(&self) -> &str {
        let name = self.journal.rsplit('/').next().unwrap_or(&self.journal);
        name.strip_suffix(".jsonl").unwrap_or(name)
    }

    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> String {
        let reset = Command::new(format!("undo --reset {}", self.process.tid));
        let gives = format!("`{reset}` gives its threads all CPUs of their cgroup");
        match self.reason {
            LostReason::Missing | LostReason::Cut => gives,
            LostReason::Ended => format!(
                "if you know that the placement was not reverted, delete the last line of that \
                 file; then `{}` reverts it. Otherwise {gives} and reverts nothing else",
                Command::new("undo").arg(self.id())
            ),
        }
    }
}

impl fmt::Display for LostPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, journal, reason } = self;
        write!(f, "process {} already has a placement, and {reason}: {journal}", process.tid)
    }
}

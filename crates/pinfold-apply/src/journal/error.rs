//! Why a journal cannot be begun, written or used.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use pinfold_host::HostError;
use pinfold_model::command::quote;
use pinfold_model::{Command, Tid};

use super::ids;
use super::lost::{LostPlacement, LostReason};

/// Why a journal cannot be begun, written or used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A journal file cannot be read or written.
    #[error("cannot read or write the journal")]
    Store(#[from] HostError),
    /// The host could not be read.
    #[error("cannot read the state of the host for the journal")]
    Host(#[source] HostError),
    /// A line cannot be serialised.
    #[error("{path}: cannot write a line")]
    Unwritable {
        /// Path of the journal.
        path: String,
        /// The error of the serialiser.
        source: serde_json::Error,
    },
    /// A line is not understood; nothing of the journal was executed.
    #[error("{path}: cannot parse line {line}: {why}")]
    Malformed {
        /// Path of the journal.
        path: String,
        /// The line number, from 1.
        line: usize,
        /// The fault in the line.
        why: String,
    },
    /// A later version of Pinfold wrote the journal; nothing of it was executed.
    #[error("{path} has the format {format:?}, which this version of Pinfold cannot read")]
    Newer {
        /// Path of the journal.
        path: String,
        /// The journal's format.
        format: String,
    },
    /// Another Pinfold process holds the lock.
    #[error("another pinfold process is managing this process (journal {id})")]
    Busy {
        /// ID of the journal.
        id: String,
    },
    /// The journal's numbers, times and paths are valid in another namespace; nothing of it was
    /// executed.
    #[error(
        "journal {id} was written in another {} namespace ({noted}, here {here})",
        namespace_name(kind)
    )]
    OtherNamespace {
        /// ID of the journal.
        id: String,
        /// The kind of namespace.
        kind: String,
        /// The namespace in which it was written.
        noted: String,
        /// The namespace of this process.
        here: String,
    },
    /// An earlier placement of the machine is still active.
    #[error("a placement of {vm_name} is already active (journal {id})")]
    Active {
        /// ID of the active journal.
        id: String,
        /// Name of the machine.
        vm_name: String,
    },
    /// A placement of the machine, made from another state directory, is active.
    #[error("process {pid} already has a placement, made with another state directory ({journal})")]
    Placed {
        /// The machine's process.
        pid: Tid,
        /// The journal of that placement, or its mark if the journal is not visible.
        journal: String,
    },
    /// The process has a mark of a placement, and the journal of that placement is missing or
    /// wrong.
    #[error("{0}")]
    Lost(LostPlacement),
    /// Another journal of this state directory has an active placement of the process.
    #[error("process {pid} already has a placement (journal {id})")]
    Held {
        /// The process ID.
        pid: Tid,
        /// ID of that journal.
        id: String,
    },
    /// The virtual machine or process group has ended.
    #[error("process {pid} has ended")]
    VmGone {
        /// The process ID.
        pid: Tid,
    },
}

impl JournalError {
    /// True if the disk or the user's quota is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, JournalError::Store(error) if is_full(error))
    }

    /// What the user can do about the error, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            JournalError::Store(error) if is_full(error) => {
                Some("free some space on that disk, or choose another with --state-dir".to_owned())
            }
            JournalError::Store(HostError::Untrusted { path, .. }) => Some(format!(
                "check {path}: files that Pinfold trusts must not be writable by other users"
            )),
            JournalError::Store(_) | JournalError::Host(_) | JournalError::Unwritable { .. } => {
                None
            }
            JournalError::Malformed { path, .. } => Some(after_damage(path)),
            JournalError::Newer { .. } => {
                Some("undo it with the Pinfold that wrote it, or a later one".to_owned())
            }
            JournalError::OtherNamespace { .. } => Some(
                "run it where the placement was applied: outside the container, or \
                 nsenter -a -t PID with a process of that namespace"
                    .to_owned(),
            ),
            JournalError::Busy { .. } => {
                Some("stop that process first: it reverts its placement when it exits".to_owned())
            }
            JournalError::Active { id, .. } | JournalError::Held { id, .. } => {
                Some(format!("revert it first: `{}`", Command::new("undo").arg(id)))
            }
            JournalError::Placed { journal, .. } => Some(match journal.rsplit_once("/journal/") {
                Some((state, file)) => {
                    let id = file.strip_suffix(".jsonl").unwrap_or(file);
                    format!("revert it first: pinfold --state-dir {} undo {id}", quote(state))
                }
                None => "revert it first, as the user who applied it".to_owned(),
            }),
            JournalError::Lost(lost) if lost.reason == LostReason::Missing => Some(format!(
                "revert it where that file is visible (outside of a container or mount namespace); \
                 if it was removed: `{}`",
                Command::new(format!("undo --reset {}", lost.process.tid))
            )),
            JournalError::Lost(lost) => Some(lost.hint()),
            JournalError::VmGone { .. } => Some("start it again".to_owned()),
        }
    }
}

/// True if the disk or the user's quota is full.
fn is_full(error: &HostError) -> bool {
    let HostError::File { source, .. } = error else { return false };
    matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The name of a kind of namespace as manual pages spell it.
fn namespace_name(kind: &str) -> &str {
    if kind == "pid" { "PID" } else { kind }
}

/// What to do about a damaged journal, with the process that its name has.
fn after_damage(path: &str) -> String {
    let id = Path::new(path).file_stem().and_then(OsStr::to_str);
    let process = id.and_then(ids::task).map(|task| task.tid.to_string());
    let (which, pid) = match &process {
        Some(pid) => (format!("process {pid}"), pid.as_str()),
        None => ("its process".to_owned(), "PID"),
    };
    let reset = Command::new("undo --reset").arg(pid);
    let aside = format!("mv {} {}", quote(path), quote(&format!("{path}.damaged")));
    format!(
        "nothing was executed. If {which} is running: `{reset}` lets its threads use all CPUs and \
         renames this journal, so that it can be placed again; then check other settings of the \
         host by hand. If it has exited: `{aside}`"
    )
}

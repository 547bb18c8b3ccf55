//! Errors of a store, with hints.

use pinfold_host::HostError;

use super::rows::RunId;
use crate::schema::SchemaError;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder of the file cannot be created.
    #[error("cannot create the directory of the store {path}")]
    Folder {
        /// Path of the store.
        path: String,
        /// Error of the host.
        source: HostError,
    },
    /// The file does not exist.
    #[error("there is no store at {path}")]
    Missing {
        /// Path of the store.
        path: String,
    },
    /// The file cannot be opened.
    #[error("cannot open the store {path}")]
    Open {
        /// Path of the store.
        path: String,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The file belongs to another program.
    #[error("{path} is not a store of Pinfold: {why}")]
    Foreign {
        /// Path of the file.
        path: String,
        /// How this was detected.
        why: String,
    },
    /// A later version of Pinfold wrote it.
    #[error(
        "the store {path} has version {found}, but this Pinfold supports versions up to {known}"
    )]
    Newer {
        /// Path of the store.
        path: String,
        /// Version of the store.
        found: i64,
        /// The newest version that is supported.
        known: i64,
    },
    /// Another process has locked it.
    #[error("the store {path} is locked by another process")]
    Locked {
        /// Path of the store.
        path: String,
    },
    /// The file is truncated or damaged.
    #[error("the store {path} is damaged")]
    Damaged {
        /// Path of the store.
        path: String,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The disk is full.
    #[error("the disk under the store {path} is full")]
    Full {
        /// Path of the store.
        path: String,
    },
    /// The file is not writable.
    #[error("the store {path} is not writable")]
    ReadOnly {
        /// Path of the store.
        path: String,
    },
    /// SQLite failed in another way.
    #[error("the store {path}: cannot {operation}")]
    Sql {
        /// Path of the store.
        path: String,
        /// The operation that failed.
        operation: &'static str,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// It contains a value that Pinfold does not write.
    #[error("the store {path}: {what} holds {value:?}")]
    Value {
        /// Path of the store.
        path: String,
        /// The column or number.
        what: &'static str,
        /// The invalid value.
        value: String,
    },
    /// It contains a document that Pinfold does not write.
    #[error("the store {path}: {what}")]
    Document {
        /// Path of the store.
        path: String,
        /// Name of the document.
        what: &'static str,
        /// Error of the document.
        source: SchemaError,
    },
    /// It does not have this run.
    #[error("the store {path} has no run {run}")]
    NoRun {
        /// Path of the store.
        path: String,
        /// Number of the missing run.
        run: RunId,
    },
    /// The run is of another kind.
    #[error("run {run} of the store {path} is a {found}, not a {wanted}")]
    Kind {
        /// Path of the store.
        path: String,
        /// Number of the run.
        run: RunId,
        /// Kind of the run.
        found: String,
        /// The requested kind.
        wanted: &'static str,
    },
    /// The host is not the one on which the run started.
    #[error("run {run} began on another host: {}", changes.join(", "))]
    HostChanged {
        /// Number of the run.
        run: RunId,
        /// The differences, each as `kernel: 6.1 then, 6.12 now`.
        changes: Vec<String>,
    },
    /// The store has this start already.
    #[error("run {run} already holds this start: {start}")]
    AlreadySaved {
        /// Number of the run.
        run: RunId,
        /// Phase, block and candidate.
        start: String,
    },
}

impl StoreError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            StoreError::Folder { .. } | StoreError::Open { .. } | StoreError::ReadOnly { .. } => {
                "check the permissions of the file and its directory, or name another file with \
                 --store"
            }
            StoreError::Missing { .. } => {
                "`pinfold tune` and `pinfold study run` create stores; check the name"
            }
            StoreError::Foreign { .. } => {
                "name another file with --store; this one was not touched"
            }
            StoreError::Newer { .. } => "use the Pinfold that wrote it, or a later one",
            StoreError::Locked { .. } => {
                "wait until the other pinfold process exits, or name another file with --store"
            }
            StoreError::Damaged { .. } => {
                "save what is left with `sqlite3 FILE .recover | sqlite3 NEW`, or restore a copy; \
                 the files FILE-wal and FILE-shm belong to the store and must move with it"
            }
            StoreError::Full { .. } => {
                "free some space and run the same command again: what was saved is kept"
            }
            StoreError::Value { .. } | StoreError::Document { .. } => {
                "the file was changed by another program; restore a copy or start a new store"
            }
            StoreError::NoRun { .. } | StoreError::Kind { .. } => {
                "list the runs with `pinfold report --list`"
            }
            StoreError::HostChanged { .. } => {
                "start a new run, or allow the change if you know that it does not matter; the \
                 result will report it"
            }
            StoreError::AlreadySaved { .. } => {
                "another pinfold process is working on the same run; stop one of them"
            }
            StoreError::Sql { .. } => return None,
        };
        Some(text.to_owned())
    }
}

//! What can go wrong with a store, and the way out of each.

use pinfold_host::HostError;

use super::rows::RunId;
use crate::schema::SchemaError;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder of the file cannot be made.
    #[error("the folder of the store {path} cannot be made")]
    Folder {
        /// The store's path.
        path: String,
        /// Why.
        source: HostError,
    },
    /// There is no such file.
    #[error("there is no store at {path}")]
    Missing {
        /// The store's path.
        path: String,
    },
    /// The file cannot be opened.
    #[error("the store {path} cannot be opened")]
    Open {
        /// The store's path.
        path: String,
        /// SQLite's answer.
        source: rusqlite::Error,
    },
    /// The file belongs to another program.
    #[error("{path} is not a store of Pinfold: {why}")]
    Foreign {
        /// The path.
        path: String,
        /// How one sees it.
        why: String,
    },
    /// A later Pinfold wrote it.
    #[error("the store {path} has version {found}, this Pinfold knows versions up to {known}")]
    Newer {
        /// The store's path.
        path: String,
        /// Its version.
        found: i64,
        /// The newest version that is understood.
        known: i64,
    },
    /// Another process holds it.
    #[error("the store {path} is locked by another process")]
    Locked {
        /// The store's path.
        path: String,
    },
    /// The file is truncated or damaged.
    #[error("the store {path} is damaged")]
    Damaged {
        /// The store's path.
        path: String,
        /// SQLite's answer.
        source: rusqlite::Error,
    },
    /// The disk is full.
    #[error("the disk under the store {path} is full")]
    Full {
        /// The store's path.
        path: String,
    },
    /// The file may not be written.
    #[error("the store {path} may not be written")]
    ReadOnly {
        /// The store's path.
        path: String,
    },
    /// SQLite failed in another way.
    #[error("the store {path}: cannot {doing}")]
    Sql {
        /// The store's path.
        path: String,
        /// What was tried.
        doing: &'static str,
        /// SQLite's answer.
        source: rusqlite::Error,
    },
    /// A value in it is not one that Pinfold writes.
    #[error("the store {path}: {what} holds {value:?}")]
    Value {
        /// The store's path.
        path: String,
        /// Which column or number.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// A document in it is not one that Pinfold writes.
    #[error("the store {path}: {what}")]
    Document {
        /// The store's path.
        path: String,
        /// Which document.
        what: &'static str,
        /// What is wrong with it.
        source: SchemaError,
    },
    /// It has no such run.
    #[error("the store {path} has no run {run}")]
    NoRun {
        /// The store's path.
        path: String,
        /// The run.
        run: RunId,
    },
    /// The run is not of the kind that was asked for.
    #[error("run {run} of the store {path} is a {found}, not a {wanted}")]
    Kind {
        /// The store's path.
        path: String,
        /// The run.
        run: RunId,
        /// Its kind.
        found: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// The host is not the one on which the run began.
    #[error("run {run} began on another host: {}", changes.join(", "))]
    HostChanged {
        /// The run.
        run: RunId,
        /// What differs, each as `kernel: 6.1 then, 6.12 now`.
        changes: Vec<String>,
    },
    /// The start is in the store already.
    #[error("run {run} already holds this start: {start}")]
    AlreadySaved {
        /// The run.
        run: RunId,
        /// Phase, block and candidate.
        start: String,
    },
}

impl StoreError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            StoreError::Folder { .. } | StoreError::Open { .. } | StoreError::ReadOnly { .. } => {
                "check the rights of the file and its folder, or name another file with --store"
            }
            StoreError::Missing { .. } => {
                "`pinfold tune` and `pinfold study run` make stores; check the name"
            }
            StoreError::Foreign { .. } => {
                "name another file with --store; this one was not touched"
            }
            StoreError::Newer { .. } => "use the Pinfold that wrote it, or a later one",
            StoreError::Locked { .. } => {
                "wait until the other Pinfold has ended, or name another file with --store"
            }
            StoreError::Damaged { .. } => {
                "save what is left with `sqlite3 FILE .recover | sqlite3 NEW`, or restore a copy; \
                 the files FILE-wal and FILE-shm belong to the store and must move with it"
            }
            StoreError::Full { .. } => {
                "free some space and run the same command again: what was saved is kept"
            }
            StoreError::Value { .. } | StoreError::Document { .. } => {
                "the file was changed by another program; restore a copy or begin a new store"
            }
            StoreError::NoRun { .. } | StoreError::Kind { .. } => {
                "list the runs with `pinfold report --list`"
            }
            StoreError::HostChanged { .. } => {
                "begin a new run, or allow the change if you know that it does not matter; \
                 the result will say so"
            }
            StoreError::AlreadySaved { .. } => {
                "another Pinfold works on the same run; let one of them end"
            }
            StoreError::Sql { .. } => return None,
        };
        Some(text.to_owned())
    }
}

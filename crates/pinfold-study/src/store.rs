//! The store: one SQLite file with every start and its raw samples.
//!
//! Each start is saved in one transaction when it ends, in WAL mode with full synchronisation:
//! after `kill -9` or a power failure only the start that was running is missing. Statistics are
//! not stored; they are recomputed from the samples.
//!
//! The file is identified by SQLite's `application_id`, which is [`APPLICATION_ID`], and
//! `user_version`, which is the version of the tables ([`VERSION`]; `store/schema.sql` and the
//! additions of each later version). An older store gets the missing tables when it is opened. A
//! foreign file is refused before it is modified, and so is a store of a later version.
//!
//! ```
//! use pinfold_study::store::Store;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("results.sqlite").to_string_lossy().into_owned();
//! assert!(Store::open(&path).is_err(), "it is not created by reading");
//! assert!(Store::open_or_create(&path)?.runs()?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster;
mod error;
mod open;
mod read;
mod rows;
mod save;
mod study;

pub use cluster::{DeliveryRecord, NewNodeResult, TaskRecord};
pub use error::StoreError;
pub use rows::{
    CandidateRecord, CandidateRole, CellResult, HostChange, NewRun, Phase, RunId, RunRecord,
    SessionRecord, Slot, StartId, StartRecord, StartStatus, StoredStart,
};
pub use save::host_changes;
pub use study::{StudyCell, StudyProgress, TrialId, TrialRecord};

use rusqlite::{Connection, ErrorCode};

use crate::schema::SchemaError;

/// `PFLD`: marks an SQLite file as a store of Pinfold.
pub const APPLICATION_ID: i64 = 0x5046_4c44;

/// Version of the tables that this version of Pinfold writes.
pub const VERSION: i64 = 4;

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: String,
}

/// A run that may be modified: its host was compared with the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRun {
    id: RunId,
}

impl OpenRun {
    /// Number of the run.
    #[must_use]
    pub fn id(self) -> RunId {
        self.id
    }
}

impl Store {
    /// Path of the file, as given by the caller.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Converts an SQLite error.
    fn sql(&self, doing: &'static str) -> impl Fn(rusqlite::Error) -> StoreError + Copy {
        move |source| sql_error(&self.path, doing, source)
    }

    fn document(&self, what: &'static str) -> impl Fn(SchemaError) -> StoreError + Copy {
        move |source| StoreError::Document { path: self.path.clone(), what, source }
    }

    fn value(&self, what: &'static str, value: impl ToString) -> StoreError {
        StoreError::Value { path: self.path.clone(), what, value: value.to_string() }
    }
}

fn sql_error(path: &str, doing: &'static str, source: rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked { path },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { path, source },
        Some(ErrorCode::NotADatabase) => {
            StoreError::Foreign { path, why: "it is not an SQLite file".to_owned() }
        }
        Some(ErrorCode::DiskFull) => StoreError::Full { path },
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly { path },
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::Open { path, source }
        }
        // SQLite's codes are defined elsewhere and grow with its versions.
        Some(_) | None => StoreError::Sql { path, operation: doing, source },
    }
}

#[cfg(test)]
mod tests;

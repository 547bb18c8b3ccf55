//! The store: one SQLite file that holds every start with its raw samples.
//!
//! Each start is saved in one transaction when it ends, in WAL mode with full
//! synchronisation: after `kill -9` or a power cut everything is there but the start
//! that was running. Statistics are not stored; they are recomputed from the samples.
//!
//! The file says what it is: SQLite's `application_id` holds [`APPLICATION_ID`] and
//! `user_version` the version of the tables ([`VERSION`]; `store/schema.sql` and what each
//! later version added). An older store gets the missing tables when it is opened.
//! A foreign file is refused before a byte of it is changed, and a store of a later
//! version is not guessed at.

mod cluster;
mod error;
mod open;
mod read;
mod rows;
mod save;
mod study;

pub use cluster::{DeliveryRecord, NewDelivery, TaskRecord};
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

/// Version of the tables that this Pinfold writes.
pub const VERSION: i64 = 4;

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: String,
}

/// A run that may be worked on: its host was compared with the one at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRun {
    id: RunId,
}

impl OpenRun {
    /// The run's number.
    #[must_use]
    pub fn id(self) -> RunId {
        self.id
    }
}

impl Store {
    /// The file's path, as it was given.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Turns SQLite's answer into ours.
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
        // SQLite's codes are not ours and grow with its versions.
        Some(_) | None => StoreError::Sql { path, doing, source },
    }
}

#[cfg(test)]
mod tests;

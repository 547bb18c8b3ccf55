//! What can go wrong with a study, and the way out of each.

use pinfold_plan::requests::RequestError;

use crate::schema::SchemaError;
use crate::store::StoreError;

/// Why a study cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// An expression of the file has no value for a cell, or excludes everything.
    #[error(transparent)]
    Rule(RequestError),
    /// Nothing of it can be run here.
    #[error("none of the {cells} cells can be run here, the first because {reason}")]
    AllSkipped {
        /// How many.
        cells: usize,
        /// Why the first one cannot.
        reason: String,
    },
    /// The store holds another study.
    #[error("the store {path} holds the study {found:?}, not {wanted:?}")]
    OtherStudy {
        /// The store's path.
        path: String,
        /// What it holds.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// The file is not the one that the run began with.
    #[error("{file} is not the file that the run began with: line {line} differs")]
    OtherText {
        /// The file.
        file: String,
        /// The first line that differs, from 1.
        line: usize,
    },
    /// The store has a run of it that is not finished.
    #[error("the store {path} holds a run of this study that is not finished")]
    Unfinished {
        /// The store's path.
        path: String,
    },
    /// The text in the store is not a study file of this version.
    #[error("the study in the store cannot be read: {0}")]
    Stored(RequestError),
    /// The cells of the stored run are not those of its text.
    #[error("the store's {stored} cells are not the {found} of its study")]
    OtherCells {
        /// In the store.
        stored: usize,
        /// By the text.
        found: usize,
    },
    /// The host or the program cannot run any trial.
    #[error("the study cannot be run: {message}")]
    Runner {
        /// The runner's message.
        message: String,
        /// The runner's hint.
        hint: Option<String>,
    },
    /// Trial after trial failed, or on a cluster part after part.
    #[error("{count} {what} in a row failed, the last one {name:?}: {message}")]
    KeepsFailing {
        /// How many.
        count: u32,
        /// Of what: `trials`, `parts`.
        what: &'static str,
        /// The last one.
        name: String,
        /// The last message.
        message: String,
    },
    /// A document of the run cannot be read or written.
    #[error("the run's {what} cannot be used")]
    Document {
        /// Which document.
        what: &'static str,
        /// Why.
        source: SchemaError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StudyError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            StudyError::Rule(error) | StudyError::Stored(error) => return error.hint(),
            StudyError::AllSkipped { .. } => {
                "`pinfold study check FILE` lists the reasons; `pinfold doctor` shows what is missing"
            }
            StudyError::OtherStudy { .. } => "name another store with --store",
            StudyError::OtherText { .. } => {
                "go on without naming the file: the store holds its own copy; or begin a new store"
            }
            StudyError::Unfinished { .. } => {
                "go on with `pinfold study resume STORE`, or name another store with --store"
            }
            StudyError::OtherCells { .. } => {
                "another version of Pinfold made it; use that one, or begin a new store"
            }
            StudyError::Runner { hint, .. } => return hint.clone(),
            StudyError::KeepsFailing { .. } => {
                "run the command by hand to see why; what was measured is kept"
            }
            StudyError::Document { .. } => {
                "the store was changed by another program; begin a new run"
            }
            StudyError::Store(error) => return error.hint(),
        };
        Some(text.to_owned())
    }
}

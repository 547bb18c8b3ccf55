//! Errors of a study, with hints.

use std::collections::BTreeMap;

use pinfold_config::ConfigError;
use pinfold_model::text::counted;

use super::file::QUICK;
use crate::schema::SchemaError;
use crate::store::StoreError;

/// Why a study cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// An expression of the file has no value for a cell, or excludes all cells.
    #[error(transparent)]
    Rule(ConfigError),
    /// No cell can be run on this host.
    #[error("none of the {cells} cells can be run here: {}", counted_reasons(reasons))]
    AllSkipped {
        /// Number of cells.
        cells: usize,
        /// Why, each with the number of cells.
        reasons: BTreeMap<String, usize>,
    },
    /// The study has no preset of this name.
    #[error("the study has no preset {name:?}")]
    NoPreset {
        /// The name.
        name: String,
        /// The names of its presets.
        known: Vec<String>,
    },
    /// The store has another study.
    #[error("the store {path} holds the study {found:?}, not {wanted:?}")]
    OtherStudy {
        /// Path of the store.
        path: String,
        /// Name of the study in the store.
        found: String,
        /// Name of the requested study.
        wanted: String,
    },
    /// The file differs from that at the start of the run.
    #[error("{file} is not the file that the run started with: line {line} differs")]
    OtherText {
        /// Path of the file.
        file: String,
        /// The first line that differs, from 1.
        line: usize,
    },
    /// Another text of the study describes another measurement than that in the store.
    #[error("the file's {what} is not what the run in the store measured")]
    OtherMeasurement {
        /// What differs.
        what: String,
    },
    /// The store has an unfinished run of the study.
    #[error("the store {path} contains an unfinished run of this study")]
    Unfinished {
        /// Path of the store.
        path: String,
    },
    /// The text in the store is not a study file of this version.
    #[error("cannot read the study in the store: {0}")]
    Stored(ConfigError),
    /// The cells of the stored run differ from those of its text.
    #[error("the store has {stored} cells, but its study has {found}")]
    OtherCells {
        /// Number in the store.
        stored: usize,
        /// Number by the text.
        found: usize,
    },
    /// No trial can be run on this host.
    #[error("cannot run the study: {message}")]
    Runner {
        /// The error message of the runner.
        message: String,
        /// The hint of the runner.
        hint: Option<String>,
    },
    /// Several consecutive trials failed, or parts on a cluster.
    #[error("{count} {what} in a row failed, the last one {name:?}: {message}")]
    KeepsFailing {
        /// Number of failures.
        count: u32,
        /// The kind: `trials`, `parts`.
        what: &'static str,
        /// Name of the last one.
        name: String,
        /// The last error message.
        message: String,
    },
    /// A document of the run cannot be read or written.
    #[error("the run's {what} cannot be used")]
    Document {
        /// Name of the document.
        what: &'static str,
        /// Error of the document.
        source: SchemaError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reasons, that of the most cells first.
fn counted_reasons(reasons: &BTreeMap<String, usize>) -> String {
    let mut sorted: Vec<(&String, &usize)> = reasons.iter().collect();
    sorted.sort_by_key(|(_, cells)| std::cmp::Reverse(**cells));
    let text =
        sorted.iter().map(|(why, cells)| format!("{why} ({})", counted(**cells as u64, "cell")));
    text.collect::<Vec<_>>().join("; ")
}

impl StudyError {
    /// A hint for the user.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            StudyError::Rule(error) | StudyError::Stored(error) => return error.hint(),
            StudyError::AllSkipped { .. } => {
                "`pinfold doctor` shows what is missing; with --preset a study may have other cells"
            }
            StudyError::NoPreset { name, known } if known.is_empty() => {
                return Some(format!(
                    "it has none: write [{}] with what it leaves out (note) and its repetitions, \
                     levels and values",
                    if name == QUICK { QUICK.to_owned() } else { format!("preset.{name}") }
                ));
            }
            StudyError::NoPreset { known, .. } => {
                return Some(format!("it has {}", known.join(", ")));
            }
            StudyError::OtherStudy { .. } => "name another store with --store",
            StudyError::OtherText { .. } => {
                "continue without naming the file, because the store has its own copy; or start a \
                 new store"
            }
            StudyError::OtherMeasurement { .. } => {
                "only statements, charts, tables and published values may differ: start a new run"
            }
            StudyError::Unfinished { .. } => {
                "continue with `pinfold study resume STORE`, or name another store with --store"
            }
            StudyError::OtherCells { .. } => {
                "another version of Pinfold created it; use that version, or start a new store"
            }
            StudyError::Runner { hint, .. } => return hint.clone(),
            StudyError::KeepsFailing { .. } => {
                "run the command by hand to see why; the results so far are stored"
            }
            StudyError::Document { .. } => {
                "the store was changed by another program; start a new run"
            }
            StudyError::Store(error) => return error.hint(),
        };
        Some(text.to_owned())
    }
}

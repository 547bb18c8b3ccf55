//! Errors of studies and of tuning, with hints.

use pinfold_config::ConfigError;
use pinfold_model::text::count_noun;

use crate::schema::SchemaError;
use crate::store::StoreError;

/// Why a study or a tuning run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request does not fit the host, its candidates or the store.
    #[error("{message}")]
    Refused {
        /// What does not fit.
        message: String,
        /// A hint for the user.
        hint: Option<String>,
    },
    /// An expression of the file has no value for a cell, or excludes all cells.
    #[error(transparent)]
    Rule(ConfigError),
    /// The text in the store is not a study file of this version.
    #[error("cannot read the study in the store: {0}")]
    Stored(ConfigError),
    /// The time does not suffice for the smallest design that can give a verdict.
    #[error(
        "a budget of {budget_s:.0} s is too small: {starts} starts of at least {start_s:.1} s need \
         {needed_s:.0} s"
    )]
    Budget {
        /// The given time (seconds).
        budget_s: f64,
        /// The required time (seconds).
        needed_s: f64,
        /// Number of starts of the smallest design.
        starts: u32,
        /// Shortest duration of one start (seconds).
        start_s: f64,
    },
    /// Nothing can be run on this host.
    #[error("cannot {what}: {message}")]
    Runner {
        /// What cannot be done.
        what: &'static str,
        /// The error message of the runner.
        message: String,
        /// The hint of the runner.
        hint: Option<String>,
    },
    /// Several consecutive trials, starts or parts failed.
    #[error("{} in a row failed, the last one ({name}): {message}", count_noun(*count, what))]
    KeepsFailing {
        /// Number of failures.
        count: u32,
        /// The kind: `trial`, `start`, `part`.
        what: &'static str,
        /// Name of the last cell, candidate, block or part.
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

impl RunError {
    pub(crate) fn refuse(message: impl Into<String>, hint: &str) -> Self {
        Self::Refused { message: message.into(), hint: Some(hint.to_owned()) }
    }

    pub(crate) fn document(what: &'static str) -> impl Fn(serde_json::Error) -> Self + Copy {
        move |error| Self::Document { what, source: error.into() }
    }

    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            RunError::Rule(error) | RunError::Stored(error) => return error.hint(),
            RunError::Refused { hint, .. } | RunError::Runner { hint, .. } => return hint.clone(),
            RunError::Budget { needed_s, .. } => {
                return Some(format!(
                    "give a budget of at least {:.0} s, fewer candidates or fewer load states",
                    needed_s.ceil()
                ));
            }
            RunError::KeepsFailing { what: "start", .. } => {
                "start the machine by hand with the same arguments to see why; the results so far \
                 are stored"
            }
            RunError::KeepsFailing { .. } => {
                "run the command by hand to see why; the results so far are stored"
            }
            RunError::Document { .. } => {
                "the store was changed by another program; start a new run"
            }
            RunError::Store(error) => return error.hint(),
        };
        Some(text.to_owned())
    }
}

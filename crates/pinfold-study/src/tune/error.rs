//! Errors of tuning, with hints.

use crate::schema::SchemaError;
use crate::store::StoreError;
use pinfold_model::text::counted;

/// Why a tuning run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A setting is invalid.
    #[error("the setting {setting} {why}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// Why it is invalid.
        why: String,
    },
    /// No candidate leaves the machine without placement.
    #[error("the candidates lack the baseline \"none\"")]
    NoBaseline,
    /// There is no candidate to compare with the baseline.
    #[error("no candidate places the machine differently from the baseline")]
    NothingToCompare,
    /// Two candidates have the same name.
    #[error("two candidates are called {name:?}")]
    DuplicateName {
        /// The name that occurs twice.
        name: String,
    },
    /// Candidates have different numbers of vCPUs.
    #[error("{name:?} has {vcpus} vCPUs, the baseline has {baseline}")]
    UnequalVcpus {
        /// Name of the candidate that differs.
        name: String,
        /// Its number of vCPUs.
        vcpus: usize,
        /// The baseline's number of vCPUs.
        baseline: usize,
    },
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
    /// No machine can be started on this host.
    #[error("cannot start the virtual machine: {message}")]
    Starter {
        /// The starter's message.
        message: String,
        /// The starter's hint.
        hint: Option<String>,
    },
    /// Several consecutive starts failed.
    #[error("{} in a row failed, the last one of {name:?}: {message}", counted(*count, "start"))]
    KeepsFailing {
        /// Number of failures.
        count: u32,
        /// Name of the last candidate.
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

impl TuneError {
    /// A hint for the user.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            TuneError::Config { .. } => None,
            TuneError::NoBaseline => Some("add a candidate called \"none\"".to_owned()),
            TuneError::NothingToCompare => Some(
                "this host has only one placement for this machine; use fewer vCPUs or other \
                 strategies (`pinfold plan --list`)"
                    .to_owned(),
            ),
            TuneError::DuplicateName { .. } => Some("give each candidate its own name".to_owned()),
            TuneError::UnequalVcpus { .. } => Some(
                "only layouts of equal size can be compared: give the number of vCPUs".to_owned(),
            ),
            TuneError::Budget { needed_s, .. } => Some(format!(
                "give a budget of at least {:.0} s, fewer candidates or fewer load states",
                needed_s.ceil()
            )),
            TuneError::Starter { hint, .. } => hint.clone(),
            TuneError::KeepsFailing { .. } => Some(
                "start the machine by hand with the same arguments to see why; the results so far \
                 are stored"
                    .to_owned(),
            ),
            TuneError::Document { .. } => {
                Some("the store was changed by another program; start a new run".to_owned())
            }
            TuneError::Store(error) => error.hint(),
        }
    }
}

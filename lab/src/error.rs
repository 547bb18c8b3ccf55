//! Why a case did not pass: the lab cannot work here, or Pinfold is wrong.

use pinfold_host::HostError;
use pinfold_probe::agent::AgentError;
use pinfold_probe::cross_compile::CrossError;
use pinfold_vm::guest::GuestError;

/// The error of a case.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This machine lacks something; the case is skipped.
    #[error("{what} is missing; {hint}")]
    Missing {
        /// What is missing.
        what: String,
        /// What the user can do about it.
        hint: String,
    },
    /// No kernel to boot: the case is skipped too.
    #[error(transparent)]
    Kernel(#[from] GuestError),
    /// No init for the guest's instruction set; without a compiler, the case is skipped.
    #[error(transparent)]
    Init(#[from] CrossError),
    /// An access to this machine failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The guest does not respond.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A command in the guest had an unexpected result.
    #[error("{command}: {how}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        how: String,
        /// Output of the command.
        output: String,
    },
    /// The guest is not in the expected state.
    #[error("{what}:\n  {}", found.join("\n  "))]
    Wrong {
        /// The time or the subject.
        what: String,
        /// The differences.
        found: Vec<String>,
    },
}

impl LabError {
    /// An assertion that failed in one point.
    pub(crate) fn wrong(what: impl Into<String>, found: impl Into<String>) -> Self {
        LabError::Wrong { what: what.into(), found: vec![found.into()] }
    }

    /// True if the case could not be tried on this machine.
    #[must_use]
    pub fn is_skip(&self) -> bool {
        match self {
            LabError::Missing { .. } => true,
            LabError::Kernel(error) => match error {
                GuestError::NoKernel { .. } | GuestError::Tool { .. } => true,
                GuestError::Package { .. } | GuestError::Host(_) => false,
            },
            LabError::Init(error) => match error {
                CrossError::NoCompiler { .. } => true,
                CrossError::Failed { .. } | CrossError::Host(_) => false,
            },
            LabError::Host(_)
            | LabError::Agent(_)
            | LabError::Command { .. }
            | LabError::Wrong { .. } => false,
        }
    }
}

/// Fails with all differences, if there are any.
pub(crate) fn expect_none(what: &str, found: Vec<String>) -> Result<(), LabError> {
    if found.is_empty() { Ok(()) } else { Err(LabError::Wrong { what: what.to_owned(), found }) }
}

//! Why a case came to no good end: the lab cannot work here, or Pinfold did wrong.

use pinfold_host::HostError;
use pinfold_probe::agent::AgentError;
use pinfold_probe::cross_compile::CrossError;
use pinfold_vm::guest::GuestError;

/// What ended a case.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This machine lacks something; the case is skipped.
    #[error("{what} is missing; {hint}")]
    Missing {
        /// What.
        what: String,
        /// The way out.
        hint: String,
    },
    /// No kernel to boot: also a reason to skip.
    #[error(transparent)]
    Kernel(#[from] GuestError),
    /// No init for the guest's instruction set: without a compiler, a reason to skip.
    #[error(transparent)]
    Init(#[from] CrossError),
    /// The door to this machine failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The guest does not answer.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A command in the guest ended otherwise than it must.
    #[error("{command}: {how}\n{output}")]
    Command {
        /// The command.
        command: String,
        /// How it ended.
        how: String,
        /// What it wrote.
        output: String,
    },
    /// The guest is not as it must be.
    #[error("{what}:\n  {}", found.join("\n  "))]
    Wrong {
        /// When, or of what.
        what: String,
        /// Each difference.
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
    match found.is_empty() {
        true => Ok(()),
        false => Err(LabError::Wrong { what: what.to_owned(), found }),
    }
}

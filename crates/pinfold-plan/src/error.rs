//! Why there is no plan, and what the user can do about it.
//!
//! Each text names the value that is wrong; the way out is in [`PlanError::hint`],
//! so that a caller shows it on a line of its own. `nearest` is filled in by
//! [`crate::plan`]: a strategy alone does not know its neighbours.

use pinfold_model::CpuSet;
use thiserror::Error;

/// Why a strategy gives no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// No strategy has this name.
    #[error("there is no strategy named {name:?}")]
    UnknownStrategy {
        /// The name that was asked for.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// A virtual machine without vCPUs was asked for.
    #[error("0 vCPUs were asked for, a virtual machine has at least one")]
    NoVcpus,
    /// The strategy cannot give that many vCPUs on this host.
    #[error("{strategy} gives at most {most} vCPUs on this host, {asked} were asked for: {why}")]
    TooManyVcpus {
        /// The strategy.
        strategy: String,
        /// vCPUs asked for.
        asked: u32,
        /// vCPUs that it can give.
        most: u32,
        /// What limits it.
        why: String,
        /// The strategy nearest in intent that can give them.
        nearest: Option<String>,
    },
    /// The strategy cannot give a single vCPU on this host.
    #[error("{strategy} cannot work on the PUs {usable} of this host: {why}")]
    TooFewPus {
        /// The strategy.
        strategy: String,
        /// What it was given.
        usable: CpuSet,
        /// What is missing.
        why: String,
        /// The strategy nearest in intent that works here.
        nearest: Option<String>,
    },
    /// Nothing is left of the host.
    #[error(
        "no PU is left to plan with: this process may use {}, and {} are to be avoided",
        list(allowed),
        list(avoid)
    )]
    NoPus {
        /// What this process may use.
        allowed: CpuSet,
        /// What the request avoids.
        avoid: CpuSet,
    },
    /// All PUs that may be used are isolated, so the host's own tasks would have none.
    #[error("the PUs {usable} are all isolated, so none is left for the host's own tasks")]
    NoHousekeeping {
        /// What the plan may use.
        usable: CpuSet,
    },
    /// An iothread's id cannot be used.
    #[error("the iothread id {id:?} cannot be used: {why}")]
    BadIothread {
        /// The id.
        id: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl PlanError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            PlanError::UnknownStrategy { nearest: Some(nearest), .. } => {
                Some(format!("did you mean {nearest}? `pinfold plan --list` shows all strategies"))
            }
            PlanError::UnknownStrategy { nearest: None, .. } => {
                Some("`pinfold plan --list` shows all strategies".to_owned())
            }
            PlanError::NoVcpus => Some("ask for one vCPU or more, or for auto".to_owned()),
            PlanError::TooManyVcpus { most, nearest, .. } => Some(match nearest {
                Some(nearest) => {
                    format!("ask for at most {most} vCPUs, or use {nearest}, which gives that many")
                }
                None => format!("ask for at most {most} vCPUs"),
            }),
            PlanError::TooFewPus { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("use {nearest}, which works on these PUs"))
            }
            PlanError::NoPus { .. } => Some(
                "avoid fewer PUs, or start Pinfold with a wider affinity mask and cpuset"
                    .to_owned(),
            ),
            PlanError::NoHousekeeping { .. } => Some(
                "start Pinfold with a mask that holds at least one PU outside `isolcpus` and \
                 isolated partitions"
                    .to_owned(),
            ),
            PlanError::BadIothread { .. } => {
                Some("give each iothread the id that it has in `-object iothread,id=`".to_owned())
            }
        }
    }

    /// The same error with a way out, where it has room for one and none yet.
    pub(crate) fn with_nearest(mut self, strategy: &str) -> Self {
        match &mut self {
            PlanError::TooManyVcpus { nearest, .. } | PlanError::TooFewPus { nearest, .. } => {
                nearest.get_or_insert_with(|| strategy.to_owned());
            }
            PlanError::UnknownStrategy { .. }
            | PlanError::NoVcpus
            | PlanError::NoPus { .. }
            | PlanError::NoHousekeeping { .. }
            | PlanError::BadIothread { .. } => {}
        }
        self
    }

    /// True if another strategy may succeed where this one did not.
    pub(crate) fn depends_on_strategy(&self) -> bool {
        matches!(self, PlanError::TooManyVcpus { .. } | PlanError::TooFewPus { .. })
    }
}

fn list(pus: &CpuSet) -> String {
    if pus.is_empty() { "none".to_owned() } else { pus.to_string() }
}

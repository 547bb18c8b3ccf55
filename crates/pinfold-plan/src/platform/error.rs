//! Why a platform is not possible on a host, and what the user can do about it.

use pinfold_model::text::count_noun;
use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Method, NodeId, PuId, RequestField, Speed, SpeedRequest, VnodeField};
use thiserror::Error;

use crate::error::PlanError;
use crate::text::count_with_noun;

/// Why a CPU cannot have a speed that is given as a frequency.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrequencyError {
    /// The CPU's maximum frequency is unknown.
    #[error(
        "requests {}, but this host does not report the highest frequency of CPU {pu} (no cpufreq)",
        frequency(*hertz)
    )]
    Unknown {
        /// The CPU's OS index.
        pu: PuId,
        /// The requested frequency in hertz.
        hertz: u64,
    },
    /// The CPU is slower than that.
    #[error("requests {}, but CPU {pu} reaches {} at most", frequency(*hertz), frequency(*highest))]
    TooFast {
        /// The CPU's OS index.
        pu: PuId,
        /// The requested frequency in hertz.
        hertz: u64,
        /// The CPU's maximum frequency in hertz.
        highest: u64,
    },
    /// Less than a millionth of full speed.
    #[error("requests {}, less than a millionth of the {} of CPU {pu}", frequency(*hertz), frequency(*highest))]
    TooSlow {
        /// The CPU's OS index.
        pu: PuId,
        /// The requested frequency in hertz.
        hertz: u64,
        /// The CPU's maximum frequency in hertz.
        highest: u64,
    },
}

impl FrequencyError {
    /// What the user can do about the error.
    pub fn hint(&self) -> String {
        match self {
            FrequencyError::Unknown { .. } => "give a share, such as 40%".to_owned(),
            FrequencyError::TooFast { highest, .. } => {
                format!("request at most {}, or give a share such as 40%", frequency(*highest))
            }
            FrequencyError::TooSlow { .. } => "request more; check the unit".to_owned(),
        }
    }
}

/// Why a platform is not possible on a host.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlatformError {
    /// The vnodes cannot be placed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A CPU cannot have a requested speed.
    #[error("{vnode:?} {why}")]
    Frequency {
        /// Name of the vnode.
        vnode: String,
        /// The reason.
        why: FrequencyError,
    },
    /// There is neither one speed for all cores nor one for each.
    #[error("{vnode:?} has {} for {}", count_noun(*given, "speed"), count_noun(*cores, "core"))]
    Speeds {
        /// Name of the vnode.
        vnode: String,
        /// Number of speeds.
        given: usize,
        /// Number of cores.
        cores: u32,
    },
    /// Memory cannot be bound to a node.
    #[error("cannot put the memory of {vnode:?} on node {node}: {why}")]
    MemoryNode {
        /// Name of the vnode.
        vnode: String,
        /// The requested node.
        node: NodeId,
        /// The reason.
        why: String,
    },
    /// Two different speeds would need one frequency.
    #[error(
        "cannot set both {} by frequency: {} change it together",
        two_speeds(first, second),
        pus_text(domain)
    )]
    TwoFrequencies {
        /// The CPUs whose frequency changes together.
        domain: CpuSet,
        /// A vnode on them, with its speed.
        first: (String, Speed),
        /// Another vnode, or the same with another speed.
        second: (String, Speed),
    },
    /// The frequency set for one vnode slows another one too.
    #[error(
        "{slowed:?} would be slowed twice: {by:?} sets the frequency with {method}, which applies \
         to all of {}",
        pus_text(domain)
    )]
    SlowedTwice {
        /// The CPUs whose frequency changes together.
        domain: CpuSet,
        /// The vnode for which the frequency is set.
        by: String,
        /// Its method of slowing.
        method: Method,
        /// The vnode that is slowed by another method.
        slowed: String,
    },
    /// Real-time burners would run on the last CPU of the host's own tasks.
    #[error(
        "the real-time burners of {vnode:?} ({method}) would run on {}, and the host's own tasks \
         have no other CPU that no vnode uses",
        pus_text(pus)
    )]
    LastHousekeeping {
        /// Name of the vnode.
        vnode: String,
        /// Its method of slowing.
        method: Method,
        /// Those of its CPUs on which the host's tasks run.
        pus: CpuSet,
    },
}

impl PlatformError {
    /// What the user can do about the error, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            // Only this strategy places vnodes with a speed.
            PlatformError::Plan(
                PlanError::TooManyVcpus { most, what, .. }
                | PlanError::NoRoom { left: most, what, .. },
            ) => Some(format!("request at most {}", count_with_noun(*most, what))),
            PlatformError::Plan(PlanError::TooFewPus { .. }) => {
                Some("start Pinfold in a cgroup with a wider cpuset".to_owned())
            }
            PlatformError::Plan(error) => error.hint(),
            PlatformError::Frequency { why, .. } => Some(why.hint()),
            PlatformError::Speeds { .. } => {
                Some("give one speed for all cores, or one for each".to_owned())
            }
            PlatformError::MemoryNode { .. } => Some(
                "choose another node (`pinfold topo` shows them), or remove memory-node".to_owned(),
            ),
            PlatformError::TwoFrequencies { .. } => Some(
                "give them the same speed, request fewer cores, or use a method that slows by \
                 time, such as stall or hogs"
                    .to_owned(),
            ),
            PlatformError::SlowedTwice { method, .. } => Some(format!(
                "give both {method} and the same speed, request fewer cores, or use a method that \
                 slows by time for both, such as stall or hogs"
            )),
            PlatformError::LastHousekeeping { .. } => Some(
                "request one core less, use stall, or let the host's tasks wait: \
                 --share-housekeeping, or share-housekeeping = true in the file"
                    .to_owned(),
            ),
        }
    }

    /// The part of the platform that the error is about, if any.
    pub fn field(&self) -> Option<RequestField> {
        let (vnode, field) = match self {
            PlatformError::Plan(error) => return error.field(),
            PlatformError::Frequency { vnode, .. }
            | PlatformError::Speeds { vnode, .. }
            | PlatformError::TwoFrequencies { second: (vnode, _), .. } => {
                (vnode, VnodeField::Speed)
            }
            PlatformError::MemoryNode { vnode, .. } => (vnode, VnodeField::MemoryNode),
            PlatformError::SlowedTwice { slowed: vnode, .. }
            | PlatformError::LastHousekeeping { vnode, .. } => (vnode, VnodeField::Method),
        };
        Some(RequestField::Vnode(vnode.clone(), field))
    }
}

fn frequency(hertz: u64) -> SpeedRequest {
    SpeedRequest::Frequency { hertz }
}

fn two_speeds(first: &(String, Speed), second: &(String, Speed)) -> String {
    if first.0 == second.0 {
        format!("{} and {} of {:?}", first.1, second.1, first.0)
    } else {
        format!("{} of {:?} and {} of {:?}", first.1, first.0, second.1, second.0)
    }
}

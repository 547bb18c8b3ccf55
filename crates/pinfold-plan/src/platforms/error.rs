//! Why a platform cannot be on a host, and what the user can do about it.

use pinfold_model::text::counted;
use pinfold_model::{CpuSet, Method, NodeId, PuId, Speed, SpeedRequest};
use thiserror::Error;

use crate::PlanError;
use crate::plan_builder::{numbered, pus_text};

/// Why a PU cannot have a speed that is asked for as a frequency.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrequencyError {
    /// Nobody knows how fast the PU is.
    #[error(
        "asks for {}, and what share that is of PU {pu} is unknown: its highest frequency is not \
         stated on this host (no cpufreq)",
        frequency(*hertz)
    )]
    Unknown {
        /// The PU.
        pu: PuId,
        /// What is asked for, in hertz.
        hertz: u64,
    },
    /// The PU is slower than that.
    #[error("asks for {}, and PU {pu} reaches {} at most", frequency(*hertz), frequency(*highest))]
    TooFast {
        /// The PU.
        pu: PuId,
        /// What is asked for, in hertz.
        hertz: u64,
        /// The PU's highest frequency in hertz.
        highest: u64,
    },
    /// Less than a millionth of full speed.
    #[error("asks for {}, less than a millionth of the {} of PU {pu}", frequency(*hertz), frequency(*highest))]
    TooSlow {
        /// The PU.
        pu: PuId,
        /// What is asked for, in hertz.
        hertz: u64,
        /// The PU's highest frequency in hertz.
        highest: u64,
    },
}

impl FrequencyError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            FrequencyError::Unknown { .. } => "give a share, such as 40%".to_owned(),
            FrequencyError::TooFast { highest, .. } => {
                format!("ask for at most {}, or give a share such as 40%", frequency(*highest))
            }
            FrequencyError::TooSlow { .. } => "ask for more; check the unit".to_owned(),
        }
    }
}

/// Why a platform cannot be on a host.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlatformError {
    /// The vnodes cannot be placed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A speed cannot be had from a PU.
    #[error("{vnode:?} {why}")]
    Frequency {
        /// The vnode.
        vnode: String,
        /// Why not.
        why: FrequencyError,
    },
    /// There is neither one speed for all cores nor one for each.
    #[error("{vnode:?} has {} for {}", counted(*given, "speed"), counted(*cores, "core"))]
    Speeds {
        /// The vnode.
        vnode: String,
        /// How many speeds there are.
        given: usize,
        /// How many cores.
        cores: u32,
    },
    /// No memory can be bound there.
    #[error("the memory of {vnode:?} cannot be on node {node}: {why}")]
    MemoryNode {
        /// The vnode.
        vnode: String,
        /// The node.
        node: NodeId,
        /// Why not.
        why: String,
    },
    /// Two speeds are to be set as one frequency.
    #[error(
        "{} cannot both be had by frequency: {} change it together",
        two_speeds(first, second),
        pus_text(domain)
    )]
    TwoFrequencies {
        /// The PUs whose frequency changes together.
        domain: CpuSet,
        /// A vnode on them, with its speed.
        first: (String, Speed),
        /// Another one, or the same with another speed.
        second: (String, Speed),
    },
    /// The frequency that one vnode sets slows another as well.
    #[error(
        "{slowed:?} would be slowed twice: {by:?} sets the frequency by {method} for all of {}, which \
         change it together",
        pus_text(domain)
    )]
    SlowedTwice {
        /// The PUs whose frequency changes together.
        domain: CpuSet,
        /// The vnode that sets it.
        by: String,
        /// By which method.
        method: Method,
        /// The vnode that is slowed otherwise.
        slowed: String,
    },
    /// Real-time burners would run where the host's own tasks have their last PU.
    #[error(
        "the real-time burners of {vnode:?} ({method}) would run on {}, and the host's own tasks have \
         no PU besides that no vnode uses",
        pus_text(pus)
    )]
    LastHousekeeping {
        /// The vnode.
        vnode: String,
        /// Its method.
        method: Method,
        /// Its PUs on which the host's tasks run.
        pus: CpuSet,
    },
}

impl PlatformError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            // No strategy but this one places vnodes of a speed.
            PlatformError::Plan(
                PlanError::TooManyVcpus { most, what, .. }
                | PlanError::NoRoom { left: most, what, .. },
            ) => Some(format!("ask for at most {}", numbered(*most, what))),
            PlatformError::Plan(PlanError::TooFewPus { .. }) => {
                Some("start Pinfold in a cgroup with a wider cpuset".to_owned())
            }
            PlatformError::Plan(error) => error.hint(),
            PlatformError::Frequency { why, .. } => Some(why.hint()),
            PlatformError::Speeds { .. } => {
                Some("give one speed for all cores, or one for each".to_owned())
            }
            PlatformError::MemoryNode { .. } => {
                Some("`pinfold topo` shows the nodes; or leave memory-node out".to_owned())
            }
            PlatformError::TwoFrequencies { .. } => Some(
                "give them one speed, ask for fewer cores, or take a method that slows by time, such \
                 as stall or hogs"
                    .to_owned(),
            ),
            PlatformError::SlowedTwice { method, .. } => Some(format!(
                "give both {method} and one speed, ask for fewer cores, or take a method that slows \
                 by time for both, such as stall or hogs"
            )),
            PlatformError::LastHousekeeping { .. } => Some(
                "ask for one core less, take stall, or let the host's tasks wait: \
                 --share-housekeeping, or share-housekeeping = true in the file"
                    .to_owned(),
            ),
        }
    }
}

fn frequency(hertz: u64) -> SpeedRequest {
    SpeedRequest::Frequency { hertz }
}

fn two_speeds(first: &(String, Speed), second: &(String, Speed)) -> String {
    match first.0 == second.0 {
        true => format!("{} and {} of {:?}", first.1, second.1, first.0),
        false => format!("{} of {:?} and {} of {:?}", first.1, first.0, second.1, second.0),
    }
}

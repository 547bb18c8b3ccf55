//! Plans again after a change of the host: a machine that comes or goes, a thread that is added or
//! removed while its machine runs, CPUs that go offline, return, or are taken by another owner.
//!
//! [`replan()`] moves as few threads as it can. A thread moves only
//!
//! - off CPUs that are gone or that another owner took,
//! - from CPUs that it shares because none was free, once one is,
//! - to make a whole core free for a vCPU that needs one, or a CPU for the host's tasks. A vCPU with
//!   a core of its own does not move for that.
//!
//! No exclusive CPU is used twice, and the host's tasks keep a CPU. A vCPU for which no CPU is free
//! shares those of its emulator, and a finding reports it; nothing is refused that was placed
//! before. Memory stays where it is.
//!
//! A thread that floats keeps its mask, without the CPUs that are gone or exclusive for another
//! machine: that is narrower, but no move. A new vCPU that floats as an older one does gets no CPU
//! that others keep, unless the older one has no other.

mod arrival;
mod cpu_choice;
mod occupancy;

use std::fmt;

use pinfold_model::{CpuSet, Finding, Plan, Request, Role, Topology};

use crate::error::PlanError;
use occupancy::Occupancy;

/// How the reason of a vCPU begins for which no CPU was free.
pub const DEGRADED: &str = "no CPU is free for this vCPU";

/// The placements of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placements {
    /// One plan for each placement.
    pub plans: Vec<Plan>,
    /// The CPUs that other owners keep exclusively. They are not changed.
    pub taken: CpuSet,
}

impl Placements {
    /// These plans, next to other owners with CPUs of their own.
    #[must_use]
    pub fn new(plans: Vec<Plan>, taken: CpuSet) -> Self {
        Self { plans, taken }
    }

    /// The CPUs that no plan and no other owner keeps exclusively, without isolated ones: the
    /// host's tasks run there.
    #[must_use]
    pub fn housekeeping(&self, topology: &Topology) -> CpuSet {
        let exclusive = self.plans.iter().map(|plan| &plan.exclusive).collect::<CpuSet>();
        let usable = topology.online().intersection(&topology.allowed);
        usable.difference(&self.taken).difference(&exclusive).difference(&topology.isolated)
    }
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Machines or groups come.
    Arrival {
        /// The strategy that places them.
        strategy: String,
        /// What they request.
        request: Request,
    },
    /// A machine or group ended.
    Departure {
        /// Its name.
        vnode: String,
    },
    /// A machine has a new vCPU or another new thread.
    Added {
        /// Its name.
        vnode: String,
        /// The role of the thread.
        role: Role,
    },
    /// A thread of a machine ended.
    Removed {
        /// Its name.
        vnode: String,
        /// The role of the thread.
        role: Role,
    },
    /// The topology (CPUs that are online or allowed) or [`Placements::taken`] is another than
    /// before.
    Host,
}

/// A thread with other CPUs than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its machine or group.
    pub vnode: String,
    /// Its role.
    pub role: Role,
    /// The CPUs before.
    pub from: CpuSet,
    /// The CPUs after.
    pub to: CpuSet,
}

/// The effect of a change on the placements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replan {
    /// The threads that were placed before and now have CPUs that they did not have.
    pub moves: Vec<Move>,
    /// Threads with fewer CPUs than before, none of them new.
    pub narrowed: Vec<Move>,
    /// vCPUs without a CPU of their own because none is free.
    pub findings: Vec<Finding>,
}

/// A change that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplanError {
    /// No strategy can place the machines that come.
    Arrival(PlanError),
    /// A machine or group of this name is placed already.
    PlacedAlready(String),
    /// No machine or group of this name is placed.
    NotPlaced(String),
    /// The machine has no such thread.
    NoThread {
        /// Its name.
        vnode: String,
        /// The role of the thread.
        role: Role,
    },
}

impl fmt::Display for ReplanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrival(error) => error.fmt(out),
            Self::PlacedAlready(name) => write!(out, "{name} is placed already"),
            Self::NotPlaced(name) => write!(out, "{name} is not placed"),
            Self::NoThread { vnode, role } => write!(out, "the plan of {vnode} has no {role}"),
        }
    }
}

impl std::error::Error for ReplanError {}

/// Changes the placements with as few moves of threads as possible. An arrival becomes the last
/// plan; a departure removes its plan. The topology is that after the change.
///
/// # Errors
/// [`ReplanError`] if an arrival fits nowhere, or the change names what the placements do not have.
/// The placements are then unchanged.
pub fn replan(
    topology: &Topology,
    placements: &mut Placements,
    change: &Change,
) -> Result<Replan, ReplanError> {
    let mut state = Occupancy::new(topology, placements);
    match change {
        Change::Arrival { strategy, request } => arrival::place(&mut state, strategy, request)?,
        Change::Departure { vnode } => state.remove_vnode(vnode)?,
        Change::Added { vnode, role } => state.add_thread(vnode, role)?,
        Change::Removed { vnode, role } => state.remove_thread(vnode, role)?,
        Change::Host => state.leave_lost_cpus(),
    }
    Ok(state.finish())
}

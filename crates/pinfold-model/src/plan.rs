//! Plans: who runs where, under which policy, and why.

use std::fmt;

use crate::{CpuSet, Finding, Role};

/// Which tasks are kept off the PUs that a plan reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IsolationScope {
    /// None.
    None,
    /// Only tasks that Pinfold itself started, such as its loads.
    Own,
    /// Every movable task of the host.
    Host,
}

impl fmt::Display for IsolationScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsolationScope::None => "none",
            IsolationScope::Own => "own",
            IsolationScope::Host => "host",
        })
    }
}

/// Scheduling policy of a thread (`sched(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// `SCHED_OTHER` with this nice value, -20 to 19.
    Other {
        /// Nice value.
        nice: i8,
    },
    /// `SCHED_BATCH` with this nice value.
    Batch {
        /// Nice value.
        nice: i8,
    },
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO` with this priority, 1 to 99.
    Fifo {
        /// Real-time priority.
        priority: u8,
    },
    /// `SCHED_RR` with this priority, 1 to 99.
    RoundRobin {
        /// Real-time priority.
        priority: u8,
    },
    /// `SCHED_DEADLINE`; times in nanoseconds.
    Deadline {
        /// Run time per period.
        runtime_ns: u64,
        /// Relative deadline.
        deadline_ns: u64,
        /// Period.
        period_ns: u64,
    },
    /// A policy that Pinfold has no name for; the kernel's number.
    Unknown(u32),
}

impl Default for Policy {
    fn default() -> Self {
        Policy::Other { nice: 0 }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Other { nice: 0 } => f.write_str("other"),
            Policy::Other { nice } => write!(f, "other nice {nice}"),
            Policy::Batch { nice } => write!(f, "batch nice {nice}"),
            Policy::Idle => f.write_str("idle"),
            Policy::Fifo { priority } => write!(f, "fifo {priority}"),
            Policy::RoundRobin { priority } => write!(f, "rr {priority}"),
            Policy::Deadline { runtime_ns, period_ns, .. } => {
                write!(f, "deadline {runtime_ns}/{period_ns} ns")
            }
            Policy::Unknown(number) => write!(f, "policy {number}"),
        }
    }
}

/// Where the threads of one role run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// The role.
    pub role: Role,
    /// The PUs on which it may run; never empty.
    pub pus: CpuSet,
    /// Its scheduling policy; `None` leaves the thread's own.
    pub policy: Option<Policy>,
    /// Why these PUs and not their neighbours, as a sentence without full stop.
    pub reason: String,
}

/// The topology that the guest is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTopology {
    /// Sockets.
    pub sockets: u32,
    /// Cores per socket.
    pub cores: u32,
    /// Threads per core.
    pub threads: u32,
    /// Why this shape.
    pub reason: String,
}

impl GuestTopology {
    /// Number of vCPUs of this shape.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

/// What a vnode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnodeKind {
    /// A virtual machine.
    VirtualMachine,
    /// A group of ordinary processes.
    ProcessGroup,
}

/// The placement of one vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodePlan {
    /// Name of the virtual machine or process group.
    pub name: String,
    /// What it is.
    pub kind: VnodeKind,
    /// One entry per role: vCPUs in ascending order, then the emulator, then iothreads.
    /// Roles that are not named (workers, vhost, anything unknown) follow the emulator.
    pub threads: Vec<ThreadPlan>,
    /// The shape that the guest sees; `None` for process groups.
    pub guest: Option<GuestTopology>,
}

impl VnodePlan {
    /// The plan of a role; a role without an entry of its own follows the emulator.
    #[must_use]
    pub fn thread(&self, role: &Role) -> Option<&ThreadPlan> {
        self.threads
            .iter()
            .find(|thread| thread.role == *role)
            .or_else(|| self.threads.iter().find(|thread| thread.role == Role::Emulator))
    }

    /// The vCPUs' entries in order.
    pub fn vcpus(&self) -> impl Iterator<Item = &ThreadPlan> {
        self.threads.iter().filter(|thread| matches!(thread.role, Role::Vcpu(_)))
    }

    /// All PUs that any role of this vnode may use.
    #[must_use]
    pub fn pus(&self) -> CpuSet {
        self.threads.iter().fold(CpuSet::new(), |set, thread| set.union(&thread.pus))
    }
}

/// A whole plan: the answer of a strategy to a request on a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the strategy.
    pub strategy: String,
    /// [`crate::Topology::fingerprint`] of the host that it was made for.
    pub fingerprint: String,
    /// The vnode that is placed.
    pub vnode: VnodePlan,
    /// PUs on which the host's own tasks may run. Never empty.
    pub housekeeping: CpuSet,
    /// PUs from which other tasks are kept away; disjoint from `housekeeping`.
    /// Empty when the strategy does not isolate or the scope is `none`.
    pub exclusive: CpuSet,
    /// Which tasks are kept off `exclusive`.
    pub isolation: IsolationScope,
    /// Why the host got these PUs.
    pub housekeeping_reason: String,
    /// Fallbacks, costs and warnings.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// True if both plans put every role on the same PUs with the same policy,
    /// housekeeping and isolation, whatever their names and reasons.
    #[must_use]
    pub fn same_placement(&self, other: &Plan) -> bool {
        let key = |plan: &Plan| {
            let threads: Vec<_> = plan
                .vnode
                .threads
                .iter()
                .map(|thread| (thread.role.clone(), thread.pus.clone(), thread.policy))
                .collect();
            (threads, plan.housekeeping.clone(), plan.exclusive.clone())
        };
        key(self) == key(other)
    }
}

/// The vCPU pins of a plan as `0→3, 1→4`, for messages and tables.
#[must_use]
pub fn pins_of(plan: &Plan) -> String {
    let pins: Vec<String> = plan
        .vnode
        .vcpus()
        .map(|thread| format!("{}→{}", thread.role.short(), thread.pus))
        .collect();
    pins.join(", ")
}

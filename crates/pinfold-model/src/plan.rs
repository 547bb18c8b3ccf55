//! Plans: who runs where, under which policy, and why.

use std::fmt;

use crate::{CpuSet, Finding, NodeId, Role, Speed, Tuning};

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

impl Policy {
    /// True for `SCHED_FIFO` and `SCHED_RR`: such a thread keeps a PU as long as it likes. One
    /// with a deadline does not: its turn ends when its run time is used up.
    #[must_use]
    pub fn is_real_time(self) -> bool {
        match self {
            Policy::Fifo { .. } | Policy::RoundRobin { .. } => true,
            Policy::Other { .. }
            | Policy::Batch { .. }
            | Policy::Idle
            | Policy::Deadline { .. }
            | Policy::Unknown(_) => false,
        }
    }
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

/// Where the memory of a vnode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The nodes, ascending; never empty. All pages are bound to them.
    pub nodes: Vec<NodeId>,
    /// How much, in bytes, if the request says.
    pub bytes: Option<u64>,
    /// Size of a huge page in bytes; `None` for ordinary pages.
    pub page_bytes: Option<u64>,
    /// Why there.
    pub reason: String,
}

/// Where the interrupts of one device go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqPlan {
    /// The device: its PCI address, `node N` where only that is known, or [`IrqPlan::ALL`].
    pub device: String,
    /// The PUs that may take them; never empty.
    pub pus: CpuSet,
    /// Why there.
    pub reason: String,
}

impl IrqPlan {
    /// In place of a device: all interrupts of the host.
    pub const ALL: &'static str = "all";
}

/// The placement of one vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodePlan {
    /// Name of the virtual machine or process group.
    pub name: String,
    /// What it is.
    pub kind: VnodeKind,
    /// One entry per role: vCPUs in ascending order, then the emulator, iothreads, vhost workers;
    /// of a process group one entry for all its tasks.
    /// Roles that are not named (workers, anything unknown) follow the emulator.
    pub threads: Vec<ThreadPlan>,
    /// The shape that the guest sees; `None` for process groups.
    pub guest: Option<GuestTopology>,
    /// Where its memory is; `None` leaves that to the kernel.
    pub memory: Option<MemoryPlan>,
    /// How fast its CPUs appear.
    pub speed: Speed,
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
        let mut all = CpuSet::new();
        for thread in &self.threads {
            all.add(&thread.pus);
        }
        all
    }
}

/// A whole plan: the answer of a strategy to a request on a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the strategy.
    pub strategy: String,
    /// [`crate::Topology::fingerprint`] of the host that it was made for.
    pub fingerprint: String,
    /// The vnodes, in the request's order; at least one.
    pub vnodes: Vec<VnodePlan>,
    /// PUs on which the host's own tasks may run. Never empty.
    pub housekeeping: CpuSet,
    /// PUs from which other tasks are kept away; disjoint from `housekeeping`.
    /// Empty when the strategy does not isolate or the scope is `none`.
    pub exclusive: CpuSet,
    /// Which tasks are kept off `exclusive`.
    pub isolation: IsolationScope,
    /// Why the host got these PUs.
    pub housekeeping_reason: String,
    /// Where the interrupts of the devices go that the request names.
    pub irqs: Vec<IrqPlan>,
    /// The host's knobs that it sets.
    pub tuning: Tuning,
    /// What it knows of its vnodes' CPUs; `None` in plans that were saved without it.
    pub cpus: Option<PlannedCpus>,
    /// Fallbacks, costs and warnings.
    pub findings: Vec<Finding>,
}

/// What a plan knows of the CPUs of its vnodes. The kernel hides the topology of an offline CPU,
/// so the same host has another [`crate::Topology::fingerprint`] while other CPUs are online;
/// these sets, without the CPUs that are offline now or were offline then, stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCpus {
    /// Name of the CPU model, if it was known.
    pub model: Option<String>,
    /// All CPUs that were online.
    pub online: CpuSet,
    /// CPUs without a periodic tick (`nohz_full`).
    pub nohz_full: CpuSet,
    /// The cores (SMT siblings) that hold CPUs of the vnodes.
    pub cores: Vec<CpuSet>,
    /// The CPUs of the level-3 caches that hold such CPUs, each with its size in bytes.
    pub l3: Vec<(CpuSet, u64)>,
    /// The NUMA nodes that hold such CPUs, with all their CPUs.
    pub nodes: Vec<(NodeId, CpuSet)>,
}

/// A plan that does not place exactly one vnode, where one is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSingle {
    /// The names of the vnodes that it places.
    pub names: Vec<String>,
}

impl fmt::Display for NotSingle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plan places {} vnodes, one is needed here", self.names.len())?;
        let shown: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > shown.len() { ", …" } else { "" };
        if shown.is_empty() { Ok(()) } else { write!(f, ": {}{more}", shown.join(", ")) }
    }
}

impl std::error::Error for NotSingle {}

impl Plan {
    /// The vnode of a plan that places exactly one.
    ///
    /// # Errors
    /// [`NotSingle`] names those that it places.
    pub fn single(&self) -> Result<&VnodePlan, NotSingle> {
        match self.vnodes.as_slice() {
            [only] => Ok(only),
            several => {
                Err(NotSingle { names: several.iter().map(|vnode| vnode.name.clone()).collect() })
            }
        }
    }

    /// The plan of one of its vnodes, for those that take one at a time: nothing is kept free for
    /// the threads of the others and the idle siblings of their CPUs, and the housekeeping is that
    /// of the whole.
    #[must_use]
    pub fn alone(&self, vnode: &VnodePlan) -> Plan {
        let mut of_others = CpuSet::new();
        for other in self.vnodes.iter().filter(|other| other.name != vnode.name) {
            other.threads.iter().for_each(|thread| of_others.add(&thread.pus));
        }
        let own = vnode.pus();
        let cores = self.cpus.iter().flat_map(|cpus| &cpus.cores);
        let idle = cores.filter(|core| !core.is_disjoint(&of_others) && core.is_disjoint(&own));
        let taken = idle.fold(of_others.clone(), |taken, core| taken.union(core));
        let exclusive = self.exclusive.difference(&taken);
        let isolation = if exclusive.is_empty() { IsolationScope::None } else { self.isolation };
        Plan { vnodes: vec![vnode.clone()], exclusive, isolation, ..self.clone() }
    }

    /// All threads with the vnode that they belong to.
    pub fn threads(&self) -> impl Iterator<Item = (&VnodePlan, &ThreadPlan)> {
        self.vnodes.iter().flat_map(|vnode| vnode.threads.iter().map(move |thread| (vnode, thread)))
    }

    /// The name of a role in this plan: with its vnode's where there are several.
    #[must_use]
    pub fn role_name(&self, vnode: &VnodePlan, role: &Role) -> String {
        match self.vnodes.len() {
            0 | 1 => role.to_string(),
            _ => format!("{} {role}", vnode.name),
        }
    }

    /// All PUs that any vnode may use.
    #[must_use]
    pub fn pus(&self) -> CpuSet {
        let mut all = CpuSet::new();
        for (_, thread) in self.threads() {
            all.add(&thread.pus);
        }
        all
    }

    /// True if both plans put every role of every vnode on the same PUs with the same policy,
    /// memory, speed, housekeeping, isolation and knobs, whatever their names and reasons.
    #[must_use]
    pub fn same_placement(&self, other: &Plan) -> bool {
        let vnode = |vnode: &VnodePlan| {
            let threads: Vec<_> = vnode
                .threads
                .iter()
                .map(|thread| (thread.role.clone(), thread.pus.clone(), thread.policy))
                .collect();
            (threads, vnode.memory.as_ref().map(|memory| memory.nodes.clone()), vnode.speed)
        };
        let key = |plan: &Plan| {
            let vnodes: Vec<_> = plan.vnodes.iter().map(vnode).collect();
            let irqs: Vec<_> = plan.irqs.iter().map(|irq| irq.pus.clone()).collect();
            let host = (plan.housekeeping.clone(), plan.exclusive.clone(), plan.tuning.clone());
            (vnodes, irqs, host)
        };
        key(self) == key(other)
    }
}

/// The vCPU pins of a plan as `0→3, 1→4`, for messages and tables; with the vnodes' names
/// where there are several.
#[must_use]
pub fn pins_of(plan: &Plan) -> String {
    let pin = |thread: &ThreadPlan| format!("{}→{}", thread.role.short(), thread.pus);
    let of_vnode = |vnode: &VnodePlan| vnode.vcpus().map(pin).collect::<Vec<_>>().join(", ");
    match plan.vnodes.as_slice() {
        [only] => of_vnode(only),
        several => {
            let named = several.iter().map(|vnode| format!("{}: {}", vnode.name, of_vnode(vnode)));
            named.collect::<Vec<_>>().join("; ")
        }
    }
}

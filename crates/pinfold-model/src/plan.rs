//! Plans: where each thread runs, under which policy, and why.

use std::fmt;

use crate::{
    CpuSet, Finding, IsolationScope, NodeId, Policy, PolicyRequest, ROLES, Role, Speed, TaskId,
    Tuning,
};

/// Where the threads of one role run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct ThreadPlan {
    /// The role.
    pub role: Role,
    /// The CPUs on which it may run; never empty.
    pub pus: CpuSet,
    /// Its scheduling policy; `None` leaves it unchanged.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::serde_formats::planned_policy"))]
    pub policy: Option<Policy>,
    /// Why these CPUs were chosen, as a sentence without full stop.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::line"))]
    pub reason: String,
}

impl ThreadPlan {
    /// True if the CPUs were named in the request, not chosen by a strategy.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.reason.ends_with("by hand")
    }
}

/// The topology that the guest sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct GuestTopology {
    /// Sockets.
    pub sockets: u32,
    /// Cores per socket.
    pub cores: u32,
    /// Threads per core.
    pub threads: u32,
    /// Reason for this topology.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::line"))]
    pub reason: String,
}

impl GuestTopology {
    /// Number of vCPUs of this topology.
    pub fn vcpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

/// Kind of a vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum VnodeKind {
    /// A virtual machine.
    VirtualMachine,
    /// A group of ordinary processes.
    ProcessGroup,
}

/// Placement of a vnode's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct MemoryPlan {
    /// The nodes, ascending; never empty. All pages are bound to them, or preferred there.
    #[cfg_attr(feature = "serde", serde(with = "crate::serde_formats::nodes"))]
    pub nodes: Vec<NodeId>,
    /// Amount in bytes, if the request gives it.
    #[cfg_attr(feature = "serde", serde(rename = "size_bytes"))]
    pub bytes: Option<u64>,
    /// Huge page size in bytes; `None` for ordinary pages.
    pub page_bytes: Option<u64>,
    /// True if pages may be elsewhere when these nodes are full.
    #[cfg_attr(
        feature = "serde",
        serde(default, rename = "preferred", skip_serializing_if = "std::ops::Not::not")
    )]
    pub is_preferred: bool,
    /// Reason for these nodes.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::line"))]
    pub reason: String,
}

/// Affinity of the interrupts of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct IrqPlan {
    /// The device: its PCI address, `node N` if only the node is known, or [`IrqPlan::ALL`].
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::plain"))]
    pub device: String,
    /// The CPUs that may handle them; never empty.
    pub pus: CpuSet,
    /// Reason for these CPUs.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::line"))]
    pub reason: String,
}

impl IrqPlan {
    /// Value of `device` for all interrupts of the host.
    pub const ALL: &'static str = "all";
}

/// The placement of one vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct VnodePlan {
    /// Name of the virtual machine or process group.
    pub name: String,
    /// Virtual machine or process group.
    pub kind: VnodeKind,
    /// One entry per role: vCPUs in ascending order, then the emulator, iothreads, vhost workers;
    /// for a process group one entry for all its tasks. Roles without an entry (workers, unknown
    /// threads) use that of the emulator.
    pub threads: Vec<ThreadPlan>,
    /// The topology that the guest sees; `None` for process groups.
    pub guest: Option<GuestTopology>,
    /// Placement of its memory; `None` leaves that to the kernel.
    pub memory: Option<MemoryPlan>,
    /// Emulated speed of its CPUs.
    #[cfg_attr(feature = "serde", serde(rename = "speed_ppm"))]
    pub speed: Speed,
}

impl VnodePlan {
    /// The plan of a role; a role without an entry uses that of the emulator.
    pub fn thread(&self, role: &Role) -> Option<&ThreadPlan> {
        self.threads
            .iter()
            .find(|thread| thread.role == *role)
            .or_else(|| self.threads.iter().find(|thread| thread.role == Role::Emulator))
    }

    /// The entries of the vCPUs, in order.
    pub fn vcpus(&self) -> impl Iterator<Item = &ThreadPlan> {
        self.threads.iter().filter(|thread| thread.role.is_vcpu())
    }

    /// True if it has vCPUs, each with one CPU.
    pub fn is_pinned(&self) -> bool {
        self.vcpus().next().is_some() && self.vcpus().all(|thread| thread.pus.len() == 1)
    }

    /// All CPUs that any role of this vnode may use.
    #[must_use]
    pub fn pus(&self) -> CpuSet {
        let mut all = CpuSet::new();
        for thread in &self.threads {
            all.add(&thread.pus);
        }
        all
    }
}

/// The names of all strategies, in the order of `pinfold plan --list`. Study files are checked
/// against them; a test of the planner compares them with its table.
pub const STRATEGY_NAMES: [&str; 18] = [
    "none",
    "node-shared",
    "compact",
    "compact-cores",
    "sequential",
    "isolcpus",
    "scatter",
    "low-latency",
    "low-latency-rt",
    "realtime",
    "balanced-shared",
    "balanced",
    "max-performance",
    "numa-exclusive",
    "l3-exclusive",
    "multi-vm",
    "vnodes",
    "auto",
];

/// A complete plan: the result of a strategy for a request and a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the strategy.
    pub strategy: String,
    /// [`crate::Topology::fingerprint`] of the host for which it was made.
    pub fingerprint: String,
    /// The vnodes, in the request's order; at least one.
    pub vnodes: Vec<VnodePlan>,
    /// CPUs on which the host's own tasks may run. Never empty.
    pub housekeeping: CpuSet,
    /// CPUs from which other tasks are excluded; disjoint from `housekeeping`. Empty if the
    /// strategy does not isolate or the scope is `none`.
    pub exclusive: CpuSet,
    /// Which tasks are excluded from `exclusive`.
    pub isolation: IsolationScope,
    /// CPUs that the request avoids or keeps free: a later plan of the machine gives them to no new
    /// thread.
    pub avoid_pus: CpuSet,
    /// Threads of a machine that its owner moved away from the others of their role, with their
    /// CPUs: they stay there.
    pub moved: Vec<(TaskId, CpuSet)>,
    /// Reason for the choice of housekeeping CPUs.
    pub housekeeping_reason: String,
    /// Interrupt affinity of the devices that the request names.
    pub irqs: Vec<IrqPlan>,
    /// The host tunables that it sets.
    pub tuning: Tuning,
    /// Data about the CPUs of its vnodes; `None` in plans that were saved without it.
    pub cpus: Option<PlannedCpus>,
    /// Fallbacks, costs and warnings.
    pub findings: Vec<Finding>,
}

/// What a plan stores about the CPUs of its vnodes.
///
/// The kernel hides the topology of an offline CPU, so the [`crate::Topology::fingerprint`] of a
/// host changes with its online CPUs. These sets stay the same, except for CPUs that are offline
/// now or were offline then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct PlannedCpus {
    /// Name of the processor model, if it was known.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub model: Option<String>,
    /// All CPUs that were online.
    pub online: CpuSet,
    /// CPUs without a periodic tick (`nohz_full`).
    pub nohz_full: CpuSet,
    /// The cores (SMT siblings) that contain CPUs of the vnodes.
    pub cores: Vec<CpuSet>,
    /// The level-3 caches that contain such CPUs.
    pub l3: Vec<PlannedCache>,
    /// The NUMA nodes that contain such CPUs.
    pub nodes: Vec<PlannedNode>,
}

/// A level-3 cache in [`PlannedCpus`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct PlannedCache {
    /// All its CPUs.
    pub cpus: CpuSet,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// A NUMA node in [`PlannedCpus`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct PlannedNode {
    /// The node.
    pub node: NodeId,
    /// All its CPUs.
    pub cpus: CpuSet,
}

/// Error: exactly one vnode is needed, but the plan places none or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSingleVnode {
    /// The names of the placed vnodes.
    pub names: Vec<String>,
}

impl fmt::Display for NotSingleVnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plan places {} machines, one is needed here", self.names.len())?;
        let shown: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > shown.len() { ", …" } else { "" };
        if shown.is_empty() { Ok(()) } else { write!(f, ": {}{more}", shown.join(", ")) }
    }
}

impl std::error::Error for NotSingleVnode {}

impl Plan {
    /// The CPUs to which the owner of the machine moved a single thread.
    pub fn moved_to(&self, task: TaskId) -> Option<&CpuSet> {
        self.moved.iter().find(|(moved, _)| *moved == task).map(|(_, cpus)| cpus)
    }

    /// Sets the policy of the threads with a role, in the vnode of this name or in all.
    ///
    /// # Errors
    /// A sentence with the roles that exist, if no thread has the role.
    pub fn set_policy(
        &mut self,
        vnode: Option<&str>,
        policy: &PolicyRequest,
    ) -> Result<(), String> {
        let vnodes = self.vnodes.iter_mut();
        let vnodes = vnodes.filter(|one| vnode.is_none_or(|name| one.name == name));
        let mut all: Vec<_> = vnodes.flat_map(|vnode| &mut vnode.threads).collect();
        let known: Vec<String> = all.iter().map(|thread| thread.role.to_string()).collect();
        all.retain(|thread| thread.role.is_called(&policy.role));
        let gives_way = matches!(policy.policy, Policy::Slice { nice: None, .. });
        if all.is_empty() && !(gives_way && ROLES.iter().any(|kind| kind.name == policy.role)) {
            let (role, known) = (&policy.role, known.join(", "));
            return Err(format!("there is no thread {role:?}; the threads are {known}"));
        }
        for thread in all.into_iter().filter(|thread| !gives_way || thread.policy.is_none()) {
            thread.policy = Some(policy.policy);
        }
        Ok(())
    }

    /// The vnode of a plan that places exactly one.
    ///
    /// # Errors
    /// [`NotSingleVnode`] with the names of the placed vnodes.
    pub fn single_vnode(&self) -> Result<&VnodePlan, NotSingleVnode> {
        match self.vnodes.as_slice() {
            [only] => Ok(only),
            several => Err(NotSingleVnode {
                names: several.iter().map(|vnode| vnode.name.clone()).collect(),
            }),
        }
    }

    /// The plan of one of its vnodes, for those that take one at a time: nothing is kept free for
    /// the threads of the others and the idle siblings of their CPUs, and the housekeeping is that
    /// of the whole.
    pub fn extract_vnode(&self, vnode: &VnodePlan) -> Plan {
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

    /// Of a plan for several vnodes the part of the one that has one of these names; the whole plan
    /// if it has one vnode, or none with such a name.
    #[must_use]
    pub fn part_for(&self, names: &[&str]) -> Plan {
        let own = self.vnodes.iter().find(|vnode| names.contains(&vnode.name.as_str()));
        match own.filter(|_| self.vnodes.len() > 1) {
            Some(own) => self.extract_vnode(own),
            None => self.clone(),
        }
    }

    /// All threads, each with its vnode.
    pub fn threads(&self) -> impl Iterator<Item = (&VnodePlan, &ThreadPlan)> {
        self.vnodes.iter().flat_map(|vnode| vnode.threads.iter().map(move |thread| (vnode, thread)))
    }

    /// The name of a role in messages, prefixed with its vnode's name if the plan has several.
    pub fn role_name(&self, vnode: &VnodePlan, role: &Role) -> String {
        match self.vnodes.len() {
            0 | 1 => role.to_string(),
            _ => format!("{} {role}", vnode.name),
        }
    }

    /// All CPUs that any vnode may use.
    pub fn pus(&self) -> CpuSet {
        let mut all = CpuSet::new();
        for (_, thread) in self.threads() {
            all.add(&thread.pus);
        }
        all
    }

    /// True if both plans give every role of every vnode the same CPUs, policy, memory and speed,
    /// with the same housekeeping, isolation and tunables. Names and reasons may differ.
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

/// The vCPU pins of a plan as `0→3, 1→4`, for messages and tables; with the vnodes' names if there
/// are several.
pub fn describe_pins(plan: &Plan) -> String {
    match plan.vnodes.as_slice() {
        [only] => of_vnode(only),
        several => {
            let named = several.iter().map(|vnode| format!("{}: {}", vnode.name, of_vnode(vnode)));
            named.collect::<Vec<_>>().join("; ")
        }
    }
}

fn of_vnode(vnode: &VnodePlan) -> String {
    vnode
        .vcpus()
        .map(|thread: &ThreadPlan| format!("{}→{}", thread.role.short(), thread.pus))
        .collect::<Vec<_>>()
        .join(", ")
}

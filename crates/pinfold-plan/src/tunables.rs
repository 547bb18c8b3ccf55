//! The tunables of a plan, in the syntax of the command line (`--knob KEY=VALUE`).

use std::fmt;

use pinfold_model::{
    CpuQuota, CpuSet, HugePagePool, IrqPlan, Partition, Plan, Policy, ResourceShare, Role,
    SamePageMerging, TransparentHugePages, Tuning,
};

/// One tunable that a plan sets. Its text form is the argument of `--knob` that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tunable<'p> {
    /// Scheduling policy of a role, or of all roles of a kind.
    Policy {
        /// `vcpu`, `vcpu(1)`; with the vnode's name if the vnodes differ.
        role: String,
        /// The scheduling policy.
        policy: Policy,
    },
    /// CPUs for the interrupts of one device, or of all.
    Irq(&'p IrqPlan),
    /// CPUs for interrupts that are set up later.
    NewIrqs(&'p CpuSet),
    /// CPUs for unbound kernel work.
    Workqueues(&'p CpuSet),
    /// Automatic NUMA balancing.
    NumaBalancing(bool),
    /// Transparent huge pages.
    TransparentHugePages(TransparentHugePages),
    /// Kernel samepage merging.
    SamePageMerging(SamePageMerging),
    /// Maximum wake-up latency of the plan's CPUs in microseconds.
    WakeUp(u32),
    /// Throttling of real-time threads.
    RealTimeThrottle(bool),
    /// cpufreq governor of the plan's CPUs.
    Governor(&'p str),
    /// Lowest frequency of the plan's CPUs in kHz.
    MinKhz(u64),
    /// Highest frequency of the plan's CPUs in kHz.
    MaxKhz(u64),
    /// A pool of huge pages.
    HugePages(HugePagePool),
    /// A share of a cache or of memory bandwidth (`resctrl`).
    Share(&'p ResourceShare),
    /// CPU weight of the machine's group.
    CpuWeight(u32),
    /// CPU bandwidth limit of the machine's group.
    CpuQuota(CpuQuota),
    /// Partition of the CPUs that are reserved for the machine.
    Partition(Partition),
    /// Simultaneous multithreading.
    Smt(bool),
    /// CPUs that are taken offline.
    Offline(&'p CpuSet),
    /// A missing tunable is an error.
    Required,
}

impl Tunable<'_> {
    /// Its key: the part before `=`, without the device or role.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Policy { .. } => "policy",
            Self::Irq(_) => "irq",
            Self::NewIrqs(_) => "new-irqs",
            Self::Workqueues(_) => "workqueues",
            Self::NumaBalancing(_) => "numa-balancing",
            Self::TransparentHugePages(_) => "thp",
            Self::SamePageMerging(_) => "ksm",
            Self::WakeUp(_) => "wake-up-us",
            Self::RealTimeThrottle(_) => "rt-throttle",
            Self::Governor(_) => "governor",
            Self::MinKhz(_) => "min-khz",
            Self::MaxKhz(_) => "max-khz",
            Self::HugePages(_) => "huge-pages",
            Self::Share(_) => "share",
            Self::CpuWeight(_) => "cpu-weight",
            Self::CpuQuota(_) => "cpu-quota",
            Self::Partition(_) => "partition",
            Self::Smt(_) => "smt",
            Self::Offline(_) => "offline",
            Self::Required => "required",
        }
    }
}

impl fmt::Display for Tunable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key();
        let switch = |on: bool| if on { "on" } else { "off" };
        match self {
            Self::Policy { role, policy } => write!(f, "{key}:{role}={}", policy_words(*policy)),
            Self::Irq(irq) => write!(f, "{key}:{}={}", irq.device.replace(' ', ":"), irq.pus),
            Self::NewIrqs(pus) | Self::Workqueues(pus) | Self::Offline(pus) => {
                write!(f, "{key}={pus}")
            }
            Self::NumaBalancing(on) | Self::RealTimeThrottle(on) | Self::Smt(on) => {
                write!(f, "{key}={}", switch(*on))
            }
            Self::TransparentHugePages(when) => write!(f, "{key}={}", when.word()),
            Self::SamePageMerging(merging) => write!(f, "{key}={}", merging.word()),
            Self::Governor(name) => write!(f, "{key}={name}"),
            Self::WakeUp(number) | Self::CpuWeight(number) => write!(f, "{key}={number}"),
            Self::MinKhz(khz) | Self::MaxKhz(khz) => write!(f, "{key}={khz}"),
            Self::HugePages(HugePagePool { node, page_bytes, pages }) => {
                write!(f, "{key}={node}:{}:{pages}", page_bytes >> 10)
            }
            Self::Share(share) => write!(f, "{key}={share}"),
            Self::CpuQuota(CpuQuota { quota_us, period_us }) => {
                write!(f, "{key}={quota_us}/{period_us}")
            }
            Self::Partition(partition) => write!(f, "{key}={}", partition.word()),
            Self::Required => write!(f, "{key}=yes"),
        }
    }
}

/// All tunables that the plan sets.
#[must_use]
pub fn tunables(plan: &Plan) -> Vec<Tunable<'_>> {
    let mut all = policies(plan);
    all.extend(plan.irqs.iter().map(Tunable::Irq));
    // Destructured completely, so that a new field of the model must be added here to compile.
    let Tuning {
        new_irqs,
        workqueues,
        numa_balancing,
        transparent_huge_pages,
        same_page_merging,
        wake_up_us,
        governor,
        min_khz,
        max_khz,
        real_time_throttle,
        shares,
        huge_pages,
        cpu_weight,
        cpu_quota,
        partition,
        smt,
        offline,
        required,
    } = &plan.tuning;
    all.extend(new_irqs.as_ref().map(Tunable::NewIrqs));
    all.extend(workqueues.as_ref().map(Tunable::Workqueues));
    all.extend(numa_balancing.map(Tunable::NumaBalancing));
    all.extend(transparent_huge_pages.map(Tunable::TransparentHugePages));
    all.extend(same_page_merging.map(Tunable::SamePageMerging));
    all.extend(wake_up_us.map(Tunable::WakeUp));
    all.extend(real_time_throttle.map(Tunable::RealTimeThrottle));
    all.extend(governor.as_deref().map(Tunable::Governor));
    // The kernel refuses a minimum frequency above the maximum.
    all.extend(max_khz.map(Tunable::MaxKhz));
    all.extend(min_khz.map(Tunable::MinKhz));
    all.extend(huge_pages.iter().copied().map(Tunable::HugePages));
    all.extend(shares.iter().map(Tunable::Share));
    all.extend(cpu_weight.map(Tunable::CpuWeight));
    all.extend(cpu_quota.map(Tunable::CpuQuota));
    all.extend(partition.map(Tunable::Partition));
    all.extend(smt.map(Tunable::Smt));
    all.extend(offline.as_ref().map(Tunable::Offline));
    all.extend(required.then_some(Tunable::Required));
    all
}

/// The policies, one per kind of role if all threads of the kind have the same.
fn policies(plan: &Plan) -> Vec<Tunable<'static>> {
    let kind = |role: &Role| role.to_string().split('(').next().unwrap_or_default().to_owned();
    let mut all: Vec<Tunable<'static>> = Vec::new();
    for (vnode, thread) in plan.threads() {
        let Some(policy) = thread.policy else { continue };
        let own = kind(&thread.role);
        let mut others = plan.threads().filter(|(_, other)| kind(&other.role) == own);
        let role = match others.all(|(_, other)| other.policy == Some(policy)) {
            true => own,
            false => plan.role_name(vnode, &thread.role),
        };
        let tunable = Tunable::Policy { role, policy };
        if !all.contains(&tunable) {
            all.push(tunable);
        }
    }
    all
}

/// A policy in the syntax of the command line.
pub(crate) fn policy_words(policy: Policy) -> String {
    match policy {
        Policy::Other { nice } => format!("other:{nice}"),
        Policy::Batch { nice } => format!("batch:{nice}"),
        Policy::Idle => "idle".to_owned(),
        Policy::Fifo { priority } => format!("fifo:{priority}"),
        Policy::RoundRobin { priority } => format!("rr:{priority}"),
        Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
            format!("deadline:{}/{}/{}", runtime_ns / 1000, deadline_ns / 1000, period_ns / 1000)
        }
        Policy::Unknown(number) => format!("policy {number}"),
    }
}

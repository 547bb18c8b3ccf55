//! Turns a plan into the ordered list of steps.
//!
//! Order: isolation, so that other tasks leave the CPUs before the vCPUs come; main thread and
//! iothreads, because other threads inherit from them; vCPUs; all other threads of the machine,
//! which follow the emulator; policies. A thread leaves an exclusive CPU before another one enters
//! it ([`crate::order`]). A value that is already right gives no step, so the list is empty for a host on which the plan is active.
//! [`crate::apply`] repeats the planning until the list is empty, which includes threads that were
//! created meanwhile.
//!
//! The steps follow from the plan and a [`HostState`] alone; no module below accesses the host.
//! Values for a group that does not exist yet follow from the kernel's rules for new groups, so
//! that a dry run can print them.

mod isolate_host_v1;
mod isolate_host_v2;
mod isolate_own;
mod partition;
mod policy;
mod real_time;
mod step_builder;
mod threads;
mod tuning;

use std::collections::BTreeSet;

use pinfold_host::Host;
use pinfold_host::mountinfo::Version;
use pinfold_model::{
    CpuSet, Finding, IsolationScope, Plan, Policy, Role, Speed, Step, TaskId, VnodePlan,
};

use crate::actuators::GROUP_PREFIX;
use crate::cpusets::Hierarchy;
use crate::error::{ApplyError, Refusal};
use crate::host_state::HostState;
use crate::journal::Journals;
use crate::order;
use crate::other_placements::OtherPlacements;
use crate::tasks::{Rules, Target};
pub(crate) use partition::name as partition_name;
pub(crate) use real_time::{throttle_disabled_finding, throttle_path};
use step_builder::{ManagerQuery, StepBuilder};
pub(crate) use tuning::hotplug::missing as missing_pus;
pub(crate) use tuning::irqs::{find_irqs_to_move as irqs_off_exclusive, numbers_of as irqs_of};

/// The steps that apply a plan, and what cannot be done as requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Requests that cannot be fulfilled completely.
    pub findings: Vec<Finding>,
    /// Directories of the groups of Pinfold that the plan needs, whether they exist or not.
    pub groups: BTreeSet<String>,
}

/// A plan that may be applied to a target.
#[derive(Clone, Copy)]
pub(crate) struct Request<'r> {
    plan: &'r Plan,
    /// The vnode that the plan places.
    vnode: &'r VnodePlan,
    target: &'r Target,
}

impl<'r> Request<'r> {
    /// # Errors
    /// [`Refusal`] if this plan must not be applied to any host.
    pub(crate) fn new(plan: &'r Plan, target: &'r Target) -> Result<Self, Refusal> {
        Ok(Self { plan, vnode: check(plan, target)?, target })
    }

    pub(crate) fn plan(&self) -> &'r Plan {
        self.plan
    }

    pub(crate) fn target(&self) -> &'r Target {
        self.target
    }

    /// The housekeeping CPUs that this machine uses: others may be exclusive to other machines.
    pub(crate) fn parking(&self) -> CpuSet {
        let own = self.vnode.thread(&Role::Emulator);
        let own = own.map(|thread| thread.pus.intersection(&self.plan.housekeeping));
        own.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| self.plan.housekeeping.clone())
    }
}

/// Name of the cgroup that an apply to this virtual machine makes. If the machine must be moved out
/// of a shared group, its own group has the same name with the suffix `-vm`.
#[must_use]
pub fn group_name(vm: TaskId) -> String {
    format!("{GROUP_PREFIX}{}-{}", vm.tid, vm.start_time)
}

/// The steps that [`crate::apply`] would execute now on a host without other placements.
///
/// ```
/// use pinfold_apply::{Target, plan_steps};
/// use pinfold_model::{Request, Role, Speed, Tid, VnodeRequest};
///
/// let host = pinfold_sim::SimHost::v2_eight_pus();
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let request = Request::from_vnodes(vec![VnodeRequest::processes("job", 1, Speed::FULL)]);
/// let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// let task = host.task(Tid(400)).ok_or("no task")?.id();
/// let target = Target::new(Tid(400), vec![(task, Role::Task)]);
/// let steps = plan_steps(&host, &plan, &target)?.steps;
/// assert!(steps.iter().any(|step| step.change.as_set_affinity().is_some()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ApplyError::Refused`] if the plan must not or cannot be applied here, [`ApplyError::VmGone`],
/// [`ApplyError::Host`] if the host cannot be read.
pub fn plan_steps(host: &dyn Host, plan: &Plan, target: &Target) -> Result<Planned, ApplyError> {
    plan_steps_with_placements(host, plan, target, &OtherPlacements::default())
}

/// The steps that [`crate::apply`] would execute now, next to the placements of these journals.
///
/// # Errors
/// As [`plan_steps`]; [`ApplyError::Journal`] if the journals cannot be listed.
pub fn plan_steps_with_journals(
    host: &dyn Host,
    plan: &Plan,
    target: &Target,
    journals: &Journals<'_>,
) -> Result<Planned, ApplyError> {
    plan_steps_with_placements(host, plan, target, &journals.active_but(host, None)?)
}

fn plan_steps_with_placements(
    host: &dyn Host,
    plan: &Plan,
    target: &Target,
    others: &OtherPlacements,
) -> Result<Planned, ApplyError> {
    let request = Request::new(plan, target)?;
    let hierarchy = Hierarchy::read(host);
    let state = HostState::read(host, &hierarchy, target)?.next_to(others)?;
    all_steps(&state, &request)
}

/// Only the first of these steps: those that bring the CPUs of the plan's threads online. A host
/// shows the topology of a CPU only while it is online, so a caller that checks whether the plan
/// fits this host executes these steps first.
///
/// # Errors
/// As [`plan_steps`].
pub fn online_steps(host: &dyn Host, plan: &Plan, target: &Target) -> Result<Planned, ApplyError> {
    let request = Request::new(plan, target)?;
    let hierarchy = Hierarchy::read(host);
    let state = HostState::read(host, &hierarchy, target)?;
    let mut builder = StepBuilder::new(&state, &request);
    tuning::hotplug::bring_cpus_online(&mut builder)?;
    Ok(builder.finish())
}

/// The steps of [`plan_steps`], from a snapshot.
pub(crate) fn all_steps(
    state: &HostState<'_>,
    request: &Request<'_>,
) -> Result<Planned, ApplyError> {
    let mut planned = unordered_steps(state, request)?;
    planned.steps =
        order::in_order(planned.steps, &request.parking(), |task| state.mask(task.tid))?;
    Ok(planned)
}

/// The same before the masks are brought into an order, for a snapshot with other masks than the
/// present ones.
pub(crate) fn unordered_steps(
    state: &HostState<'_>,
    request: &Request<'_>,
) -> Result<Planned, ApplyError> {
    let mut builder = StepBuilder::new(state, request);
    not_applied(&mut builder);
    tuning::hotplug::bring_cpus_online(&mut builder)?;
    match request.plan.isolation {
        IsolationScope::None => {}
        IsolationScope::Own => isolate_own::confine(&mut builder)?,
        IsolationScope::Host => match builder.cpusets()??.version() {
            Version::V1 => isolate_host_v1::confine(&mut builder)?,
            Version::V2 => isolate_host_v2::confine(&mut builder)?,
        },
    }
    threads::place(&mut builder, ManagerQuery::Always)?;
    for kept in request.target.kept.iter().filter(|kept| !matches!(kept.rules, Rules::Masks(_))) {
        builder.setting(kept, &[], &[], ManagerQuery::Always)?;
    }
    tuning::set(&mut builder)?;
    partition::make(&mut builder)?;
    // Last in the list, so that undo begins with it: lists and masks are restored when all CPUs are
    // online.
    tuning::hotplug::set(&mut builder)?;
    Ok(builder.finish())
}

/// The steps that place the machine's threads, without isolation.
pub(crate) fn plan_threads(
    host: &dyn Host,
    plan: &Plan,
    target: &Target,
) -> Result<Planned, ApplyError> {
    let request = Request::new(plan, target)?;
    let hierarchy = Hierarchy::read(host);
    let state = HostState::read(host, &hierarchy, target)?;
    let mut builder = StepBuilder::new(&state, &request);
    partition::sort(&mut builder)?;
    threads::place(&mut builder, ManagerQuery::WhenMasksDiffer)?;
    let mut planned = builder.finish();
    planned.steps =
        order::in_order(planned.steps, &request.parking(), |task| state.mask(task.tid))?;
    Ok(planned)
}

/// Adds findings about the parts of the plan that no step applies.
fn not_applied(builder: &mut StepBuilder<'_>) {
    if builder.vnode.speed != Speed::FULL {
        builder.add_finding(Finding::warning("plan", "apply does not set the speed of the plan"));
    }
}

/// A real-time vCPU that spins waits for the emulator or an iothread. If that thread may run only
/// on the vCPU's CPUs, it never runs.
fn check_servants(vnode: &VnodePlan) -> Result<(), Refusal> {
    for vcpu in vnode.vcpus().filter(|thread| thread.policy.is_some_and(Policy::is_real_time)) {
        for thread in &vnode.threads {
            // A thread that also has another CPU is not blocked.
            if thread.role.kind().is_awaited
                && thread.pus.is_subset(&vcpu.pus)
                && !thread.policy.is_some_and(Policy::is_real_time)
            {
                return Err(Refusal::RealTimeStarvesHelper {
                    vcpu: vcpu.role.clone(),
                    starved_role: thread.role.clone(),
                    pus: thread.pus.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Checks that apply to every plan, whatever its source. Returns the vnode that it places.
fn check<'p>(plan: &'p Plan, target: &Target) -> Result<&'p VnodePlan, Refusal> {
    let vnode = plan.single_vnode()?;
    if plan.housekeeping.is_empty() {
        return Err(Refusal::NoHousekeeping);
    }
    let both = plan.housekeeping.intersection(&plan.exclusive);
    if !both.is_empty() {
        return Err(Refusal::Overlap { pus: both });
    }
    if let Some(thread) = vnode.threads.iter().find(|thread| thread.pus.is_empty()) {
        return Err(Refusal::NowhereToRun { role: thread.role.clone() });
    }
    let real_time = vnode
        .threads
        .iter()
        .filter(|thread| thread.policy.is_some_and(Policy::is_real_time))
        .map(|thread| &thread.pus)
        .collect::<CpuSet>();
    if plan.housekeeping.is_subset(&real_time) {
        return Err(Refusal::RealTimeEverywhere { pus: real_time });
    }
    check_servants(vnode)?;
    for (position, (task, role)) in target.threads.iter().enumerate() {
        let later = target.threads[position + 1..].iter();
        if let Some((_, other)) = later.clone().find(|(other, _)| other.tid == task.tid)
            && vnode.thread(role).map(|t| &t.pus) != vnode.thread(other).map(|t| &t.pus)
        {
            let roles = (role.clone(), other.clone());
            return Err(Refusal::SharedThread { tid: task.tid, roles });
        }
    }
    Ok(vnode)
}

//! Compares the plan with the present state of the host.
//!
//! This module only reads. It separates tasks that the kernel does not allow to be moved from tasks
//! that isolation could move.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::tunables::{partition, rt_throttle};
use pinfold_model::{CpuSet, Finding, Plan, Policy, Role, TaskId, Tid};

use crate::actuators::{self, partition_fault};
use crate::cpusets::{self, Cpusets};
use crate::rt_watchdog::real_time_priority;
use crate::steps::{
    group_name, missing_pus, partition_name, throttle_disabled_finding, throttle_path,
};
use crate::tasks::{self, Target};

/// One thread: its planned CPUs and policy, and the present ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleStatus {
    /// Role of the thread.
    pub role: Role,
    /// The thread.
    pub task: TaskId,
    /// CPUs in the plan; `None` if the plan does not name the thread, which then follows the
    /// emulator.
    pub planned: Option<CpuSet>,
    /// Affinity mask; `None` if the thread has ended.
    pub found: Option<CpuSet>,
    /// Policy in the plan, if it sets one.
    pub planned_policy: Option<Policy>,
    /// Present policy; `None` if the thread has ended.
    pub found_policy: Option<Policy>,
    /// True if mask and policy are as planned.
    pub ok: bool,
}

/// A task that may run on CPUs that the plan reserves for the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignTask {
    /// Its thread ID.
    pub tid: Tid,
    /// Its name (`comm`).
    pub name: String,
    /// The reserved CPUs on which it may run.
    pub pus: CpuSet,
    /// True for a kernel thread.
    pub is_kernel_thread: bool,
}

/// The state of a plan on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The machine's threads: first those of the target, then those that follow the emulator.
    pub roles: Vec<RoleStatus>,
    /// Tasks that the kernel does not allow to be moved.
    pub immovable: Vec<ForeignTask>,
    /// Tasks that could be excluded and are not.
    pub movable: Vec<ForeignTask>,
    /// Findings about offline CPUs of the plan and about its partition.
    pub findings: Vec<Finding>,
    /// Risks to the host under this plan that are no deviation from it.
    pub dangers: Vec<Finding>,
}

impl Status {
    /// True if every thread of the machine is as planned, and the CPUs and groups that the plan
    /// needs exist.
    #[must_use]
    pub fn is_as_planned(&self) -> bool {
        self.roles.iter().all(|role| role.ok) && self.findings.is_empty()
    }
}

/// Compares a plan with the host.
///
/// ```
/// # use pinfold_apply::Target;
/// # use pinfold_model::{Request, Role, Speed, Tid, VnodeRequest};
/// # let host = pinfold_sim::SimHost::v2_eight_pus();
/// # let topology = pinfold_samples::from_description("core:4 pu:2");
/// # let request = Request::from_vnodes(vec![VnodeRequest::processes("job", 1, Speed::FULL)]);
/// # let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// # let task = host.task(Tid(400)).ok_or("no task")?.id();
/// # let target = Target::new(Tid(400), vec![(task, Role::Task)]);
/// // Nothing was applied yet.
/// let status = pinfold_apply::status(&host, &plan, &target)?;
/// assert!(!status.is_as_planned());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`HostError`] if the host cannot be read. A task that ends meanwhile is no error.
pub fn status(host: &dyn Host, plan: &Plan, target: &Target) -> Result<Status, HostError> {
    let mut status = Status {
        roles: roles(host, plan, target)?,
        findings: findings(host, plan, target)?,
        dangers: dangers(host, plan)?,
        ..Status::default()
    };
    let own: Vec<Tid> = status.roles.iter().map(|role| role.task.tid).collect();
    if plan.exclusive.is_empty() {
        return Ok(status);
    }
    for pid in tasks::processes(host)? {
        for tid in tasks::threads_of(host, pid)? {
            if own.contains(&tid) {
                continue;
            }
            let Some(mask) = tasks::ignore_gone(host.affinity(tid))? else { continue };
            let pus = mask.intersection(&plan.exclusive);
            if pus.is_empty() {
                continue;
            }
            let Some(stat) = tasks::stat(host, tid)? else { continue };
            let is_kernel_thread = stat.is_kernel_thread();
            let bound = stat.is_unmovable() || (is_kernel_thread && stat.ppid.0 == 0);
            let list = if bound { &mut status.immovable } else { &mut status.movable };
            list.push(ForeignTask { tid, name: stat.comm, pus, is_kernel_thread });
        }
    }
    Ok(status)
}

/// Missing CPUs and groups, and vCPUs that are not in the plan.
fn findings(host: &dyn Host, plan: &Plan, target: &Target) -> Result<Vec<Finding>, HostError> {
    let strays = target.threads.iter().filter(|(_, role)| is_stray(plan, role));
    let strays = strays.map(|(task, role)| tasks::no_place(*task, role));
    Ok(health(host, plan, target)?.into_iter().chain(strays).collect())
}

/// True for a vCPU that follows the emulator, which no plan intends.
fn is_stray(plan: &Plan, role: &Role) -> bool {
    let vnode = plan.vnodes.first();
    role.is_vcpu() && vnode.is_some_and(|vnode| tasks::has_no_place(vnode, role))
}

/// A warning if a plan has real-time threads and the host's real-time throttling is off.
fn dangers(host: &dyn Host, plan: &Plan) -> Result<Vec<Finding>, HostError> {
    if real_time_priority(plan).is_none() {
        return Ok(Vec::new());
    }
    let hint = match plan.tuning.switch(&rt_throttle::TUNABLE) {
        Some(false) => "the plan requests this; undo restores the previous value",
        Some(true) | None => {
            "undo, and apply with --tunable rt-throttle=on; or sysctl kernel.sched_rt_runtime_us=950000"
        }
    };
    let runtime = tasks::ignore_gone(host.read_text(&throttle_path()))?;
    let off = throttle_disabled_finding(runtime).map(|finding| finding.with_hint(hint));
    Ok(off.into_iter().collect())
}

/// CPUs and groups that the plan needs and the host no longer has.
pub(crate) fn health(
    host: &dyn Host,
    plan: &Plan,
    target: &Target,
) -> Result<Vec<Finding>, HostError> {
    let online = tasks::ignore_gone(cpusets::list(host, &paths::cpu_online()))?;
    let mut findings = online.map_or_else(Vec::new, |online| missing_pus(&online, plan));
    if !plan.tuning.has(&partition::TUNABLE) {
        return Ok(findings);
    }
    let (Some(cpusets), Some(vm)) = (Cpusets::find(host)?, tasks::stat(host, target.pid)?) else {
        return Ok(findings);
    };
    let name = partition_name(&group_name(vm.task()));
    for tid in tasks::threads_of(host, target.pid)? {
        let Some(group) = cpusets.group_of(host, tid)? else { continue };
        if group.rsplit('/').next() == Some(name.as_str()) {
            let path = paths::cpuset_partition(&group);
            let shown = tasks::ignore_gone(host.read(&path))?;
            findings.extend(shown.and_then(|shown| partition_fault(&path, &shown)));
            break;
        }
    }
    Ok(findings)
}

fn roles(host: &dyn Host, plan: &Plan, target: &Target) -> Result<Vec<RoleStatus>, HostError> {
    let mut roles = Vec::new();
    for (task, role) in &target.threads {
        roles.extend(role_status(host, plan, *task, role)?);
    }
    for tid in tasks::threads_of(host, target.pid)? {
        if target.role(tid).is_some() {
            continue;
        }
        let role = if tid == target.pid { Role::Emulator } else { Role::Worker };
        if let Some(stat) = tasks::stat(host, tid)?
            && !stat.is_unmovable()
        {
            roles.extend(role_status(host, plan, stat.task(), &role)?);
        }
    }
    Ok(roles)
}

/// True for a thread without a vCPU that has all planned CPUs that its cpuset allows: another
/// placement may have isolated some of them since.
fn is_narrowed(
    host: &dyn Host,
    task: TaskId,
    role: &Role,
    planned: &CpuSet,
    found: &CpuSet,
) -> Result<bool, HostError> {
    if role.is_vcpu() || found.is_empty() || !found.is_subset(planned) {
        return Ok(false);
    }
    let allowed = actuators::allowed_cpus(host, Cpusets::find(host)?.as_ref(), task.tid)?;
    Ok(allowed.is_some_and(|allowed| planned.intersection(&allowed) == *found))
}

fn role_status(
    host: &dyn Host,
    plan: &Plan,
    task: TaskId,
    role: &Role,
) -> Result<Option<RoleStatus>, HostError> {
    // Plans that are applied have exactly one vnode.
    let planned = plan.vnodes.first().and_then(|vnode| vnode.thread(role));
    let Some(thread) = planned else { return Ok(None) };
    let alive = tasks::is_alive(host, task)?;
    let found = if alive { tasks::ignore_gone(host.affinity(task.tid))? } else { None };
    let found_policy = if alive { tasks::ignore_gone(host.policy(task.tid))? } else { None };
    let policy_ok = match (thread.policy, found_policy) {
        (Some(policy), Some(found)) => policy.for_thread(found) == found,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let pus = plan.moved_to(task).unwrap_or(&thread.pus);
    let planned = (!is_stray(plan, role)).then(|| pus.clone());
    let mask_ok = match (&planned, &found) {
        (Some(planned), Some(found)) => {
            found == planned || is_narrowed(host, task, role, planned, found)?
        }
        (_, _) => false,
    };
    Ok(Some(RoleStatus {
        role: role.clone(),
        task,
        ok: mask_ok && policy_ok,
        planned,
        found,
        planned_policy: thread.policy,
        found_policy,
    }))
}

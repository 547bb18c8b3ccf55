//! What the kernel requires before a thread can become real-time, and what keeps the host safe.
//!
//! Under `CONFIG_RT_GROUP_SCHED` with the `cpu` controller of cgroup v1, a group has no run time
//! for real-time tasks until it is given some, and `sched_setattr(2)` fails with `EPERM`. The
//! threads' groups get the remaining run time, from the root down, each as a step; undo reverts it
//! after the policies. A thread with a deadline must be allowed on every CPU of its root domain: of
//! a cgroup v2 partition with load balancing, of all isolated CPUs together, or of all CPUs that
//! are in no partition. <https://docs.kernel.org/scheduler/sched-rt-group.html>,
//! <https://docs.kernel.org/scheduler/sched-deadline.html>

use std::collections::BTreeMap;

use pinfold_host::mountinfo::{self, ControllerMount, Version};
use pinfold_host::{HostError, paths, proc_cgroup};
use pinfold_model::tunables::{partition, rt_throttle};
use pinfold_model::{Change, CpuSet, Finding, Policy, Role, TaskId, Tid, Undo};

use super::step_builder::StepBuilder;
use crate::cpusets::Cpusets;
use crate::error::{ApplyError, Refusal};
use crate::host_state::HostState;

const CONTROLLER: &str = "cpu";
const REASON: &str = "its real-time threads need run time";
/// The kernel's default real-time run time per second.
const USUAL_US: i64 = 950_000;

/// Drafts the steps that the policies require.
pub(super) fn prepare(
    builder: &mut StepBuilder<'_>,
    policies: &[(TaskId, Policy, Role)],
) -> Result<(), ApplyError> {
    let mut real_time = Vec::new();
    for (task, policy, role) in policies {
        match policy {
            Policy::Fifo { .. } | Policy::RoundRobin { .. } => real_time.push(task.tid),
            Policy::Deadline { .. } => deadline(builder, *task, role)?,
            Policy::Other { .. }
            | Policy::Batch { .. }
            | Policy::Idle
            | Policy::Slice { .. }
            | Policy::Unknown { .. } => {}
        }
    }
    if !real_time.is_empty() {
        throttle(builder)?;
        run_time(builder, &real_time)?;
    }
    Ok(())
}

/// Reports that real-time throttling is off, unless the plan sets it.
fn throttle(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    if !builder.plan.tuning.has(&rt_throttle::TUNABLE)
        && let Some(finding) = throttle_disabled_finding(builder.state.text(&throttle_path())?)
    {
        builder.add_finding(finding.with_hint("switch it on with --tunable rt-throttle=on"));
    }
    Ok(())
}

/// The file with the host's real-time throttling.
pub(crate) fn throttle_path() -> String {
    paths::sysctl_kernel("sched_rt_runtime_us")
}

/// A finding if the host's real-time throttling is off, from the content of that file.
pub(crate) fn throttle_disabled_finding(content: Option<String>) -> Option<Finding> {
    content.filter(|text| text.trim() == "-1").map(|_| {
        let text = "it is off: a spinning real-time thread never gives up its CPU";
        Finding::warning("real-time throttle", text)
    })
}

/// The kernel refuses (`EPERM`) a deadline for a thread that may not run on all CPUs of its root
/// domain.
fn deadline(builder: &StepBuilder<'_>, task: TaskId, role: &Role) -> Result<(), ApplyError> {
    let Some(thread) = builder.vnode.thread(role) else { return Ok(()) };
    if !role.is_vcpu() {
        return Err(Refusal::DeadlineOf { role: role.clone() }.into());
    }
    let domain = domain(builder, task.tid)?;
    if domain.is_subset(&thread.pus) {
        return Ok(());
    }
    let (role, pus) = (role.clone(), thread.pus.clone());
    Err(match builder.plan.tuning.word(&partition::TUNABLE) {
        // The kernel uses the CPU on which the thread last ran. A sleeping thread (a vCPU of a
        // stopped or idle machine) enters the partition's domain only when it wakes up.
        Some(partition::ROOT) if pus == builder.plan.exclusive => {
            Refusal::DeadlineBeforePartition { role, pus }
        }
        Some(partition::ISOLATED) => Refusal::DeadlineInIsolated { role, pus },
        Some(_) | None => Refusal::DeadlineTooNarrow { role, pus, domain },
    }
    .into())
}

/// The CPUs among which the kernel admits a thread with a deadline: its root domain.
fn domain(builder: &StepBuilder<'_>, tid: Tid) -> Result<CpuSet, ApplyError> {
    let state = builder.state;
    let online = state.required_cpu_list(&paths::cpu_online())?;
    let Some(cpusets) = builder.state.cpusets()? else { return Ok(online) };
    let Some(group) = cpusets.group_of(state, tid)? else { return Ok(online) };
    let lineage = cpusets.lineage(&group);
    let said = |path: &str| -> Result<String, ApplyError> {
        let text = state.text(path)?;
        Ok(text.unwrap_or_default().trim().to_owned())
    };
    match cpusets.version() {
        Version::V1 => {
            // The topmost group with load balancing includes all groups below it.
            for group in &lineage {
                if said(&paths::cpuset_sched_load_balance(group))? == "1" {
                    return Ok(cpusets.effective(state, group)?);
                }
            }
            Ok(online)
        }
        Version::V2 => {
            for group in lineage.iter().rev() {
                match said(&paths::cpuset_partition(group))?.as_str() {
                    "root" => return Ok(cpusets.effective(state, group)?),
                    "isolated" => return isolated(state, cpusets, group),
                    _ => {}
                }
            }
            // All CPUs that are in no partition. In a container's tree only the kernel knows them.
            if cpusets.is_real_root(state, cpusets.root()) {
                Ok(cpusets.effective(state, cpusets.root())?)
            } else {
                Ok(online)
            }
        }
    }
}

/// All isolated CPUs: they share the default domain, even if they are in different partitions.
fn isolated(state: &HostState<'_>, cpusets: &Cpusets, group: &str) -> Result<CpuSet, ApplyError> {
    let mut all = cpusets.effective(state, group)?;
    for path in [paths::cpuset_isolated(cpusets.root()), paths::cpu_isolated()] {
        if let Some(more) = state.cpu_list(&path)? {
            all = all.union(&more);
        }
    }
    Ok(all)
}

/// Gives the threads' groups run time if they have none.
fn run_time(builder: &mut StepBuilder<'_>, tids: &[Tid]) -> Result<(), ApplyError> {
    let mounts = paths::own_mountinfo();
    let text = builder.state.read_required(&mounts)?;
    let text = String::from_utf8_lossy(&text);
    let mounts = mountinfo::parse(&text).map_err(|error| error.at(&mounts))?;
    let Some(mount) = mountinfo::v1_mount(&mounts, CONTROLLER) else { return Ok(()) };
    // Run time that the steps so far assign.
    let mut given = BTreeMap::new();
    for tid in tids {
        for group in lineage(builder, &mount, *tid)? {
            grant_runtime(builder, &mount, &group, &mut given)?;
        }
    }
    Ok(())
}

/// The thread's group and its ancestors without the root, from the top.
fn lineage(
    builder: &StepBuilder<'_>,
    mount: &ControllerMount,
    tid: Tid,
) -> Result<Vec<String>, ApplyError> {
    let path = paths::process_cgroup(tid);
    let Some(text) = builder.state.text(&path)? else {
        return Ok(Vec::new());
    };
    let memberships = proc_cgroup::parse(&text).map_err(|error| error.at(&path))?;
    let below = proc_cgroup::v1_path(&memberships, CONTROLLER);
    let Some(group) = below.and_then(|path| mount.group_dir(path)) else { return Ok(Vec::new()) };
    let root = mount.mount.path.trim_end_matches('/');
    let mut at = root.to_owned();
    let Some(parts) = group.strip_prefix(root) else {
        let why = format!("the group {group} is not below {root}");
        return Err(HostError::Unexpected { path, why }.into());
    };
    Ok(parts
        .split('/')
        .filter(|part| !part.is_empty())
        .map(|part| {
            at = paths::cgroup_file(&at, part);
            at.clone()
        })
        .collect())
}

fn grant_runtime(
    builder: &mut StepBuilder<'_>,
    mount: &ControllerMount,
    group: &str,
    given: &mut BTreeMap<String, i64>,
) -> Result<(), ApplyError> {
    let path = paths::cpu_rt_runtime(group);
    // A kernel without CONFIG_RT_GROUP_SCHED has no such file.
    let Some(original) = builder.state.file(&path)? else { return Ok(()) };
    if given.contains_key(group) || original.trim_ascii() != b"0" {
        return Ok(());
    }
    if mount.mount.is_read_only() {
        return Err(Refusal::ReadOnly { path: mount.mount.path.clone() }.into());
    }
    let above = group.rsplit_once('/').map_or(group, |(above, _)| above);
    let left = remaining_runtime(builder, above, group, given)?;
    if left <= 0 {
        return Err(Refusal::NoRunTime { group: group.to_owned(), above: above.to_owned() }.into());
    }
    given.insert(group.to_owned(), left);
    let change = Change::WriteFile { path: path.clone(), value: left.to_string().into_bytes() };
    builder.step(change, Undo::WriteFile { path, original }, REASON);
    Ok(())
}

/// Remaining run time of a group for a child group, in microseconds of the child's period.
fn remaining_runtime(
    builder: &StepBuilder<'_>,
    above: &str,
    group: &str,
    given: &BTreeMap<String, i64>,
) -> Result<i64, ApplyError> {
    let number = |path: &str| -> Result<Option<i64>, ApplyError> {
        let text = builder.state.text(path)?;
        Ok(text.and_then(|text| text.trim().parse().ok()))
    };
    // Shares in millionths of the time; an unlimited group counts as the default.
    let share = |group: &str| -> Result<i64, ApplyError> {
        let runtime = match given.get(group) {
            Some(runtime) => Some(*runtime),
            None => number(&paths::cpu_rt_runtime(group))?,
        };
        let period = number(&paths::cpu_rt_period(group))?.filter(|period| *period > 0);
        Ok(match (runtime, period) {
            (None, _) => 0,
            (Some(runtime), _) if runtime < 0 => USUAL_US,
            (Some(runtime), period) => {
                runtime.saturating_mul(1_000_000) / period.unwrap_or(1_000_000)
            }
        })
    };
    let mut left = share(above)?;
    for name in builder.state.names(above)? {
        let sibling = paths::cgroup_file(above, &name);
        if sibling != group && builder.state.exists(&paths::cpu_rt_runtime(&sibling)) {
            left -= share(&sibling)?;
        }
    }
    let period = number(&paths::cpu_rt_period(group))?.filter(|period| *period > 0);
    Ok(left.saturating_mul(period.unwrap_or(1_000_000)) / 1_000_000)
}

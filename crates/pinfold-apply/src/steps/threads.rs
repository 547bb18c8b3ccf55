//! Masks and policies of the virtual machine's threads.
//!
//! The target contains the roles, from QMP or libvirt. All threads without a role (RCU, worker
//! pools, VNC, …) follow the emulator; they are found in `/proc/PID/task`. The kernel binds the
//! workers of io_uring (`PF_NO_SETAFFINITY`), which follow their creator.

use pinfold_model::text::{pus_text, select_verb};
use pinfold_model::tunables::partition;
use pinfold_model::{CpuSet, Finding, IsolationScope, Policy, Role, TaskId, VnodeKind};

use super::real_time;
use super::step_builder::{ManagerQuery, StepBuilder};
use crate::error::ApplyError;
use crate::tasks;

pub(super) fn place(builder: &mut StepBuilder<'_>, ask: ManagerQuery) -> Result<(), ApplyError> {
    let threads = in_order(builder)?;
    let mut policies: Vec<(TaskId, Policy, Role)> = Vec::new();
    for (task, role) in &threads {
        if tasks::has_no_place(builder.vnode, role) {
            builder.add_finding(tasks::no_place(*task, role));
        }
        let Some(thread) = builder.vnode.thread(role) else { continue };
        let plan = builder.plan;
        let moved = plan.moved_to(*task);
        let pus = moved.unwrap_or(&thread.pus);
        if is_reserved_for_machine(builder, *task, pus)? {
            let text = format!(
                "thread {} of a device back end was not pinned: {} {} reserved for the machine's \
                 own process",
                task.tid,
                pus_text(pus),
                select_verb(pus.len(), "is", "are")
            );
            builder.add_finding(Finding::note("threads", text));
            continue;
        }
        // Without cgroups, libvirt sets the emulator's mask for the first thread only.
        let is_first = *role != Role::Emulator || *task == builder.vm;
        match builder.target.setting_for(role).filter(|_| is_first && moved.is_none()) {
            Some(kept) => {
                let followers = followers(role, &threads);
                builder.setting(kept, &[*task], &followers, ask)?;
            }
            None => {
                let reason = moved.map_or(thread.reason.as_str(), |_| "moved there by its owner");
                builder.affinity(*task, pus, ask, || format!("{role}: {reason}"))?;
            }
        }
        if let Some(policy) = thread.policy {
            policies.push((*task, policy, role.clone()));
        }
    }
    real_time::prepare(builder, &policies)?;
    for (task, policy, role) in policies {
        builder.policy(task, policy, &format!("{role} runs as {policy}"))?;
    }
    Ok(())
}

/// True for a thread of another user process whose CPUs only the machine's process gets: those of
/// its partition, and those that all other tasks of the host are kept away from.
fn is_reserved_for_machine(
    builder: &StepBuilder<'_>,
    task: TaskId,
    cpus: &CpuSet,
) -> Result<bool, ApplyError> {
    let plan = builder.plan;
    let is_closed = plan.tuning.has(&partition::TUNABLE)
        || (plan.isolation == IsolationScope::Host && !cpus.is_disjoint(&plan.exclusive));
    if !is_closed || builder.state.listed.binary_search(&task.tid).is_ok() {
        return Ok(false);
    }
    Ok(builder.state.stat(task.tid)?.is_some_and(|stat| !stat.is_kernel_thread()))
}

/// Threads that a managed change for a role may affect: for the emulator, all threads in its
/// cgroup.
fn followers(role: &Role, threads: &[(TaskId, Role)]) -> Vec<TaskId> {
    threads
        .iter()
        .filter(|(_, other)| {
            if *role == Role::Emulator {
                !other.kind().is_reported && !other.runs_work()
            } else {
                other == role
            }
        })
        .map(|(task, _)| *task)
        .collect()
}

/// Position of a role in the order: threads from which others inherit come first.
fn rank(role: &Role) -> (u8, u32) {
    (role.kind().rank, role.vcpu().unwrap_or(0))
}

/// The machine's threads with their roles, in the order in which they are placed.
pub(super) fn in_order(builder: &mut StepBuilder<'_>) -> Result<Vec<(TaskId, Role)>, ApplyError> {
    // All threads of a process group have the role `Task`.
    let is_group = builder.vnode.kind == VnodeKind::ProcessGroup;
    let role_of = |of_vm: Role| if is_group { Role::Task } else { of_vm };
    let main = (builder.vm, role_of(Role::Emulator));
    let named = builder.target.threads.iter().filter(|(task, _)| task.tid != builder.vm.tid);
    let mut threads: Vec<(TaskId, Role)> = named.cloned().collect();
    threads.sort_by_key(|(_, role)| rank(role));
    let listed = builder.state.listed.clone();
    // Threads in the process's list are alive; only the others need a check.
    let mut placed = Vec::with_capacity(listed.len() + 1);
    for (task, role) in threads {
        if listed.binary_search(&task.tid).is_ok() || builder.state.is_alive(task)? {
            placed.push((task, role));
        } else {
            builder.add_gone(task);
        }
    }
    for tid in listed {
        if tid == builder.vm.tid || builder.target.role(tid).is_some() {
            continue;
        }
        let Some(stat) = builder.state.stat(tid)? else { continue };
        if stat.is_unmovable() {
            let text = format!("thread {tid} ({}) is bound by the kernel", stat.comm);
            builder.add_finding(Finding::note("threads", text));
        } else {
            placed.push((stat.task(), role_of(Role::Worker)));
        }
    }
    placed.insert(0, main);
    Ok(placed)
}

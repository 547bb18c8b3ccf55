//! Threads that a vCPU with a real-time policy would keep from running.

use pinfold_model::{CpuSet, Plan, Policy, ThreadPlan, VnodePlan};

/// The reason why a thread of a vnode would be starved by the plan's policies, if any.
pub(crate) fn find_starvation(plan: &Plan, vnode: &VnodePlan) -> Option<String> {
    let any = plan.vnodes.iter().any(|of| {
        of.vcpus().any(|thread: &ThreadPlan| thread.policy.is_some_and(Policy::is_real_time))
    });
    let mut threads = vnode.threads.iter().filter(|_| any);
    let starved = threads.find_map(|thread| describe_starvation(plan, vnode, thread));
    if starved.is_some() {
        return starved;
    }
    let strange = vnode.threads.iter().find(|thread| {
        matches!(thread.policy, Some(Policy::Deadline { .. })) && !thread.role.is_vcpu()
    });
    strange.map(|thread| {
        format!(
            "{} cannot use SCHED_DEADLINE: a thread with this policy cannot create threads",
            thread.role
        )
    })
}

/// The reason, if real-time vCPUs leave a thread no CPU on which it can run.
fn describe_starvation(plan: &Plan, vnode: &VnodePlan, thread: &ThreadPlan) -> Option<String> {
    let mut taken = CpuSet::new();
    let mut names = Vec::new();
    for of in &plan.vnodes {
        let same = of.name == vnode.name;
        for vcpu in of.vcpus().filter(|vcpu| !same || vcpu.role != thread.role) {
            if starves_thread(vcpu, thread) && !vcpu.pus.is_disjoint(&thread.pus) {
                taken.add(&vcpu.pus);
                let name = vcpu.role.to_string();
                names.push(if same { name } else { format!("{}: {name}", of.name) });
            }
        }
    }
    (!names.is_empty() && thread.pus.is_subset(&taken)).then(|| {
        format!(
            "{} may run on CPU {} only, but real-time vCPUs ({}) use all of it, so it would wait \
             for them",
            thread.role,
            thread.pus,
            names.join(", ")
        )
    })
}

/// True if a thread cannot run on a CPU while this vCPU spins there. vCPUs and tasks with several
/// CPUs can move to another of them.
fn starves_thread(vcpu: &ThreadPlan, thread: &ThreadPlan) -> bool {
    let Some(priority) = vcpu.policy.and_then(real_time_priority) else { return false };
    let is_fifo = matches!(vcpu.policy, Some(Policy::Fifo { .. }));
    let stays = vcpu.pus.len() == 1;
    let moves = thread.role.runs_work();
    match thread.policy {
        Some(Policy::Deadline { .. }) => false,
        other => match other.and_then(real_time_priority) {
            None => stays || !moves,
            // At equal priority, only round-robin threads take turns.
            Some(own) => stays && (own < priority || (own == priority && is_fifo)),
        },
    }
}

fn real_time_priority(policy: Policy) -> Option<u32> {
    match policy {
        Policy::Fifo { priority } | Policy::RoundRobin { priority } => Some(priority.into()),
        Policy::Other { .. }
        | Policy::Batch { .. }
        | Policy::Idle
        | Policy::Deadline { .. }
        | Policy::Slice { .. }
        | Policy::Unknown { .. } => None,
    }
}

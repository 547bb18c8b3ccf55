//! vCPUs without a CPU of their own because none was free: they get one when one is, because
//! another machine left, a placement was undone, or a CPU came online.

use pinfold_host::LiveHost;
use pinfold_model::{CpuSet, Finding, Plan, Role, ThreadPlan, Topology};
use pinfold_plan::replan::{Change, DEGRADED, Placements, replan};

use super::{MachineChange, OtherOwners, Watcher, moved_to};
use crate::claims::Claims;
use crate::{Failure, inputs, plans};

/// How the reason of a vCPU ends that was given the CPU of another owner, which does not run.
const SHARED: &str = "; another owner keeps it too, because no CPU is free";

/// True if a vCPU of the plan may be without a CPU of its own.
pub fn has_waiting(plan: &Plan) -> bool {
    plan.threads().any(|(_, thread)| is_waiting(thread))
}

/// True if no CPU was free for a vCPU: it shares that of the emulator, or of another owner.
pub(super) fn is_waiting(thread: &ThreadPlan) -> bool {
    is_degraded(thread) || thread.reason.ends_with(SHARED)
}

pub(super) fn is_degraded(thread: &ThreadPlan) -> bool {
    thread.reason.starts_with(DEGRADED)
}

/// The findings about vCPUs without a CPU of their own, as of the last plan.
pub fn degraded_findings(plan: &Plan) -> impl Iterator<Item = &Finding> {
    plan.findings.iter().filter(|finding| finding.subject == "degraded")
}

/// True if a vCPU could now have the CPU of its own that it could not have before. It changes and
/// reports nothing: a host that cannot be read is reported by the checks of the placement.
pub fn finds_cpus(
    host: &LiveHost,
    around: OtherOwners<'_, '_>,
    plan: &Plan,
    watcher: &Watcher,
    id: &str,
) -> bool {
    if !has_waiting(plan) || watcher.has_questions() {
        return false;
    }
    let find = || -> Result<bool, Failure> {
        let name = &plans::single(plan)?.name;
        let others = around.others(host, watcher.target().pid, name, id)?;
        let topology = inputs::topology(host, None)?.without_free_memory();
        Ok(give_cpus(&topology, &others, plan, watcher.change())?.is_some())
    };
    find().unwrap_or(false)
}

/// The plan in which vCPUs that share a CPU because none was free have their own, around all CPUs
/// of others; `None` if none is free. Threads that the owner moved stay.
///
/// # Errors
/// [`Failure`] if the plan is not one of a single machine.
pub fn give_cpus(
    topology: &Topology,
    others: &Claims,
    plan: &Plan,
    change: &MachineChange,
) -> Result<Option<Plan>, Failure> {
    let name = &plans::single(plan)?.name;
    let (kept, bound) = kept_by_others(others, name);
    let mut best = None;
    for role in plan.threads().map(|(_, thread)| &thread.role) {
        let present = best.as_ref().unwrap_or(plan);
        if let Some(thread) = thread_of(present, role)
            && is_waiting(thread)
            && (is_degraded(thread) || !thread.pus.is_disjoint(&kept))
            && moved_to(change, role).is_none()
            && let Some(new) = give_cpu(topology, present, role, &kept.union(&bound))
                .or_else(|| give_cpu(topology, present, role, &kept))
        {
            best = Some(new);
        }
    }
    Ok(best)
}

/// The plan in which one of the vCPUs has a CPU that no other owner keeps, if there is one.
fn give_cpu(topology: &Topology, plan: &Plan, role: &Role, kept: &CpuSet) -> Option<Plan> {
    let mut next = plan.clone();
    // All other work stays where it is, and so does what has no other CPU.
    let stay = plan.threads().filter(|(_, thread)| {
        !is_degraded(thread)
            && thread.role != *role
            && (thread.role.runs_work() || thread.pus.is_subset(kept))
    });
    let stay = stay.map(|(_, thread)| &thread.pus).collect::<CpuSet>();
    let taken = kept.union(&plan.avoid_pus).difference(&stay);
    let threads = next.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads);
    for thread in threads.filter(|thread| thread.role == *role && !is_degraded(thread)) {
        DEGRADED.clone_into(&mut thread.reason);
        next.exclusive = next.exclusive.difference(&thread.pus);
    }
    let mut placements = Placements::new(vec![next], taken);
    let found = replan(topology, &mut placements, &Change::Host).ok()?;
    let mut new = placements.plans.pop()?;
    let thread = thread_of(&new, role)?;
    if is_degraded(thread) || !thread.pus.is_disjoint(kept) {
        return None;
    }
    new.findings.retain(|finding| finding.subject != "degraded");
    new.findings.extend(found.findings);
    Some(new)
}

/// Marks the vCPUs of a new plan that got the CPU of another owner because no other was free:
/// those that are new, or had none of their own before.
pub(super) fn mark_shared(others: &Claims, plan: &Plan, new: &mut Plan) {
    let Ok(name) = plans::single(plan).map(|vnode| vnode.name.clone()) else { return };
    let (kept, _) = kept_by_others(others, &name);
    for thread in new.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
        let is_settled = thread_of(plan, &thread.role).is_some_and(|old| !is_waiting(old));
        if thread.role.is_vcpu()
            && thread.pus.is_single()
            && !is_settled
            && !is_waiting(thread)
            && !thread.pus.is_disjoint(&kept)
        {
            thread.reason.push_str(SHARED);
        }
    }
}

/// The CPUs that other owners keep exclusively, and those to which one of their threads is bound.
pub(super) fn kept_by_others(others: &Claims, name: &str) -> (CpuSet, CpuSet) {
    let claims = others.without_names(&[name]);
    let kept = claims.iter().filter(|claim| claim.exclusivity.is_exclusive());
    let bound = claims.iter().filter(|claim| claim.active);
    (kept.map(|claim| &claim.cpus).collect(), bound.map(|claim| &claim.bound).collect())
}

/// The CPUs that owners which run keep exclusively.
pub(super) fn kept_by_active(others: &Claims, name: &str) -> CpuSet {
    let claims = others.without_names(&[name]);
    let kept = claims.iter().filter(|claim| claim.active && claim.exclusivity.is_exclusive());
    kept.map(|claim| &claim.cpus).collect()
}

pub(super) fn thread_of<'p>(plan: &'p Plan, role: &Role) -> Option<&'p ThreadPlan> {
    plan.threads().map(|(_, thread)| thread).find(|thread| thread.role == *role)
}

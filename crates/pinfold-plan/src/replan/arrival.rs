//! Places machines that come, on the CPUs that the others leave.

use pinfold_model::{CpuSet, Finding, MAX_VCPUS, Plan, Request, VcpuCount, Work};

use super::ReplanError;
use super::occupancy::Occupancy;
use crate::error::PlanError;
use crate::plan::{plan, plan_if};
use crate::strategies::{in_turn, pins_nothing};

/// Adds the plan of machines that come. If their strategy has no plan on the CPUs that are left, a
/// similar one is used, with a finding; no other machine moves for them.
pub(super) fn place(
    state: &mut Occupancy<'_>,
    strategy: &str,
    request: &Request,
) -> Result<(), ReplanError> {
    if let Some(known) = request.vnodes.iter().find(|vnode| state.has(&vnode.name)) {
        return Err(ReplanError::PlacedAlready(known.name.clone()));
    }
    let gone = state.topology.online().difference(&state.available);
    let kept = state.kept.union(&gone);
    let planned = around(state, strategy, request, &kept).map_err(ReplanError::Arrival)?;
    let exclusive = planned.exclusive.clone();
    state.plans.push(planned);
    state.count();
    state.leave_to(state.plans.len() - 1, &exclusive);
    Ok(())
}

/// A plan that uses none of the kept CPUs and, if there are enough others, none of their siblings.
/// If there are too few, another strategy places the machines; at last they share the CPUs of the
/// host's tasks.
fn around(
    state: &Occupancy<'_>,
    strategy: &str,
    request: &Request,
    kept: &CpuSet,
) -> Result<Plan, PlanError> {
    let whole = state.cores(kept);
    let mut avoided = vec![whole.clone(), kept.clone()];
    avoided.dedup();
    if let Some(plan) = first_of(state, strategy, request, &avoided) {
        return Ok(plan);
    }
    // More than the machines can take, whole cores included.
    let most = state.index.widest_core * vcpus(request);
    let last = state.last_cpus(most);
    let mut careful = vec![whole.union(&last), kept.union(&last)];
    careful.dedup();
    if let Some(plan) = first_of(state, strategy, request, &careful) {
        return Ok(plan);
    }
    let others = in_turn(|turns| turns.fallback).into_iter().map(|known| known.name);
    let mut others = others.filter(|name| *name != strategy && !pins_nothing(name));
    let other = others.find_map(|name| first_of(state, name, request, &careful));
    let shared = [kept.difference(&state.housekeeping())];
    let floating = || {
        let mut names = ["node-shared", "none"].into_iter();
        names.find_map(|name| first_of(state, name, request, &shared))
    };
    let Some(mut found) = other.or_else(floating) else {
        return plan(strategy, state.topology, &avoiding(request, kept));
    };
    let text = format!(
        "{} instead of {strategy}, which has no plan for the CPUs that are left",
        found.strategy
    );
    found.findings.insert(0, Finding::note("strategy", text));
    Ok(found)
}

/// The plan of a strategy without the first of these sets of CPUs for which it has one that leaves
/// each thread of the others a CPU.
fn first_of(
    state: &Occupancy<'_>,
    strategy: &str,
    request: &Request,
    avoided: &[CpuSet],
) -> Option<Plan> {
    let leaves_cpus = |plan: &Plan| !state.leaves_a_thread_without_cpu(&plan.exclusive);
    avoided.iter().find_map(|avoided| {
        let plan = plan_if(strategy, state.topology, &avoiding(request, avoided), leaves_cpus);
        plan.filter(leaves_cpus)
    })
}

/// The number of vCPUs and cores that a request names.
fn vcpus(request: &Request) -> usize {
    let counts = request.vnodes.iter().map(|vnode| match &vnode.work {
        Work::Processes { cores, .. } => *cores as usize,
        Work::Vm(vm) => match vm.vcpus {
            VcpuCount::Auto => MAX_VCPUS as usize,
            VcpuCount::Exactly(count) => count as usize,
        },
    });
    counts.sum()
}

fn avoiding(request: &Request, avoided: &CpuSet) -> Request {
    Request { avoid: request.avoid.union(avoided), ..request.clone() }
}

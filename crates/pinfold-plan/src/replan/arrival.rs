//! Places machines that come, on the CPUs that the others leave.

use std::sync::Arc;

use pinfold_model::{CpuSet, Finding, Plan, Request};

use super::ReplanError;
use super::occupancy::{Occupancy, Unit};
use crate::error::PlanError;
use crate::plan::{plan, plan_if_possible};
use crate::strategies::in_turn;

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
    let kept = state
        .kept
        .union(&state.homes(Unit::Cpu))
        .union(&state.topology.online().difference(&state.available));
    let planned = around(state, strategy, request, &kept).map_err(ReplanError::Arrival)?;
    let exclusive = planned.exclusive.clone();
    state.plans.push(Arc::new(planned));
    state.count();
    state.leave_to(state.plans.len() - 1, &exclusive);
    Ok(())
}

/// A plan that uses none of the kept CPUs and, if there are enough others, none of their siblings.
/// If there are too few, the machines share the CPUs of the host's tasks.
fn around(
    state: &Occupancy<'_>,
    strategy: &str,
    request: &Request,
    kept: &CpuSet,
) -> Result<Plan, PlanError> {
    let cores = state.cores(kept);
    if let Some(plan) = plan_if_possible(strategy, state.topology, &avoiding(request, &cores)) {
        return Ok(plan);
    }
    let around = avoiding(request, kept);
    let refused = match plan(strategy, state.topology, &around) {
        Ok(plan) => return Ok(plan),
        Err(refused) => refused,
    };
    let others = in_turn(|turns| turns.fallback).into_iter().map(|known| known.name);
    let other = others
        .filter(|name| *name != strategy)
        .find_map(|name| plan_if_possible(name, state.topology, &around));
    let plan = other.or_else(|| {
        let shared = avoiding(request, &kept.difference(&state.housekeeping()));
        let names = ["node-shared", "none"].into_iter();
        names.filter_map(|name| plan_if_possible(name, state.topology, &shared)).next()
    });
    let Some(mut plan) = plan else { return Err(refused) };
    let text = format!("{} instead of {strategy}: {refused}", plan.strategy);
    plan.findings.insert(0, Finding::note("strategy", text));
    Ok(plan)
}

fn avoiding(request: &Request, avoided: &CpuSet) -> Request {
    Request { avoid: request.avoid.union(avoided), ..request.clone() }
}

//! Adds the requested scheduling policies to a plan.
//!
//! Rules for real-time policies that protect the host and the guest are checked here for every
//! plan, and again when it is applied: a vCPU that spins must leave a CPU to every other thread of
//! the plan.

use pinfold_model::{Plan, Request};

use crate::analysis::validate::faults;
use crate::error::PlanError;

/// Sets all policies of the request in its plan.
pub(crate) fn set(mut plan: Plan, request: &Request) -> Result<Plan, PlanError> {
    for vnode in &request.vnodes {
        for policy_request in &vnode.policies {
            plan.set_policy(Some(&vnode.name), policy_request)
                .map_err(|why| PlanError::Policy { vnode: vnode.name.clone(), why })?;
        }
        if !vnode.policies.is_empty()
            && let Some(fault) = faults(&plan).into_iter().next()
        {
            return Err(PlanError::Policy { vnode: vnode.name.clone(), why: fault.why });
        }
    }
    Ok(plan)
}

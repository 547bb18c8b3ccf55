//! Adds the requested scheduling policies to a plan.
//!
//! Rules for real-time policies that protect the host and the guest are checked here for every
//! plan, and again when it is applied: a vCPU that spins must leave a CPU to every other thread of
//! the plan.

use pinfold_model::{Plan, PolicyRequest, Request};

use crate::error::PlanError;
use crate::validate::faults;

/// Sets all policies of the request in its plan.
pub(crate) fn set(mut plan: Plan, request: &Request) -> Result<Plan, PlanError> {
    for vnode in &request.vnodes {
        let wrong = |why| PlanError::Policy { vnode: vnode.name.clone(), why };
        for wish in &vnode.policies {
            give(&mut plan, Some(&vnode.name), wish).map_err(wrong)?;
        }
        if !vnode.policies.is_empty()
            && let Some(fault) = faults(&plan).into_iter().next()
        {
            return Err(wrong(fault.why));
        }
    }
    Ok(plan)
}

/// Sets the policy of the threads of one vnode, or of all; an error if there are no such threads.
pub(crate) fn give(
    plan: &mut Plan,
    name: Option<&str>,
    wish: &PolicyRequest,
) -> Result<(), String> {
    let vnodes = plan.vnodes.iter_mut();
    let threads = vnodes.filter(|vnode| name.is_none_or(|name| vnode.name == name));
    let mut all: Vec<_> = threads.flat_map(|vnode| &mut vnode.threads).collect();
    let known: Vec<String> = all.iter().map(|thread| thread.role.to_string()).collect();
    all.retain(|thread| thread.role.is_called(&wish.role));
    if all.is_empty() {
        return Err(format!("no thread is called {:?}; there are {}", wish.role, known.join(", ")));
    }
    for thread in all {
        thread.policy = Some(wish.policy);
    }
    Ok(())
}

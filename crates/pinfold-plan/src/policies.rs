//! Scheduling policies that a request asks for, put into a plan.
//!
//! What a real-time policy must not do to a host or a guest is checked here for every plan, and
//! again when it is applied: a vCPU that spins must leave the emulator and the iothreads a PU.

use pinfold_model::{Plan, Policy, PolicyWish, Request, Role, VnodePlan};

use crate::check::faults;
use crate::error::PlanError;

/// Puts all policies of the request into its plan.
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

/// Gives the threads of one vnode, or of all, their policy; an error if there are none.
pub(crate) fn give(plan: &mut Plan, name: Option<&str>, wish: &PolicyWish) -> Result<(), String> {
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

/// What a vnode's policies would do to its own threads.
pub(crate) fn shut_out(vnode: &VnodePlan) -> Option<String> {
    for vcpu in vnode.vcpus().filter(|thread| thread.policy.is_some_and(Policy::is_real_time)) {
        let mut servants = vnode.threads.iter().filter(|thread| {
            matches!(thread.role, Role::Emulator | Role::Iothread(_))
                && !thread.policy.is_some_and(Policy::is_real_time)
                && thread.pus.is_subset(&vcpu.pus)
        });
        if let Some(servant) = servants.next() {
            return Some(format!(
                "{} is real-time on all PUs of {} ({}), which it would wait for",
                vcpu.role, servant.role, servant.pus
            ));
        }
    }
    let strange = vnode.threads.iter().find(|thread| {
        matches!(thread.policy, Some(Policy::Deadline { .. }))
            && !matches!(thread.role, Role::Vcpu(_))
    });
    strange.map(|thread| {
        format!("{} may not have a deadline: such a thread can start no other", thread.role)
    })
}

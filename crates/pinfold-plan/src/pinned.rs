//! A plan on given CPUs.

use pinfold_model::{CpuSet, Plan, PuId, Request, Role, Topology};

use crate::guest::topology::{GuestSmt, matching};
use crate::placement::builder::available;
use crate::plan::plan;

/// The plan of `none` for a request for one machine, with its vCPUs pinned to these CPUs in this
/// order, and the guest topology that matches them. `None` if a CPU is kept free for the host, or
/// there is none for a vCPU.
pub fn pin_vcpus(topology: &Topology, request: &Request, order: &[PuId]) -> Option<Plan> {
    let mut plan = plan("none", topology, request).ok()?;
    let available = available(topology, request).ok()?;
    let held: CpuSet = order.iter().copied().collect();
    if !held.is_disjoint(&available.free) {
        return None;
    }
    let vnode = plan.vnodes.first_mut()?;
    for thread in &mut vnode.threads {
        if let Role::Vcpu(index) = &thread.role {
            thread.pus = CpuSet::single(*order.get(*index as usize)?);
        }
    }
    vnode.guest = Some(matching(&available, order, GuestSmt::Mirror).0);
    Some(plan)
}

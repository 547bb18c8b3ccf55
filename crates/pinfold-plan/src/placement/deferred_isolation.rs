//! Isolation for a plan of `auto` whose strategy reserves no core for the host.
//!
//! Such a strategy is left when the vCPUs fit only with CPUs of the host's core. If CPUs without a
//! vCPU remain, they are the host's, and the vCPUs' CPUs are exclusive, as the request wants.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Finding, IsolationScope, Plan, Request, Topology};

use crate::analysis::placement::work_of;

/// Isolates the CPUs of the vCPUs and tasks, if the request isolates, the plan does not, and the
/// host's tasks have a CPU without them.
pub(crate) fn keep(plan: &mut Plan, topology: &Topology, request: &Request) {
    let is_pinned =
        !plan.threads().any(|(_, thread)| thread.role.runs_work() && thread.pus.len() > 1);
    if request.isolation == IsolationScope::None || !plan.exclusive.is_empty() || !is_pinned {
        return;
    }
    let work = work_of(plan);
    let left = plan.housekeeping.difference(&work);
    if left.is_empty() || work.is_empty() {
        return;
    }
    plan.findings.retain(|finding| finding.subject != "isolation");
    plan.findings.extend(siblings(topology, &work, &left));
    for irq in &mut plan.irqs {
        let quiet = irq.pus.difference(&work);
        irq.pus = if quiet.is_empty() { left.clone() } else { quiet };
    }
    plan.housekeeping_reason = format!("the host keeps {}, which have no vCPU", pus_text(&left));
    plan.housekeeping = left;
    plan.exclusive = work;
    plan.isolation = request.isolation;
}

/// The finding about the host's CPUs on cores of vCPUs.
fn siblings(topology: &Topology, work: &CpuSet, left: &CpuSet) -> Option<Finding> {
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(work));
    let shared = cores.map(|core| &core.pus).collect::<CpuSet>().intersection(left);
    (!shared.is_empty()).then(|| {
        let text = format!(
            "no core is left for the host only: its tasks stay on {}, on cores of vCPUs",
            pus_text(&shared)
        );
        Finding::note("isolation", text)
    })
}

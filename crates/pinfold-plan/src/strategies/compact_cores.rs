//! `compact-cores`: as `compact`, with one CPU per core.
//!
//! The order of Badaroux 2021 §III on a machine without SMT: after the last core the next vCPU is
//! on the first core's CPU again, as it would be there. The siblings stay free of vCPUs even then;
//! `compact` is the strategy that uses them.
//!
//! `auto` gives as many vCPUs as there are usable cores: one round.

use pinfold_model::{Finding, Plan, PuId, Request, Topology};

use super::{Strategy, compact};
use crate::PlanError;
use crate::guest::GuestSmt;
use crate::linear::{self, Line};
use crate::plan_builder::{PlanBuilder, available};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "compact-cores",
    summary: "as compact, with one CPU per core: siblings carry no second vCPU; wraps",
    source: "Badaroux 2021 §III: on the 4-node R910 0, 4, 8, 12, 1, 5, …; \
             the 17th vCPU is on CPU 0 again",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let order: Vec<PuId> =
        available.cores.iter().filter_map(|spot| spot.pus.first()).copied().collect();
    let mut builder = PlanBuilder::new(STRATEGY.name, &available, request)?;
    let line = Line {
        order: &order,
        stays_on_one_kind: true,
        smt: GuestSmt::None,
        sorted: None,
        why: &compact::next,
        emulator: None,
    };
    linear::along(&mut builder, &line)?;
    let mut plan = builder.shared()?;
    let vcpus: usize = plan.vnodes.iter().map(|vnode| vnode.vcpus().count()).sum();
    if vcpus > order.len() && order.len() < available.usable.len() {
        plan.findings.push(
            Finding::note(
                "smt",
                format!(
                    "{vcpus} vCPUs take turns on {} cores while the cores' other CPUs carry none",
                    order.len()
                ),
            )
            .with_hint("compact gives the siblings to vCPUs too"),
        );
    }
    Ok(plan)
}

//! `compact-cores`: as `compact`, with one CPU per core.
//!
//! On a machine without SMT Badaroux 2021 §III counts the CPUs in the order of their numbers, which
//! is `sequential`; here cores are filled node by node, as by `compact`. After the last core the
//! next vCPU is on the first core's CPU again. The siblings stay free of vCPUs even then; `compact`
//! is the strategy that uses them.
//!
//! `auto` gives as many vCPUs as there are usable cores: one round.

use pinfold_model::{Finding, Plan, PuId, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder, compact};
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::linear::{self, Line};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "compact-cores",
    summary: "as compact, with one CPU per core: siblings get no second vCPU; wraps",
    source: "none: the order of compact (Badaroux 2021 §III) without siblings; \
             the paper itself counts 0 to 15 there, as sequential",
    kind: StrategyKind::Order,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::ImpliedByOrder,
    },
    turns: TrialOrder { auto: Some(5), check: Some(6), demo: Some(2), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let order: Vec<PuId> =
        available.cores.iter().filter_map(|core| core.pus.first()).copied().collect();
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let line = Line {
        order: &order,
        stays_on_one_kind: true,
        smt: GuestSmt::None,
        sorted: None,
        why: &compact::next,
        emulator: None,
    };
    linear::place_in_order(&mut builder, &line)?;
    let mut plan = builder.finish_shared()?;
    let vcpus: usize = plan.vnodes.iter().map(|vnode| vnode.vcpus().count()).sum();
    if vcpus > order.len() && order.len() < available.usable.len() {
        plan.findings.push(
            Finding::note(
                "smt",
                format!(
                    "{vcpus} vCPUs share {} cores while the cores' other CPUs have none",
                    order.len()
                ),
            )
            .with_hint("compact gives the siblings to vCPUs too"),
        );
    }
    Ok(plan)
}

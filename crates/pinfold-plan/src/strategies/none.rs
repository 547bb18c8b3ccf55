//! `none`: every thread floats over all CPUs that the kernel balances, so not over isolated ones.
//! The baseline, and a valid choice.
//!
//! `auto` gives as many vCPUs as there are usable CPUs, the maximum that can run at once.

use pinfold_model::text::pus_text;
use pinfold_model::{Plan, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::error::PlanError;
use crate::guest::topology as guest;
use crate::placement::builder::{Limits, PlanBuilder, available};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "none",
    summary: "pins nothing: the kernel's scheduler may run every thread on any CPU",
    source: "the baseline that every other strategy is compared with",
    kind: StrategyKind::Floating,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::ImpliedByOrder,
    },
    turns: TrialOrder { fallback: Some(4), demo: Some(0), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

pub(super) fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let floating = available.floating();
    let counts = builder.counts(Limits::wrapping(floating.len()))?;
    let all = pus_text(&floating);
    for (place, vcpus) in counts.into_iter().enumerate() {
        let mut vnode_builder = builder.open(place);
        for index in 0..vcpus {
            let reason =
                format!("vCPU {index} floats over {all}: no CPU is preferred to its neighbour");
            vnode_builder.vcpu(floating.clone(), reason);
        }
        let others = available.hostable.difference(&floating);
        // vCPUs with a single CPU do not float: there the emulator would only take their time.
        if floating.len() == 1 && !others.is_empty() {
            vnode_builder.emulator(&others, || {
                format!("the emulator runs on {}, because the vCPUs have {all}", pus_text(&others))
            })
        } else {
            vnode_builder.emulator(&floating, || {
                format!("the emulator floats over {all} and competes with the vCPUs for them")
            })
        }
        let reason = "one socket without SMT, because a floating vCPU has no siblings";
        builder.finish_vnode_with(vnode_builder, guest::flat(vcpus, reason))?;
    }
    builder.finish_shared()
}

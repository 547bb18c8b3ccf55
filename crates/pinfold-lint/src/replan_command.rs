//! The command that makes a plan again without its faults.

use std::iter::once;

use pinfold_model::{IsolationScope, Plan, Request, Severity, Topology};
use pinfold_plan::layout::Layout;
use pinfold_plan::{command, in_turn, plan_if_possible};

use super::lookup::{CpuIndex, LintContext};
use super::one_layout::of_one;
use super::{Diagnostic, overlap};

/// The command that plans all vnodes of `plan` again under `conditions`, so that the check of the
/// result finds at most notes; `None` if no such plan is known.
pub fn plan_again_command(
    plan: &Plan,
    topology: &Topology,
    conditions: &Request,
) -> Option<String> {
    arguments_without(plan, topology, conditions, &[])
}

/// The same for a plan without any of these findings, not even as notes.
pub(super) fn arguments_without(
    plan: &Plan,
    topology: &Topology,
    conditions: &Request,
    names: &[&str],
) -> Option<String> {
    let isolation = match conditions.isolation {
        IsolationScope::None => plan.isolation,
        scope @ (IsolationScope::Own | IsolationScope::Host) => scope,
    };
    let request =
        Request { vnodes: command::requests_of_plan(plan), isolation, ..conditions.clone() };
    // The plan's own one first, unless it is the fault.
    let others = in_turn(|turns| turns.again).into_iter().map(|other| other.name);
    let strategy = once(plan.strategy.as_str()).chain(others).find(|strategy| {
        let plan = plan_if_possible(strategy, topology, &request);
        plan.is_some_and(|plan| {
            all_are(
                &|diagnostic: &Diagnostic| {
                    diagnostic.severity < Severity::Warning && !names.contains(&diagnostic.name)
                },
                &plan,
                topology,
                &request,
            )
        })
    })?;
    Some(format!("{} --json", command::plan(strategy, topology, &request)))
}

/// True if all faults in a plan are `good`.
fn all_are(
    good: &dyn Fn(&Diagnostic) -> bool,
    plan: &Plan,
    topology: &Topology,
    conditions: &Request,
) -> bool {
    let lookup = CpuIndex::new(topology, conditions);
    let layouts = Layout::of_plan(plan, "");
    let views: Vec<_> = layouts.iter().map(|layout| LintContext::new(layout, &lookup)).collect();
    let mut diagnostics = Vec::new();
    overlap::check(&views.iter().collect::<Vec<_>>(), &lookup, &mut diagnostics);
    diagnostics.iter().all(good) && views.iter().all(|view| of_one(view, None).iter().all(good))
}

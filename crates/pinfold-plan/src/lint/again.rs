//! The command that makes a plan again without its faults.

use std::iter::once;

use pinfold_model::{IsolationScope, Plan, Request, Severity, Topology};

use super::lookup::{CpuIndex, LintContext};
use super::{Diagnostic, Layout, of_one, overlap};
use crate::command;

/// The strategies to try after the plan's own one, which is preferred unless it is the fault.
const OTHERS: [&str; 4] = ["low-latency", "balanced", "multi-vm", "auto"];

/// The command that plans all vnodes of `plan` again under `conditions`, so that the check of the
/// result finds at most notes; `None` if no such plan is known.
#[must_use]
pub fn again(plan: &Plan, topology: &Topology, conditions: &Request) -> Option<String> {
    without(plan, (topology, conditions), &[])
}

/// The same for a plan without any of these findings, not even as notes.
pub(super) fn without(
    plan: &Plan,
    (topology, conditions): (&Topology, &Request),
    names: &[&str],
) -> Option<String> {
    let isolation = match conditions.isolation {
        IsolationScope::None => plan.isolation,
        scope @ (IsolationScope::Own | IsolationScope::Host) => scope,
    };
    let request = Request { vnodes: command::asked_of(plan), isolation, ..conditions.clone() };
    let is_good =
        |flaw: &Diagnostic| flaw.severity < Severity::Warning && !names.contains(&flaw.name);
    let goes = |strategy: &&str| {
        let made = crate::plan(strategy, topology, &request);
        made.is_ok_and(|made| found(&made, (topology, &request)).iter().all(is_good))
    };
    let strategy = once(plan.strategy.as_str()).chain(OTHERS).find(goes)?;
    Some(format!("{} --json", command::plan(strategy, topology, &request)))
}

/// The faults in a plan.
fn found(plan: &Plan, (topology, conditions): (&Topology, &Request)) -> Vec<Diagnostic> {
    let lookup = CpuIndex::of(topology, conditions);
    let layouts = Layout::of_plan(plan, "");
    let views: Vec<_> = layouts.iter().map(|layout| LintContext::of(layout, &lookup)).collect();
    let mut flaws: Vec<Diagnostic> = views.iter().flat_map(|view| of_one(view, None)).collect();
    overlap::check(&views.iter().collect::<Vec<_>>(), &lookup, &mut flaws);
    flaws
}

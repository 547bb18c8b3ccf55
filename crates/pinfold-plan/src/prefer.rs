//! What a preference changes, or would change: findings with the command to try.

use pinfold_model::{CpuSet, Finding, Plan, Preference, PuId, Request, Role, Topology, VnodePlan};

use crate::command;
use crate::draft::ground;
use crate::strategies::{Strategy, made};

/// Strategies that take PUs in an order of their own.
const ORDERED: [&str; 6] =
    ["none", "compact", "compact-cores", "sequential", "scatter", "isolcpus"];

/// The findings on the preference of a request, for a plan that a strategy made of it.
pub(crate) fn findings(
    strategy: Strategy,
    topology: &Topology,
    (request, plan): (&Request, &Plan),
) -> Vec<Finding> {
    let decides = |prefer| {
        let request = Request { prefer, ..request.clone() };
        ground(topology, &request).is_ok_and(|ground| ground.prefers)
    };
    match request.prefer {
        Preference::Auto if ORDERED.contains(&plan.strategy.as_str()) => Vec::new(),
        Preference::Auto => {
            let all = [Preference::Cache, Preference::Frequency, Preference::Efficiency];
            let mut seen = vec![places(plan)];
            let others = all.into_iter().filter(|prefer| decides(*prefer));
            others
                .filter_map(|prefer| other(strategy, topology, (request, plan), prefer, &mut seen))
                .collect()
        }
        Preference::None => Vec::new(),
        prefer if ORDERED.contains(&plan.strategy.as_str()) => vec![
            Finding::note(
                "preference",
                format!(
                    "{} has an order of its own, which the preference {prefer} does not change",
                    plan.strategy
                ),
            )
            .with_hint(command::plan("auto", topology, request)),
        ],
        prefer if !decides(prefer) => vec![Finding::note(
            "preference",
            format!(
                "{prefer} makes no difference here: by all that the host reports its usable cores are \
                 alike in that"
            ),
        )],
        Preference::Cache | Preference::Frequency | Preference::Efficiency => Vec::new(),
    }
}

/// What another preference would give, if that is not seen yet.
fn other(
    strategy: Strategy,
    topology: &Topology,
    (request, plan): (&Request, &Plan),
    prefer: Preference,
    seen: &mut Vec<Vec<CpuSet>>,
) -> Option<Finding> {
    let asked = Request { prefer, ..request.clone() };
    let made = made(&strategy, topology, &asked).ok()?;
    let there = places(&made);
    if seen.contains(&there) {
        return None;
    }
    let mut pairs = plan.vnodes.iter().zip(&made.vnodes);
    let (before, after) = pairs.find(|(before, after)| runs_on(before) != runs_on(after))?;
    seen.push(there);
    let what = if plan.vnodes.len() > 1 { before.name.as_str() } else { "the machine" };
    let named = |vnode: &VnodePlan| {
        let pus = runs_on(vnode);
        let on: Vec<PuId> = pus.iter().collect();
        let ground = ground(topology, request).ok();
        let part = ground.map(|ground| ground.parts_of(&on)).unwrap_or_default();
        format!("{pus} ({part})")
    };
    let text = format!(
        "{what} is on {}; with a preference for {prefer} it is on {}",
        named(before),
        named(after)
    );
    let hint = command::plan(strategy.name, topology, &asked);
    Some(Finding::note("preference", text).with_hint(hint))
}

/// Where the vCPUs and tasks of each vnode run.
fn places(plan: &Plan) -> Vec<CpuSet> {
    plan.vnodes.iter().map(runs_on).collect()
}

fn runs_on(vnode: &VnodePlan) -> CpuSet {
    let runs = |role: &Role| matches!(role, Role::Vcpu(_) | Role::Task);
    let threads = vnode.threads.iter().filter(|thread| runs(&thread.role));
    threads.fold(CpuSet::new(), |all, thread| all.union(&thread.pus))
}

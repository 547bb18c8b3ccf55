//! The table of strategies: one file and one row each.
//!
//! A strategy is a pure function from topology and request to a plan. It does not know the others
//! (except `auto`, which selects among them). The alternative to a strategy that refuses is chosen
//! here.

mod auto;
mod balanced;
mod balanced_shared;
mod compact;
mod compact_cores;
mod divide;
mod isolcpus;
mod l3_exclusive;
mod low_latency;
mod low_latency_rt;
mod max_performance;
mod multi_vm;
mod none;
mod numa_exclusive;
mod realtime;
mod scatter;
mod sequential;
mod vnodes;

use pinfold_model::{Finding, Plan, Request, Topology, closest};

use crate::PlanError;
use crate::guest_cells::{self, Parts};
use crate::{definition, fit, group_words, hints, pin_analysis, pins, policies, prefer};

/// A named placement strategy.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// Name, as used on the command line and in plans.
    pub name: &'static str,
    /// Description, as a sentence without full stop.
    pub summary: &'static str,
    /// Source of the strategy, which its golden test reproduces.
    pub source: &'static str,
    plan: fn(&Topology, &Request) -> Result<Plan, PlanError>,
}

static TABLE: &[Strategy] = &[
    none::STRATEGY,
    compact::STRATEGY,
    compact_cores::STRATEGY,
    sequential::STRATEGY,
    isolcpus::STRATEGY,
    scatter::STRATEGY,
    low_latency::STRATEGY,
    low_latency_rt::STRATEGY,
    realtime::STRATEGY,
    balanced_shared::STRATEGY,
    balanced::STRATEGY,
    max_performance::STRATEGY,
    numa_exclusive::STRATEGY,
    l3_exclusive::STRATEGY,
    multi_vm::STRATEGY,
    vnodes::STRATEGY,
    auto::STRATEGY,
];

/// Alternatives when a strategy refuses: the first one that works and is not that strategy.
const FALLBACK_ORDER: &[&str] = &["low-latency", "balanced", "max-performance", "compact", "none"];

/// All strategies, the baseline first.
#[must_use]
pub fn strategies() -> &'static [Strategy] {
    TABLE
}

/// Makes the plan of the named strategy for a topology and a request. The same input gives the same
/// plan.
///
/// # Errors
/// [`PlanError::UnknownStrategy`] if there is none of that name; otherwise the strategy's error,
/// with the most similar strategy that succeeds.
pub fn plan(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let planned = planned(strategy, topology, request);
    match group_words::are_meant(request) {
        true => planned.map(group_words::plan).map_err(group_words::error),
        false => planned,
    }
}

fn planned(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let found = TABLE.iter().find(|known| known.name == strategy).ok_or_else(|| {
        let known = TABLE.iter().map(|known| known.name);
        PlanError::UnknownStrategy {
            name: strategy.to_owned(),
            nearest: closest(strategy, known).map(str::to_owned),
        }
    })?;
    let mut planned = made(found, topology, request).map_err(|error| {
        match error.depends_on_strategy().then(|| instead_of(found.name, topology, request)) {
            Some(Some(nearest)) => error.with_nearest(nearest),
            Some(None) | None => error,
        }
    })?;
    let preferred = prefer::findings(*found, topology, (request, &planned));
    planned.findings.extend(preferred);
    definition::settle(&mut planned, (found.name, request));
    hints::add(&mut planned, found, (topology, request));
    let mut planned =
        policies::set(planned, request).and_then(|planned| pins::checked(planned, request))?;
    planned.cpus = Some(fit::recorded(&planned, topology));
    Ok(planned)
}

/// The plan of one strategy, cell by cell if the request fixes the guest's NUMA cells.
pub(crate) fn made(
    strategy: &Strategy,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    if !guest_cells::are_fixed(request) {
        return divide::planned(strategy, topology, request);
    }
    let parts = Parts::of(topology, request)?;
    let plans = parts.alike(|part| (strategy.plan)(topology, part))?;
    let mut names: Vec<&str> = plans.iter().map(|plan| plan.strategy.as_str()).collect();
    names.dedup();
    let [_, _, ..] = names.as_slice() else {
        return parts.merged(&plans);
    };
    // `auto` chose different strategies for the cells: use the first of them that fits all cells.
    let picks = TABLE.iter().filter(|known| names.contains(&known.name));
    let mut last = None;
    for pick in picks {
        match parts.alike(|part| (pick.plan)(topology, part)) {
            Ok(plans) => {
                let mut plan = parts.merged(&plans)?;
                let text =
                    format!("auto picked {}: it fits each NUMA cell of the guest", pick.name);
                plan.findings.insert(0, Finding::note("auto", text));
                return Ok(plan);
            }
            Err(error) => last = Some(error),
        }
    }
    last.map_or_else(|| parts.merged(&plans), Err)
}

fn instead_of(refused: &str, topology: &Topology, request: &Request) -> Option<&'static str> {
    let place = FALLBACK_ORDER.iter().position(|name| *name == refused);
    FALLBACK_ORDER
        .iter()
        .skip(place.map_or(0, |place| place + 1))
        .filter_map(|name| TABLE.iter().find(|known| known.name == *name))
        .find(|known| {
            let made = (known.name != refused).then(|| made(known, topology, request));
            // A plan in which a process group gets fewer CPUs than requested is not suitable. vCPUs
            // that share CPUs run better if the kernel chooses the CPUs.
            let suits = |plan: Plan| {
                !pin_analysis::is_short(&plan)
                    && (known.name == none::STRATEGY.name || !pin_analysis::is_crowded(&plan))
            };
            made.is_some_and(|made| made.is_ok_and(suits))
        })
        .map(|known| known.name)
}

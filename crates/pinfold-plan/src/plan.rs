//! Makes a plan: the strategy's placement, then findings, hints, policies and checks.

use pinfold_model::{Plan, Request, Severity, Topology, closest, tunables};

use crate::PlanError;
use crate::strategies::{Strategy, made, strategies};
use crate::{definition, fill, fit, group_words, hints, pin_analysis, pins, policies, prefer};

/// Alternatives when a strategy refuses: the first one that works and is not that strategy.
const FALLBACK_ORDER: &[&str] = &["low-latency", "balanced", "max-performance", "compact", "none"];

/// Makes the plan of the named strategy for a topology and a request. The same input gives the same
/// plan.
///
/// # Errors
/// [`PlanError::UnknownStrategy`] if there is none of that name; otherwise the strategy's error,
/// with the most similar strategy that succeeds.
pub fn plan(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let planned = planned(strategy, topology, request).map_err(|error| {
        let fit = error.is_of_number().then(|| fill::count_fitting(strategy, topology, request));
        error.with_fit(fit.flatten())
    });
    match group_words::are_meant(request) {
        true => planned.map(group_words::plan).map_err(group_words::error),
        false => planned,
    }
}

/// The same, without the search for a similar strategy if this one refuses.
#[must_use]
pub fn plan_if_possible(strategy: &str, topology: &Topology, request: &Request) -> Option<Plan> {
    let found = find(strategy)?;
    let made = made(found, topology, request).ok()?;
    let plan = complete(made, found, topology, request).ok()?;
    Some(if group_words::are_meant(request) { group_words::plan(plan) } else { plan })
}

fn planned(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let found = find(strategy).ok_or_else(|| {
        let known = strategies().iter().map(|known| known.name);
        PlanError::UnknownStrategy {
            name: strategy.to_owned(),
            nearest: closest(strategy, known).map(str::to_owned),
        }
    })?;
    let made = made(found, topology, request).map_err(|error| {
        match error.depends_on_strategy().then(|| instead_of(found.name, topology, request)) {
            Some(Some(nearest)) => error.with_nearest(nearest),
            Some(None) | None => error,
        }
    })?;
    complete(made, found, topology, request)
}

fn find(name: &str) -> Option<&'static Strategy> {
    strategies().iter().find(|known| known.name == name)
}

/// Adds to a strategy's plan what does not depend on the strategy.
fn complete(
    mut planned: Plan,
    found: &Strategy,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    let preferred = prefer::findings(*found, topology, (request, &planned));
    planned.findings.extend(preferred);
    planned.findings.extend(prefer::idle_fast_cores(topology, request, &planned));
    definition::settle(&mut planned, (found.name, request));
    hints::add(&mut planned, found, (topology, request));
    let mut planned =
        policies::set(planned, request).and_then(|planned| pins::checked(planned, request))?;
    planned.cpus = Some(fit::recorded(&planned, topology));
    // Interrupts of which nothing is moved.
    let mut weak = tunables::wrong(&planned, topology);
    weak.retain(|finding| finding.severity < Severity::Problem);
    planned.findings.extend(weak);
    Ok(planned)
}

fn instead_of(refused: &str, topology: &Topology, request: &Request) -> Option<&'static str> {
    let place = FALLBACK_ORDER.iter().position(|name| *name == refused);
    FALLBACK_ORDER
        .iter()
        .skip(place.map_or(0, |place| place + 1))
        .filter_map(|name| find(name))
        .find(|known| {
            let made = (known.name != refused).then(|| made(known, topology, request));
            // A plan in which a process group gets fewer CPUs than requested is not suitable. vCPUs
            // that share CPUs run better if the kernel chooses the CPUs.
            let suits = |plan: Plan| {
                !pin_analysis::is_short(&plan)
                    && (known.name == "none" || !pin_analysis::is_crowded(&plan))
            };
            made.is_some_and(|made| made.is_ok_and(suits))
        })
        .map(|known| known.name)
}

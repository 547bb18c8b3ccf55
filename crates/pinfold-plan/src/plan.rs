//! Makes a plan: the strategy's placement, then findings, hints, policies and checks.

use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{
    CpuSet, Finding, IsolationScope, Plan, Request, Severity, Topology, VnodeRequest, Work,
    closest, tunables,
};

use crate::analysis::host_match;
use crate::analysis::placement as pin_analysis;
use crate::analysis::placement::work_of;
use crate::analysis::policies;
use crate::cores::available::{AvailableCpus, usable_for_vcpus};
use crate::error::PlanError;
use crate::messages::group_words;
use crate::messages::hints;
use crate::messages::prefer;
use crate::placement::deferred_isolation;
use crate::placement::pins;
use crate::strategies::definition;
use crate::strategies::{
    Strategy, StrategyKind, in_turn, kind_of, make_plan, pins_nothing, strategies,
};
use crate::text::narrow;
/// The CPUs that a request keeps free of its vnodes.
pub fn kept_free(topology: &Topology, request: &Request) -> CpuSet {
    AvailableCpus::new(topology, request).map_or_else(|_| CpuSet::new(), |cpus| cpus.free.clone())
}

/// Makes the plan of the named strategy for a topology and a request. The same input gives the same
/// plan.
///
/// ```
/// use pinfold_model::{Request, VcpuCount};
///
/// let topology = pinfold_samples::from_description("package:1 l3:2 core:4 pu:2");
/// let request = Request::vm("guest", VcpuCount::Exactly(4));
/// let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// assert_eq!(plan.vnodes[0].vcpus().count(), 4);
/// assert!(!plan.housekeeping.is_empty());
/// # Ok::<(), pinfold_plan::PlanError>(())
/// ```
///
/// # Errors
/// [`PlanError::UnknownStrategy`] if there is none of that name; otherwise the strategy's error,
/// with the most similar strategy that succeeds.
pub fn plan(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let planned = plan_with(strategy, topology, request).map_err(|error| {
        let fit = error.is_of_number().then(|| count_fitting(strategy, topology, request));
        error.with_fit(fit.flatten())
    });
    if group_words::are_meant(request) {
        planned.map(group_words::plan).map_err(group_words::error)
    } else {
        planned
    }
}

/// The same, without the search for a similar strategy if this one refuses.
pub fn plan_if_possible(strategy: &str, topology: &Topology, request: &Request) -> Option<Plan> {
    plan_if(strategy, topology, request, |_| true)
}

/// The same, if the strategy's placement is one that is wanted.
pub(crate) fn plan_if(
    strategy: &str,
    topology: &Topology,
    request: &Request,
    is_wanted: impl Fn(&Plan) -> bool,
) -> Option<Plan> {
    let found = find(strategy)?;
    let made = make_plan(found, topology, request).ok().filter(is_wanted)?;
    let plan = complete(made, found, topology, request).ok()?;
    Some(if group_words::are_meant(request) { group_words::plan(plan) } else { plan })
}

fn plan_with(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let found = find(strategy).ok_or_else(|| {
        let known = strategies().iter().map(|known| known.name);
        PlanError::UnknownStrategy {
            name: strategy.to_owned(),
            nearest: closest(strategy, known).map(str::to_owned),
        }
    })?;
    let made = make_plan(found, topology, request).map_err(|error| {
        match error
            .depends_on_strategy()
            .then(|| find_alternative_strategy(found.name, topology, request))
        {
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
    if found.name == "auto" && !pins_nothing(&planned.strategy) {
        deferred_isolation::keep(&mut planned, topology, request);
    }
    let preferred = prefer::findings(*found, topology, request, &planned);
    planned.findings.extend(preferred);
    planned.findings.extend(prefer::idle_fast_cores(topology, request, &planned));
    definition::downgrade_requested_costs(&mut planned, found.name, request);
    hints::add(&mut planned, found, topology, request);
    let mut planned =
        policies::set(planned, request).and_then(|planned| pins::check_rules(planned, request))?;
    planned.cpus = Some(host_match::record_cpus(&planned, topology));
    // Interrupts of which nothing is moved.
    let mut weak = tunables::validate_tunables(&planned, topology);
    weak.retain(|finding| finding.severity < Severity::Problem);
    planned.findings.extend(weak);
    Ok(planned)
}

fn find_alternative_strategy(
    refused: &str,
    topology: &Topology,
    request: &Request,
) -> Option<&'static str> {
    let after = find(refused).and_then(|known| known.turns.fallback);
    in_turn(|turns| turns.fallback)
        .into_iter()
        .filter(|other| other.turns.fallback > after)
        .find(|known| {
            let made = (known.name != refused).then(|| make_plan(known, topology, request));
            // A plan in which a process group gets fewer CPUs than requested is not suitable. vCPUs
            // that share CPUs run better if the kernel chooses the CPUs.
            made.is_some_and(|made| {
                made.is_ok_and(|plan| {
                    !pin_analysis::has_too_few_cpus(&plan)
                        && (known.kind == StrategyKind::Floating
                            || !pin_analysis::is_oversubscribed(&plan))
                })
            })
        })
        .map(|known| known.name)
}

/// Plans as many machines or groups like the first one of a request as fit: each vCPU has a CPU of
/// its own, the host's tasks keep one without a vCPU, and the isolation of the request is kept.
/// They are named after it and numbered from 1. A finding reports how many fit.
///
/// # Errors
/// As [`plan`] for one of them; if that plan already shares CPUs, it is returned.
pub fn fill(strategy: &str, topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let first = request.vnodes.first().ok_or(PlanError::NoVnodes)?;
    let one = plan(strategy, topology, &copy(request, first, 1))?;
    if !is_whole(&one, request) {
        let text = "not even one fits, with a CPU for each vCPU and one for the host's tasks";
        return Ok(report(one, text.to_owned()));
    }
    let most = count_most(topology, request, &one);
    let (count, plan) = find_largest(strategy, topology, request, one, most);
    let what = match first.work {
        Work::Vm(_) => "machine",
        Work::Processes { .. } => "group",
    };
    let text = format!(
        "{} like {} {} on this host, with a CPU for each vCPU and one for the host's tasks",
        count_noun(count, what),
        first.name,
        select_verb(count as usize, "fits", "fit")
    );
    Ok(report(plan, text))
}

/// How many vnodes like those of a request fit, if all are alike; `None` if they are not, or not
/// even one fits.
pub(crate) fn count_fitting(strategy: &str, topology: &Topology, request: &Request) -> Option<u32> {
    let first = request.vnodes.first().filter(|_| request.vnodes.len() > 1)?;
    if !request.vnodes.iter().all(|vnode: &VnodeRequest| {
        VnodeRequest { name: first.name.clone(), ..vnode.clone() } == *first
    }) {
        return None;
    }
    let one = plan_if_possible(strategy, topology, &copy(request, first, 1))?;
    let most = narrow(request.vnodes.len()).saturating_sub(1);
    let one = Some(one).filter(|one| is_whole(one, request))?;
    Some(find_largest(strategy, topology, request, one, most).0)
}

/// The largest number of vnodes that fit, of at most `most`, with their plan; `one` is that of a
/// single one.
fn find_largest(
    strategy: &str,
    topology: &Topology,
    request: &Request,
    one: Plan,
    most: u32,
) -> (u32, Plan) {
    let (mut fits, mut refused, mut best) = (1, most + 1, one);
    let Some(first) = request.vnodes.first() else { return (fits, best) };
    while fits + 1 < refused {
        let middle = fits + (refused - fits) / 2;
        let asked = copy(request, first, middle);
        match plan_if_possible(strategy, topology, &asked).filter(|plan| is_whole(plan, request)) {
            Some(plan) => (fits, best) = (middle, plan),
            None => refused = middle,
        }
    }
    (fits, best)
}

/// The number of vnodes for which there are CPUs, by that of one of them.
fn count_most(topology: &Topology, request: &Request, one: &Plan) -> u32 {
    let usable = usable_for_vcpus(topology, request).map_or(0, |pus| pus.len());
    narrow(usable / work_of(one).len().max(1)).max(1)
}

/// The request with so many copies of a vnode.
fn copy(request: &Request, vnode: &VnodeRequest, count: u32) -> Request {
    Request {
        vnodes: (1..=count)
            .map(|number| VnodeRequest { name: format!("{}{number}", vnode.name), ..vnode.clone() })
            .collect(),
        ..request.clone()
    }
}

/// True if no vCPUs share a CPU, the host's tasks have a CPU without a vCPU, and the isolation is
/// not lost.
fn is_whole(plan: &Plan, request: &Request) -> bool {
    let kind = kind_of(&plan.strategy);
    !matches!(kind, Some(StrategyKind::Floating | StrategyKind::Part))
        && !pin_analysis::is_oversubscribed(plan)
        && !pin_analysis::has_too_few_cpus(plan)
        && !plan.housekeeping.is_subset(&work_of(plan))
        && (request.isolation == IsolationScope::None || plan.isolation != IsolationScope::None)
}

/// A plan with the finding about the number.
fn report(mut plan: Plan, text: String) -> Plan {
    plan.findings.insert(0, Finding::note("fill", text));
    plan
}

//! Plans around the CPUs of other owners ([`pinfold_claims`]).

use pinfold_claims::{Claim, Claims, Exclusivity, Owner, OwnerCategory, with_verb};
use pinfold_model::text::{count_noun, cpus_text};
use pinfold_model::{
    Command, CpuSet, Finding, Load, Plan, PuId, Request, Severity, Topology, escape,
};
use pinfold_plan::PlanError;

/// Maximum number of plans that are compared because each uses CPUs of others.
const MAX_ATTEMPTS: usize = 4;
/// Maximum number of owners that the finding about avoided CPUs names.
const MOST_OWNERS: usize = 3;

/// A function that plans a request with a strategy.
type PlanFunction = fn(&str, &Topology, &Request) -> Result<Plan, PlanError>;

/// How certain it is that an owner uses its CPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    /// It does not run.
    Planned,
    /// It runs, by its own words.
    Running,
    /// The kernel or the masks of its threads show it.
    Placed,
}

impl Certainty {
    fn from_claim(claim: &Claim) -> Self {
        match claim.owner.kind.sort {
            _ if !claim.active => Certainty::Planned,
            OwnerCategory::Machine | OwnerCategory::Partition => Certainty::Placed,
            OwnerCategory::Program | OwnerCategory::Pool | OwnerCategory::Configuration => {
                Certainty::Running
            }
        }
    }
}

/// The vCPUs that float over shared CPUs, of all but machines of these names. An idle vCPU counts
/// half of a busy one: it may become busy.
fn load(claims: &Claims, names: &[&str]) -> Vec<Load> {
    let others = claims.without_names(names).into_iter();
    let floating = others.filter(|claim| claim.active && claim.floating_vcpus > 0);
    let loads = floating.map(|claim| {
        let all = claim.floating_vcpus.saturating_mul(1000);
        let busy = claim.busy_vcpus_milli.unwrap_or(all);
        Load { cpus: claim.cpus.clone(), vcpus_milli: all.midpoint(busy) }
    });
    loads.collect()
}

/// The sets of CPUs that a new plan should avoid, in the order in which they are tried: the
/// cores of the CPUs that others keep exclusively, then these CPUs alone; the same without
/// those of owners that do not run; the same without those that only a command line or a file
/// of a program names, which any user can start.
pub fn avoided_sets(claims: &Claims, topology: &Topology, names: &[&str]) -> Vec<CpuSet> {
    let others = claims.without_names(names);
    let mut all = Vec::new();
    for least in [Certainty::Planned, Certainty::Running, Certainty::Placed] {
        let mut taken = CpuSet::new();
        let claims = others
            .iter()
            .filter(|claim| claim.exclusivity.is_exclusive())
            .filter(|claim| Certainty::from_claim(claim) >= least);
        claims.for_each(|claim| taken.add(&claim.cpus));
        let mut cores = taken.clone();
        let touched = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&taken));
        touched.for_each(|core| cores.add(&core.pus));
        all.extend([cores, taken]);
    }
    all.dedup();
    all.retain(|avoided| !avoided.is_empty());
    all
}

/// Plans machines of these names with the CPUs to avoid, which are as many of the exclusive CPUs
/// of others as leave enough room.
///
/// # Errors
/// That of the plan that avoids none of them.
pub fn plan_around<T, E>(
    claims: &Claims,
    topology: &Topology,
    names: &[&str],
    plan: impl Fn(&CpuSet) -> Result<T, E>,
) -> Result<T, E> {
    let mut least = CpuSet::new();
    for avoided in avoided_sets(claims, topology, names) {
        if let Ok(planned) = plan(&avoided) {
            return Ok(planned);
        }
        least = avoided;
    }
    let planned = plan(&CpuSet::new())?;
    Ok(give_back(&least, plan).unwrap_or(planned))
}

/// Plans with the fewest of some CPUs given back, in ascending order, where all are too many to
/// avoid. `None` if all must be given back.
fn give_back<T, E>(avoided: &CpuSet, plan: impl Fn(&CpuSet) -> Result<T, E>) -> Option<T> {
    let cpus: Vec<PuId> = avoided.iter().collect();
    let (mut too_few, mut enough) = (0, cpus.len());
    let mut best = None;
    while too_few + 1 < enough {
        let middle = too_few.midpoint(enough);
        match plan(&cpus[middle..].iter().copied().collect()) {
            Ok(planned) => (best, enough) = (Some(planned), middle),
            Err(_) => too_few = middle,
        }
    }
    best
}

/// Makes a plan for a request around the claims, with the given strategy or with `auto`.
///
/// # Errors
/// [`PlanError`] if the strategy cannot place the request even without the claims.
pub fn plan(
    claims: &Claims,
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    match strategy {
        Some(name) if pinfold_plan::pins_nothing(name) => {
            pinfold_plan::plan(name, topology, request)
        }
        Some(_) | None => {
            let mut planned = plan_by(claims, pinfold_plan::plan, strategy, topology, request)?;
            if let Some(name) = strategy {
                let better = suggest_auto(claims, name, topology, request, &planned);
                planned.findings.extend(better);
            }
            Ok(planned)
        }
    }
}

/// The note that `auto` leaves out the CPUs of others which a plan of another strategy uses.
fn suggest_auto(
    claims: &Claims,
    strategy: &str,
    topology: &Topology,
    request: &Request,
    planned: &Plan,
) -> Option<Finding> {
    let twice = cpus_used_twice(claims, planned);
    if strategy == "auto" || twice.is_empty() {
        return None;
    }
    let other = plan_by(claims, pinfold_plan::plan, None, topology, request).ok()?;
    cpus_used_twice(claims, &other).is_empty().then(|| {
        let text = format!(
            "{strategy} cannot leave out {}, which others own; auto can",
            cpus_text(&twice)
        );
        Finding::note("claims", text).with_hint("`-s auto` plans around them")
    })
}

/// Plans as many machines like the one of a request as fit outside the exclusive CPUs of
/// others.
///
/// # Errors
/// [`PlanError`] if not even one can be placed.
pub fn fill(
    claims: &Claims,
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    plan_by(claims, pinfold_plan::fill, strategy, topology, request)
}

/// The CPUs that a plan uses although an owner that runs, or the plan, should have them alone.
fn cpus_used_twice(claims: &Claims, plan: &Plan) -> CpuSet {
    claims.shared_cpus("", plan).iter().map(|shared| &shared.cpus).collect()
}

/// The CPUs that a request names for threads: they are used, whichever owner they have.
fn pinned_by_hand(request: &Request) -> CpuSet {
    request.vnodes.iter().flat_map(|vnode| &vnode.pins).map(|pin| &pin.pus).collect()
}

/// Calls a planning function around the exclusive claims.
fn plan_outside(
    claims: &Claims,
    plan: PlanFunction,
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    let names: Vec<&str> = request.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
    let load = load(claims, &names);
    let by_hand = pinned_by_hand(request);
    plan_around(claims, topology, &names, |avoided| {
        let avoid = request.avoid.union(&avoided.difference(&by_hand));
        let around = Request { avoid, load: load.clone(), ..request.clone() };
        plan(strategy.unwrap_or("auto"), topology, &around)
    })
}

/// Calls a planning function around the claims.
fn plan_by(
    claims: &Claims,
    plan: PlanFunction,
    strategy: Option<&str>,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    let mut planned = plan_outside(claims, plan, strategy, topology, request)?;
    let mut twice = cpus_used_twice(claims, &planned);
    // CPUs that others share may be used, but not alone.
    let mut avoided = CpuSet::new();
    let by_hand = pinned_by_hand(request);
    for _ in 0..MAX_ATTEMPTS {
        if twice.is_empty() {
            break;
        }
        avoided.add(&twice);
        let avoid = request.avoid.union(&avoided.difference(&by_hand));
        let request = Request { avoid, ..request.clone() };
        let other = plan_outside(claims, plan, strategy, topology, &request);
        let Ok(other) = other else { break };
        let still = cpus_used_twice(claims, &other);
        avoided.add(&still);
        if still.len() < twice.len() {
            (planned, twice) = (other, still);
        }
    }
    let work = planned.threads().filter(|(_, thread)| thread.role.runs_work());
    let work = work.map(|(_, thread)| &thread.pus).collect::<CpuSet>();
    let avoided = request.avoid.union(&pinfold_plan::kept_free(topology, request));
    planned.avoid_pus = avoided.difference(&work);
    Ok(planned)
}

/// Adds a finding to a plan about the exclusive CPUs of others that it avoids, one for each
/// owner whose CPUs it uses, and those about claims that are not known.
pub fn report_in(claims: &Claims, plan: &mut Plan) {
    let used = plan.pus();
    let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
    let others = claims.without_names(&names).into_iter();
    let exclusive: Vec<&Claim> = others.filter(|claim| claim.exclusivity.is_exclusive()).collect();
    let avoided = no_free_cpu(&exclusive, plan).or_else(|| {
        avoided_text(exclusive.into_iter().filter(|claim| claim.cpus.is_disjoint(&used)))
    });
    let conflicts = claims.conflicts_of_machines(plan);
    if !pinfold_plan::has_pins(plan) {
        let shared = avoided.as_ref().and_then(|_| shared_text(claims, &names, plan));
        plan.findings.extend(avoided);
        plan.findings.extend(shared);
        plan.findings.extend(conflicts);
        return;
    }
    plan.findings.extend(claims.planned_again(&names));
    plan.findings.extend(avoided);
    plan.findings.extend(conflicts);
    let bound_threads = bound_threads_text(claims, plan);
    plan.findings.extend(bound_threads);
    for id in claims.unreadable() {
        let text = format!(
            "the journal {id} cannot be read, so this plan may use the CPUs of its placement"
        );
        let hint = format!("`{}` shows why", Command::new("status"));
        plan.findings.push(Finding::warning("claims", text).with_hint(hint));
    }
    let serious = claims.findings().iter().filter(|finding| finding.severity > Severity::Note);
    plan.findings.extend(serious.cloned());
}

/// The note about busy threads on CPUs that the plan gives to one thread each; `None` without any.
fn bound_threads_text(claims: &Claims, plan: &Plan) -> Option<Finding> {
    let work = plan.threads().filter(|(_, one)| one.role.runs_work() && one.pus.len() == 1);
    let mut alone = work.map(|(_, thread)| &thread.pus).collect::<CpuSet>();
    alone.add(&plan.exclusive);
    let busy: Vec<_> = claims.bound_threads_on(&alone).collect();
    let first = busy.first()?;
    let cpus = busy.iter().map(|thread| &thread.cpu).collect::<CpuSet>();
    let others = match busy.len() - 1 {
        0 => String::new(),
        others => format!(" and {}", count_noun(others, "other busy thread")),
    };
    let text = format!(
        "the plan uses {}, although {} (busy thread, process {}){others} can run nowhere else: \
         plans do not count busy threads as owners",
        cpus_text(&cpus),
        escape::short_name(&first.name),
        first.process,
    );
    let hint = format!("--avoid {cpus} leaves that out; `pinfold claims` measures busy threads");
    Some(Finding::note("claims", text).with_hint(hint))
}

/// The finding about CPUs that a plan avoids; `None` if there are none.
fn avoided_text<'c>(claims: impl Iterator<Item = &'c Claim>) -> Option<Finding> {
    let (cpus, owners) = owners_of(claims)?;
    let text = format!(
        "{} reserved for {owners}; this plan does not use {}",
        with_verb(&cpus),
        if cpus.len() == 1 { "it" } else { "them" }
    );
    Some(
        Finding::note("claims", text)
            .with_hint("--ignore-claims plans as if the host had no other owners"),
    )
}

/// The finding about a plan for which owners that run leave no CPU; `None` if one is free.
fn no_free_cpu(exclusive: &[&Claim], plan: &Plan) -> Option<Finding> {
    let (cpus, owners) = owners_of(exclusive.iter().copied().filter(|claim| claim.active))?;
    let used = plan.pus();
    let possible = used.union(&plan.housekeeping).union(&plan.exclusive);
    (!used.is_empty() && possible.is_subset(&cpus)).then(|| {
        let text = format!(
            "no CPU is free: {} reserved for {owners}; this plan uses {}",
            with_verb(&cpus),
            cpus_text(&used)
        );
        Finding::note("claims", text).with_hint("`pinfold claims` shows the owner of each CPU")
    })
}

/// The note about the machines that share the only CPUs of a plan's vCPUs; `None` if these may use
/// another CPU.
fn shared_text(claims: &Claims, names: &[&str], plan: &Plan) -> Option<Finding> {
    let vcpus = plan.threads().filter(|(_, thread)| thread.role.is_vcpu());
    let vcpus = vcpus.map(|(_, thread)| &thread.pus).collect::<CpuSet>();
    let machines = claims.without_names(names).into_iter().filter(|claim| {
        let has_vcpus = claim.floating_vcpus > 0 || !claim.bound.is_empty();
        claim.active
            && has_vcpus
            && claim.exclusivity == Exclusivity::Shared
            && claim.owner.kind.sort == OwnerCategory::Machine
            && !claim.cpus.is_disjoint(&vcpus)
    });
    let (cpus, owners) = owners_of(machines)?;
    (!vcpus.is_empty() && vcpus.is_subset(&cpus)).then(|| {
        let text = format!("{} also used by {owners}", with_verb(&vcpus));
        Finding::note("claims", text).with_hint("`pinfold claims` shows what is free")
    })
}

/// The CPUs of some claims, and their owners as a list; `None` without a claim.
fn owners_of<'c>(claims: impl Iterator<Item = &'c Claim>) -> Option<(CpuSet, String)> {
    let mut owners: Vec<&Owner> = Vec::new();
    let mut cpus = CpuSet::new();
    for claim in claims {
        cpus.add(&claim.cpus);
        if !owners.contains(&&claim.owner) {
            owners.push(&claim.owner);
        }
    }
    if owners.is_empty() {
        return None;
    }
    let named = owners.iter().take(MOST_OWNERS).map(ToString::to_string);
    let mut names: Vec<String> = named.collect();
    match owners.len().saturating_sub(MOST_OWNERS) {
        0 => {}
        1 => names.push("1 other".to_owned()),
        more => names.push(format!("{more} others")),
    }
    let last = names.pop().unwrap_or_default();
    let list = if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) };
    Some((cpus, list))
}

#[cfg(test)]
mod tests;

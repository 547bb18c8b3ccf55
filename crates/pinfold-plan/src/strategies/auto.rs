//! `auto`: selects another strategy by rules on the topology and the request, and reports why.
//!
//! The rules give an order; the first strategy whose plan has no warning is taken. So a plan of
//! `auto` has a warning only if no strategy has a plan without one. What a rule states about places
//! is checked against the plan. If the request isolates, a plan that does not is taken only if each
//! plan that does has a warning.
//!
//! Not to pin is a valid result: on a host with one usable core, or with more vCPUs than CPUs, the
//! kernel's scheduler does better than any fixed placement. The plan has the name of the selected
//! strategy, and a finding with the rule.

mod rules;

use std::fmt::{self, Display, Formatter};

use pinfold_model::text::counted;
use pinfold_model::{
    Finding, IsolationScope, Plan, Preference, Request, Topology, VcpuCount, VmRequest, Work,
};

use super::{ORDERED, Strategy, divide, none};
use crate::PlanError;
use crate::available::{AvailableCpus, distinct};
use crate::available_core::AvailableCore;
use crate::plan_builder::ground;
use crate::prefer::work_of;
use crate::text::narrow;
use crate::{command, pin_analysis};
use rules::{Rule, despite, others, rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "auto",
    summary: "picks one of the others by rules, and reports the rule; it may choose not to pin",
    source: "the rules are in the finding that it adds",
    plan,
};

/// How much is wrong with a plan, the smallest first: it has a warning that a placement can avoid,
/// it loses the isolation of the request, it has costs that no placement of its strategy avoids.
type Rank = [bool; 3];

/// The best plan so far that is not the best possible.
#[derive(Default)]
struct Fallback {
    best: Option<(Rank, Plan)>,
    /// The first strategy whose plan isolates, and the warnings of that plan.
    isolating: Option<(&'static str, String)>,
}

impl Fallback {
    /// Keeps a plan if it is better than those before it.
    fn offer(&mut self, rank: Rank, plan: Plan) {
        if self.best.as_ref().is_none_or(|(best, _)| rank < *best) {
            self.best = Some((rank, plan));
        }
    }

    /// The best plan. If it loses the isolation although another does not, a finding says why.
    fn into_best(self, topology: &Topology, request: &Request) -> Option<Plan> {
        let (rank, mut plan) = self.best?;
        let Some((strategy, warnings)) = self.isolating.filter(|_| rank[1]) else {
            return Some(plan);
        };
        plan.findings.retain(|finding| finding.subject != "isolation");
        let text = format!(
            "{} shares all CPUs with the host, so the isolation scope {} is lost: each plan that \
             isolates has a warning, as that of {strategy} has of {warnings}",
            plan.strategy, request.isolation
        );
        let hint = command::hint(strategy, topology, request);
        plan.findings.push(Finding::note("isolation", text).with_hint(hint));
        Some(plan)
    }
}

/// True if a plan does not isolate although the request does.
fn lacks_isolation(plan: &Plan, request: &Request) -> bool {
    request.isolation != IsolationScope::None && plan.exclusive.is_empty()
}

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let mut passed = SkippedStrategies::default();
    let mut fallback = Fallback::default();
    let (mut refusal, mut short): (Option<PlanError>, Option<PlanError>) = (None, None);
    let is_crowded = is_crowded(topology, request);
    for Rule { strategy, why, claim } in rules(&ground, request).into_iter().chain(others(request))
    {
        if !honours(strategy, request) {
            continue;
        }
        let mut plan = match divide::planned(&strategy, topology, request) {
            Ok(plan) => plan,
            Err(error) if error.depends_on_strategy() => {
                passed.refused(strategy.name, &error);
                refusal = refusal.or(Some(error));
                continue;
            }
            Err(error) => return Err(error),
        };
        // A group that requests more cores than exist is refused, with the error of the first rule.
        if pin_analysis::is_short(&plan) && refusal.is_some() {
            short = short.or_else(|| refusal.clone());
            continue;
        }
        if !claim.holds(ground.index(), &plan) {
            continue;
        }
        let warnings = warnings(&plan);
        let why = if warnings.is_empty() { why } else { despite(why) };
        let is_worse = fallback.best.is_some() && !warnings.is_empty();
        let before =
            if passed.is_empty() || is_worse { String::new() } else { format!(" ({passed})") };
        let text = format!("auto picked {}: {why}{before}", strategy.name);
        plan.findings.insert(0, Finding::note("auto", text));
        plan.findings.extend(idle_cores(&ground, request, &plan));
        let has_warning = plan.findings.iter().any(pin_analysis::is_warning);
        let rank = [has_warning, lacks_isolation(&plan, request), !warnings.is_empty()];
        if rank == Rank::default() || is_crowded && !has_warning {
            return Ok(plan);
        }
        if !rank[1] {
            fallback.isolating.get_or_insert((strategy.name, warnings.clone()));
        }
        if !warnings.is_empty() {
            passed.costly(strategy.name, warnings);
        }
        fallback.offer(rank, plan);
    }
    match (fallback.into_best(topology, request), short) {
        (Some(plan), _) => Ok(plan),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => none::plan(topology, request),
    }
}

/// That cores stay idle while the vCPUs of the only machine are siblings, because they are too many
/// for a core each.
fn idle_cores(ground: &AvailableCpus<'_>, request: &Request, plan: &Plan) -> Option<Finding> {
    let ([asked], "balanced") = (request.vnodes.as_slice(), plan.strategy.as_str()) else {
        return None;
    };
    let Work::Vm(VmRequest { vcpus: VcpuCount::Exactly(vcpus), cells, .. }) = &asked.work else {
        return None;
    };
    let pus = work_of(plan);
    let on: Vec<&AvailableCore> = pus.iter().filter_map(|pu| ground.spot_of(pu)).collect();
    let part = on.first()?.part;
    let host = ground.host();
    let alike = ground.cores_without(&host).filter(|it| it.part == part && !it.memoryless);
    let (all, used) = (narrow(alike.count()), narrow(distinct(on.iter().map(|it| it.core)).len()));
    let fits = cells.is_empty() && asked.pins.is_empty() && used < all && all < *vcpus;
    fits.then(|| {
        let text = format!(
            "{} lie on {} as siblings, and {} without a vCPU: on all {all} some would still be \
             siblings, and no guest topology shows that",
            counted(*vcpus, "vCPU"),
            counted(used, "core"),
            match all - used {
                1 => "1 more core is".to_owned(),
                more => format!("{more} more cores are"),
            }
        );
        Finding::note("idle cores", text)
            .with_hint(format!("`--vcpus {all}` gives each vCPU a core of its own"))
    })
}

/// True if there are more vCPUs than CPUs, so that each strategy's plan has that cost.
fn is_crowded(topology: &Topology, request: &Request) -> bool {
    let vcpus = request.vnodes.iter().map(|vnode| match &vnode.work {
        Work::Vm(VmRequest { vcpus: VcpuCount::Exactly(vcpus), .. }) => *vcpus as usize,
        Work::Vm(_) | Work::Processes { .. } => 0,
    });
    vcpus.sum::<usize>() > topology.allowed.len()
}

/// Why strategies were not selected; those with the same reason are named together.
#[derive(Default)]
struct SkippedStrategies {
    reasons: Vec<(Reason, Vec<&'static str>)>,
}

#[derive(PartialEq, Eq)]
enum Reason {
    /// The error without the strategy's name if it begins with that name; whether it does.
    Refused(String, bool),
    /// The subjects of its plan's warnings.
    Warns(String),
}

impl SkippedStrategies {
    fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    fn refused(&mut self, strategy: &'static str, error: &PlanError) {
        let text = error.to_string();
        let rest = text.strip_prefix(strategy).and_then(|rest| rest.strip_prefix(' '));
        let begins = rest.is_some();
        self.add(strategy, Reason::Refused(rest.unwrap_or(&text).to_owned(), begins));
    }

    fn costly(&mut self, strategy: &'static str, warnings: String) {
        self.add(strategy, Reason::Warns(warnings));
    }

    fn add(&mut self, strategy: &'static str, reason: Reason) {
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) if names.contains(&strategy) => {}
            Some((_, names)) => names.push(strategy),
            None => self.reasons.push((reason, vec![strategy])),
        }
    }
}

impl Display for SkippedStrategies {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (place, (reason, names)) in self.reasons.iter().enumerate() {
            out.write_str(if place == 0 { "" } else { "; " })?;
            let all = names.join(", ");
            match (reason, names.len()) {
                (Reason::Refused(text, true), 1) => write!(out, "refused: {all} {text}")?,
                (Reason::Refused(text, _), _) => write!(out, "refused by {all}: {text}")?,
                (Reason::Warns(of), 1) => write!(out, "passed over: {all} warns of {of}")?,
                (Reason::Warns(of), _) => write!(out, "passed over: {all} warn of {of}")?,
            }
        }
        Ok(())
    }
}

/// True if a strategy respects the request's preference, if there is one. Not pinning respects
/// none.
fn honours(strategy: Strategy, request: &Request) -> bool {
    match request.prefer {
        Preference::Auto | Preference::None => true,
        Preference::Cache | Preference::Frequency | Preference::Efficiency => {
            strategy.name != none::STRATEGY.name && !ORDERED.contains(&strategy.name)
        }
    }
}

/// The warnings of a plan in a few words; empty if there are none. Some costs are only a note
/// because no placement of the same strategy avoids them, but another strategy may.
fn warnings(plan: &Plan) -> String {
    let costs = plan.findings.iter().filter(|finding| pin_analysis::is_cost(finding));
    let mut subjects: Vec<&str> = costs.map(|finding| finding.subject.as_str()).collect();
    subjects.dedup();
    subjects.join(", ")
}

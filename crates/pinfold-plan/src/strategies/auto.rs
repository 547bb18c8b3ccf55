//! `auto`: selects another strategy by rules on the topology and the request, and reports why.
//!
//! The rules give an order; the first strategy whose plan has no warning is taken. So a plan of
//! `auto` has a warning only if no strategy has a plan without one. What a rule states about places
//! is checked against the plan. If the request isolates, a plan that does not is taken only if no
//! strategy has a plan that does.
//!
//! Not to pin is a valid result: on a host with one usable core, or with more vCPUs than CPUs, the
//! kernel's scheduler does better than any fixed placement. The plan has the name of the selected
//! strategy, and a finding with the rule.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use pinfold_model::text::{count_noun, cpus_text};
use pinfold_model::{
    CpuSet, EmulatorRequest, Finding, IsolationScope, Plan, Preference, Request, SmtRequest,
    Topology, VcpuCount, VmRequest, Work,
};

use super::{
    Strategy, StrategyKind, TrialOrder, balanced, divide, in_turn, l3_exclusive, low_latency,
    max_performance, node_shared, none, numa_exclusive, vnodes,
};
use crate::analysis::placement as pin_analysis;
use crate::analysis::placement::{runs_on, work_of};
use crate::cores::available::{AvailableCpus, Index, distinct};
use crate::cores::available_core::AvailableCore;
use crate::cores::request_check::noun;
use crate::cores::select::{Count, Pool};
use crate::error::PlanError;
use crate::placement::builder::available;
use crate::placement::rules::{Isolated, Rules};
use crate::text::narrow;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "auto",
    summary: "chooses one of the others by rules, and reports the rule; it may choose not to pin",
    source: "the rules are in the finding that it adds",
    kind: StrategyKind::Other,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder { again: Some(3), check: Some(0), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

const NO_WARNING: &str = "its plan has no warning";

/// The end of a rule that holds for a plan without a warning only.
const ONLY_WITHOUT_WARNING: &str = ", and only there without a warning";

/// A rule for a plan that warns of something: no strategy has a plan that does not.
fn reason_without_guarantee(why: String) -> String {
    match why.strip_suffix(ONLY_WITHOUT_WARNING) {
        Some(rest) => rest.to_owned(),
        None if why == NO_WARNING => "each strategy's plan has a warning".to_owned(),
        None => why,
    }
}

/// A strategy to try.
struct Rule {
    strategy: Strategy,
    why: String,
    claim: Claim,
}

/// What a rule states about the places of the vnodes.
#[derive(Clone, Copy)]
enum Claim {
    Nothing,
    /// No two vnodes share a node.
    OwnNodes,
    /// No two vnodes share an L3 domain.
    OwnL3s,
    /// No two vCPUs share a core.
    OwnCores,
    /// Each vnode is on one node.
    OneNode,
}

impl Rule {
    /// A rule that states nothing about places.
    fn new(strategy: Strategy, why: impl Into<String>) -> Self {
        Self { strategy, why: why.into(), claim: Claim::Nothing }
    }

    /// The same with a claim that is checked.
    fn claiming(self, claim: Claim) -> Self {
        Self { claim, ..self }
    }
}

impl Claim {
    /// True if it holds for a plan.
    fn holds(self, index: &Index<'_>, plan: &Plan) -> bool {
        let vnodes: Vec<CpuSet> = plan.vnodes.iter().map(runs_on).collect();
        let all = vnodes.iter().collect::<CpuSet>();
        let of_each = |parts: fn(&Index<'_>, &CpuSet) -> usize| {
            vnodes.iter().map(|pus| parts(index, pus)).sum::<usize>() == parts(index, &all)
        };
        match self {
            Self::Nothing => true,
            Self::OwnNodes => of_each(|index, pus| index.nodes_of(pus).len()),
            Self::OwnL3s => of_each(|index, pus| index.l3s_of(pus).count()),
            Self::OwnCores => {
                let work = plan.threads().filter(|(_, thread)| thread.role.runs_work());
                let pus = work.map(|(_, thread)| thread.pus.len()).sum::<usize>();
                pus == distinct(index.pus(&all).map(|pu| pu.core)).len()
            }
            Self::OneNode => vnodes.iter().all(|pus| index.nodes_of(pus).len() <= 1),
        }
    }
}

/// How much is wrong with a plan, the smallest first: it loses the isolation of the request, it has
/// a warning that a placement can avoid, it has costs that no placement of its strategy avoids.
type Rank = [bool; 3];

/// The best plan so far that is not the best possible.
#[derive(Default)]
struct Fallback {
    best: Option<(Rank, Plan)>,
}

impl Fallback {
    /// Keeps a plan if it is better than those before it.
    fn offer(&mut self, rank: Rank, plan: Plan) {
        if self.best.as_ref().is_none_or(|(best, _)| rank < *best) {
            self.best = Some((rank, plan));
        }
    }
}

/// True if a plan does not isolate although the request does.
fn lacks_isolation(plan: &Plan, request: &Request) -> bool {
    request.isolation != IsolationScope::None && plan.exclusive.is_empty()
}

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut passed = SkippedStrategies::default();
    let mut fallback = Fallback::default();
    let (mut refusal, mut short): (Option<PlanError>, Option<PlanError>) = (None, None);
    let is_crowded = is_crowded(topology, request);
    for Rule { strategy, why, claim } in
        rules(&available, request).into_iter().chain(others(request))
    {
        if !honours(strategy, request) {
            continue;
        }
        let mut plan = match divide::plan_divided(&strategy, topology, request) {
            Ok(plan) => plan,
            Err(error) if error.depends_on_strategy() => {
                passed.record_refusal(strategy.name, &error);
                refusal = refusal.or(Some(error));
                continue;
            }
            Err(error) => return Err(error),
        };
        // A group that requests more cores than exist is refused, with the error of the first rule.
        if pin_analysis::has_too_few_cpus(&plan) && refusal.is_some() {
            short = short.or_else(|| refusal.clone());
            continue;
        }
        if !claim.holds(available.index(), &plan) {
            continue;
        }
        let warnings = warnings(&plan);
        let why = if warnings.is_empty() { why } else { reason_without_guarantee(why) };
        let is_worse = fallback.best.is_some() && !warnings.is_empty();
        let before =
            if passed.is_empty() || is_worse { String::new() } else { format!(" ({passed})") };
        let text = format!("auto chose {}: {why}{before}", strategy.name);
        plan.findings.insert(0, Finding::note("auto", text));
        plan.findings.extend(idle_cores(&available, request, &plan));
        let has_warning = plan.findings.iter().any(pin_analysis::is_warning);
        let rank = [lacks_isolation(&plan, request), has_warning, !warnings.is_empty()];
        if rank == Rank::default() || is_crowded && !has_warning {
            return Ok(plan);
        }
        if !warnings.is_empty() {
            passed.costly(strategy.name, warnings);
        }
        fallback.offer(rank, plan);
    }
    match (fallback.best, short) {
        (Some((_, plan)), _) => Ok(plan),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => none::plan(topology, request),
    }
}

/// That cores stay idle while the vCPUs of the only machine are siblings, because they are too many
/// for a core each.
fn idle_cores(available: &AvailableCpus<'_>, request: &Request, plan: &Plan) -> Option<Finding> {
    let ([asked], "balanced") = (request.vnodes.as_slice(), plan.strategy.as_str()) else {
        return None;
    };
    let Work::Vm(VmRequest { vcpus: VcpuCount::Exactly(vcpus), cells, .. }) = &asked.work else {
        return None;
    };
    let pus = work_of(plan);
    let on: Vec<&AvailableCore> =
        pus.iter().filter_map(|pu| available.available_core(pu)).collect();
    let part = on.first()?.part;
    let host = available.host();
    let alike = available.cores_without(&host).filter(|it| it.part == part && !it.memoryless);
    let (all, used) = (narrow(alike.count()), narrow(distinct(on.iter().map(|it| it.id)).len()));
    let fits = cells.is_empty() && asked.pins.is_empty() && used < all && all < *vcpus;
    fits.then(|| {
        let text = format!(
            "{} are on siblings of {}, and {} without a vCPU: even on all {all} cores some would \
             be siblings, which no guest topology can express",
            count_noun(*vcpus, "vCPU"),
            count_noun(used, "core"),
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

    fn record_refusal(&mut self, strategy: &'static str, error: &PlanError) {
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
                (Reason::Warns(of), 1) => write!(out, "rejected: {all} warns of {of}")?,
                (Reason::Warns(of), _) => write!(out, "rejected: {all} warn of {of}")?,
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
            !strategy.kind.is_fixed_order()
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

/// What else may have a plan without a warning.
fn others(request: &Request) -> impl Iterator<Item = Rule> + use<> {
    let none = match request.vnodes.len() {
        0 | 1 => "do not pin, because no strategy that pins fits the request".to_owned(),
        _ => "do not pin, because no strategy that pins places these together without a warning: \
              plan each one separately, with `--avoid` for the CPUs of the others"
            .to_owned(),
    };
    let others = in_turn(|turns| turns.auto).into_iter();
    let others = others.map(|strategy| Rule::new(*strategy, NO_WARNING));
    others.chain([Rule::new(none::STRATEGY, none)])
}

/// The totals of the request.
struct Sum {
    vnodes: usize,
    /// What the vnodes are, for messages.
    noun: &'static str,
    groups: usize,
    /// Requested vCPUs and cores; an automatic number counts as one.
    vcpus: usize,
    largest: usize,
    automatic: bool,
    shows_smt: bool,
}

impl Sum {
    fn from_request(request: &Request) -> Self {
        let mut sum = Self {
            vnodes: request.vnodes.len(),
            noun: noun(request).1,
            groups: 0,
            vcpus: 0,
            largest: 0,
            automatic: false,
            shows_smt: false,
        };
        for vnode in &request.vnodes {
            let count = match &vnode.work {
                Work::Processes { cores, .. } => {
                    sum.groups += 1;
                    *cores as usize
                }
                Work::Vm(vm) => {
                    sum.shows_smt |= vm.smt == SmtRequest::Shown;
                    match vm.vcpus {
                        VcpuCount::Auto => {
                            sum.automatic = true;
                            1
                        }
                        VcpuCount::Exactly(count) => count as usize,
                    }
                }
            };
            sum.vcpus += count;
            sum.largest = sum.largest.max(count);
        }
        sum
    }
}

impl Sum {
    /// The number of vCPUs and cores, for messages.
    fn units(&self) -> String {
        match self.groups {
            0 => count_noun(self.vcpus, "vCPU"),
            groups if groups == self.vnodes => count_noun(self.vcpus, "core"),
            _ => format!("{} vCPUs and cores", self.vcpus),
        }
    }
}

/// The strategies to try, the best first, each with its rule.
fn rules(available: &AvailableCpus<'_>, request: &Request) -> Vec<Rule> {
    let sum = Sum::from_request(request);
    let pus = available.usable.len();
    let host = available.host();
    let (spare, near) = (
        available.cores_without(&host).count(),
        available.cores_without(&host).filter(|core| !core.memoryless).count(),
    );
    let threads = pus - available.usable.intersection(&host.pus).len();
    let asked = sum.units();
    let mut rules: Vec<Rule> = Vec::new();
    if sum.groups == sum.vnodes {
        rules.push(Rule::new(vnodes::STRATEGY, "the request places process groups only"));
    } else if request.emulator != EmulatorRequest::Usual {
        rules.push(Rule::new(balanced::STRATEGY, "only it lets you choose the emulator's CPUs"));
    } else if spare == 0 || sum.vcpus > pus {
        add_unpinned_rules(available, &sum, spare, &mut rules);
    } else if sum.vnodes > 1 {
        several(available, &sum, &mut rules);
        if sum.vcpus <= spare && !sum.shows_smt {
            let why = format!("each of {asked} can have its own core in addition to the host's");
            rules.push(Rule::new(low_latency::STRATEGY, why).claiming(Claim::OwnCores));
        }
    } else if sum.automatic {
        if nodes(available) > 1 {
            let why = "the number of vCPUs is auto, and a NUMA node is the largest part of the \
                       host in which all memory is local";
            rules.push(Rule::new(numa_exclusive::STRATEGY, why));
        }
        let why = "the number of vCPUs is auto, and this strategy gives the most while the host \
                   keeps a core";
        rules.push(Rule::new(balanced::STRATEGY, why));
    } else if sum.vcpus <= near && !sum.shows_smt && fits_one_vcpu_per_core(available, sum.vcpus) {
        let each = if sum.vcpus == 1 { "its vCPU".to_owned() } else { format!("each of {asked}") };
        let why = format!("{each} can have its own core in addition to the host's");
        rules.push(Rule::new(low_latency::STRATEGY, why).claiming(Claim::OwnCores));
    }
    if sum.groups < sum.vnodes {
        let why = format!("{asked} fit on the {threads} CPUs outside the host's core");
        rules.push(Rule::new(balanced::STRATEGY, why));
        let why = format!("{asked} fit into one NUMA node{ONLY_WITHOUT_WARNING}");
        rules.push(Rule::new(numa_exclusive::STRATEGY, why).claiming(Claim::OneNode));
        let why = if sum.vcpus > threads {
            let rest = if sum.vcpus < pus { "" } else { ", so nothing is isolated" };
            format!("{asked} fit only if they also use the host's core{rest}")
        } else {
            NO_WARNING.to_owned()
        };
        rules.push(Rule::new(max_performance::STRATEGY, why));
    }
    rules
}

/// The rules of a host that has too few CPUs to pin, or only one core; `spare` cores remain
/// without that of the host.
fn add_unpinned_rules(
    available: &AvailableCpus<'_>,
    sum: &Sum,
    spare: usize,
    rules: &mut Vec<Rule>,
) {
    let (pus, asked) = (available.usable.len(), sum.units());
    let why = match spare {
        0 => format!(
            "all threads float over {}, because no other core is available, and the host needs it",
            cpus_text(&available.usable)
        ),
        _ => format!(
            "do not pin, because {asked} must share {pus} CPUs, and only the kernel's \
             scheduler sees which of them are busy"
        ),
    };
    let fits = sum.groups == 0 && node_shared::is_useful(available, sum.largest);
    if spare > 0 && fits {
        let machines = match sum.vnodes {
            1 => "the machine floats inside one NUMA node",
            _ => "each machine floats inside one NUMA node, evenly over all of them",
        };
        let why = format!("{why}; {machines}");
        rules.push(Rule::new(node_shared::STRATEGY, why).claiming(Claim::OneNode));
    }
    rules.push(Rule::new(none::STRATEGY, why));
}

/// True if this number of vCPUs can have a core each in the best part of the machine that can hold
/// them.
fn fits_one_vcpu_per_core(available: &AvailableCpus<'_>, vcpus: usize) -> bool {
    let cores = available.without(&available.host());
    Pool::new(&cores, Count::Cores, None).part_for(vcpus)
        == Pool::new(&cores, Count::Threads, None).part_for(vcpus)
}

/// Number of NUMA nodes that have both memory and usable cores.
fn nodes(available: &AvailableCpus<'_>) -> usize {
    let mut nodes: Vec<_> = available.cores.iter().filter_map(|core| core.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let known = &available.topology.nodes;
    let tells = known.iter().any(|node| node.memory_bytes > 0);
    nodes
        .iter()
        .filter(|node| known.iter().any(|of| of.id == **node && (!tells || of.memory_bytes > 0)))
        .count()
}

/// Strategies with a domain for each of several vnodes, if there are enough domains. An L3 domain
/// that is no larger than a core is none: the core is the unit there.
fn several(available: &AvailableCpus<'_>, sum: &Sum, rules: &mut Vec<Rule>) {
    let host = available.host();
    let (mut nodes, mut l3s) = (BTreeMap::new(), BTreeMap::new());
    for core in available.cores_without(&host) {
        if let Some(node) = core.node {
            *nodes.entry(node.0).or_insert(0_usize) += core.pus.len();
        }
        if let Some(l3) = core.l3 {
            *l3s.entry(l3.0).or_insert(0_usize) += core.pus.len();
        }
    }
    fn is_enough(domains: &BTreeMap<u32, usize>, sum: &Sum) -> bool {
        domains.len() > 1
            && domains.values().filter(|pus| **pus >= sum.largest).count() >= sum.vnodes
    }
    if is_enough(&nodes, sum) {
        let why = format!("each of {} {} can have its own NUMA node", sum.vnodes, sum.noun);
        rules.push(Rule::new(numa_exclusive::STRATEGY, why).claiming(Claim::OwnNodes));
    }
    let widest = available.topology.l3.iter().map(|domain| domain.pus.len()).max();
    if is_enough(&l3s, sum) && widest > Some(available.index().widest_core) {
        let why = format!("each of {} {} can have its own L3 domain", sum.vnodes, sum.noun);
        rules.push(Rule::new(l3_exclusive::STRATEGY, why).claiming(Claim::OwnL3s));
    }
}

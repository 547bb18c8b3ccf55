//! The rules of `auto`: which strategies it tries, in which order, and why.

use std::collections::BTreeMap;

use pinfold_model::text::counted;
use pinfold_model::{
    CpuSet, EmulatorRequest, NodeId, NumaNode, Plan, Request, SmtRequest, VcpuCount, Work,
};

use super::super::{
    Strategy, balanced, compact, compact_cores, l3_exclusive, low_latency, max_performance, none,
    numa_exclusive, scatter, sequential, vnodes,
};
use crate::available::{AvailableCpus, Index, distinct};
use crate::prefer::{runs_on, work_of};
use crate::request_check::noun;
use crate::select::{Count, Pool};

const NO_WARNING: &str = "its plan has no warning";

/// The end of a rule that holds for a plan without a warning only.
const THERE_ONLY: &str = ", and without a warning there only";

/// A rule for a plan that warns of something: no strategy has a plan that does not.
pub(super) fn despite(why: String) -> String {
    match why.strip_suffix(THERE_ONLY) {
        Some(rest) => rest.to_owned(),
        None if why == NO_WARNING => "each strategy's plan has a warning".to_owned(),
        None => why,
    }
}

/// A strategy to try.
pub(super) struct Rule {
    pub strategy: Strategy,
    pub why: String,
    pub claim: Claim,
}

/// What a rule states about the places of the vnodes.
#[derive(Clone, Copy)]
pub(super) enum Claim {
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
    pub fn holds(self, index: &Index<'_>, plan: &Plan) -> bool {
        let vnodes: Vec<CpuSet> = plan.vnodes.iter().map(runs_on).collect();
        let all = work_of(plan);
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

/// What else may have a plan without a warning.
pub(super) fn others(request: &Request) -> impl Iterator<Item = Rule> + use<> {
    let others = [
        balanced::STRATEGY,
        low_latency::STRATEGY,
        numa_exclusive::STRATEGY,
        l3_exclusive::STRATEGY,
        max_performance::STRATEGY,
        compact_cores::STRATEGY,
        compact::STRATEGY,
        scatter::STRATEGY,
        sequential::STRATEGY,
    ];
    let none = match request.vnodes.len() {
        0 | 1 => "do not pin, because nothing that pins fits the request".to_owned(),
        _ => "do not pin, because no strategy that pins places these together without a warning: \
              plan each by itself, with `--avoid` for the CPUs of the others"
            .to_owned(),
    };
    let others = others.into_iter().map(|strategy| Rule::new(strategy, NO_WARNING));
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
    fn of(request: &Request) -> Self {
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

/// The strategies to try, the best first, each with its rule.
pub(super) fn rules(ground: &AvailableCpus<'_>, request: &Request) -> Vec<Rule> {
    let sum = Sum::of(request);
    let pus = ground.usable.len();
    let host = ground.host();
    let cores = || ground.cores_without(&host);
    let (spare, near) = (cores().count(), cores().filter(|core| !core.memoryless).count());
    let threads = pus - ground.usable.intersection(&host.pus).len();
    let asked = counted(sum.vcpus, if sum.groups == sum.vnodes { "core" } else { "vCPU" });
    let mut rules: Vec<Rule> = Vec::new();
    if sum.groups == sum.vnodes {
        rules.push(Rule::new(vnodes::STRATEGY, "the request places process groups only"));
    } else if request.emulator != EmulatorRequest::Usual {
        rules.push(Rule::new(balanced::STRATEGY, "it alone leaves the emulator's place open"));
    } else if spare == 0 || sum.vcpus > pus {
        let why = match spare {
            0 => format!(
                "do not pin, because {pus} of one core is all there is, and the host needs it"
            ),
            _ => format!(
                "do not pin, because {asked} on {pus} CPUs must take turns, and the kernel knows \
                 better than a plan which of them is busy"
            ),
        };
        rules.push(Rule::new(none::STRATEGY, why));
    } else if sum.vnodes > 1 {
        several(ground, &sum, &mut rules);
        if sum.vcpus <= spare && !sum.shows_smt {
            let why = format!("each of {asked} can have a core of its own next to the host's");
            rules.push(Rule::new(low_latency::STRATEGY, why).claiming(Claim::OwnCores));
        }
    } else if sum.automatic {
        if nodes(ground) > 1 {
            let why = "the number of vCPUs is open, and a NUMA node is the largest part of the host \
                       in which all memory is near";
            rules.push(Rule::new(numa_exclusive::STRATEGY, why));
        }
        let why = "the number of vCPUs is open, and this gives most that leave the host a core";
        rules.push(Rule::new(balanced::STRATEGY, why));
    } else if sum.vcpus <= near && !sum.shows_smt && alone(ground, sum.vcpus) {
        let each = if sum.vcpus == 1 { "its vCPU".to_owned() } else { format!("each of {asked}") };
        let why = format!("{each} can have a core of its own next to the host's");
        rules.push(Rule::new(low_latency::STRATEGY, why).claiming(Claim::OwnCores));
    }
    if sum.groups < sum.vnodes {
        let why = format!("{asked} fit on the {threads} CPUs of the cores that are not the host's");
        rules.push(Rule::new(balanced::STRATEGY, why));
        let why = format!("{asked} fit into one NUMA node{THERE_ONLY}");
        rules.push(Rule::new(numa_exclusive::STRATEGY, why).claiming(Claim::OneNode));
        let why = if sum.vcpus > threads {
            format!("{asked} fit on the host only with its own core, so nothing is isolated")
        } else {
            NO_WARNING.to_owned()
        };
        rules.push(Rule::new(max_performance::STRATEGY, why));
    }
    rules
}

/// True if this number of vCPUs can have a core each in the best part of the machine that can hold
/// them.
fn alone(ground: &AvailableCpus<'_>, vcpus: usize) -> bool {
    let cores = ground.without(&ground.host());
    let part = |count| Pool::new(&cores, count, None).part_for(vcpus);
    part(Count::Cores) == part(Count::Threads)
}

/// Number of NUMA nodes that have both memory and usable cores.
fn nodes(ground: &AvailableCpus<'_>) -> usize {
    let mut nodes: Vec<_> = ground.cores.iter().filter_map(|spot| spot.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let known = &ground.topology.nodes;
    let tells = known.iter().any(|node| node.memory_bytes > 0);
    let has = |of: &NumaNode| !tells || of.memory_bytes > 0;
    let filled = |node: &&NodeId| known.iter().any(|of| of.id == **node && has(of));
    nodes.iter().filter(filled).count()
}

/// Strategies with a domain for each of several vnodes, if there are enough domains. An L3 domain
/// that is no larger than a core is none: the core is the unit there.
fn several(ground: &AvailableCpus<'_>, sum: &Sum, rules: &mut Vec<Rule>) {
    let host = ground.host();
    let (mut nodes, mut l3s) = (BTreeMap::new(), BTreeMap::new());
    for spot in ground.cores_without(&host) {
        if let Some(node) = spot.node {
            *nodes.entry(node.0).or_insert(0_usize) += spot.pus.len();
        }
        if let Some(l3) = spot.l3 {
            *l3s.entry(l3.0).or_insert(0_usize) += spot.pus.len();
        }
    }
    let is_enough = |domains: &BTreeMap<u32, usize>| {
        domains.len() > 1
            && domains.values().filter(|pus| **pus >= sum.largest).count() >= sum.vnodes
    };
    if is_enough(&nodes) {
        let why = format!("each of {} {} can have a NUMA node of its own", sum.vnodes, sum.noun);
        rules.push(Rule::new(numa_exclusive::STRATEGY, why).claiming(Claim::OwnNodes));
    }
    let widest = ground.topology.l3.iter().map(|domain| domain.pus.len()).max();
    if is_enough(&l3s) && widest > Some(ground.index().widest_core) {
        let why = format!("each of {} {} can have an L3 domain of its own", sum.vnodes, sum.noun);
        rules.push(Rule::new(l3_exclusive::STRATEGY, why).claiming(Claim::OwnL3s));
    }
}

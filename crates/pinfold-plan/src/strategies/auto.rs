//! `auto`: picks one of the others by rules on the topology and the request, and says why.
//!
//! Not to pin is a legal answer: on a host with one usable core, or with more vCPUs than PUs,
//! the kernel's scheduler does better than any fixed place. The plan carries the name of the
//! strategy that was picked, and a finding with the rule.

use pinfold_model::{EmulatorWish, Finding, Plan, Request, SmtWish, Topology, VcpuCount, Work};

use super::{
    Strategy, balanced, l3_exclusive, low_latency, max_performance, multi_vm, none, numa_exclusive,
    vnodes,
};
use crate::PlanError;
use crate::draft::{counted, ground};
use crate::ground::Ground;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "auto",
    summary: "picks one of the others by rules, and says which rule; not to pin is an answer too",
    source: "the rules are in the finding that it adds",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let mut refused = Vec::new();
    for (strategy, why) in rules(&ground, request) {
        match (strategy.plan)(topology, request) {
            Ok(mut plan) => {
                let tried = match refused.is_empty() {
                    true => String::new(),
                    false => format!(" (refused: {})", refused.join("; ")),
                };
                let text = format!("auto picked {}: {why}{tried}", strategy.name);
                plan.findings.insert(0, Finding::note("auto", text));
                return Ok(plan);
            }
            Err(error) if error.depends_on_strategy() => refused.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    none::plan(topology, request)
}

/// What the request adds up to.
struct Sum {
    vnodes: usize,
    groups: usize,
    /// vCPUs and cores that are asked for; an automatic number counts as one.
    vcpus: usize,
    largest: usize,
    automatic: bool,
    shows_smt: bool,
}

impl Sum {
    fn of(request: &Request) -> Self {
        let mut sum = Self {
            vnodes: request.vnodes.len(),
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
                    sum.shows_smt |= vm.smt == SmtWish::Shown;
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
fn rules(ground: &Ground<'_>, request: &Request) -> Vec<(Strategy, String)> {
    let sum = Sum::of(request);
    let (cores, pus) = (ground.cores.len(), ground.usable.len());
    let spare = cores.saturating_sub(usize::from(ground.free.is_empty()));
    let host = ground.host();
    let threads = pus - ground.usable.intersection(&host.pus).len();
    let asked = counted(sum.vcpus, if sum.groups == sum.vnodes { "core" } else { "vCPU" });
    let mut rules: Vec<(Strategy, String)> = Vec::new();
    if sum.groups == sum.vnodes {
        rules.push((vnodes::STRATEGY, "the request places process groups only".to_owned()));
    } else if request.emulator != EmulatorWish::Usual {
        rules.push((balanced::STRATEGY, "it alone leaves the emulator's place open".to_owned()));
    } else if spare == 0 || sum.vcpus > pus {
        let why = match spare {
            0 => format!(
                "do not pin, because {pus} of one core is all there is, and the host needs it"
            ),
            _ => format!(
                "do not pin, because {asked} on {pus} PUs must take turns, and the kernel knows \
                 better than a plan which of them is busy"
            ),
        };
        rules.push((none::STRATEGY, why));
    } else if sum.vnodes > 1 {
        several(ground, &sum, &mut rules);
        if sum.vcpus <= spare && !sum.shows_smt {
            let why = format!("each of {asked} can have a core of its own beside the host's");
            rules.push((multi_vm::STRATEGY, why));
        }
    } else if sum.automatic {
        let why = "the number of vCPUs is open, and this gives most that leave the host a core";
        rules.push((balanced::STRATEGY, why.to_owned()));
    } else if sum.vcpus <= spare && !sum.shows_smt {
        let why = format!("each of {asked} can have a core of its own beside the host's");
        rules.push((low_latency::STRATEGY, why));
    }
    if sum.groups < sum.vnodes {
        let why = format!("{asked} fit on the {threads} PUs of the cores that are not the host's");
        rules.push((balanced::STRATEGY, why));
        let why = format!("{asked} fit on the host only with its own core, so nothing is isolated");
        rules.push((max_performance::STRATEGY, why));
    }
    rules.push((
        none::STRATEGY,
        "do not pin, because nothing that pins fits the request".to_owned(),
    ));
    rules
}

/// Domains for several vnodes, where each can have one of its own.
fn several(ground: &Ground<'_>, sum: &Sum, rules: &mut Vec<(Strategy, String)>) {
    let host = ground.host();
    let mut free = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
    for spot in ground.without(&host) {
        if let Some(node) = spot.node {
            *free.0.entry(node.0).or_insert(0_usize) += spot.pus.len();
        }
        if let Some(l3) = spot.l3 {
            *free.1.entry(l3.0).or_insert(0_usize) += spot.pus.len();
        }
    }
    let enough = |domains: &std::collections::BTreeMap<u32, usize>| {
        domains.values().filter(|pus| **pus >= sum.largest).count() >= sum.vnodes
    };
    if free.0.len() > 1 && enough(&free.0) {
        let why = format!("each of {} vnodes can have a NUMA node of its own", sum.vnodes);
        rules.push((numa_exclusive::STRATEGY, why));
    }
    if free.1.len() > 1 && enough(&free.1) {
        let why = format!("each of {} vnodes can have an L3 domain of its own", sum.vnodes);
        rules.push((l3_exclusive::STRATEGY, why));
    }
}

//! Hints to request another number of vCPUs, less memory or another strategy, if that avoids a
//! finding.
//!
//! Each answer is planned before it is given, so that who follows it gets a plan without that
//! finding and without a new cost. Only a request for one machine gets such hints: of several,
//! each is a choice.

use std::collections::BTreeSet;

use pinfold_model::text::count_noun;
use pinfold_model::{
    CpuSet, Finding, FreeCpus, MemoryRequest, Plan, Request, Severity, SmtRequest, Topology,
    VcpuCount, VmRequest, Work,
};

use crate::analysis::placement::is_cost;
use crate::analysis::placement::runs_on;
use crate::error::{size, whole_mib};
use crate::placement::builder::available;
use crate::strategies::definition;
use crate::strategies::{Strategy, make_plan, strategies};
use crate::text::narrow;

/// Maximum number of vCPU numbers that are tried for a finding.
const MOST_TRIED: usize = 4;

/// On larger hosts, planning each alternative would take too long for an interactive command.
const MOST_PUS: usize = 512;

/// Adds hints to the findings of a plan that have none.
pub(crate) fn add(plan: &mut Plan, strategy: &Strategy, topology: &Topology, request: &Request) {
    if topology.pus.len() > MOST_PUS {
        return;
    }
    let costs = plan.findings.iter().filter(|finding| is_cost(finding));
    let costs = costs.map(|finding| finding.subject.clone()).collect();
    let asks = RequestAlternatives { topology, request, strategy, costs };
    let hints: Vec<Option<String>> = plan
        .findings
        .iter()
        .map(|finding| finding.hint.clone().or_else(|| asks.hint(plan, finding)))
        .collect();
    for (finding, hint) in plan.findings.iter_mut().zip(hints) {
        finding.hint = hint;
    }
}

/// A request, and the alternatives to it.
struct RequestAlternatives<'a> {
    topology: &'a Topology,
    request: &'a Request,
    strategy: &'a Strategy,
    /// The subjects of the costs that the plan has.
    costs: BTreeSet<String>,
}

impl RequestAlternatives<'_> {
    fn hint(&self, plan: &Plan, finding: &Finding) -> Option<String> {
        let subject = finding.subject.as_str();
        match subject {
            "shared cores" => self
                .is_plannable_by_other("multi-vm", subject)
                .then(|| "multi-vm gives each virtual machine cores of its own".to_owned()),
            "emulator" if finding.severity > Severity::Note => self
                .is_plannable_by_other("balanced", subject)
                .then(|| "`-s balanced` runs them with the host's tasks".to_owned()),
            "boot CPU" => self.host_on_boot_core(plan),
            "oversubscription" | "core kinds" | "NUMA" | "guest topology" => {
                let vm = self.machine()?;
                let now = narrow(plan.single_vnode().ok()?.vcpus().count());
                match subject {
                    "guest topology" => self.whole_cores(vm, now, subject),
                    _ => self.fewer(plan, vm, now, subject),
                }
            }
            _ => None,
        }
    }

    /// The core on which the kernel boots for the host's tasks, where all vCPUs and tasks then stay
    /// on such cores as they are on now, and nothing is worse.
    fn host_on_boot_core(&self, plan: &Plan) -> Option<String> {
        let available = available(self.topology, self.request).ok()?;
        let boot = self.topology.online().first()?;
        let core = available.siblings(boot).union(&CpuSet::single(boot));
        let request = Request { free: Some(FreeCpus::These(core.clone())), ..self.request.clone() };
        let other = self.try_strategy(self.strategy, &request)?;
        let parts = |plan: &Plan| -> Vec<BTreeSet<Option<u32>>> {
            plan.vnodes
                .iter()
                .map(|vnode| {
                    runs_on(vnode)
                        .iter()
                        .map(|pu| available.available_core(pu).map(|core| core.part))
                        .collect()
                })
                .collect()
        };
        let stays = parts(plan) == parts(&other) && self.is_better("boot CPU", Some(other));
        stays.then(|| format!("`--host-cpus {core}` keeps it for the host"))
    }

    /// The only machine of the request, if neither cells nor pins by hand fix its vCPUs.
    fn machine(&self) -> Option<&VmRequest> {
        let [vnode] = self.request.vnodes.as_slice() else { return None };
        match &vnode.work {
            Work::Vm(vm) if vm.cells.is_empty() && vnode.pins.is_empty() => Some(vm),
            Work::Vm(_) | Work::Processes { .. } => None,
        }
    }

    /// The largest number of vCPUs, or amount of memory, without the finding.
    fn fewer(&self, plan: &Plan, vm: &VmRequest, now: u32, subject: &str) -> Option<String> {
        let counts = self.counts(plan)?;
        let fewer = counts.into_iter().rev().filter(|count| (1..now).contains(count));
        let fewer = fewer.take(MOST_TRIED);
        let mut with = fewer.map(|count| (count, self.with_vcpus(vm, count)));
        if let Some((count, _)) = with.find(|(_, request)| self.is_plannable(subject, request)) {
            return Some(format!("request at most {}", count_noun(count as usize, "vCPU")));
        }
        let memory = self.request.vnodes.first()?.memory.filter(|_| subject == "NUMA")?;
        let most = self.topology.nodes.iter().map(|node| node.memory_bytes).max()?;
        let mut less = self.request.clone();
        let most = whole_mib(most);
        less.vnodes.first_mut()?.memory = Some(MemoryRequest { bytes: most, ..memory });
        (most < memory.bytes && self.is_plannable(subject, &less))
            .then(|| format!("request at most {} of memory", size(most)))
    }

    /// Candidate numbers of vCPUs, ascending.
    fn counts(&self, plan: &Plan) -> Option<BTreeSet<u32>> {
        let available = available(self.topology, self.request).ok()?;
        let vcpus = plan.vnodes.iter().flat_map(pinfold_model::VnodePlan::vcpus);
        let pinned = vcpus.filter(|thread| thread.pus.len() == 1);
        let pins: Vec<_> = pinned.filter_map(|thread| thread.pus.first()).collect();
        let used: CpuSet = pins.iter().copied().collect();
        let kinds: BTreeSet<_> = self.topology.pus.iter().map(|pu| pu.kind).collect();
        let nodes = self.topology.nodes.iter().map(|node| node.pus.clone());
        let parts = nodes
            .chain(kinds.into_iter().map(|kind| -> CpuSet {
                let pus = self.topology.pus.iter().filter(|pu| pu.kind == kind);
                pus.map(|pu| pu.os).collect()
            }))
            .chain([available.usable.clone()]);
        let mut counts = BTreeSet::new();
        for part in parts {
            let cores =
                available.cores.iter().filter(|core| !core.set().is_disjoint(&part)).count();
            let there = part.intersection(&available.usable).len();
            let width = there.checked_div(cores).unwrap_or(1);
            let own = pins.iter().filter(|pu| part.contains(**pu)).count();
            let rest = [cores.saturating_sub(1), there.saturating_sub(width)];
            counts.extend([own, cores, there, used.len()].into_iter().chain(rest).map(narrow));
        }
        Some(counts)
    }

    /// Numbers of vCPUs that fill whole cores, or a strategy that gives each vCPU a core.
    fn whole_cores(&self, vm: &VmRequest, now: u32, subject: &str) -> Option<String> {
        let widest = self.topology.cores.iter().map(|core| core.pus.len()).max()?;
        let most = narrow(available(self.topology, self.request).ok()?.usable.len());
        for step in 1..=narrow(widest) {
            let found: Vec<u32> = [now.checked_sub(step), now.checked_add(step)]
                .into_iter()
                .flatten()
                .filter(|count: &u32| {
                    (1..=most).contains(count)
                        && self.is_plannable(subject, &self.with_vcpus(vm, *count))
                })
                .collect();
            match found.as_slice() {
                [] => {}
                [only] => return Some(format!("request {}", count_noun(*only as usize, "vCPU"))),
                [fewer, more, ..] => return Some(format!("request {fewer} or {more} vCPUs")),
            }
        }
        let alone =
            vm.smt != SmtRequest::Shown && self.is_plannable_by_other("low-latency", subject);
        alone.then(|| "low-latency gives each vCPU a core of its own".to_owned())
    }

    fn with_vcpus(&self, vm: &VmRequest, count: u32) -> Request {
        let mut request = self.request.clone();
        for vnode in &mut request.vnodes {
            vnode.work = Work::Vm(VmRequest { vcpus: VcpuCount::Exactly(count), ..vm.clone() });
        }
        request
    }

    /// True if the same strategy has a plan for a request without such a finding, and none worse.
    fn is_plannable(&self, subject: &str, request: &Request) -> bool {
        self.is_better(subject, self.try_strategy(self.strategy, request))
    }

    /// True if another strategy has a plan for the request without such a finding, and none worse.
    fn is_plannable_by_other(&self, strategy: &str, subject: &str) -> bool {
        let known = strategies().iter().find(|known| known.name == strategy);
        let known = known.filter(|known| known.name != self.strategy.name);
        self.is_better(subject, known.and_then(|known| self.try_strategy(known, self.request)))
    }

    /// What a strategy that is named gives for a request.
    fn try_strategy(&self, strategy: &Strategy, request: &Request) -> Option<Plan> {
        let mut plan = make_plan(strategy, self.topology, request).ok()?;
        definition::downgrade_requested_costs(&mut plan, strategy.name, request);
        Some(plan)
    }

    /// True if a plan is without such a finding, and costs nothing that the present one does not.
    fn is_better(&self, subject: &str, plan: Option<Plan>) -> bool {
        plan.is_some_and(|plan| {
            !plan.findings.iter().any(|finding: &Finding| {
                finding.subject == subject
                    || (is_cost(finding) && !self.costs.contains(&finding.subject))
            })
        })
    }
}

//! Findings about the effect of a preference, with the command to try another one.

use std::cmp::Reverse;

use pinfold_model::{
    CpuSet, Finding, Plan, Preference, PuId, Request, Topology, VcpuCount, VnodePlan, Work,
};

use crate::analysis::placement::{is_cost, runs_on, work_of};
use crate::cores::available::allowed_cores;
use crate::cores::available_core::AvailableCore;
use crate::cores::parts::Parts;
use crate::messages::command;
use crate::placement::builder::available;
use crate::strategies::{Strategy, StrategyKind, kind_of, make_plan, strategies};
use crate::text::narrow;

/// Findings about the preference of a request, for a plan that a strategy made for it.
pub(crate) fn findings(
    strategy: Strategy,
    topology: &Topology,
    request: &Request,
    plan: &Plan,
) -> Vec<Finding> {
    let planned = Planned { strategy, topology, request, plan };
    let is_ordered = kind_of(&plan.strategy).is_some_and(StrategyKind::is_fixed_order);
    if is_ordered && matches!(request.prefer, Preference::Auto | Preference::None) {
        return Vec::new();
    }
    let cores = allowed_cores(topology, &request.avoid);
    let parts = Parts::from_topology(topology);
    let decides = |prefer| parts.decides(&cores, prefer);
    match request.prefer {
        Preference::Auto | Preference::None => {
            let all = [Preference::Cache, Preference::Frequency, Preference::Efficiency];
            let deciding = all.into_iter().filter(|prefer| decides(*prefer));
            let deciding: Vec<Preference> = deciding.collect();
            // On machines with equal cores no preference is worth a finding.
            if deciding.is_empty() {
                return Vec::new();
            }
            let mut seen = vec![places(plan)];
            let mut other = |prefer| planned.other(prefer, &mut seen);
            let found: Vec<Finding> = deciding.into_iter().filter_map(&mut other).collect();
            let last = if request.prefer == Preference::None {
                Preference::Auto
            } else {
                Preference::None
            };
            if found.is_empty() {
                let other = other(last).or_else(|| planned.slower_cores_finding());
                other.into_iter().collect()
            } else if plan.vnodes.len() > 1 {
                // Of several, that one may be the reason why another is on slower cores.
                let slower = planned.slower_cores_finding();
                found.into_iter().chain(slower).collect()
            } else {
                found
            }
        }
        prefer if is_ordered => vec![
            Finding::note(
                "preference",
                format!(
                    "{} has a fixed order, which the preference {prefer} does not change",
                    plan.strategy
                ),
            )
            .with_hint(command::hint("auto", topology, request)),
        ],
        prefer if !decides(prefer) => vec![Finding::note(
            "preference",
            format!(
                "{prefer} makes no difference here: the host reports no such difference between \
                 its available cores"
            ),
        )],
        Preference::Cache | Preference::Frequency | Preference::Efficiency => Vec::new(),
    }
}

/// A plan with its request.
struct Planned<'a> {
    strategy: Strategy,
    topology: &'a Topology,
    request: &'a Request,
    plan: &'a Plan,
}

impl Planned<'_> {
    /// The effect of another preference, unless this plan is the same.
    fn other(&self, prefer: Preference, seen: &mut Vec<Vec<CpuSet>>) -> Option<Finding> {
        let Self { strategy, topology, request, plan } = *self;
        let asked = Request { prefer, ..request.clone() };
        let made = make_plan(&strategy, topology, &asked).ok()?;
        if meets(topology, &asked, plan) || !meets(topology, &asked, &made) {
            return None;
        }
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
            let available = available(topology, request).ok();
            let part = available.map(|available| available.parts_of(&on)).unwrap_or_default();
            format!("{pus} ({part})")
        };
        let with = match prefer {
            Preference::None => "without a preference".to_owned(),
            Preference::Auto => "with the preference auto".to_owned(),
            Preference::Cache | Preference::Frequency | Preference::Efficiency => {
                format!("with a preference for {prefer}")
            }
        };
        let text = format!("{what} is on {}; {with} it is on {}", named(before), named(after));
        let hint = command::hint(strategy.name, topology, &asked);
        Some(Finding::note("preference", text).with_hint(hint))
    }

    /// That a vnode is on slower cores than others because the fast ones are too few for it.
    fn slower_cores_finding(&self) -> Option<Finding> {
        let Self { strategy, topology, request, plan } = *self;
        let available = available(topology, request).ok()?;
        let fastest = available.cores.iter().map(|core| core.kind).min()?;
        let is_slower = |pu: PuId| available.pu(pu).is_some_and(|pu| pu.kind > fastest);
        let vnode = plan.vnodes.iter().find(|vnode| runs_on(vnode).iter().all(is_slower))?;
        let pus = runs_on(vnode);
        let on: Vec<PuId> = pus.iter().collect();
        let rest = if plan.vnodes.len() > 1 { "" } else { ", and no preference changes that" };
        let text = format!(
            "{} is on {pus} ({}): the remaining faster cores are too few for it{rest}",
            vnode.name,
            available.parts_of(&on)
        );
        let finding = Finding::note("preference", text);
        let fast: Vec<&AvailableCore> =
            available.cores.iter().filter(|core| core.kind == fastest).collect();
        let threads = fast.iter().map(|core| core.pus.len()).sum::<usize>();
        let mut counts =
            vec![threads, threads.saturating_sub(1), fast.len(), fast.len().saturating_sub(1)];
        counts.sort_unstable_by_key(|count| Reverse(*count));
        let fits = counts.into_iter().find(|count| {
            let fewer = with_vcpus(request, *count).filter(|_| (1..on.len()).contains(count));
            let made = fewer.and_then(|fewer| make_plan(&strategy, topology, &fewer).ok());
            made.is_some_and(|made| {
                made.vnodes.iter().all(|it| !runs_on(it).iter().any(is_slower))
                    && !made.findings.iter().any(is_cost)
            })
        });
        Some(match fits {
            Some(count) => finding.with_hint(format!("`--vcpus {count}` fits the faster cores")),
            None => finding,
        })
    }
}

/// True if all vCPUs and tasks of a plan are on the cores that the preference of a request puts
/// first.
fn meets(topology: &Topology, request: &Request, plan: &Plan) -> bool {
    if matches!(request.prefer, Preference::Auto | Preference::None) {
        return false;
    }
    let Ok(available) = available(topology, request) else { return false };
    let pus = work_of(plan);
    pus.iter().all(|pu| available.available_core(pu).is_some_and(|core| core.part == 0))
}

/// A machine on slow cores because each vCPU has a core of its own, while the fast cores carry no
/// vCPU and their CPUs would be enough.
pub(crate) fn idle_fast_cores(
    topology: &Topology,
    request: &Request,
    plan: &Plan,
) -> Option<Finding> {
    let ([vnode], Preference::Auto) = (plan.vnodes.as_slice(), request.prefer) else { return None };
    if plan.strategy != "low-latency" {
        return None;
    }
    let available = available(topology, request).ok()?;
    let fastest = available.cores.iter().map(|core| core.kind).min()?;
    let is_fast = |pu: PuId| available.pu(pu).is_some_and(|pu| pu.kind == fastest);
    let on = runs_on(vnode);
    if on.iter().any(is_fast) {
        return None;
    }
    let other = strategies().iter().find(|known| known.name == BY_THREAD)?;
    let other = make_plan(other, topology, request).ok()?;
    let there = work_of(&other);
    if !there.iter().all(is_fast) || other.findings.iter().any(is_cost) {
        return None;
    }
    let [slow, fast] = [&on, &there].map(|pus| available.parts_of(&pus.iter().collect::<Vec<_>>()));
    let text = format!(
        "{} is on {on} ({slow}), and {fast} have no vCPU: {} needs a core for each vCPU, and these \
         are too few; their threads are enough",
        vnode.name, plan.strategy
    );
    Some(
        Finding::warning("slow cores", text).with_hint(command::hint(BY_THREAD, topology, request)),
    )
}

/// The strategy that uses all threads of the cores.
const BY_THREAD: &str = "balanced";

/// A request for one virtual machine of fixed size with another number of vCPUs.
fn with_vcpus(request: &Request, count: usize) -> Option<Request> {
    let mut request = request.clone();
    let [vnode] = request.vnodes.as_mut_slice() else { return None };
    match &mut vnode.work {
        Work::Vm(vm) if vm.cells.is_empty() && vnode.pins.is_empty() => {
            vm.vcpus = VcpuCount::Exactly(narrow(count));
        }
        Work::Vm(_) | Work::Processes { .. } => return None,
    }
    Some(request)
}

/// The CPUs of the vCPUs and tasks of each vnode.
fn places(plan: &Plan) -> Vec<CpuSet> {
    plan.vnodes.iter().map(runs_on).collect()
}

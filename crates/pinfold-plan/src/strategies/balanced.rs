//! `balanced`: vCPUs on all threads of the non-host cores, the emulator on the host core.
//!
//! Lindroth 2017 on an i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; host and emulator on core 0 (0, 4);
//! guest topology 1×3×2. The guest sees the siblings as threads, so its scheduler knows which of
//! its CPUs share a core.
//!
//! Without SMT it gives one vCPU per core and a guest without SMT. If the number of vCPUs is no
//! multiple of the core's width, the rest of the last core stays idle and the guest has no SMT; a
//! finding reports this. Refusing it would make layouts of equal n_vcpu impossible to compare, and
//! a topology with a core that does not exist would be worse. `auto` gives all threads of the
//! non-host cores of the preferred part.
//!
//! The emulator is with the host's tasks: on the host core, on the weaker part of the machine if
//! there is one, or, if the host core is on another node, on the remaining CPUs of the vCPUs' node.
//!
//! Two options of the source: the emulator *real-time* on the whole host core, so that the host's
//! tasks do not delay it, or *apart*, with the host on one sibling of the host core and the
//! emulator on the others. If the request names or counts the host's CPUs, the emulator has an
//! additional core. A real-time thread must not occupy the host's last CPUs: if the host has only
//! this core, its first CPU remains for the host alone, and a finding reports this.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, EmulatorRequest, Finding, Plan, PuId, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder, low_latency_rt};
use crate::analysis::validate::faults;
use crate::cores::available::AvailableCpus;
use crate::cores::available_core::AvailableCore;
use crate::cores::emulator_cpus::EmulatorCpus;
use crate::cores::host_share::HostShare;
use crate::cores::select::Count;
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlacedPlan, PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::{Spread, Terms, assign_cores, choose_host_core};
use crate::placement::rules::{Isolated, Rules};
use crate::placement::vnode_builder::{Reserve, VnodeBuilder};
use crate::text::verb;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "balanced",
    summary: "vCPUs on all threads of the cores outside the host's; the emulator with the host",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; host and emulator on core 0 \
             (0, 4); topology 1×3×2",
    kind: StrategyKind::Other,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: true,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder {
        fallback: Some(1),
        auto: Some(0),
        again: Some(1),
        check: Some(1),
        demo: Some(4),
    },
    is_divided: true,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Threads)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = choose_host_core(&builder, Count::Threads);
    let mut cores =
        Cores { candidates: available.without(&host), host: &host, also: String::new() };
    match (request.emulator, available.free.is_empty()) {
        (EmulatorRequest::Usual, _) => {
            all_threads(builder, cores, &mut |vnode_builder, pins, taken| {
                with_host(vnode_builder, &available.choose_emulator_cpus(&host, pins, taken));
                Ok(CpuSet::new())
            })
        }
        // The request names or counts the host's CPUs, so the emulator needs an additional core.
        (EmulatorRequest::Apart, false) => {
            let spare = cores.candidates.clone();
            let last = cores.take_last(&available).ok_or_else(|| PlanError::EmulatorRequest {
                strategy: STRATEGY.name.to_owned(),
                emulator_request: request.emulator.to_string(),
                why: format!("{} stay reserved for the host, and no other core is left", host.pus),
            })?;
            all_threads(builder, cores, &mut |vnode_builder, pins, taken| {
                let own = own_core(&available, &spare, pins, taken).unwrap_or_else(|| last.clone());
                vnode_builder.emulator(&own, || {
                    format!(
                        "the emulator runs on {}, its own core: {} are reserved for the host",
                        pus_text(&own),
                        host.pus
                    )
                });
                Ok(own)
            })
        }
        (EmulatorRequest::Apart, true) => {
            all_threads(builder, cores, &mut |vnode_builder, pins, taken| {
                let home = available.choose_emulator_cpus(&host, pins, taken).on_core_of(&host);
                let own = emulators_own(&home.pus, EmulatorRequest::Apart)?;
                vnode_builder.emulator(&own, || {
                    format!(
                        "the emulator runs on {} {}, the host's tasks on {}",
                        pus_text(&own),
                        home.what,
                        pus_text(&home.pus.difference(&own))
                    )
                });
                Ok(own)
            })
        }
        (EmulatorRequest::RealTime, _) => real_time(&available, request, &host),
    }
}

fn with_host(vnode_builder: &mut VnodeBuilder<'_>, home: &EmulatorCpus) {
    vnode_builder.emulator(&home.pus, || {
        format!(
            "the emulator runs on {} {} with the host's tasks: every other thread of the used \
             cores has a vCPU",
            pus_text(&home.pus),
            home.what
        )
    });
}

/// The emulator real-time on all of the host's CPUs near the vCPUs if the host has another CPU;
/// else on all except the first.
fn real_time(
    available: &AvailableCpus<'_>,
    request: &Request,
    host: &HostShare,
) -> Result<Plan, PlanError> {
    let mut all = CpuSet::new();
    let mut on = |whole: bool| {
        let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, available, request)?;
        let cores = Cores { candidates: available.without(host), host, also: String::new() };
        all_threads(builder, cores, &mut |vnode_builder, pins, taken| {
            let home = available.choose_emulator_cpus(host, pins, taken).on_core_of(host);
            all.add(&home.pus);
            let (pus, rest) = if whole {
                (home.pus.clone(), "")
            } else {
                (
                    emulators_own(&home.pus, EmulatorRequest::RealTime)?,
                    "; one more is reserved for the host",
                )
            };
            vnode_builder.policies[1] = Some(low_latency_rt::POLICY);
            vnode_builder.emulator(&pus, || {
                format!(
                    "the emulator runs on {} {}, ahead of the host's tasks there{rest}",
                    pus_text(&pus),
                    home.what
                )
            });
            Ok(CpuSet::new())
        })
    };
    let whole = on(true)?;
    if faults(&whole).is_empty() {
        return Ok(whole);
    }
    let mut plan = on(false)?;
    let first = all.first().map_or_else(String::new, |pu| pu.to_string());
    plan.findings.push(Finding::note(
        "emulator",
        format!(
            "the cited setup has a real-time emulator on all of {all}; here the host has no other \
             CPU, so CPU {first} stays reserved for the host: a real-time thread must not be able \
             to lock it out"
        ),
    )
    .with_hint("to use all of it, keep another core free for the host, such as with --free"));
    Ok(plan)
}

/// The host's CPUs without the first, which remains for the host alone.
fn emulators_own(hosts: &CpuSet, emulator_request: EmulatorRequest) -> Result<CpuSet, PlanError> {
    let mut own = hosts.clone();
    if let Some(first) = own.first() {
        own.remove(first);
    }
    if own.is_empty() {
        return Err(PlanError::EmulatorRequest {
            strategy: STRATEGY.name.to_owned(),
            emulator_request: emulator_request.to_string(),
            why: format!(
                "the host has only {}, and one CPU must stay reserved for the host",
                pus_text(hosts)
            ),
        });
    }
    Ok(own)
}

/// The CPUs for a plan with vCPUs on all threads.
pub(super) struct Cores<'h> {
    pub candidates: Vec<AvailableCore>,
    pub host: &'h HostShare,
    /// Other reserved cores, for an error message: `, and core 7 with the emulator`.
    pub also: String,
}

impl Cores<'_> {
    /// Removes the last core of the weakest part, for the emulator.
    fn take_last(&mut self, available: &AvailableCpus<'_>) -> Option<CpuSet> {
        let can = (0..).zip(&self.candidates).filter(|(_, core)| hosts(available, core));
        let (place, _) = can.max_by_key(|(place, core)| (core.part, *place))?;
        let core = self.candidates.remove(place);
        self.also = format!(", core {} with the emulator", core.id);
        Some(core.set())
    }
}

fn hosts(available: &AvailableCpus<'_>, core: &AvailableCore) -> bool {
    core.pus.iter().all(|pu| available.hostable.contains(*pu))
}

/// A core without vCPUs for an emulator alone: the last of the weakest part, on the vCPUs' nodes if
/// one remains there.
fn own_core(
    available: &AvailableCpus<'_>,
    cores: &[AvailableCore],
    pins: &[PuId],
    taken: &CpuSet,
) -> Option<CpuSet> {
    let nodes = available.nodes_of(&pins.iter().copied().collect());
    let free = cores
        .iter()
        .enumerate()
        .filter(|(_, core)| core.set().is_disjoint(taken) && hosts(available, core));
    let (_, core) = free.max_by_key(|(place, core)| {
        (core.node.is_none_or(|node| nodes.contains(&node)), core.part, *place)
    })?;
    Some(core.set())
}

/// Places a machine's emulator, given the CPUs of its vCPUs and those of all cores that carry any.
/// Returns the other CPUs from which the host's tasks are excluded.
pub(super) type PlaceEmulator<'p> =
    dyn FnMut(&mut VnodeBuilder<'_>, &[PuId], &CpuSet) -> Result<CpuSet, PlanError> + 'p;

/// A plan with vCPUs on all threads of the cores that are not the host's.
pub(super) fn all_threads(
    mut builder: PlanBuilder<'_>,
    cores: Cores<'_>,
    emulator: &mut PlaceEmulator<'_>,
) -> Result<Plan, PlanError> {
    let available = builder.available;
    let Cores { candidates, host, also } = cores;
    let why = format!(
        "each vCPU needs a CPU of its own, and {} with the host{also}",
        host.with_verb("stays", "stay")
    );
    let enclosures = assign_cores(
        &builder,
        &candidates,
        &Terms {
            count: Count::Threads,
            host: Some(host),
            auto_is_all: false,
            spread: Spread::Nodes,
            why,
        },
    )?;
    let mut exclusive = enclosures.all.clone();
    for (place, exclusive_cores) in enclosures.vnodes.iter().enumerate() {
        let carried: CpuSet = exclusive_cores.pins.iter().copied().collect();
        let mut vnode_builder = builder.open(place);
        for &pin in &exclusive_cores.pins {
            let reason =
                vcpu_reason(available, &carried, pin, enclosures.choice, vnode_builder.unit());
            vnode_builder.vcpu(CpuSet::single(pin), reason);
        }
        exclusive.add(&emulator(&mut vnode_builder, &exclusive_cores.pins, &enclosures.all)?);
        builder.finish_vnode(vnode_builder, GuestSmt::Mirror)?;
    }
    builder.defer_finding(|ended| smt(available, ended));
    let reason = available.host_reason(host, &exclusive);
    builder.finish_isolated(Reserve { exclusive, reason })
}

fn vcpu_reason(
    available: &AvailableCpus<'_>,
    carried: &CpuSet,
    pin: PuId,
    choice: bool,
    unit: &str,
) -> String {
    let siblings = available.siblings(pin);
    let with_vcpus = siblings.intersection(carried);
    let sharing = match (siblings.is_empty(), with_vcpus.is_empty()) {
        (true, _) => "it has no sibling".to_owned(),
        (false, false) => format!(
            "its {}, {}, {} a {unit} too",
            verb(&with_vcpus, "sibling", "siblings"),
            pus_text(&with_vcpus),
            verb(&with_vcpus, "has", "have")
        ),
        (false, true) => format!(
            "its {}, {}, {} none",
            verb(&siblings, "sibling", "siblings"),
            pus_text(&siblings),
            verb(&siblings, "has", "have")
        ),
    };
    let near = if choice {
        format!("chosen because it is near the cores of the other {unit}s")
    } else {
        "like all cores outside the host's".to_owned()
    };
    format!(
        "CPU {pin} belongs to a core reserved for {unit}s ({}), {near}; {sharing}",
        available.place(pin)
    )
}

/// A finding about the siblings of the vCPUs' CPUs: there are none, or some stay idle.
fn smt(available: &AvailableCpus<'_>, ended: &PlacedPlan<'_>) -> Option<Finding> {
    let carried = ended.working_cpus();
    let used_cores = || carried.iter().filter_map(|pu| available.available_core(pu));
    if used_cores().all(|core| core.pus.len() == 1) {
        let is_vm = ended.vnodes.iter().any(|vnode| vnode.guest.is_some());
        let text = if is_vm {
            "the vCPUs' cores have one available CPU each, so this is one vCPU per core and the \
             guest sees no SMT"
        } else {
            "the used cores have one available CPU each"
        };
        return Some(Finding::note("smt", text));
    }
    let cores: CpuSet = used_cores().flat_map(|core| core.pus.iter().copied()).collect();
    let pus = cores.difference(&ended.pus(|_| true)).intersection(ended.exclusive);
    (!pus.is_empty()).then(|| {
        Finding::note(
            "smt",
            format!(
                "{} {} idle next to a vCPU on the same core, because a host task there would slow \
                 it",
                pus_text(&pus),
                verb(&pus, "stays", "stay")
            ),
        )
    })
}

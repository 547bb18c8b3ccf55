//! `balanced`: vCPUs on all threads of the non-host cores, the emulator on the host core.
//!
//! Lindroth 2017 on an i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; host and emulator on core 0
//! (0, 4); guest topology 1×3×2. The guest sees the siblings as threads, so its
//! scheduler knows which of its CPUs share a core.
//!
//! Without SMT it gives one vCPU per core and a guest without SMT. A number of vCPUs
//! that is no multiple of the core's width leaves the rest of the last core idle and
//! the guest without SMT, as a finding says: a refusal would make layouts of equal
//! n_vcpu impossible to compare, and a topology with a core that is not there would
//! be worse. `auto` gives all threads of the non-host cores of the fastest kind.
//!
//! Two options of the source: the emulator *real-time* on the whole host core, so that the host's
//! tasks do not delay it, or *apart*, the host on one sibling of the host core and the emulator
//! on the others. A real-time thread may not fill the host's last PUs: where the host has no PU
//! besides its core, the first of that core stays the host's alone, and a finding says so.

use pinfold_model::{CpuSet, EmulatorWish, Finding, Plan, PuId, Request, Topology};

use super::{Strategy, low_latency_rt};
use crate::PlanError;
use crate::check::faults;
use crate::draft::{Draft, Enclave, Reserve, ground, pus_text, verb};
use crate::enclosure::{Terms, enclose};
use crate::ground::{Ground, HostShare};
use crate::guest::GuestSmt;
use crate::select::Count;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "balanced",
    summary: "vCPUs on all threads of the cores that are not the host's; the emulator with the host",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; host and emulator on core 0 \
             (0, 4); topology 1×3×2",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let draft = Draft::new(STRATEGY.name, &ground, request)?;
    let host = ground.host();
    match request.emulator {
        EmulatorWish::Usual => all_threads(draft, &host, &CpuSet::new(), &mut |enclave, _| {
            enclave.emulator(&host.pus, || {
                format!(
                    "the emulator runs on {} of core {} with the host's tasks: every other thread \
                     of the cores in use belongs to a vCPU",
                    pus_text(&host.pus),
                    host.name()
                )
            });
        }),
        EmulatorWish::Apart => {
            let own = emulators_own(&host, EmulatorWish::Apart)?;
            all_threads(draft, &host, &own, &mut |enclave, _| {
                enclave.emulator(&own, || {
                    format!(
                        "the emulator runs on {} of core {}, the host's tasks on the sibling",
                        pus_text(&own),
                        host.name()
                    )
                });
            })
        }
        EmulatorWish::RealTime => real_time(&ground, request, &host),
    }
}

/// The emulator real-time on the whole host core, where the host has a PU besides; else on the
/// siblings of the host core's first PU.
fn real_time(ground: &Ground<'_>, request: &Request, host: &HostShare) -> Result<Plan, PlanError> {
    let on = |pus: &CpuSet, rest: &str| {
        let draft = Draft::new(STRATEGY.name, ground, request)?;
        all_threads(draft, host, &CpuSet::new(), &mut |enclave, _| {
            enclave.policies[1] = Some(low_latency_rt::POLICY);
            enclave.emulator(pus, || {
                format!(
                    "the emulator runs on {} of core {}, ahead of the host's tasks there{rest}",
                    pus_text(pus),
                    host.name()
                )
            });
        })
    };
    let whole = on(&host.pus, "")?;
    if faults(&whole).is_empty() {
        return Ok(whole);
    }
    let own = emulators_own(host, EmulatorWish::RealTime)?;
    let mut plan = on(&own, "; its sibling is the host's alone")?;
    plan.findings.push(Finding::note(
        "emulator",
        format!(
            "the source has the emulator real-time on all of {}; here the host has no other PU, and \
             a real-time thread must not be able to lock it out, so PU {} stays the host's alone",
            host.pus,
            host.pus.difference(&own)
        ),
    )
    .with_hint("to have all of it, keep another core free for the host, such as with --free"));
    Ok(plan)
}

/// The host core's PUs without the first, which stays the host's alone.
fn emulators_own(host: &HostShare, wish: EmulatorWish) -> Result<CpuSet, PlanError> {
    let mut own = host.pus.clone();
    if let Some(first) = own.first() {
        own.remove(first);
    }
    if own.is_empty() {
        return Err(PlanError::EmulatorWish {
            strategy: STRATEGY.name.to_owned(),
            wish: wish.to_string(),
            why: format!(
                "the host has only {}, and one PU must stay the host's alone",
                pus_text(&host.pus)
            ),
        });
    }
    Ok(own)
}

/// A plan with vCPUs on all threads of the cores that are not the host's; `emulator` places
/// each machine's emulator, given the PUs of its vCPUs. Of the host's PUs other tasks are
/// kept off `kept`.
pub(super) fn all_threads(
    mut draft: Draft<'_>,
    host: &HostShare,
    kept: &CpuSet,
    emulator: &mut dyn FnMut(&mut Enclave<'_>, &CpuSet),
) -> Result<Plan, PlanError> {
    let ground = draft.ground;
    let candidates = ground.without(host);
    let why =
        format!("each vCPU needs a PU of its own, and core {} stays with the host", host.name());
    let enclosures = enclose(
        &draft,
        &candidates,
        Terms { count: Count::Threads, host: Some(host), auto_is_all: false, why },
    )?;
    let mut wide = false;
    let mut rest = CpuSet::new();
    for (place, enclosure) in enclosures.vnodes.iter().enumerate() {
        let carried: CpuSet = enclosure.pins.iter().copied().collect();
        let mut enclave = draft.open(place);
        for &pin in &enclosure.pins {
            let reason = vcpu_reason(ground, &carried, pin, enclosures.choice);
            enclave.vcpu(CpuSet::single(pin), reason);
        }
        emulator(&mut enclave, &carried);
        wide |= enclosure.cores.iter().any(|spot| spot.pus.len() > 1);
        rest.add(&enclosure.rest);
        draft.close(enclave, GuestSmt::Mirror)?;
    }
    if !wide {
        draft.finding(Finding::note(
            "smt",
            "the vCPUs' cores have one usable PU each, so this is one vCPU per core and the guest \
             is shown no SMT",
        ));
    }
    draft.all_findings(idle(&rest));
    let exclusive = enclosures.all.union(kept);
    let reason = ground.host_reason(host, &exclusive);
    draft.isolating(Reserve { exclusive, reason })
}

fn vcpu_reason(ground: &Ground<'_>, carried: &CpuSet, pin: PuId, choice: bool) -> String {
    let siblings = ground.siblings(pin);
    let with_vcpus = siblings.intersection(carried);
    let sharing = match (siblings.is_empty(), with_vcpus.is_empty()) {
        (true, _) => "it has no sibling".to_owned(),
        (false, false) => format!("{}, its sibling, carries a vCPU too", pus_text(&with_vcpus)),
        (false, true) => format!("{}, its sibling, carries none", pus_text(&siblings)),
    };
    let near = match choice {
        true => "chosen for its nearness to the other vCPUs' cores",
        false => "as all are that are not the host's",
    };
    format!("PU {pin} is a thread of a core for vCPUs ({}), {near}; {sharing}", ground.place(pin))
}

fn idle(pus: &CpuSet) -> Option<Finding> {
    (!pus.is_empty()).then(|| {
        Finding::note(
            "smt",
            format!(
                "{} {} idle beside a vCPU on the same core, because a task of the host there would \
                 slow it",
                pus_text(pus),
                verb(pus, "stays", "stay")
            ),
        )
    })
}

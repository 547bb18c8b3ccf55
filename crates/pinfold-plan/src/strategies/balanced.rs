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

use pinfold_model::{CpuSet, Finding, Plan, PuId, Request, Topology};

use super::Strategy;
use crate::PlanError;
use crate::draft::{Draft, Limits, Reserve, ground, pins, pus_text, verb};
use crate::ground::Ground;
use crate::guest::{self, GuestSmt};
use crate::select::{Count, auto_capacity, capacity, find, nearest};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "balanced",
    summary: "vCPUs on all threads of the cores that are not the host's; the emulator with the host",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; host and emulator on core 0 \
             (0, 4); topology 1×3×2",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let mut draft = Draft::new(STRATEGY.name, &ground, request);
    let host = ground.host();
    let candidates = ground.without(&host);
    let vcpus = draft.vcpu_count(Limits {
        auto: auto_capacity(&candidates, Count::Threads),
        most: capacity(&candidates, Count::Threads),
        why: format!(
            "each vCPU needs a PU of its own, and core {} stays with the host",
            host.name()
        ),
    })?;
    let cores = nearest(&candidates, vcpus, Count::Threads, find(&ground.cores, host.core));
    let pins = pins(&cores, vcpus, Count::Threads);
    let choice = cores.len() < candidates.len();
    for &pin in &pins {
        draft.vcpu(CpuSet::single(pin), vcpu_reason(&ground, &pins, pin, choice));
    }
    draft.emulator(
        &host.pus,
        format!(
            "the emulator runs on {} of core {} with the host's tasks: every other thread of the \
             cores in use belongs to a vCPU",
            pus_text(&host.pus),
            host.name()
        ),
    );
    if !cores.iter().any(|spot| spot.pus.len() > 1) {
        draft.finding(Finding::note(
            "smt",
            "the vCPUs' cores have one usable PU each, so this is one vCPU per core and the guest \
             is shown no SMT",
        ));
    }
    let (guest, findings) = guest::matching(&ground, &pins, GuestSmt::Mirror);
    draft.all_findings(findings);
    let exclusive = cores.iter().fold(CpuSet::new(), |set, spot| set.union(&spot.set()));
    draft.all_findings(idle(&exclusive.difference(&pins.iter().copied().collect())));
    let reason = ground.host_reason(&host, &exclusive);
    Ok(draft.isolating(guest, Reserve { exclusive, reason }))
}

fn vcpu_reason(ground: &Ground<'_>, pins: &[PuId], pin: PuId, choice: bool) -> String {
    let siblings = ground.siblings(pin);
    let with_vcpus = siblings.intersection(&pins.iter().copied().collect());
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

//! `low-latency`: each vCPU alone on a core, the emulator on the siblings.
//!
//! Lindroth 2017 on an i7-4790K (siblings 0,4 1,5 2,6 3,7): vcpupin 1, 2, 3;
//! emulatorpin 5-7; guest topology 1×3×1; the host's tasks on core 0. The vCPU has
//! its core's caches and execution units to itself but for the emulator, which works
//! mostly while the vCPU waits for it. No vCPU is ever on the host core.
//!
//! Without SMT there are no siblings: the emulator falls back to the host core.
//! `auto` gives one vCPU per core of the fastest kind, less the host core.

use pinfold_model::{CpuSet, Finding, Plan, Request, Topology};

use super::Strategy;
use crate::PlanError;
use crate::draft::{Draft, Limits, Reserve, counted, ground, pins, pus_text};
use crate::ground::{Ground, HostShare, Spot};
use crate::guest::{self, GuestSmt};
use crate::select::{Count, auto_capacity, capacity, find, nearest};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "low-latency",
    summary: "each vCPU alone on a core, never the host's; the emulator on the cores' siblings",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 2, 3; emulatorpin 5-7; topology 1×3×1; \
             the host on core 0",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let mut draft = Draft::new(STRATEGY.name, &ground, request);
    let host = ground.host();
    let candidates = ground.without(&host);
    let vcpus = draft.vcpu_count(Limits {
        auto: auto_capacity(&candidates, Count::Cores),
        most: capacity(&candidates, Count::Cores),
        why: format!(
            "each vCPU needs a core of its own, and core {} stays with the host",
            host.name()
        ),
    })?;
    let cores = nearest(&candidates, vcpus, Count::Cores, find(&ground.cores, host.core));
    let pins = pins(&cores, vcpus, Count::Cores);
    let siblings = cores.iter().fold(CpuSet::new(), |set, spot| set.union(&spot.set()));
    let siblings = siblings.difference(&pins.iter().copied().collect());
    for spot in &cores {
        let own = spot.pus.first().copied().map(CpuSet::single).unwrap_or_default();
        draft.vcpu(own, vcpu_reason(&ground, spot, &host, vcpus < candidates.len()));
    }
    place_emulator(&mut draft, &siblings, &host);
    let (guest, findings) = guest::matching(&ground, &pins, GuestSmt::None);
    draft.all_findings(findings);
    let exclusive = siblings.union(&pins.iter().copied().collect());
    let reason = ground.host_reason(&host, &exclusive);
    Ok(draft.isolating(guest, Reserve { exclusive, reason }))
}

fn vcpu_reason(ground: &Ground<'_>, spot: &Spot, host: &HostShare, choice: bool) -> String {
    let Some((first, siblings)) = spot.pus.split_first() else {
        return String::new();
    };
    let siblings: CpuSet = siblings.iter().copied().collect();
    let sharing = match siblings.is_empty() {
        true => "it has no sibling to share with".to_owned(),
        false => format!("its sibling {siblings} goes to the emulator, not to a vCPU"),
    };
    let near = match choice {
        true => "chosen for its nearness to the other vCPUs' cores",
        false => "as every core is that is not the host's",
    };
    format!(
        "PU {first} is the first of its core ({}), {near}; {sharing}; core {} is the host's",
        ground.place(*first),
        host.name()
    )
}

fn place_emulator(draft: &mut Draft<'_>, siblings: &CpuSet, host: &HostShare) {
    if !siblings.is_empty() {
        draft.emulator(
            siblings,
            format!(
                "the emulator runs on {}, the siblings of the vCPUs' PUs: near their caches, \
                 never on a vCPU's PU, and off the host's core {}",
                pus_text(siblings),
                host.name()
            ),
        );
        return;
    }
    draft.emulator(
        &host.pus,
        format!(
            "the emulator runs on {} of the host's core {}, because the vCPUs' cores have no \
             siblings to offer",
            pus_text(&host.pus),
            host.name()
        ),
    );
    draft.finding(Finding::note(
        "smt",
        format!(
            "the vCPUs' cores have one usable PU each, so the emulator shares {} with the host's \
             tasks instead of the siblings: its work waits when the host is busy",
            counted(host.pus.len(), "PU")
        ),
    ));
}

//! `low-latency`: each vCPU alone on a core, the emulator on the siblings.
//!
//! Lindroth 2017 on an i7-4790K (siblings 0,4 1,5 2,6 3,7): vcpupin 1, 2, 3;
//! emulatorpin 5-7; guest topology 1×3×1; the host's tasks on core 0. The vCPU has
//! its core's caches and execution units to itself but for the emulator, which works
//! mostly while the vCPU waits for it. No vCPU is ever on the host core.
//!
//! Without SMT there are no siblings: the emulator falls back to the host core.
//! `auto` gives one vCPU per core of the fastest kind, less the host core.

use pinfold_model::{CpuSet, Finding, Plan, Policy, Request, Topology};

use super::Strategy;
use crate::PlanError;
use crate::draft::{Draft, Enclave, counted, ground, pus_text};
use crate::enclosure::{Enclosure, Terms, enclose};
use crate::ground::{Ground, HostShare, Spot};
use crate::guest::GuestSmt;
use crate::select::Count;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "low-latency",
    summary: "each vCPU alone on a core, never the host's; the emulator on the cores' siblings",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 2, 3; emulatorpin 5-7; topology 1×3×1; \
             the host on core 0",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let draft = Draft::new(STRATEGY.name, &ground, request)?;
    one_per_core(draft, &ground.host(), None)
}

/// A plan with each vCPU alone on a core, the host away from all of them; threads of virtual
/// machines have `policy`, unless they share the host's PUs.
pub(super) fn one_per_core(
    mut draft: Draft<'_>,
    host: &HostShare,
    policy: Option<Policy>,
) -> Result<Plan, PlanError> {
    let ground = draft.ground;
    let candidates = ground.without(host);
    let why =
        format!("each vCPU needs a core of its own, and core {} stays with the host", host.name());
    let enclosures = enclose(
        &draft,
        &candidates,
        Terms { count: Count::Cores, host: Some(host), auto_is_all: false, why },
    )?;
    let mut on_host = false;
    for (place, enclosure) in enclosures.vnodes.iter().enumerate() {
        let mut enclave = draft.open(place);
        let is_vm = matches!(enclave.asked.work, pinfold_model::Work::Vm(_));
        if let (Some(policy), true) = (policy, is_vm) {
            let beside = !enclosure.rest.is_empty();
            enclave.policies = [Some(policy), beside.then_some(policy)];
        }
        for (vcpu, pin) in enclosure.pins.iter().enumerate() {
            let reason = enclosure
                .core(vcpu)
                .map(|spot| vcpu_reason(ground, spot, host, enclosures.choice))
                .unwrap_or_default();
            enclave.vcpu(CpuSet::single(*pin), reason);
        }
        place_emulator(&mut enclave, enclosure, host);
        on_host |= is_vm && enclosure.rest.is_empty();
        draft.close(enclave, GuestSmt::None)?;
    }
    if on_host {
        draft.finding(no_siblings(host, policy));
    }
    draft.isolating(enclosures.reserve(ground, host))
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

fn place_emulator(enclave: &mut Enclave<'_>, enclosure: &Enclosure<'_>, host: &HostShare) {
    let siblings = &enclosure.rest;
    if !siblings.is_empty() {
        enclave.emulator(siblings, || {
            format!(
                "the emulator runs on {}, the siblings of the vCPUs' PUs: near their caches, \
                 never on a vCPU's PU, and off the host's core {}",
                pus_text(siblings),
                host.name()
            )
        });
        return;
    }
    enclave.emulator(&host.pus, || {
        format!(
            "the emulator runs on {} of the host's core {}, because the vCPUs' cores have no \
             siblings to offer",
            pus_text(&host.pus),
            host.name()
        )
    });
}

fn no_siblings(host: &HostShare, policy: Option<Policy>) -> Finding {
    let rights = match policy {
        Some(policy) => format!(
            "; it does not get {policy} there, because a real-time thread could keep the host's \
             tasks off their last PUs"
        ),
        None => String::new(),
    };
    Finding::note(
        "smt",
        format!(
            "the vCPUs' cores have one usable PU each, so the emulator shares {} with the host's \
             tasks instead of the siblings: its work waits when the host is busy{rights}",
            counted(host.pus.len(), "PU")
        ),
    )
}

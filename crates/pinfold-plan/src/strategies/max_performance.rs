//! `max-performance`: the guest mirrors the host, and nothing is isolated.
//!
//! Lindroth 2017 on an i7-4790K: vcpupin 0, 4, 1, 5, 2, 6, 3, 7; emulatorpin 0-7;
//! guest topology 1×4×2. The most throughput an idle host can give; a busy host takes
//! its time from the vCPUs.
//!
//! `auto` gives as many vCPUs as PUs may be used. More is refused: a guest that
//! mirrors the host has no more CPUs than the host.

use pinfold_model::{CpuSet, Plan, Request, Topology};

use super::{Strategy, compact};
use crate::PlanError;
use crate::draft::{Draft, Limits, ground, pins, pus_text};
use crate::guest::{self, GuestSmt};
use crate::select::{Count, nearest};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "max-performance",
    summary: "the guest mirrors the host: a vCPU on every PU, the emulator anywhere, no isolation",
    source: "Lindroth 2017, i7-4790K: vcpupin 0, 4, 1, 5, 2, 6, 3, 7; emulatorpin 0-7; \
             topology 1×4×2",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let mut draft = Draft::new(STRATEGY.name, &ground, request);
    let all = ground.usable.len();
    let vcpus = draft.vcpu_count(Limits {
        auto: all,
        most: all,
        why: "the guest mirrors the host, one vCPU for each PU that may be used".to_owned(),
    })?;
    let cores = nearest(&ground.cores, vcpus, Count::Threads, None);
    let pins = pins(&cores, vcpus, Count::Threads);
    let mut before = None;
    for &pin in &pins {
        let mirrored = format!("{}; the guest mirrors it", compact::next(&ground, before, pin));
        draft.vcpu(CpuSet::single(pin), mirrored);
        before = Some(pin);
    }
    draft.emulator(
        &ground.usable,
        format!(
            "the emulator may run on {}: no PU is kept from the vCPUs, so wherever one of them is \
             idle there is room",
            pus_text(&ground.usable)
        ),
    );
    let (guest, findings) = guest::matching(&ground, &pins, GuestSmt::Mirror);
    draft.all_findings(findings);
    Ok(draft.shared(guest))
}

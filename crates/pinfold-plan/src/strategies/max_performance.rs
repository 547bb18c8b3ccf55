//! `max-performance`: the guest mirrors the host, and nothing is isolated.
//!
//! Lindroth 2017 on an i7-4790K: vcpupin 0, 4, 1, 5, 2, 6, 3, 7; emulatorpin 0-7; guest topology
//! 1×4×2. The maximum throughput of an idle host; a busy host takes its time from the vCPUs.
//!
//! `auto` gives as many vCPUs as there are usable CPUs. More are refused: a guest that mirrors the
//! host has no more CPUs than the host.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Plan, Request, Topology, Work};

use super::{Strategy, StrategyKind, TrialOrder, compact};
use crate::cores::select::Count;
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::exclusive_cores::{Spread, Terms, assign_cores};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "max-performance",
    summary: "the guest mirrors the host: a vCPU on every CPU, the emulator anywhere, no isolation",
    source: "Lindroth 2017, i7-4790K: vcpupin 0, 4, 1, 5, 2, 6, 3, 7; emulatorpin 0-7; \
             topology 1×4×2",
    kind: StrategyKind::Other,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::ImpliedByOrder,
    },
    turns: TrialOrder { fallback: Some(2), auto: Some(4), demo: Some(5), ..TrialOrder::NONE },
    is_divided: true,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let why = "the guest mirrors the host, one vCPU for each CPU that may be used".to_owned();
    let spread = Spread::Packed;
    let terms = Terms { count: Count::Threads, host: None, auto_is_all: true, spread, why };
    let enclosures = assign_cores(&builder, &available.cores, &terms)?;
    let pins = enclosures.vnodes.iter().flat_map(|exclusive_cores| &exclusive_cores.pins);
    let carried: CpuSet = pins.copied().collect();
    for (place, exclusive_cores) in enclosures.vnodes.iter().enumerate() {
        let mut vnode_builder = builder.open(place);
        let mut before = None;
        for &pin in &exclusive_cores.pins {
            let next = compact::next(&available, before, pin);
            let mirrored = match &vnode_builder.asked.work {
                Work::Vm(_) => format!("{next}; the guest mirrors it"),
                Work::Processes { .. } => next,
            };
            vnode_builder.vcpu(CpuSet::single(pin), mirrored);
            before = Some(pin);
        }
        let (around, which) = available.around(&exclusive_cores.pins, &carried);
        vnode_builder.emulator(&around, || {
            format!("the emulator may run on {}, {which}", pus_text(&around))
        });
        builder.finish_vnode(vnode_builder, GuestSmt::Mirror)?;
    }
    builder.finish_shared()
}

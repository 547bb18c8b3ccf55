//! `balanced-shared`: vCPUs on all threads of the non-host cores, the emulator on the same CPUs.
//!
//! Lindroth 2017 on an i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; emulatorpin 1-3,5-7; guest topology
//! 1×3×2. The host core is not used at all: the emulator takes its time from the vCPUs. `balanced`
//! is the same with the emulator on the host core. The source's vCPUs fill the machine. If they
//! leave other cores free, the emulator runs there, so that no vCPU waits for it.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Plan, Request, Topology};

use super::balanced::{self, Cores};
use super::{Strategy, StrategyKind, TrialOrder};
use crate::cores::select::Count;
use crate::error::PlanError;
use crate::placement::builder::{PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::choose_host_core;
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "balanced-shared",
    summary: "vCPUs on all threads of the cores that are not the host's; the emulator on \
              the rest of them, or, if none is left, on the same",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 5, 2, 6, 3, 7; emulatorpin 1-3,5-7; \
             topology 1×3×2; the host on core 0",
    kind: StrategyKind::SharedEmulator,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder::NONE,
    is_divided: true,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Threads)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = choose_host_core(&builder, Count::Threads);
    let cores = Cores { candidates: available.without(&host), host: &host, also: String::new() };
    balanced::all_threads(builder, cores, &mut |vnode_builder, pins, taken| {
        let spare = available.spare(&host, pins, taken);
        if !spare.is_empty() {
            vnode_builder.emulator(&spare, || {
                format!(
                    "the emulator runs on {}, which have no vCPU, and not on the host's core",
                    pus_text(&spare)
                )
            });
            return Ok(CpuSet::new());
        }
        let own: CpuSet = pins.iter().copied().collect();
        vnode_builder.emulator(&own, || {
            format!(
                "the emulator shares {} with its machine's vCPUs, and does not use the host's core",
                pus_text(&own)
            )
        });
        Ok(CpuSet::new())
    })
}

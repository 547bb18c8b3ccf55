//! `multi-vm`: several virtual machines without overlap, each emulator on the siblings of its own
//! machine's cores.
//!
//! A reply to Lindroth's posts (2 × 8 cores, three machines) puts the host on package 1, not on
//! core 0, so that the machines have all of package 0. Each machine stays in one L3 domain and node
//! while one has room. With one package it is `low-latency` for several machines.
//!
//! The kernel boots on CPU 0 and some of its work stays there; if that CPU carries a vCPU, a
//! finding reports this. A request that keeps CPU 0 free puts the host there.

use pinfold_model::{Plan, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder, low_latency};
use crate::cores::select::Count;
use crate::error::PlanError;
use crate::placement::builder::{PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::Spread;
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "multi-vm",
    summary: "several machines, no core shared, each emulator on its own cores' siblings; the host \
              on the last package",
    source: "the reply in Lindroth's thread, 2 × 8 cores: three machines, the host on package 1",
    kind: StrategyKind::Shape,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder { again: Some(2), check: Some(5), ..TrialOrder::NONE },
    is_divided: true,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Cores)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = available.host_on_the_last_package();
    low_latency::one_per_core(builder, &host, None, Spread::Packed)
}

//! `low-latency-rt`: as `low-latency`, with round-robin priority 1 for the machine's threads.
//!
//! Lindroth 2017: the same pins, and `SCHED_RR` priority 1, so that no ordinary task on a vCPU's
//! CPU delays it. The emulator has it too, on the siblings of its own machine's cores; if there are
//! none, it shares the host's core and keeps the ordinary policy. The host core never carries a
//! real-time thread, so the host cannot be blocked.

use pinfold_model::{Plan, Policy, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder, low_latency};
use crate::cores::select::Count;
use crate::error::PlanError;
use crate::placement::builder::{PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::{Spread, choose_host_core};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "low-latency-rt",
    summary: "as low-latency, with round-robin priority 1 on the virtual machine's threads",
    source: "Lindroth 2017, i7-4790K: as low-latency, SCHED_RR priority 1",
    kind: StrategyKind::Shape,
    rules: Rules {
        has_own_cores: true,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder::NONE,
    is_divided: true,
    plan,
};

/// The lowest real-time priority: above every ordinary task, below all other real-time tasks.
pub(super) const POLICY: Policy = Policy::RoundRobin { priority: 1 };

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Cores)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = choose_host_core(&builder, Count::Cores);
    low_latency::one_per_core(builder, &host, Some(POLICY), Spread::Nodes)
}

//! The table of strategies: one file and one row each.
//!
//! A strategy is a pure function from topology and request to a plan. It does not know the others
//! (except `auto`, which selects among them). The alternative to a strategy that refuses is chosen
//! here.

mod auto;
mod balanced;
mod balanced_shared;
mod compact;
mod compact_cores;
pub mod definition;
mod divide;
mod isolcpus;
mod l3_exclusive;
mod low_latency;
mod low_latency_rt;
mod max_performance;
mod multi_vm;
mod node_shared;
mod none;
mod numa_exclusive;
mod realtime;
mod scatter;
mod sequential;
mod vnodes;

use pinfold_model::{Plan, Request, Topology};

use crate::error::PlanError;
use crate::placement::cells::{self, Parts};
use crate::placement::rules::Rules;

/// A named placement strategy.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// Name, as used on the command line and in plans.
    pub name: &'static str,
    /// Description, as a sentence without full stop.
    pub summary: &'static str,
    /// Source of the strategy, which its golden test reproduces.
    pub source: &'static str,
    /// What it fixes, from which the costs that it has by definition follow.
    pub(crate) kind: StrategyKind,
    /// What it gives to the threads of a machine.
    pub(crate) rules: Rules,
    /// When it is tried.
    pub turns: TrialOrder,
    /// True if a machine that is larger than a node is divided evenly over several.
    is_divided: bool,
    plan: fn(&Topology, &Request) -> Result<Plan, PlanError>,
}

/// The place of a strategy among those that are tried one after the other; `None`: not tried.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TrialOrder {
    /// Instead of one that refuses.
    pub fallback: Option<u8>,
    /// By `auto`, if none of its rules has a plan without a warning.
    pub auto: Option<u8>,
    /// To make a plan with faults again.
    pub again: Option<u8>,
    /// To place a machine that is checked.
    pub check: Option<u8>,
    /// Measured by `tune --demo`.
    pub demo: Option<u8>,
}

impl TrialOrder {
    const NONE: Self = Self { fallback: None, auto: None, again: None, check: None, demo: None };
}

/// What a strategy fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StrategyKind {
    /// Nothing: the kernel chooses the CPUs.
    Floating,
    /// A part of the host, in which the kernel chooses the CPUs.
    Part,
    /// The order of the CPUs.
    Order,
    /// A core for each vCPU, or one part of the host for a machine.
    Shape,
    /// The emulator shares the vCPUs' CPUs.
    SharedEmulator,
    /// Nothing that has a cost by definition.
    Other,
}

impl StrategyKind {
    /// True if a strategy takes CPUs in a fixed order, whatever the request prefers.
    pub(crate) fn is_fixed_order(self) -> bool {
        matches!(self, StrategyKind::Floating | StrategyKind::Order)
    }
}

static TABLE: &[Strategy] = &[
    none::STRATEGY,
    node_shared::STRATEGY,
    compact::STRATEGY,
    compact_cores::STRATEGY,
    sequential::STRATEGY,
    isolcpus::STRATEGY,
    scatter::STRATEGY,
    low_latency::STRATEGY,
    low_latency_rt::STRATEGY,
    realtime::STRATEGY,
    balanced_shared::STRATEGY,
    balanced::STRATEGY,
    max_performance::STRATEGY,
    numa_exclusive::STRATEGY,
    l3_exclusive::STRATEGY,
    multi_vm::STRATEGY,
    vnodes::STRATEGY,
    auto::STRATEGY,
];

/// All strategies, the baseline first.
pub fn strategies() -> &'static [Strategy] {
    TABLE
}

/// The strategies that have a place among those that are tried, in this order.
#[must_use]
pub fn in_turn(place: fn(&TrialOrder) -> Option<u8>) -> Vec<&'static Strategy> {
    let mut tried: Vec<&Strategy> =
        TABLE.iter().filter(|known| place(&known.turns).is_some()).collect();
    tried.sort_by_key(|known| place(&known.turns));
    tried
}

/// The kind of the strategy with this name.
pub(crate) fn kind_of(name: &str) -> Option<StrategyKind> {
    TABLE.iter().find(|known| known.name == name).map(|known| known.kind)
}

/// True if a strategy gives each vCPU a core without another vCPU.
pub(crate) fn gives_own_cores(name: &str) -> bool {
    TABLE.iter().any(|known| known.name == name && known.rules.has_own_cores)
}

/// True if a strategy leaves the threads of machines to the kernel: `none`.
#[must_use]
pub fn pins_nothing(name: &str) -> bool {
    kind_of(name) == Some(StrategyKind::Floating)
}

/// True if a plan gives CPUs to threads, by its strategy or by hand.
#[must_use]
pub fn has_pins(plan: &Plan) -> bool {
    !pins_nothing(&plan.strategy) || plan.threads().any(|(_, thread)| thread.is_manual())
}

/// The plan of one strategy, cell by cell if the request fixes the guest's NUMA cells.
pub(crate) fn make_plan(
    strategy: &Strategy,
    topology: &Topology,
    request: &Request,
) -> Result<Plan, PlanError> {
    if !cells::are_fixed(request) {
        return divide::plan_divided(strategy, topology, request);
    }
    let parts = Parts::new(topology, request)?;
    let plans = parts.plan_groups(|part| (strategy.plan)(topology, part))?;
    let mut names: Vec<&str> = plans.iter().map(|plan| plan.strategy.as_str()).collect();
    names.dedup();
    let [_, _, ..] = names.as_slice() else {
        return parts.merge_plans(&plans);
    };
    // `auto` chose different strategies for the cells: use the first of them that fits all cells.
    let picks = TABLE.iter().filter(|known| names.contains(&known.name));
    let mut last = None;
    for pick in picks {
        let made = parts.plan_groups(|part| (pick.plan)(topology, part));
        match made.and_then(|plans| parts.merge_plans(&plans)) {
            Ok(mut plan) => {
                plan.findings.insert(0, cells::fits_each_cell(pick.name));
                return Ok(plan);
            }
            Err(error) => last = Some(error),
        }
    }
    last.map_or_else(|| parts.merge_plans(&plans), Err)
}

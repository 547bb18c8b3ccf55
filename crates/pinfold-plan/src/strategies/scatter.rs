//! `scatter`: round-robin over packages, NUMA nodes, L3 and L2 domains and cores.
//!
//! Each vCPU is put into the least used part of the machine, level by level, so that every number
//! of vCPUs has as much cache and memory bandwidth as possible, and siblings carry a second vCPU
//! last. The reference is `hwloc-distrib`: on regular machines every package, node, L3 domain and
//! core gets the same number of vCPUs as there. The vCPUs of a vnode are numbered in hwloc's order,
//! as `hwloc-distrib` prints them, so that the guest's sockets and threads match the host's.
//!
//! `auto` gives as many vCPUs as there are usable cores: one each.

use std::collections::BTreeMap;

use pinfold_model::{Plan, PuId, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::cores::available::AvailableCpus;
use crate::cores::available_core::AvailableCore;
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::linear::{self, Line};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "scatter",
    summary: "vCPUs as far apart as possible: round-robin over packages, nodes, L3 domains, cores; wraps",
    source: "hwloc-distrib: as many vCPUs for each package, node, L3 domain and core",
    kind: StrategyKind::Order,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::ImpliedByOrder,
    },
    turns: TrialOrder { auto: Some(7), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let order = scatter(&available);
    let rank: BTreeMap<PuId, usize> =
        available.order().into_iter().enumerate().map(|(rank, pu)| (pu, rank)).collect();
    let line = Line {
        order: &order,
        stays_on_one_kind: true,
        smt: GuestSmt::Mirror,
        sorted: Some(&rank),
        why: &next,
        emulator: None,
    };
    linear::place_in_order(&mut builder, &line)?;
    builder.finish_shared()
}

fn next(available: &AvailableCpus<'_>, _: Option<PuId>, pin: PuId) -> String {
    let first = available.available_core(pin).and_then(|core| core.pus.first()) == Some(&pin);
    let core = if first {
        "a core without a vCPU"
    } else {
        "a core that already has a vCPU, like \
                                                            all cores"
    };
    format!(
        "CPU {pin} is on {core}, in the emptiest part of the machine ({})",
        available.place(pin)
    )
}

/// Package, node, L3 and L2 domain of a part of the machine; 0 for a part that is larger than one.
type Part = [u32; 4];

/// From L2 domains to L3 domains, nodes, packages and the machine; a core without a shared level-2
/// cache is a separate domain.
const PARTS: [fn(&AvailableCore) -> Part; 5] = [
    |core| {
        let alone = u32::MAX - u32::try_from(core.id.index()).unwrap_or(0);
        let [package, node, l3, _] = within_l3(core);
        [package, node, l3, core.l2.map_or(alone, |l2| 1 + l2)]
    },
    within_l3,
    |core| [1 + core.package.0, id(core.node.map(|node| node.0)), 0, 0],
    |core| [1 + core.package.0, 0, 0, 0],
    |_| [0; 4],
];

fn within_l3(core: &AvailableCore) -> Part {
    [1 + core.package.0, id(core.node.map(|node| node.0)), id(core.l3.map(|l3| l3.0)), 0]
}

/// The CPUs in an order of which each prefix is distributed as evenly as possible at every level:
/// each level merges the orders of the level below, with each part's CPUs at even distances.
fn scatter(available: &AvailableCpus<'_>) -> Vec<PuId> {
    let mut parts: Vec<(&AvailableCore, Vec<PuId>)> =
        available.cores.iter().map(|core| (core, core.pus.clone())).collect();
    for part in PARTS {
        let mut places: BTreeMap<Part, usize> = BTreeMap::new();
        let mut merged: Vec<(&AvailableCore, Vec<Vec<PuId>>)> = Vec::new();
        for (core, pus) in parts {
            let place = *places.entry(part(core)).or_insert_with(|| {
                merged.push((core, Vec::new()));
                merged.len() - 1
            });
            if let Some((_, orders)) = merged.get_mut(place) {
                orders.push(pus);
            }
        }
        parts = merged.into_iter().map(|(core, orders)| (core, interleave(orders))).collect();
    }
    parts.into_iter().flat_map(|(_, pus)| pus).collect()
}

fn id(number: Option<u32>) -> u32 {
    number.map_or(0, |number| number + 1)
}

/// Merges orders so that after each step every order has been used in proportion.
fn interleave(orders: Vec<Vec<PuId>>) -> Vec<PuId> {
    let mut keyed: Vec<(usize, usize, usize, PuId)> = Vec::new();
    let longest = orders.iter().map(Vec::len).max().unwrap_or(1);
    for (child, order) in orders.into_iter().enumerate() {
        let length = order.len();
        for (turn, pu) in order.into_iter().enumerate() {
            // turn / length, scaled to integers that preserve the order of fractions of different
            // lengths.
            keyed.push((turn * longest * longest / length, child, turn, pu));
        }
    }
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, _, _, pu)| pu).collect()
}

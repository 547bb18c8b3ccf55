//! `compact`: vCPU i on CPU i of hwloc's order, siblings first, starting again at the end.
//!
//! hwloc's order fills the siblings of a core, then the cores of a package, then the packages of a
//! node, then the nodes. The 4-node R910 of Badaroux 2021 §III numbers its CPUs round-robin over
//! the packages; there the order is 0, 16, 4, 20, 8, 24, 12, 28, 1, 17, … and the 33rd vCPU is on
//! CPU 0 again. The source pins vCPUs only; the emulator floats. The next vnode continues where the
//! last one ended.
//!
//! `auto` gives as many vCPUs as there are usable CPUs: one round.

use pinfold_model::{Plan, PuId, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::cores::available::AvailableCpus;
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::linear::{self, Line};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "compact",
    summary: "vCPUs on neighbouring CPUs: SMT siblings first, then cores, packages, nodes; wraps",
    source: "Badaroux 2021 §III: on the 4-node R910 0, 16, 4, 20, 8, 24, 12, 28, 1, 17, …; \
             the 33rd vCPU is on CPU 0 again",
    kind: StrategyKind::Order,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::ImpliedByOrder,
    },
    turns: TrialOrder {
        fallback: Some(3),
        auto: Some(6),
        check: Some(7),
        demo: Some(1),
        ..TrialOrder::NONE
    },
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let order = available.order();
    let line = Line {
        order: &order,
        stays_on_one_kind: true,
        smt: GuestSmt::Mirror,
        sorted: None,
        why: &next,
        emulator: None,
    };
    linear::place_in_order(&mut builder, &line)?;
    builder.finish_shared()
}

/// Why `pin` comes after `before` in hwloc's order.
pub(super) fn next(available: &AvailableCpus<'_>, before: Option<PuId>, pin: PuId) -> String {
    let place = available.place(pin);
    let pair = before.and_then(|before| Some((before, available.pu(before)?, available.pu(pin)?)));
    match pair {
        None => format!("CPU {pin} is the first in hwloc's order ({place})"),
        Some((before, last, this)) if last.core == this.core => {
            format!("CPU {pin} is a sibling of CPU {before}, and siblings come first ({place})")
        }
        Some((_, last, this)) if last.package == this.package && last.node == this.node => {
            format!("CPU {pin} is on the next core of package {} ({place})", this.package)
        }
        Some((_, last, this)) if last.package == this.package => {
            format!("CPU {pin} is on the next node of package {} ({place})", this.package)
        }
        Some((_, last, _)) => {
            format!(
                "CPU {pin} is on the next package, because package {} is full ({place})",
                last.package
            )
        }
    }
}

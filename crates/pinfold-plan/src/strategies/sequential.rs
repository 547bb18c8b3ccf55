//! `sequential`: vCPU i on the i-th CPU by OS index, starting again at the end.
//!
//! This is what a script does that knows only the number of CPUs: Badaroux 2021 §III has it as `i
//! mod n` ("sequential modulo 16" without SMT). Its effect depends on how the machine numbers its
//! CPUs: on the R910 consecutive numbers are on different packages. Offline CPUs, CPUs outside the
//! cpuset and avoided CPUs are left out, so n is the number of usable CPUs.
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
    name: "sequential",
    summary: "vCPU i on the i-th CPU by OS index, regardless of siblings and caches; wraps",
    source: "Badaroux 2021 §III: 0, 1, 2, … modulo the number of CPUs",
    kind: StrategyKind::Order,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::ImpliedByOrder,
    },
    turns: TrialOrder { auto: Some(8), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let order: Vec<PuId> = available.usable.iter().collect();
    let line = Line {
        order: &order,
        stays_on_one_kind: false,
        smt: GuestSmt::Mirror,
        sorted: None,
        why: &next,
        emulator: None,
    };
    linear::place_in_order(&mut builder, &line)?;
    builder.finish_shared()
}

fn next(available: &AvailableCpus<'_>, before: Option<PuId>, pin: PuId) -> String {
    let place = available.place(pin);
    match before {
        None => format!("CPU {pin} has the lowest OS index that may be used ({place})"),
        Some(before) => format!("CPU {pin} has the next OS index after {before} ({place})"),
    }
}

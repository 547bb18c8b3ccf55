//! `isolcpus`: core 0 with all its threads for the host, the rest in the order of `compact`.
//!
//! The variant of Badaroux 2021 §III and V.D: the R910 booted with `isolcpus=1-15,17-31`, so that
//! 30 CPUs remain. After these the order starts again, so that with multiples of 30 threads each
//! CPU carries the same number of vCPUs. The kernel moves none of them to another CPU, because
//! isolated CPUs have no load balancing. The emulator stays with the host, where the kernel starts
//! it.
//!
//! Without the boot parameters `--isolate host` excludes the movable tasks from the same CPUs; a
//! finding names the parameters that also exclude tasks that cannot be moved.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Finding, Plan, PuId, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder, compact};
use crate::cores::available::AvailableCpus;
use crate::cores::boot::{self, isolation_parameters};
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::linear::{self, Line};
use crate::placement::rules::{Isolated, Rules};
use crate::placement::vnode_builder::Reserve;
use crate::text::verb;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "isolcpus",
    summary: "the host on core 0, vCPUs on all other CPUs in the order of compact; wraps",
    source: "Badaroux 2021 §III, V.D: on the R910 isolcpus=1-15,17-31, so 4, 20, 8, 24, 12, 28, \
             1, 17, …; the 31st vCPU is on CPU 4 again",
    kind: StrategyKind::Order,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder::NONE,
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = available.boot_host();
    let mut cores = available.without(&host);
    cores.sort_by_key(|core| !core.isolated);
    let order: Vec<PuId> = cores.iter().flat_map(|core| core.pus.iter().copied()).collect();
    if order.is_empty() {
        return Err(PlanError::TooFewPus {
            strategy: STRATEGY.name.to_owned(),
            usable: available.usable.clone(),
            why: format!(
                "{} with the host, and there is no other core",
                host.with_verb("stays", "stay")
            ),
            nearest: None,
        });
    }
    let emulator = format!(
        "the emulator runs on {} of the host's {}: the kernel starts every task there and does not \
         move tasks to isolated CPUs",
        pus_text(&host.pus),
        host.name()
    );
    let line = Line {
        order: &order,
        stays_on_one_kind: true,
        smt: GuestSmt::Mirror,
        sorted: None,
        why: &compact::next,
        emulator: Some((&host.pus, emulator)),
    };
    linear::place_in_order(&mut builder, &line)?;
    let exclusive: CpuSet = order.into_iter().collect();
    builder.defer_finding(|ended| boot_isolation_finding(&available, ended.exclusive));
    let reason = available.host_reason(&host, &exclusive);
    builder.finish_isolated(Reserve { exclusive, reason })
}

/// A finding about CPUs that were not isolated at boot, with the parameters that isolate all of
/// them.
pub(super) fn boot_isolation_finding(
    available: &AvailableCpus<'_>,
    exclusive: &CpuSet,
) -> Option<Finding> {
    let missing = exclusive.difference(&available.topology.isolated);
    let text = format!(
        "{} {} not isolated at boot: kernel threads and timers that cannot be moved may still run \
         there",
        pus_text(&missing),
        verb(&missing, "is", "are")
    );
    let all = exclusive.union(&boot::possible_siblings(exclusive, available.topology));
    let mut line = isolation_parameters(&all);
    line.push(format!("irqaffinity={}", available.hostable.difference(exclusive)));
    let old = boot::describe_replaced_parameters(&line, &available.topology.boot_parameters);
    let hint = format!("boot with {}{old}", line.join(" "));
    (!missing.is_empty()).then(|| Finding::note("isolcpus", text).with_hint(hint))
}

//! `numa-exclusive`: each machine inside one NUMA node, its memory bound there.
//!
//! Kuehn & Baum: this avoids the cost of a neighbour on the same node. No node is shared while
//! another one is free. The host keeps the boot core, and its node is used last. On two Xeon 5540
//! with one machine of automatic size, the machine gets the whole second package.
//!
//! A node without memory is used last too; one without CPUs cannot carry vCPUs. `auto` gives all
//! CPUs of a node's fastest cores, or a share of them if vnodes share nodes.

use pinfold_model::{Plan, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::error::PlanError;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::domains::{Kind, plan_inside};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "numa-exclusive",
    summary: "each machine inside one NUMA node with its memory; no node is shared while another \
              is free",
    source: "Kuehn & Baum; and the question in Lindroth's thread: on two Xeon 5540 one package for \
             the machine",
    kind: StrategyKind::Shape,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder { auto: Some(2), check: Some(4), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let of = |core: &crate::cores::available_core::AvailableCore| core.node.map(|node| node.0);
    let of_host = |host: &crate::cores::host_share::HostShare| host.node.map(|node| node.0);
    plan_inside(builder, &Kind { noun: "node", of, of_host, binds_memory: true })
}

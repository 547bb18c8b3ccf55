//! `l3-exclusive`: each machine inside one L3 domain (a core complex, a cluster).
//!
//! As `numa-exclusive`, but by L3: no cache line of a vnode's memory moves between L3 caches, and
//! no neighbour evicts its lines while another domain is free. The host keeps the boot core, and
//! its L3 domain is used last. If L3 domains are of unequal size (one has a stacked cache), hwloc's
//! order decides; devices and memory may request a node.
//!
//! If the topology has no level-3 cache but cores share level-2 caches (clusters), those are used.
//!
//! `auto` gives all CPUs of the fastest cores of a domain, or a share of them if vnodes share
//! domains.

use pinfold_model::{Plan, Request, Topology};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::error::PlanError;
use crate::placement::builder::{PlanBuilder, available};
use crate::placement::domains::{Kind, plan_inside};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "l3-exclusive",
    summary: "each machine inside one L3 domain (core complex, cluster); none is shared while \
              another is free",
    source: "as numa-exclusive, by cache",
    kind: StrategyKind::Shape,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder { auto: Some(3), check: Some(3), ..TrialOrder::NONE },
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let kind = match (topology.l3.as_slice(), topology.l2_domains.as_slice()) {
        ([], [_, ..]) => Kind {
            noun: "L2 domain",
            of: |core| core.l2,
            of_host: |host| host.l2,
            binds_memory: false,
        },
        _ => Kind {
            noun: "L3 domain",
            of: |core| core.l3.map(|l3| l3.0),
            of_host: |host| host.l3.map(|l3| l3.0),
            binds_memory: false,
        },
    };
    plan_inside(builder, &kind)
}

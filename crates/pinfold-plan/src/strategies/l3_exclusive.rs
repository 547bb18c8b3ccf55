//! `l3-exclusive`: each vnode inside one L3 domain (a core complex, a cluster).
//!
//! As `numa-exclusive` by L3: no line of a vnode's memory goes from one cache to another, and
//! no neighbour evicts its lines while a domain is free. The host keeps the core on which the
//! kernel boots, and its L3 domain is taken last. Where L3 domains are of unequal size
//! (a stacked cache on one of them) hwloc's order decides; devices and memory may ask for a node.
//!
//! `auto` gives all PUs of a domain, or their part where vnodes share domains.

use pinfold_model::{Plan, Request, Topology};

use super::Strategy;
use crate::PlanError;
use crate::domains::{Kind, inside};
use crate::draft::{Draft, ground};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "l3-exclusive",
    summary: "each vnode inside one L3 domain (core complex, cluster); none shared while one is free",
    source: "as numa-exclusive, by cache",
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let ground = ground(topology, request)?;
    let draft = Draft::new(STRATEGY.name, &ground, request)?;
    let of = |spot: &crate::ground::Spot| spot.l3.map(|l3| l3.0);
    inside(draft, &Kind { noun: "L3 domain", of, binds_memory: false })
}

//! `node-shared`: each machine floats inside one NUMA node, the machines evenly over the nodes.
//!
//! For hosts with more vCPUs than CPUs. The kernel's scheduler knows better than a plan which CPUs
//! are busy, so no vCPU is pinned. But a machine that floats over several nodes leaves its memory
//! behind each time it crosses them; inside one node its memory stays near. The largest machine
//! chooses first, and each takes the node with the fewest vCPUs for its CPUs, counting those of
//! other machines that the request reports (their load instead, where it is known).
//!
//! Nothing is exclusive, and memory is preferred on the node, not bound: a full node costs speed,
//! not the machine. If the request prefers cache, a machine that fits into one level-3 cache floats
//! inside that. A machine with more vCPUs than a node has CPUs floats over as few nodes as it needs.

use std::cmp::Reverse;

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, NodeId, Plan, Preference, Request, Topology, VnodeRequest};

use super::{Strategy, StrategyKind, Turns};
use crate::cores::available::AvailableCpus;
use crate::cores::request_check::nodes_of;
use crate::error::PlanError;
use crate::guest::topology as guest;
use crate::placement::builder::{Limits, PlanBuilder, available};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "node-shared",
    summary: "each machine floats inside one NUMA node, all of them evenly over the nodes; for \
              more vCPUs than CPUs",
    source: "60 machines of 8 vCPUs on 256 CPUs in 8 nodes: 7 or 8 machines on each",
    kind: StrategyKind::Part,
    turns: Turns::NONE,
    is_divided: false,
    plan,
};

/// A part of the host in which machines float.
struct Room {
    /// The part in messages: `node 1`, `L3 4 on node 1`.
    name: String,
    node: NodeId,
    cpus: CpuSet,
    /// Thousandths of vCPUs.
    load: u64,
}

/// The parts of the host, with the load on them.
struct Rooms {
    nodes: Vec<Room>,
    /// Level-3 caches, if the request prefers them.
    caches: Vec<Room>,
}

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, &available, request)?;
    let counts = builder.counts(Limits::wrapping(available.floating().len()))?;
    let mut rooms = Rooms::new(&available, request);
    let mut order = builder.choosing_order();
    order.sort_by_key(|place| {
        (Reverse(builder.vnode(*place).priority), Reverse(counts.get(*place).copied()))
    });
    for place in order {
        let vcpus = counts.get(place).copied().unwrap_or(0);
        let (name, cpus) = rooms.choose(&available, builder.vnode(place), vcpus);
        rooms.add(&cpus, vcpus as u64 * 1000);
        let all = pus_text(&cpus);
        let mut vnode_builder = builder.open(place);
        for index in 0..vcpus {
            let reason = format!(
                "vCPU {index} floats over {all} ({name}), where there were the fewest vCPUs for \
                 the CPUs"
            );
            vnode_builder.vcpu(cpus.clone(), reason);
        }
        vnode_builder
            .emulator(&cpus, || format!("the emulator floats over {all} ({name}), as the vCPUs"));
        let reason = "one socket without SMT, because a floating vCPU has no siblings";
        builder.close_as(vnode_builder, guest::flat(vcpus, reason))?;
    }
    builder.shared()
}

impl Rooms {
    fn new(available: &AvailableCpus<'_>, request: &Request) -> Self {
        let nodes = nodes(available);
        let wants_cache = request.prefer == Preference::Cache;
        let caches = if wants_cache { caches(available, &nodes) } else { Vec::new() };
        let mut rooms = Self { nodes, caches };
        request.load.iter().for_each(|one| rooms.add(&one.cpus, one.vcpus_milli.into()));
        rooms
    }

    /// Adds vCPUs that float over some CPUs, in thousandths.
    fn add(&mut self, cpus: &CpuSet, vcpus_milli: u64) {
        let all = cpus.len().max(1) as u64;
        for room in self.nodes.iter_mut().chain(&mut self.caches) {
            room.load += vcpus_milli * room.cpus.intersection(cpus).len() as u64 / all;
        }
    }

    /// The name and the CPUs of the part for a machine: the least loaded cache or node, or as few
    /// nodes as have a CPU for each vCPU.
    fn choose(
        &self,
        available: &AvailableCpus<'_>,
        asked: &VnodeRequest,
        vcpus: usize,
    ) -> (String, CpuSet) {
        let near = nodes_of(available.topology, asked);
        let rank = |room: &Room| {
            let is_far = !near.is_empty() && !near.contains(&room.node);
            let load = (room.load + vcpus as u64 * 1000) / room.cpus.len().max(1) as u64;
            (is_far, lacks_memory(available, room.node, asked), load)
        };
        let holds = |room: &&Room| room.cpus.len() >= vcpus;
        let cache = self.caches.iter().filter(holds).min_by_key(|room| rank(room));
        let node = || self.nodes.iter().filter(holds).min_by_key(|room| rank(room));
        if let Some(room) = cache.or_else(node) {
            return (room.name.clone(), room.cpus.clone());
        }
        let mut order: Vec<&Room> = self.nodes.iter().collect();
        order.sort_by_key(|room| rank(room));
        let (mut names, mut cpus) = (Vec::new(), CpuSet::new());
        for room in order {
            if cpus.len() < vcpus {
                names.push(room.name.as_str());
                cpus.add(&room.cpus);
            }
        }
        (names.join(" and "), cpus)
    }
}

/// The nodes with CPUs for floating threads; those without memory only if there are no others. One
/// room with all CPUs if the host has no nodes.
fn nodes(available: &AvailableCpus<'_>) -> Vec<Room> {
    let floating = available.floating();
    let tables = available.topology.nodes.iter();
    let tables = tables.filter(|node| !node.pus.is_disjoint(&floating));
    let with_memory = tables.clone().any(|node| node.memory_bytes > 0);
    let tables = tables.filter(|node| !with_memory || node.memory_bytes > 0);
    let rooms: Vec<Room> = tables
        .map(|node| Room {
            name: format!("node {}", node.id),
            node: node.id,
            cpus: node.pus.intersection(&floating),
            load: 0,
        })
        .collect();
    if rooms.is_empty() {
        let name = "the whole host".to_owned();
        return vec![Room { name, node: NodeId(0), cpus: floating, load: 0 }];
    }
    rooms
}

/// The level-3 caches of the nodes.
fn caches(available: &AvailableCpus<'_>, nodes: &[Room]) -> Vec<Room> {
    let parts = nodes.iter().flat_map(|room| {
        let inside = available.topology.l3.iter().filter_map(move |l3| {
            let cpus = l3.pus.intersection(&room.cpus);
            let name = format!("L3 {} on {}", l3.id, room.name);
            (!cpus.is_empty()).then_some(Room { name, node: room.node, cpus, load: 0 })
        });
        inside
    });
    parts.collect()
}

/// True if the free memory of a node is known and less than a machine needs.
fn lacks_memory(available: &AvailableCpus<'_>, node: NodeId, asked: &VnodeRequest) -> bool {
    let known = available.topology.nodes.iter().find(|known| known.id == node);
    let (Some(known), Some(memory)) = (known, asked.memory) else { return false };
    known.memory_bytes > 0 && known.free_bytes.unwrap_or(known.memory_bytes) < memory.bytes
}

/// True if floating inside a node is less than floating everywhere: there are several nodes, and
/// the largest machine fits into one of them.
pub(super) fn is_useful(available: &AvailableCpus<'_>, largest: usize) -> bool {
    let nodes = nodes(available);
    nodes.len() > 1 && nodes.iter().any(|room| room.cpus.len() >= largest)
}

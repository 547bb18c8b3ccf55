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

use super::{Strategy, StrategyKind, TrialOrder};
use crate::cores::available::AvailableCpus;
use crate::cores::request_check::nodes_of;
use crate::error::PlanError;
use crate::guest::topology as guest;
use crate::placement::builder::{Limits, PlanBuilder, available};
use crate::placement::rules::{Isolated, Rules};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "node-shared",
    summary: "each machine floats inside one NUMA node, all of them evenly over the nodes; for \
              more vCPUs than CPUs",
    source: "60 machines of 8 vCPUs on 256 CPUs in 8 nodes: 7 or 8 machines on each",
    kind: StrategyKind::Part,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder::NONE,
    is_divided: false,
    plan,
};

/// A part of the host in which machines float.
struct FreeResources {
    /// The part in messages: `node 1`, `L3 4 on node 1`.
    name: String,
    node: NodeId,
    cpus: CpuSet,
    /// The number of CPUs.
    size: u64,
    /// The free memory of the node, if it is known.
    free_bytes: Option<u64>,
    /// Thousandths of vCPUs.
    load: u64,
}

/// The parts of the host, with the load on them.
struct NodeLoads {
    nodes: Vec<FreeResources>,
    /// Level-3 caches, if the request prefers them.
    caches: Vec<FreeResources>,
}

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = available(topology, request)?;
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let counts = builder.counts(Limits::wrapping(available.floating().len()))?;
    let mut rooms = NodeLoads::new(&available, request);
    let mut order = builder.choosing_order();
    order.sort_by_key(|place| {
        (Reverse(builder.vnode(*place).priority), Reverse(counts.get(*place).copied()))
    });
    for place in order {
        let vcpus = counts.get(place).copied().unwrap_or(0);
        let (name, cpus) = rooms.take(topology, builder.vnode(place), vcpus as u64);
        let all = pus_text(&cpus);
        let mut vnode_builder = builder.open(place);
        vnode_builder.prefers_memory = true;
        for index in 0..vcpus {
            let reason = format!(
                "vCPU {index} floats over {all} ({name}), which had the least load for its CPUs"
            );
            vnode_builder.vcpu(cpus.clone(), reason);
        }
        vnode_builder
            .emulator(&cpus, || format!("the emulator floats over {all} ({name}), as the vCPUs"));
        let reason = "one socket without SMT, because a floating vCPU has no siblings";
        builder.finish_vnode_with(vnode_builder, guest::flat(vcpus, reason))?;
    }
    builder.finish_shared()
}

impl NodeLoads {
    fn new(available: &AvailableCpus<'_>, request: &Request) -> Self {
        let nodes = nodes(available);
        let wants_cache = request.prefer == Preference::Cache;
        let caches = if wants_cache { caches(available, &nodes) } else { Vec::new() };
        let mut rooms = Self { nodes, caches };
        for one in &request.load {
            let all = one.cpus.len().max(1) as u64;
            for room in rooms.nodes.iter_mut().chain(&mut rooms.caches) {
                let inside = room.cpus.intersection(&one.cpus).len() as u64;
                room.load += u64::from(one.vcpus_milli) * inside / all;
            }
        }
        rooms
    }

    /// Takes the part for a machine: the least loaded cache or node, or as few nodes as have a CPU
    /// for each vCPU. Returns its name and its CPUs.
    fn take(&mut self, topology: &Topology, asked: &VnodeRequest, vcpus: u64) -> (String, CpuSet) {
        let near = nodes_of(topology, asked);
        let least = |rooms: &[FreeResources]| {
            let fitting = rooms.iter().enumerate().filter(|(_, room)| room.size >= vcpus);
            let best = fitting.min_by_key(|(_, room)| room.rank(&near, asked, vcpus));
            best.map(|(place, _)| place)
        };
        if let Some(cache) = least(&self.caches) {
            let room = &mut self.caches[cache];
            room.load += vcpus * 1000;
            let node = room.node;
            let nodes = self.nodes.iter_mut().filter(|known| known.node == node);
            nodes.for_each(|known| known.load += vcpus * 1000);
            let room = &self.caches[cache];
            return (room.name.clone(), room.cpus.clone());
        }
        let mut chosen = match least(&self.nodes) {
            Some(node) => vec![node],
            None => (0..self.nodes.len()).collect(),
        };
        chosen.sort_by_key(|place| self.nodes[*place].rank(&near, asked, vcpus));
        let mut size = 0;
        chosen.retain(|place| {
            let is_needed = size < vcpus;
            size += if is_needed { self.nodes[*place].size } else { 0 };
            is_needed
        });
        let (mut names, mut cpus) = (Vec::new(), CpuSet::new());
        for place in chosen {
            let room = &mut self.nodes[place];
            let share = vcpus * 1000 * room.size / size.max(1);
            room.load += share;
            for cache in self.caches.iter_mut().filter(|cache| cache.node == room.node) {
                cache.load += share * cache.size / room.size;
            }
            names.push(room.name.clone());
            cpus.add(&room.cpus);
        }
        (names.join(" and "), cpus)
    }
}

impl FreeResources {
    fn new(name: String, node: NodeId, cpus: CpuSet, free_bytes: Option<u64>) -> Self {
        let size = cpus.len() as u64;
        Self { name, node, cpus, size, free_bytes, load: 0 }
    }

    /// The smallest is the best for a machine: near its devices, with enough free memory, with the
    /// fewest vCPUs for its CPUs.
    fn rank(&self, near: &[NodeId], asked: &VnodeRequest, vcpus: u64) -> (bool, bool, u64) {
        let is_far = !near.is_empty() && !near.contains(&self.node);
        let needed = asked.memory.map_or(0, |memory| memory.bytes);
        let lacks_memory = self.free_bytes.is_some_and(|free| free < needed);
        (is_far, lacks_memory, (self.load + vcpus * 1000) / self.size.max(1))
    }
}

/// The nodes with CPUs for floating threads; those without memory only if there are no others. One
/// room with all CPUs if the host has no nodes.
fn nodes(available: &AvailableCpus<'_>) -> Vec<FreeResources> {
    let floating = available.floating();
    let tables = available.topology.nodes.iter();
    let tables = tables.filter(|node| !node.pus.is_disjoint(&floating));
    let with_memory = tables.clone().any(|node| node.memory_bytes > 0);
    let tables = tables.filter(|node| !with_memory || node.memory_bytes > 0);
    let rooms: Vec<FreeResources> = tables
        .map(|node| {
            let known = (node.memory_bytes > 0).then_some(node.memory_bytes);
            let (name, cpus) = (format!("node {}", node.id), node.pus.intersection(&floating));
            FreeResources::new(name, node.id, cpus, node.free_bytes.or(known))
        })
        .collect();
    if rooms.is_empty() {
        return vec![FreeResources::new("the whole host".to_owned(), NodeId(0), floating, None)];
    }
    rooms
}

/// The level-3 caches of the nodes.
fn caches(available: &AvailableCpus<'_>, nodes: &[FreeResources]) -> Vec<FreeResources> {
    let mut found = Vec::new();
    for l3 in &available.topology.l3 {
        for room in nodes.iter().filter(|room| !room.cpus.is_disjoint(&l3.pus)) {
            let name = format!("L3 {} on {}", l3.id, room.name);
            let cpus = room.cpus.intersection(&l3.pus);
            found.push(FreeResources::new(name, room.node, cpus, room.free_bytes));
        }
    }
    found
}

/// True if floating inside a node is less than floating everywhere: there are several nodes, and
/// the largest machine fits into one of them.
pub(super) fn is_useful(available: &AvailableCpus<'_>, largest: usize) -> bool {
    let nodes = nodes(available);
    nodes.len() > 1 && nodes.iter().any(|room| room.size >= largest as u64)
}

//! The NUMA nodes for a machine whose CPUs and memory another program binds to whole nodes, such
//! as libvirt for `placement='auto'`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, NodeId, NumaNode, Topology};

use crate::error::whole_mib;
use crate::guest::numa::node_list;
use crate::text::mib;

/// Most nodes of which all sets are compared; with more, each set begins at one node and takes the
/// nearest ones.
const MOST_COMPARED: usize = 10;
/// The part of its memory that a machine needs in addition, for page tables and for QEMU itself.
const EXTRA: u64 = 16;

/// What a machine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDemand {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Memory in bytes; 0 if it is not known.
    pub memory_bytes: u64,
    /// Size of its huge pages in bytes; `None` for ordinary memory.
    pub page_bytes: Option<u64>,
}

/// Distances between nodes: (from, to) → distance, 10 for a node to itself.
pub type NodeDistances = BTreeMap<(NodeId, NodeId), u32>;

/// What is known about the nodes in addition to their topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// CPUs that others have exclusively.
    pub exclusive: CpuSet,
    /// CPUs that others use too.
    pub shared: CpuSet,
    /// CPUs on which the kernel does not distribute threads (`isolcpus`), or allows none of others
    /// (partitions, and what is outside the cpuset of machines).
    pub unbalanced: CpuSet,
    /// Nodes whose memory the cpuset of machines excludes.
    pub without_memory: BTreeSet<NodeId>,
    /// Distances as the firmware reports them. Missing ones are 10, 12 inside a package, 20 else.
    pub distances: NodeDistances,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAdvice {
    /// The nodes, ascending; never empty.
    pub nodes: Vec<NodeId>,
    /// True if they have the memory and a free CPU for each vCPU.
    pub is_fitting: bool,
    /// The reason, in one line.
    pub reason: String,
}

impl NodeAdvice {
    /// The nodes as a set, for its text form (`0-1,3`).
    pub fn node_set(&self) -> CpuSet {
        node_list(&self.nodes)
    }
}

/// The free resources of some nodes.
#[derive(Clone, Copy, Debug, Default)]
struct FreeResources {
    cpus: usize,
    // Those of others too.
    all_cpus: usize,
    unshared_cpus: usize,
    isolated_cpus: usize,
    free_bytes: u64,
}

/// Selects the fewest and nearest nodes that have the memory and a free CPU for each vCPU. Memory
/// comes first: it is bound to the answer, and a machine that cannot get it does not start. If not
/// even all nodes have it, the answer is all of them. Isolated CPUs of the answer are in its reason.
pub fn advise_nodes(topology: &Topology, state: &NodeState, demand: NodeDemand) -> NodeAdvice {
    if topology.nodes.is_empty() {
        let reason = "this host reports no nodes, so all of it is node 0".to_owned();
        return NodeAdvice { nodes: vec![NodeId(0)], is_fitting: false, reason };
    }
    let advice = select_nodes(topology, state, demand);
    let chosen = topology.nodes.iter().filter(|node| advice.nodes.contains(&node.id));
    let isolated = chosen
        .fold(CpuSet::new(), |all, node| all.union(&node.pus.intersection(&state.unbalanced)));
    if isolated.is_empty() {
        return advice;
    }
    let reason = format!("{}; isolated CPUs do not count ({isolated})", advice.reason);
    NodeAdvice { reason, ..advice }
}

/// An answer for a machine of which only one of several demands is known to be true: the nodes for
/// all of them together, so that the memory is there in any case. `None` without a demand.
pub fn advise_for_each(
    topology: &Topology,
    state: &NodeState,
    demands: &[NodeDemand],
) -> Option<NodeAdvice> {
    let answers = demands.iter().map(|demand| advise_nodes(topology, state, *demand));
    answers.reduce(|first, next| {
        let mut nodes = [first.nodes, next.nodes].concat();
        nodes.sort_unstable();
        nodes.dedup();
        NodeAdvice {
            nodes,
            is_fitting: first.is_fitting && next.is_fitting,
            reason: format!("{}; or {}", first.reason, next.reason),
        }
    })
}

fn select_nodes(topology: &Topology, state: &NodeState, demand: NodeDemand) -> NodeAdvice {
    let nodes = &topology.nodes;
    let compared: Vec<Vec<&NumaNode>> = sets(topology, state);
    let fitting = best(
        &compared,
        topology,
        state,
        |room| room.cpus >= demand.vcpus as usize && holds(demand, room),
        demand,
    );
    if let Some(chosen) = fitting {
        let room = room(&chosen, state, demand);
        let reason = format!(
            "{} {} {} and {} free for {}{}",
            name(&chosen),
            if chosen.len() == 1 { "has" } else { "have" },
            count_noun(room.cpus, "CPU"),
            mib(whole_mib(room.free_bytes)),
            needs(demand),
            if chosen.len() == 1 { "" } else { "; no single node has" },
        );
        return NodeAdvice { nodes: ids(&chosen), is_fitting: true, reason };
    }
    // Not enough CPUs are free: one for each vCPU that others use too, as far as there are so many.
    let all: Vec<&NumaNode> = nodes.iter().collect();
    let most = room(&all, state, demand).all_cpus.min(demand.vcpus as usize);
    let has_room = |room: FreeResources| room.all_cpus >= most && holds(demand, room);
    let with_memory = best(&compared, topology, state, has_room, demand);
    if let Some(chosen) = with_memory {
        let free = room(&chosen, state, demand).cpus;
        let reason = format!(
            "{} {} enough memory for {}, but no set of nodes has that many free CPUs (free here: \
             {free})",
            name(&chosen),
            if chosen.len() == 1 { "has" } else { "have" },
            needs(demand),
        );
        return NodeAdvice { nodes: ids(&chosen), is_fitting: false, reason };
    }
    // Who asks may not say that the memory is to come from huge pages, as numad's callers.
    if demand.page_bytes.is_none() {
        let pools = nodes.iter().flat_map(|node| &node.huge_pages);
        let sizes: BTreeSet<u64> = pools.map(|pool| pool.page_bytes).collect();
        for size in sizes {
            let in_pages = NodeDemand { page_bytes: Some(size), ..demand };
            let advice = select_nodes(topology, state, in_pages);
            if advice.is_fitting {
                return advice;
            }
        }
    }
    let reason = format!(
        "all nodes: together they have {} free, too few for {}",
        mib(whole_mib(room(&all, state, demand).free_bytes)),
        needs(demand),
    );
    NodeAdvice { nodes: ids(&all), is_fitting: false, reason }
}

/// The sets of nodes to compare.
fn sets<'t>(topology: &'t Topology, state: &NodeState) -> Vec<Vec<&'t NumaNode>> {
    let nodes = &topology.nodes;
    if nodes.len() <= MOST_COMPARED {
        let all = 1..1_usize << nodes.len();
        return all
            .map(|bits| {
                (0..nodes.len())
                    .filter(|index: &usize| bits >> index & 1 == 1)
                    .map(|index| &nodes[index])
                    .collect()
            })
            .collect();
    }
    let mut sets = BTreeSet::new();
    for first in nodes {
        let mut near: Vec<usize> = (0..nodes.len()).collect();
        near.sort_by_key(|index| (distance(topology, state, first.id, nodes[*index].id), *index));
        sets.extend((1..=nodes.len()).map(|count| {
            let mut chosen = near[..count].to_vec();
            chosen.sort_unstable();
            chosen
        }));
    }
    sets.into_iter().map(|set| set.into_iter().map(|index| &nodes[index]).collect()).collect()
}

/// The best of the sets whose free resources suffice: few nodes, near each other, with the fewest
/// isolated CPUs, the most CPUs that no other owner uses, the most free CPUs and the most free
/// memory.
fn best<'t>(
    compared: &[Vec<&'t NumaNode>],
    topology: &Topology,
    state: &NodeState,
    suffices: impl Fn(FreeResources) -> bool,
    demand: NodeDemand,
) -> Option<Vec<&'t NumaNode>> {
    let usable = compared.iter().filter_map(|set| {
        let free = room(set, state, demand);
        // The program that binds the machine needs a CPU in the answer.
        let has_cpu = set.iter().any(|node| !node.pus.is_subset(&state.unbalanced));
        (has_cpu && suffices(free)).then_some((set, free))
    });
    let chosen = usable.min_by_key(|(set, free)| {
        (
            set.len(),
            spread(topology, state, set),
            // The mask of a vCPU is all CPUs of the answer, and it stays on an isolated one.
            free.isolated_cpus,
            Reverse(free.unshared_cpus),
            Reverse(free.cpus),
            Reverse(free.free_bytes),
            ids(set),
        )
    });
    chosen.map(|(set, _)| set.clone())
}

fn holds(demand: NodeDemand, room: FreeResources) -> bool {
    let extra = if demand.page_bytes.is_some() { 0 } else { demand.memory_bytes / EXTRA };
    room.free_bytes >= demand.memory_bytes.saturating_add(extra)
}

fn room(nodes: &[&NumaNode], state: &NodeState, demand: NodeDemand) -> FreeResources {
    let mut all = FreeResources::default();
    for node in nodes {
        let free = node.pus.difference(&state.exclusive).difference(&state.unbalanced);
        all.cpus += free.len();
        all.all_cpus += node.pus.difference(&state.unbalanced).len();
        all.isolated_cpus += node.pus.intersection(&state.unbalanced).len();
        all.unshared_cpus += free.difference(&state.shared).len();
        let bytes = match demand.page_bytes {
            None => node.free_bytes.unwrap_or(node.memory_bytes),
            Some(page) => {
                let pools = node.huge_pages.iter().filter(|pool| pool.page_bytes == page);
                pools.map(|pool| pool.free.saturating_mul(page)).sum()
            }
        };
        if !state.without_memory.contains(&node.id) {
            all.free_bytes = all.free_bytes.saturating_add(bytes);
        }
    }
    all
}

/// Sum of the distances between the nodes.
fn spread(topology: &Topology, state: &NodeState, nodes: &[&NumaNode]) -> u32 {
    let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from.id, to.id)));
    pairs.map(|(from, to)| distance(topology, state, from, to)).sum()
}

fn distance(topology: &Topology, state: &NodeState, from: NodeId, to: NodeId) -> u32 {
    if let Some(known) = state.distances.get(&(from, to)) {
        return *known;
    }
    let (Some(first), Some(second)) = (cpus_of_node(from, topology), cpus_of_node(to, topology))
    else {
        return 20;
    };
    let is_near = topology
        .packages
        .iter()
        .any(|package| !package.pus.is_disjoint(first) && !package.pus.is_disjoint(second));
    if from == to {
        10
    } else if is_near {
        12
    } else {
        20
    }
}

fn cpus_of_node(id: NodeId, topology: &Topology) -> Option<&CpuSet> {
    topology.nodes.iter().find(|node| node.id == id).map(|node| &node.pus)
}

fn ids(nodes: &[&NumaNode]) -> Vec<NodeId> {
    let mut ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
    ids.sort_unstable();
    ids
}

/// `node 1`, `nodes 0-1`.
fn name(nodes: &[&NumaNode]) -> String {
    let word = if nodes.len() == 1 { "node" } else { "nodes" };
    format!("{word} {}", node_list(&ids(nodes)))
}

/// `4 vCPUs and 8 GiB`.
fn needs(demand: NodeDemand) -> String {
    let vcpus = count_noun(demand.vcpus as usize, "vCPU");
    if demand.memory_bytes == 0 {
        return vcpus;
    }
    let pages = demand.page_bytes.map(|page| format!(" in pages of {}", mib(page)));
    format!("{vcpus} and {}{}", mib(demand.memory_bytes), pages.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Nodes of four CPUs with so much free memory each.
    fn host(free_gib: &[u64]) -> Topology {
        let text = format!("package:{} node:2 core:4 pu:1", free_gib.len() / 2);
        let mut topology = pinfold_samples::from_description(&text);
        assert_eq!(topology.nodes.len(), free_gib.len());
        for (node, free) in topology.nodes.iter_mut().zip(free_gib) {
            node.free_bytes = Some(free * GIB);
        }
        topology
    }

    fn demand(vcpus: u32, gib: u64) -> NodeDemand {
        NodeDemand { vcpus, memory_bytes: gib * GIB, page_bytes: None }
    }

    fn taken(cpus: &str) -> NodeState {
        NodeState { exclusive: CpuSet::parse_list(cpus).unwrap(), ..NodeState::default() }
    }

    fn check(topology: &Topology, state: &NodeState, demand: NodeDemand, expected: &str) {
        let advice = advise_nodes(topology, state, demand);
        assert_eq!(node_list(&advice.nodes).to_string(), expected, "{advice:?}");
    }

    #[test]
    fn the_node_with_the_most_free_cpus_and_memory_is_selected() {
        let topology = host(&[8, 32, 16, 16]);
        check(&topology, &NodeState::default(), demand(2, 4), "1");
        check(&topology, &taken("4-5"), demand(2, 4), "2");
        let shared = NodeState { shared: taken("0-11").exclusive, ..NodeState::default() };
        check(&topology, &shared, demand(2, 4), "3");
    }

    #[test]
    fn a_host_without_nodes_is_node_0() {
        let mut topology = host(&[8, 8]);
        topology.nodes.clear();
        check(&topology, &NodeState::default(), demand(2, 4), "0");
    }

    #[test]
    fn isolated_cpus_do_not_count() {
        let topology = host(&[8, 32, 16, 16]);
        let unbalanced = taken("4-7").exclusive;
        let state = NodeState { unbalanced, ..NodeState::default() };
        check(&topology, &state, demand(2, 4), "2");
        check(&topology, &state, demand(2, 28), "2-3");
        // The memory is only there: the vCPUs get the CPUs of the neighbour.
        check(&topology, &state, demand(2, 31), "0-1");
    }

    #[test]
    fn a_node_without_isolated_cpus_comes_first_and_the_reason_names_them() {
        let topology = host(&[8, 8, 32, 32]);
        let unbalanced = taken("0,4,8,12-13").exclusive;
        let state = NodeState { unbalanced, ..NodeState::default() };
        check(&topology, &state, demand(2, 16), "2");
        let one = NodeState { unbalanced: taken("0,8-15").exclusive, ..NodeState::default() };
        check(&topology, &one, demand(2, 4), "1");
        let advice = advise_nodes(&topology, &state, demand(2, 16));
        assert!(advice.reason.ends_with("; isolated CPUs do not count (8)"), "{}", advice.reason);
        let advice = advise_nodes(&topology, &one, demand(2, 4));
        assert!(!advice.reason.contains("isolated"), "{}", advice.reason);
    }

    #[test]
    fn memory_that_the_cpuset_of_machines_excludes_is_not_counted() {
        let topology = host(&[8, 32, 16, 16]);
        let without_memory = [NodeId(1), NodeId(2)].into_iter().collect();
        let state = NodeState { without_memory, ..NodeState::default() };
        check(&topology, &state, demand(2, 12), "3");
        check(&topology, &state, demand(2, 400), "0-3");
    }

    #[test]
    fn one_of_several_demands_gets_the_nodes_of_all() {
        let mut topology = host(&[2, 32, 16, 16]);
        let page_bytes = 2 << 20;
        topology.nodes[3].huge_pages =
            vec![pinfold_model::HugePages { page_bytes, total: 4096, free: 4096 }];
        let pages = NodeDemand { page_bytes: Some(page_bytes), ..demand(2, 4) };
        let state = NodeState::default();
        let answer = |demands: &[NodeDemand]| advise_for_each(&topology, &state, demands);
        let both = answer(&[demand(2, 4), pages]).unwrap();
        assert_eq!(node_list(&both.nodes).to_string(), "1,3");
        assert!(both.is_fitting && both.reason.contains("; or node 3"), "{}", both.reason);
        assert_eq!(node_list(&answer(&[pages]).unwrap().nodes).to_string(), "3");
        assert!(answer(&[]).is_none());
        assert!(!answer(&[demand(2, 4), demand(2, 400)]).unwrap().is_fitting);
    }

    #[test]
    fn memory_and_cpus_must_fit_with_a_reserve() {
        let topology = host(&[8, 32, 16, 16]);
        check(&topology, &taken("4-7"), demand(4, 16), "2-3");
        check(&topology, &NodeState::default(), demand(6, 8), "0-1");
        // Exactly the free memory of node 1 leaves nothing for page tables.
        check(&topology, &NodeState::default(), demand(1, 32), "0-1");
        check(&topology, &NodeState::default(), demand(1, 30), "1");
    }

    #[test]
    fn memory_is_more_important_than_cpus_and_what_fits_nowhere_gets_all_nodes() {
        let topology = host(&[8, 32, 16, 16]);
        let advice = advise_nodes(&topology, &taken("0-15"), demand(4, 20));
        assert_eq!(
            (node_list(&advice.nodes).to_string().as_str(), advice.is_fitting),
            ("1", false)
        );
        let advice = advise_nodes(&topology, &NodeState::default(), demand(4, 400));
        assert_eq!(node_list(&advice.nodes).to_string(), "0-3");
        assert!(!advice.is_fitting && advice.reason.contains("73728 MiB"), "{}", advice.reason);
    }

    #[test]
    fn more_vcpus_than_cpus_get_all_nodes_and_those_of_busy_nodes_a_cpu_each() {
        let topology = host(&[64, 64, 64, 64]);
        let advice = advise_nodes(&topology, &NodeState::default(), demand(20, 4));
        assert_eq!(node_list(&advice.nodes).to_string(), "0-3", "{advice:?}");
        assert!(
            !advice.is_fitting && advice.reason.ends_with("(free here: 16)"),
            "{}",
            advice.reason
        );
        check(&topology, &taken("0-3,8-15"), demand(6, 4), "0-1");
        check(&topology, &taken("0-3,8-15"), demand(4, 100), "0-1");
    }

    #[test]
    fn huge_pages_of_the_demanded_size_are_counted() {
        let mut topology = host(&[64, 64]);
        let page_bytes = 2 << 20;
        let pool = pinfold_model::HugePages { page_bytes, total: 1024, free: 512 };
        topology.nodes[1].huge_pages = vec![pool];
        let demand = NodeDemand { page_bytes: Some(page_bytes), ..demand(2, 1) };
        check(&topology, &NodeState::default(), demand, "1");
        // Ordinary memory is not enough, and no page size is given.
        topology.nodes.iter_mut().for_each(|node| node.free_bytes = Some(GIB / 4));
        check(&topology, &NodeState::default(), NodeDemand { page_bytes: None, ..demand }, "1");
        let more = NodeDemand { memory_bytes: GIB + 1, ..demand };
        assert!(!advise_nodes(&topology, &NodeState::default(), more).is_fitting);
    }

    #[test]
    fn the_distances_of_the_firmware_decide_between_sets() {
        let topology = host(&[8, 8, 8, 8]);
        let mut state = NodeState::default();
        check(&topology, &state, demand(6, 1), "0-1");
        for (from, to, distance) in
            [(0, 1, 40), (2, 3, 40), (0, 2, 40), (0, 3, 40), (1, 3, 40), (1, 2, 11)]
        {
            state.distances.insert((NodeId(from), NodeId(to)), distance);
            state.distances.insert((NodeId(to), NodeId(from)), distance);
        }
        check(&topology, &state, demand(6, 1), "1-2");
    }

    #[test]
    fn hosts_of_many_nodes_are_searched_from_each_node() {
        let free: Vec<u64> = (0..32).map(|node| if node == 29 { 64 } else { 2 }).collect();
        check(&host(&free), &NodeState::default(), demand(4, 40), "29");
        check(&host(&free), &NodeState::default(), demand(8, 3), "28-29");
        check(&host(&free), &NodeState::default(), demand(1, 100), "0-20,28-29");
    }
}

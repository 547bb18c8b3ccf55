//! Converts hwloc's tree and the host's facts to the model's tables. Pure.
//!
//! IDs of cores, L3 domains and packages are their positions in the tables. These are hwloc's
//! logical indexes, because hwloc does not show cores without online CPUs either.
//!
//! A source may leave out levels: `pu:4` has no core and no package. A CPU without a core gets a
//! core of its own. If there are no packages, each NUMA node counts as one, or the whole machine if
//! the nodes do not divide it.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{
    Core, CoreId, CoreKind, CpuSet, L3Domain, L3Id, LogicalPu, NodeId, NumaNode, Package,
    PackageId, Pu, PuId,
};

use crate::facts::Facts;
use crate::hwloc::{Key, Tree, TreePu};
use crate::kinds;

/// The tables of [`pinfold_model::Topology`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub pus: Vec<Pu>,
    pub cores: Vec<Core>,
    pub l2_domains: Vec<CpuSet>,
    pub l3: Vec<L3Domain>,
    pub nodes: Vec<NumaNode>,
    pub packages: Vec<Package>,
    /// True if the source has no packages.
    pub packages_assumed: bool,
    /// True if the source has no cores.
    pub cores_assumed: bool,
}

/// An object of the tables: hwloc's, or a substitute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TableObject {
    Object(Key),
    OfPu(PuId),
    OfNode(NodeId),
    Machine,
}

/// Numbers objects in order of first appearance and collects their CPUs.
#[derive(Default)]
struct Numbering {
    numbers: BTreeMap<TableObject, u32>,
    pus: Vec<CpuSet>,
    keys: Vec<TableObject>,
}

impl Numbering {
    fn number(&mut self, place: TableObject, pu: PuId) -> u32 {
        let next = u32::try_from(self.pus.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(place).or_insert(next);
        if number == next {
            self.pus.push(CpuSet::new());
            self.keys.push(place);
        }
        if let Some(pus) = self.pus.get_mut(number as usize) {
            pus.insert(pu);
        }
        number
    }

    fn ids(&self) -> impl Iterator<Item = (u32, &CpuSet)> {
        (0_u32..).zip(&self.pus)
    }
}

/// Builds the tables of the online CPUs.
pub(crate) fn tables(tree: &Tree, facts: &Facts) -> Tables {
    let online: Vec<&TreePu> = tree
        .pus
        .iter()
        .filter(|pu| facts.online.as_ref().is_none_or(|online| online.contains(pu.os)))
        .collect();
    let nodes = numa_nodes(tree, facts, &online);
    let kind_of = kinds::classify_cpus(tree, facts);
    let no_package = tree.pus.iter().all(|pu| pu.package.is_none());
    let by_node = no_package && nodes_divide(&nodes, &online);
    let (mut cores, mut l2, mut l3, mut packages) =
        (Numbering::default(), Numbering::default(), Numbering::default(), Numbering::default());
    let mut core_packages = Vec::new();
    let mut l2_cores = BTreeSet::new();
    let mut pus = Vec::with_capacity(online.len());
    for (logical, pu) in (0_u32..).zip(&online) {
        let node = nearest_node(&nodes, pu.os);
        let package = packages.number(package_place(pu, node.filter(|_| by_node)), pu.os);
        let core =
            cores.number(pu.core.map_or(TableObject::OfPu(pu.os), TableObject::Object), pu.os);
        if let Some(key) = pu.l2 {
            l2_cores.insert((l2.number(TableObject::Object(key), pu.os), core));
        }
        let cache = pu.l3.map(|key| l3.number(TableObject::Object(key), pu.os));
        if core as usize == core_packages.len() {
            core_packages.push((PackageId(package), kind(&kind_of, pu.os)));
        }
        let smt_rank = cores.pus.get(core as usize).map_or(0, |siblings| siblings.len() - 1);
        pus.push(Pu {
            os: pu.os,
            logical: LogicalPu(logical),
            core: CoreId(core),
            smt_rank: u32::try_from(smt_rank).unwrap_or(u32::MAX),
            l3: cache.map(L3Id),
            node,
            package: PackageId(package),
            kind: kind(&kind_of, pu.os),
        });
    }
    Tables {
        cores: core_table(&cores, &core_packages),
        l2_domains: group_shared(&l2, &l2_cores),
        l3: l3_table(&l3, &tree.l3_sizes),
        packages: packages
            .ids()
            .map(|(id, pus)| Package { id: PackageId(id), pus: pus.clone() })
            .collect(),
        packages_assumed: no_package,
        cores_assumed: tree.pus.iter().all(|pu| pu.core.is_none()),
        nodes,
        pus,
    }
}

fn kind(kind_of: &BTreeMap<PuId, CoreKind>, pu: PuId) -> CoreKind {
    kind_of.get(&pu).copied().unwrap_or(CoreKind::Uniform)
}

fn core_table(cores: &Numbering, packages: &[(PackageId, CoreKind)]) -> Vec<Core> {
    cores
        .ids()
        .zip(packages)
        .map(|((id, pus), (package, kind))| Core {
            id: CoreId(id),
            pus: pus.clone(),
            package: *package,
            kind: *kind,
        })
        .collect()
}

/// The caches that several cores share, from pairs of cache and core.
fn group_shared(caches: &Numbering, cores: &BTreeSet<(u32, u32)>) -> Vec<CpuSet> {
    caches
        .ids()
        .filter(|(id, _)| cores.range((*id, 0)..=(*id, u32::MAX)).nth(1).is_some())
        .map(|(_, pus)| pus.clone())
        .collect()
}

fn l3_table(l3: &Numbering, sizes: &BTreeMap<Key, (u64, u32)>) -> Vec<L3Domain> {
    l3.ids()
        .zip(&l3.keys)
        .map(|((id, pus), place)| {
            let (size_bytes, ways) = match place {
                TableObject::Object(key) => sizes.get(key).copied().unwrap_or((0, 0)),
                TableObject::OfPu(_) | TableObject::OfNode(_) | TableObject::Machine => (0, 0),
            };
            L3Domain { id: L3Id(id), pus: pus.clone(), size_bytes, ways }
        })
        .collect()
}

/// The NUMA nodes. hwloc attaches a node without CPUs to its neighbour's CPUs; the kernel's list of
/// nodes with CPUs corrects that.
fn numa_nodes(tree: &Tree, facts: &Facts, online: &[&TreePu]) -> Vec<NumaNode> {
    let online: CpuSet = online.iter().map(|pu| pu.os).collect();
    tree.nodes
        .iter()
        .map(|node| NumaNode {
            id: node.id,
            pus: if has_pus(facts, node.id) {
                node.pus.intersection(&online)
            } else {
                CpuSet::new()
            },
            memory_bytes: node.memory_bytes,
            free_bytes: facts.free_bytes.get(&node.id).copied(),
            huge_pages: facts.huge_pages.get(&node.id).cloned().unwrap_or_default(),
        })
        .collect()
}

fn has_pus(facts: &Facts, id: NodeId) -> bool {
    facts.nodes_with_cpus.as_ref().is_none_or(|nodes| nodes.contains(&id))
}

/// The smallest node that contains a CPU; among equals the first with memory. (High-bandwidth
/// memory appears as a second node with the same CPUs, after the ordinary one.)
fn nearest_node(nodes: &[NumaNode], pu: PuId) -> Option<NodeId> {
    nodes
        .iter()
        .filter(|node| node.pus.contains(pu))
        .min_by_key(|node| (node.pus.len(), node.memory_bytes == 0))
        .map(|node| node.id)
}

/// True if more than one node has CPUs, and each CPU is in exactly one of them.
fn nodes_divide(nodes: &[NumaNode], online: &[&TreePu]) -> bool {
    let populated = nodes.iter().filter(|node| !node.pus.is_empty());
    let total: usize = populated.clone().map(|node| node.pus.len()).sum();
    let union = nodes.iter().map(|node| &node.pus).collect::<CpuSet>();
    populated.count() > 1 && total == online.len() && union.len() == total
}

fn package_place(pu: &TreePu, node: Option<NodeId>) -> TableObject {
    match (pu.package, node) {
        (Some(key), _) => TableObject::Object(key),
        (None, Some(node)) => TableObject::OfNode(node),
        (None, None) => TableObject::Machine,
    }
}

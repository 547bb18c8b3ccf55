//! Machines, built from their topology and their numbering of CPUs.

use std::collections::BTreeMap;

use pinfold_model::{
    Core, CoreId, CoreKind, CpuSet, L3Domain, L3Id, LogicalPu, NodeId, NumaNode, Package,
    PackageId, PciDevice, Pu, PuId, Smt, Source, Topology,
};

/// The CPUs of a list such as `0-3,8`.
pub fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// Position of a CPU; each number counts from 0 within the next larger part.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Package of the machine.
    pub package: u32,
    /// NUMA node of the package.
    pub node: u32,
    /// L3 domain of the node.
    pub l3: u32,
    /// Core of the L3 domain.
    pub core: u32,
    /// Thread of the core.
    pub thread: u32,
}

/// A machine under construction: CPUs in hwloc's order.
///
/// ```
/// use pinfold_samples::machine::Machine;
///
/// // Two performance cores with two threads each, four efficiency cores.
/// let topology = Machine::hybrid(2, 4).build();
/// assert_eq!(topology.pus.len(), 8);
/// ```
#[derive(Clone, Debug)]
pub struct Machine {
    rows: Vec<Row>,
    allowed: Option<CpuSet>,
    isolated: CpuSet,
    offline: CpuSet,
    hypervisor: Option<String>,
    memoryless: Vec<u32>,
    l2_domains: Vec<CpuSet>,
    frequency_domains: Vec<CpuSet>,
    highest_khz: BTreeMap<PuId, u64>,
}

#[derive(Clone, Debug)]
struct Row {
    os: u32,
    core: u32,
    l3: Option<u32>,
    node: Option<u32>,
    package: u32,
    kind: CoreKind,
}

impl Machine {
    /// `[packages, nodes per package, L3 per node, cores per L3, threads per core]`.
    pub fn new(shape: [u32; 5], number: impl Fn(Place) -> u32) -> Self {
        let [packages, nodes, l3s, cores, threads] = shape;
        let mut rows = Vec::new();
        for package in 0..packages {
            for node in 0..nodes {
                for l3 in 0..l3s {
                    for core in 0..cores {
                        for thread in 0..threads {
                            let place = Place { package, node, l3, core, thread };
                            let node = package * nodes + node;
                            let l3 = node * l3s + l3;
                            rows.push(Row {
                                os: number(place),
                                core: l3 * cores + core,
                                l3: Some(l3),
                                node: Some(node),
                                package,
                                kind: CoreKind::Uniform,
                            });
                        }
                    }
                }
            }
        }
        Self::of_rows(rows)
    }

    fn of_rows(rows: Vec<Row>) -> Self {
        Self {
            rows,
            allowed: None,
            isolated: CpuSet::new(),
            offline: CpuSet::new(),
            hypervisor: None,
            memoryless: Vec::new(),
            l2_domains: Vec::new(),
            frequency_domains: Vec::new(),
            highest_khz: BTreeMap::new(),
        }
    }

    /// One package, `p` fast cores with adjacent siblings, then `e` small ones with one CPU each.
    pub fn hybrid(p: u32, e: u32) -> Self {
        let row = |os, core, kind| Row { os, core, l3: Some(0), node: Some(0), package: 0, kind };
        let fast = (0..2 * p).map(|os| row(os, os / 2, CoreKind::Performance));
        let small = (0..e).map(|index| row(2 * p + index, p + index, CoreKind::Efficiency));
        Self::of_rows(fast.chain(small).collect())
    }

    /// Restricts the program to these CPUs.
    #[must_use]
    pub fn allowed(mut self, list: &str) -> Self {
        self.allowed = Some(set(list));
        self
    }

    /// Isolates these CPUs.
    #[must_use]
    pub fn isolated(mut self, list: &str) -> Self {
        self.isolated = set(list);
        self
    }

    /// Takes these CPUs offline.
    #[must_use]
    pub fn offline(mut self, list: &str) -> Self {
        self.offline = set(list);
        self
    }

    /// Makes it a guest of this hypervisor.
    #[must_use]
    pub fn with_hypervisor(mut self, hypervisor: &str) -> Self {
        self.hypervisor = Some(hypervisor.to_owned());
        self
    }

    /// Removes the memory of a node.
    #[must_use]
    pub fn memoryless(mut self, node: u32) -> Self {
        self.memoryless.push(node);
        self
    }

    /// Adds shared level-2 caches of these CPUs.
    #[must_use]
    pub fn l2(mut self, lists: &[&str]) -> Self {
        self.l2_domains = lists.iter().map(|list| set(list)).collect();
        self
    }

    /// Adds frequency domains of these CPUs.
    #[must_use]
    pub fn frequency(mut self, lists: &[&str]) -> Self {
        self.frequency_domains = lists.iter().map(|list| set(list)).collect();
        self
    }

    /// Sets the maximum frequency of these CPUs.
    #[must_use]
    pub fn khz(mut self, list: &str, khz: u64) -> Self {
        self.highest_khz.extend(set(list).iter().map(|pu| (pu, khz)));
        self
    }

    /// Removes L3 caches and NUMA nodes, which some sources do not report.
    #[must_use]
    pub fn without_l3_and_nodes(mut self) -> Self {
        for row in &mut self.rows {
            row.l3 = None;
            row.node = None;
        }
        self
    }

    /// The topology.
    pub fn build(&self) -> Topology {
        let online: Vec<&Row> =
            self.rows.iter().filter(|row| !self.offline.contains(PuId(row.os))).collect();
        let mut cores: BTreeMap<u32, CoreId> = BTreeMap::new();
        for row in &online {
            let next = u32::try_from(cores.len()).unwrap();
            cores.entry(row.core).or_insert(CoreId(next));
        }
        let mut ranks: BTreeMap<u32, u32> = BTreeMap::new();
        let pus: Vec<Pu> = (0_u32..)
            .zip(&online)
            .map(|(logical, row)| {
                let rank = ranks.entry(row.core).or_default();
                *rank += 1;
                Pu {
                    os: PuId(row.os),
                    logical: LogicalPu(logical),
                    core: cores[&row.core],
                    smt_rank: *rank - 1,
                    l3: row.l3.map(L3Id),
                    node: row.node.map(NodeId),
                    package: PackageId(row.package),
                    kind: row.kind,
                }
            })
            .collect();
        self.tables(pus)
    }

    fn tables(&self, pus: Vec<Pu>) -> Topology {
        let all: CpuSet = pus.iter().map(|pu| pu.os).collect();
        let core = |(id, members): (CoreId, Vec<&Pu>)| Core {
            id,
            pus: os(&members),
            package: members[0].package,
            kind: members[0].kind,
        };
        let l3 = |(id, members): (L3Id, Vec<&Pu>)| L3Domain {
            id,
            pus: os(&members),
            size_bytes: 8 << 20,
            ways: 16,
        };
        Topology {
            source: Source::Synthetic("test".to_owned()),
            fingerprint: format!("test-{all}"),
            model: None,
            hypervisor: self.hypervisor.clone(),
            cores: group_by(&pus, |pu| Some(pu.core)).into_iter().map(core).collect(),
            l3: group_by(&pus, |pu| pu.l3).into_iter().map(l3).collect(),
            nodes: group_by(&pus, |pu| pu.node)
                .into_iter()
                .map(|(id, members): (NodeId, Vec<&Pu>)| NumaNode {
                    id,
                    pus: os(&members),
                    memory_bytes: if self.memoryless.contains(&id.0) { 0 } else { 1 << 30 },
                    free_bytes: None,
                    huge_pages: Vec::new(),
                })
                .collect(),
            packages: group_by(&pus, |pu| Some(pu.package))
                .into_iter()
                .map(|(id, members): (PackageId, Vec<&Pu>)| Package { id, pus: os(&members) })
                .collect(),
            smt: Smt::Unknown,
            offline: self.offline.clone(),
            isolated: self.isolated.intersection(&all),
            nohz_full: CpuSet::new(),
            allowed: self.allowed.clone().unwrap_or(all),
            mask: None,
            l2_domains: self.l2_domains.clone(),
            frequency_domains: self.frequency_domains.clone(),
            highest_khz: self.highest_khz.clone(),
            core_ranking: BTreeMap::new(),
            boot_parameters: Vec::new(),
            devices: vec![PciDevice { address: "0000:81:00.0".to_owned(), node: Some(NodeId(1)) }],
            findings: Vec::new(),
            pus,
        }
    }
}

fn group_by<K: Ord>(pus: &[Pu], key: impl Fn(&Pu) -> Option<K>) -> BTreeMap<K, Vec<&Pu>> {
    let mut groups: BTreeMap<K, Vec<&Pu>> = BTreeMap::new();
    for pu in pus {
        if let Some(key) = key(pu) {
            groups.entry(key).or_default().push(pu);
        }
    }
    groups
}

fn os(members: &[&Pu]) -> CpuSet {
    members.iter().map(|pu| pu.os).collect()
}

/// The i7-4790K of Lindroth 2017: 4 cores, siblings 0,4 1,5 2,6 3,7.
pub fn i7_4790k() -> Machine {
    Machine::new([1, 1, 1, 4, 2], |place| place.core + 4 * place.thread)
}

/// The R910 of Badaroux 2021: 4 packages of 4 cores, numbered round-robin over the packages.
#[must_use]
pub fn r910() -> Machine {
    Machine::new([4, 1, 1, 4, 2], |place| place.package + 4 * place.core + 16 * place.thread)
}

/// The same with SMT disabled.
pub fn r910_without_smt() -> Machine {
    Machine::new([4, 1, 1, 4, 1], |place| place.package + 4 * place.core)
}

/// A desktop of two core complexes: 2 L3 of 4 cores, siblings 8 apart.
#[must_use]
pub fn two_complexes() -> Machine {
    Machine::new([1, 1, 2, 4, 2], |place| 4 * place.l3 + place.core + 8 * place.thread)
}

/// The 5950X: two core complexes of 8 cores, siblings 16 apart.
pub fn ryzen_5950x() -> Machine {
    Machine::new([1, 1, 2, 8, 2], |place| 8 * place.l3 + place.core + 16 * place.thread)
}

/// One package, cores without siblings, numbered in order.
#[must_use]
pub fn plain(cores: u32) -> Machine {
    Machine::new([1, 1, 1, cores, 1], |place| place.core)
}

/// Two E5-2670: 2 packages of 8 cores, siblings 16 apart.
pub fn dual_e5_2670() -> Machine {
    Machine::new([2, 1, 1, 8, 2], |place| 8 * place.package + place.core + 16 * place.thread)
}

/// Two X5540: 2 packages of 4 cores, siblings 8 apart.
#[must_use]
pub fn dual_x5540() -> Machine {
    Machine::new([2, 1, 1, 4, 2], |place| 4 * place.package + place.core + 8 * place.thread)
}

/// Two L5420: no SMT, pairs of cores with one L2 cache and one frequency.
#[must_use]
pub fn dual_l5420() -> Machine {
    Machine::new([2, 1, 1, 4, 1], |place| 4 * place.package + place.core)
        .frequency(&["0-1", "2-3", "4-5", "6-7"])
}

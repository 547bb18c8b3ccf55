//! A topology as a tree for the terminal. Pure; without colours.
//!
//! ```text
//! i7-4790K: 1 package, 1 NUMA node, 1 L3 domain, 4 cores, 8 PUs
//! └─ Package L#0 · NUMA node P#0 (16 GiB) · L3 L#0 (8 MiB)
//!    ├─ Core L#0  PU L#0 (P#0)  L#1 (P#4)
//!    ├─ Core L#1  PU L#2 (P#1)  L#3 (P#5)
//! ```
//! `L#` is hwloc's logical index, `P#` is Linux's number. Packages, NUMA nodes and L3 domains are
//! nested by their sets of CPUs, whichever is the larger on the machine; those with the same CPUs
//! share a line. On machines with more than [`FULL_UP_TO`] CPUs, equal neighbouring cores also
//! share a line.

mod summary;

use std::collections::BTreeMap;

use pinfold_model::{Core, CoreKind, CpuSet, LogicalPu, Pu, PuId, Source, Topology};

use summary::{count, size};

/// Largest number of CPUs with one line per core.
const FULL_UP_TO: usize = 32;

/// The tree, further properties, and the findings.
pub fn render_tree(topology: &Topology) -> String {
    let tree = Tree::new(topology);
    let mut lines = vec![headline(topology)];
    tree.branches(&tree.top, "", &mut lines);
    lines.push(String::new());
    lines.extend(summary::facts(topology));
    if !topology.findings.is_empty() {
        lines.push(String::new());
        lines.extend(topology.findings.iter().flat_map(summary::finding));
    }
    lines.join("\n") + "\n"
}

/// The machine in one line: its model, and how many packages, nodes, L3 domains, cores and CPUs.
pub fn headline(topology: &Topology) -> String {
    let name = topology.model.clone().unwrap_or_else(|| match &topology.source {
        Source::Synthetic(_) => "Synthetic machine".to_owned(),
        Source::Live | Source::Captured(_) => "Machine".to_owned(),
    });
    let counts = [
        count(topology.packages.len(), "package"),
        count(topology.nodes.len(), "NUMA node"),
        count(topology.l3.len(), "L3 domain"),
        count(topology.cores.len(), "core"),
        count(topology.pus.len(), "PU"),
    ];
    format!("{name}: {}", counts.join(", "))
}

/// Packages, nodes and L3 domains with the same CPUs.
struct Group {
    labels: Vec<String>,
    pus: CpuSet,
    children: Vec<Child>,
}

/// A child of a group in the tree.
#[derive(Clone)]
enum Child {
    Group(usize),
    /// Neighbouring cores that share a line.
    Cores(Vec<usize>),
    /// A NUMA node without CPUs, or the offline CPUs.
    Leaf(String),
}

struct Tree<'t> {
    topology: &'t Topology,
    pu_of: BTreeMap<PuId, &'t Pu>,
    groups: Vec<Group>,
    top: Vec<Child>,
}

impl<'t> Tree<'t> {
    fn new(topology: &'t Topology) -> Self {
        let pu_of = topology.pus.iter().map(|pu| (pu.os, pu)).collect();
        let mut tree = Self { topology, pu_of, groups: groups(topology), top: Vec::new() };
        tree.attach_groups();
        tree.attach_cores();
        let bare = topology.nodes.iter().filter(|node| node.pus.is_empty());
        let mut leaves: Vec<Child> = bare
            .map(|node| {
                Child::Leaf(format!("NUMA node P#{}{}, no PUs", node.id, size(node.memory_bytes)))
            })
            .collect();
        if !topology.offline.is_empty() {
            leaves.push(Child::Leaf(format!("Offline  PU P#{}", topology.offline)));
        }
        tree.top.extend(leaves);
        tree
    }

    /// The smallest group that contains a set and has at least `least` CPUs.
    fn around(&self, pus: &CpuSet, least: usize) -> Option<usize> {
        (0..self.groups.len())
            .filter(|index| self.groups[*index].pus.len() >= least)
            .filter(|index| pus.is_subset(&self.groups[*index].pus))
            .min_by_key(|index| self.groups[*index].pus.len())
    }

    fn children_of(&mut self, parent: Option<usize>) -> &mut Vec<Child> {
        match parent {
            Some(index) => &mut self.groups[index].children,
            None => &mut self.top,
        }
    }

    fn attach_groups(&mut self) {
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|index| self.first(&self.groups[*index].pus));
        for index in order {
            let pus = self.groups[index].pus.clone();
            let parent = self.around(&pus, pus.len() + 1);
            self.children_of(parent).push(Child::Group(index));
        }
    }

    fn attach_cores(&mut self) {
        let collapse = self.topology.pus.len() > FULL_UP_TO;
        for (index, core) in self.topology.cores.iter().enumerate() {
            let parent = self.around(&core.pus, core.pus.len());
            let alike = collapse.then(|| self.signature(core));
            let topology = self.topology;
            let last = match self.children_of(parent).last() {
                Some(Child::Cores(cores)) => cores.last().copied(),
                Some(Child::Group(_) | Child::Leaf(_)) | None => None,
            };
            let joins =
                last.is_some_and(|last| alike == Some(self.signature(&topology.cores[last])));
            let children = self.children_of(parent);
            match children.last_mut() {
                Some(Child::Cores(cores)) if joins => cores.push(index),
                Some(_) | None => children.push(Child::Cores(vec![index])),
            }
        }
    }

    /// Properties by which two cores are equal: kind, number of CPUs and their marks.
    fn signature(&self, core: &Core) -> (CoreKind, Vec<&'static str>) {
        (core.kind, core.pus.iter().map(|pu| self.mark(pu)).collect())
    }

    fn mark(&self, pu: PuId) -> &'static str {
        match (self.topology.isolated.contains(pu), self.topology.allowed.contains(pu)) {
            (false, true) => "",
            (true, true) => " [isolated]",
            (false, false) => " [not allowed]",
            (true, false) => " [isolated, not allowed]",
        }
    }

    fn logical(&self, pu: PuId) -> Option<LogicalPu> {
        self.pu_of.get(&pu).map(|pu| pu.logical)
    }

    fn first(&self, pus: &CpuSet) -> Option<LogicalPu> {
        pus.iter().filter_map(|pu| self.logical(pu)).min()
    }

    fn first_of_child(&self, child: &Child) -> Option<LogicalPu> {
        match child {
            Child::Group(index) => self.first(&self.groups[*index].pus),
            Child::Cores(cores) => {
                cores.first().and_then(|core| self.first(&self.topology.cores[*core].pus))
            }
            Child::Leaf(_) => None,
        }
    }

    fn branches(&self, children: &[Child], indent: &str, lines: &mut Vec<String>) {
        let mut ordered: Vec<&Child> = children.iter().collect();
        // Leaves (without a logical index) come last.
        ordered.sort_by_key(|child| self.first_of_child(child).map_or(u32::MAX, |pu| pu.0));
        let last = ordered.len().saturating_sub(1);
        for (position, child) in ordered.into_iter().enumerate() {
            let (branch, below) =
                if position == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            match child {
                Child::Leaf(text) => lines.push(format!("{indent}{branch}{text}")),
                Child::Cores(cores) => lines.push(format!("{indent}{branch}{}", self.cores(cores))),
                Child::Group(index) => {
                    let group = &self.groups[*index];
                    let label = group.labels.join(" · ");
                    match group.children.as_slice() {
                        [Child::Cores(cores)] if cores.len() > 1 => {
                            lines.push(format!("{indent}{branch}{label}  {}", self.cores(cores)));
                        }
                        children => {
                            lines.push(format!("{indent}{branch}{label}"));
                            self.branches(children, &format!("{indent}{below}"), lines);
                        }
                    }
                }
            }
        }
    }

    fn cores(&self, cores: &[usize]) -> String {
        match cores {
            [one] => self.core(&self.topology.cores[*one]),
            several => self.many_cores(several),
        }
    }

    fn core(&self, core: &Core) -> String {
        let label = format!("L#{}", core.id);
        let width = 2 + digits(self.topology.cores.len().saturating_sub(1));
        let mut pus: Vec<&Pu> =
            core.pus.iter().filter_map(|pu| self.pu_of.get(&pu).copied()).collect();
        pus.sort_by_key(|pu| pu.logical);
        let marks: Vec<&str> = pus.iter().map(|pu| self.mark(pu.os)).collect();
        let alike = marks.windows(2).all(|pair| pair[0] == pair[1]);
        let cells: Vec<String> = pus
            .iter()
            .map(|pu| {
                let mark = if alike { "" } else { self.mark(pu.os) };
                format!("{:<11}{mark}", format!("L#{} (P#{})", pu.logical, pu.os))
            })
            .collect();
        let mark = marks.first().filter(|_| alike).copied().unwrap_or("");
        let kind = self.kind_column(core.kind);
        let line = format!("Core {label:<width$}{kind}  PU {}{mark}", cells.join("  "));
        line.trim_end().to_owned()
    }

    /// The kind, padded to the width of the longest kind.
    fn kind_column(&self, kind: CoreKind) -> String {
        let width = self.topology.cores.iter().map(|core| kind_note(core.kind).len()).max();
        format!("{:<1$}", kind_note(kind), width.unwrap_or(0))
    }

    fn many_cores(&self, cores: &[usize]) -> String {
        let members = || cores.iter().map(|core| &self.topology.cores[*core]);
        let pus = members().map(|core| &core.pus).collect::<CpuSet>();
        let ids: CpuSet = members().map(|core| PuId(core.id.0)).collect();
        let logical: CpuSet =
            pus.iter().filter_map(|pu| self.logical(pu)).map(|pu| PuId(pu.0)).collect();
        let threads = members().next().map_or(0, |core| core.pus.len());
        let kind = members().next().map_or("", |core| kind_note(core.kind));
        let mark = pus.first().map_or("", |pu| self.mark(pu));
        let times = if threads > 1 { format!(" × {threads} PUs") } else { String::new() };
        format!("{} cores{times}  Core L#{ids}{kind}  PU L#{logical} (P#{pus}){mark}", cores.len())
    }
}

/// One group per set of CPUs, with the labels of all objects with that set, the outer kind first.
fn groups(topology: &Topology) -> Vec<Group> {
    let packages = topology
        .packages
        .iter()
        .map(|package| (package.pus.clone(), format!("Package L#{}", package.id)));
    let nodes = topology.nodes.iter().filter(|node| !node.pus.is_empty()).map(|node| {
        (node.pus.clone(), format!("NUMA node P#{}{}", node.id, size(node.memory_bytes)))
    });
    let caches = topology
        .l3
        .iter()
        .map(|cache| (cache.pus.clone(), format!("L3 L#{}{}", cache.id, size(cache.size_bytes))));
    let mut groups: Vec<Group> = Vec::new();
    for (pus, label) in packages.chain(nodes).chain(caches) {
        match groups.iter_mut().find(|group| group.pus == pus) {
            Some(group) => group.labels.push(label),
            None => groups.push(Group { labels: vec![label], pus, children: Vec::new() }),
        }
    }
    groups
}

fn kind_note(kind: CoreKind) -> &'static str {
    match kind {
        CoreKind::Uniform => "",
        CoreKind::Performance => " performance",
        CoreKind::Efficiency => " efficiency",
        CoreKind::LowPower => " low-power",
    }
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

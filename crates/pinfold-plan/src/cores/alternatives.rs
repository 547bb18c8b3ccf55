//! Whether another placement of the same number of vCPUs avoids a cost: the difference between a
//! warning and a note.
//!
//! A warning that cannot be removed is a false alarm. The findings of a plan and the check of a
//! file use the same functions, so that both give a placement the same severity.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CoreId, CoreKind, CpuSet, NumaNode, Severity};

use crate::cores::available::{Index, distinct};

/// The possible placements of some vCPUs on a host.
#[derive(Clone, Copy)]
pub struct PlacementOptions<'a> {
    /// The host's CPUs.
    pub index: &'a Index<'a>,
    /// The CPUs that threads may use.
    pub usable: &'a CpuSet,
    /// Number of vCPUs that are pinned to one CPU each.
    pub vcpus: usize,
}

/// The severity of a cost.
pub fn severity(avoidable: bool) -> Severity {
    if avoidable { Severity::Warning } else { Severity::Note }
}

impl<'a> PlacementOptions<'a> {
    /// For vCPUs on fast and on slow cores: true if one kind of core has a CPU for each vCPU.
    pub fn of_one_kind(&self) -> bool {
        let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
        for pu in self.index.pus(self.usable) {
            *kinds.entry(pu.kind).or_default() += 1;
        }
        kinds.values().any(|pus| *pus >= self.vcpus)
    }

    /// For host siblings that the guest sees as cores: true if each vCPU can have its own core near
    /// the present CPUs, or all can lie on whole cores of one width. vCPUs that are divided equally
    /// over nodes, as NUMA cells are, stay so.
    pub fn with_true_siblings(&self, pins: &CpuSet) -> bool {
        let used: Vec<&CpuSet> = self.index.node_tables(pins).map(|node| &node.pus).collect();
        let mut shares = used.iter().map(|pus| pus.intersection(pins).len());
        let first = shares.next().unwrap_or(0);
        let is_divided = used.len() > 1 && shares.all(|share| share == first);
        let (parts, vcpus) = if is_divided && self.vcpus.is_multiple_of(used.len()) {
            let of_kinds = used.iter().map(|pus| self.of_kinds(pus, pins));
            (of_kinds.collect(), self.vcpus / used.len())
        } else {
            (vec![self.similar_cpus_near(pins)], self.vcpus)
        };
        (1..=self.index.widest_core)
            .any(|width| parts.iter().all(|part| self.fills_cores(part, vcpus, width)))
    }

    /// True if a part of the machine has whole cores for `vcpus` vCPUs with `width` on each.
    fn fills_cores(&self, part: &CpuSet, vcpus: usize, width: usize) -> bool {
        let usable = part.intersection(self.usable);
        let mut cores: Vec<CoreId> = self.index.pus(&usable).map(|pu| pu.core).collect();
        cores.sort_unstable();
        let cores = cores.chunk_by(CoreId::eq).filter(|pus| pus.len() >= width).count();
        vcpus.is_multiple_of(width) && cores * width >= vcpus
    }

    /// The CPUs whose cores are of the same kinds as those of `pins`, in the smallest part of the
    /// machine that contains all pins: an L3 domain, a node, or the whole machine.
    fn similar_cpus_near(&self, pins: &CpuSet) -> CpuSet {
        let first: CpuSet = pins.first().into_iter().collect();
        let l3s = self.index.l3s_of(&first).map(|domain| &domain.pus);
        let mut parts = l3s.chain(self.index.node_tables(&first).map(|node| &node.pus));
        let part = parts.find(|part| pins.is_subset(part));
        match part {
            Some(part) => self.of_kinds(part, pins),
            None => self.of_kinds(&self.index.topology.pus.iter().map(|pu| pu.os).collect(), pins),
        }
    }

    /// For vCPUs on every CPU of the host's tasks: true if there are more CPUs than vCPUs.
    pub fn with_a_pu_for_the_host(&self) -> bool {
        self.vcpus < self.usable.len()
    }

    /// For an emulator or iothread on CPUs of vCPUs: true if the kernel balances another CPU that
    /// carries no vCPU.
    #[must_use]
    pub fn with_free_helpers(&self, carried: &CpuSet) -> bool {
        !self.index.balanced.is_subset(carried)
    }

    /// Those of `pus` whose core has the kind of a core of `like`.
    fn of_kinds(&self, pus: &CpuSet, like: &CpuSet) -> CpuSet {
        if self.index.has_one_kind && !like.is_empty() {
            return pus.clone();
        }
        let kinds: BTreeSet<CoreKind> = self.index.pus(like).map(|pu| pu.kind).collect();
        self.index.pus(pus).filter(|pu| kinds.contains(&pu.kind)).map(|pu| pu.os).collect()
    }

    /// For vCPUs of one node on several L3 domains: the number of domains and the CPUs of the
    /// largest one that has room for all these vCPUs. `None` if no domain has.
    pub fn crossed_l3s(&self, pins: &Pins<'_>) -> Option<(usize, CpuSet)> {
        let nodes = self.index.node_tables(pins.pus);
        let parts = nodes.map(|node| node.pus.intersection(pins.pus));
        let mut parts: Vec<CpuSet> = parts.filter(|part| !part.is_empty()).collect();
        if parts.is_empty() && !pins.pus.is_empty() {
            parts.push(pins.pus.clone());
        }
        parts.iter().find_map(|part| {
            let of_node = Pins { pus: part, ..*pins };
            let used: Vec<_> = self.index.l3s_of(part).collect();
            let [_, _, ..] = used.as_slice() else { return None };
            let roomy = used.iter().filter_map(|domain| {
                Some((
                    domain.size_bytes,
                    domain.pus.intersection(part).len(),
                    of_node.room(self, &domain.pus)?,
                ))
            });
            let (_, _, best) = roomy.max_by_key(|(size, own, _)| (*size, *own))?;
            Some((used.len(), best))
        })
    }

    /// How many L3 domains the vCPUs of one node lie in, if these are several.
    pub fn l3s_of_one_node(&self, pins: &CpuSet) -> Option<usize> {
        let nodes = distinct(self.index.pus(pins).filter_map(|pu| pu.node));
        let l3s = distinct(self.index.pus(pins).filter_map(|pu| pu.l3));
        (nodes.len() <= 1 && l3s.len() > 1).then_some(l3s.len())
    }

    /// vCPUs on nodes without memory: those with memory have a CPU for each.
    #[must_use]
    pub fn near_memory(&self) -> bool {
        let nodes = self.index.topology.nodes.iter().filter(|node| node.memory_bytes > 0);
        let pus = nodes.map(|node| &node.pus).collect::<CpuSet>();
        pus.intersection(self.usable).len() >= self.vcpus
    }

    /// For vCPUs that share a CPU: true if there is another CPU.
    pub fn with_another_pu(&self) -> bool {
        self.usable.len() > 1
    }

    /// For vCPUs on several nodes: the first of these nodes that has room for all vCPUs, with its
    /// CPUs for them.
    #[must_use]
    pub fn node_for_all(&self, pins: &Pins<'_>) -> Option<(&'a NumaNode, CpuSet)> {
        let mut used = self.index.node_tables(pins.pus);
        used.find_map(|node| Some((node, pins.room(self, &node.pus)?)))
    }
}

/// CPUs of vCPUs that are pinned to one CPU each.
pub struct Pins<'a> {
    /// The CPUs.
    pub pus: &'a CpuSet,
    /// Whether the guest topology has threads.
    pub shows_threads: bool,
}

impl Pins<'_> {
    /// Those of `pus` that can carry the vCPUs in their present layout, on cores of the same kinds:
    /// a core for each vCPU if no vCPUs share one now and the guest topology has no threads. `None`
    /// if there are too few.
    fn room(&self, choice: &PlacementOptions<'_>, pus: &CpuSet) -> Option<CpuSet> {
        let (usable, needed) = (pus.intersection(choice.usable), self.pus.len());
        if usable.len() < needed {
            return None;
        }
        let pus = choice.of_kinds(&usable, self.pus);
        let fits = if count_cores(self.pus, choice) == needed && !self.shows_threads {
            count_cores(&pus, choice) >= needed
        } else {
            pus.len() >= needed
        };
        fits.then_some(pus)
    }
}

fn count_cores(pus: &CpuSet, choice: &PlacementOptions<'_>) -> usize {
    distinct(choice.index.pus(pus).map(|pu| pu.core)).len()
}

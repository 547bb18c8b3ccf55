//! Data for all rules: the tables of a topology by CPU, and the properties of one layout on it.

use std::collections::HashSet;

use pinfold_model::{
    CoreId, CpuSet, FreeCpus, NodeId, Policy, Pu, PuId, Request, Role, Severity, Topology,
};
use pinfold_plan::alternatives::{Pins, PlacementOptions};
use pinfold_plan::domain_file::Place;
use pinfold_plan::layout::{Layout, Pin, SourceFormat};
use pinfold_plan::{Index, usable_for_vcpus};

use super::Diagnostic;
use super::descriptions::{describe, describe_nodes};
use super::text::{Fault, FaultText};

/// A topology indexed by CPU.
pub(super) struct CpuIndex<'t> {
    pub topology: &'t Topology,
    pub online: CpuSet,
    /// The CPUs that a pin may use: online and allowed.
    pub usable: CpuSet,
    /// Those that the user's conditions allow.
    pub permitted: CpuSet,
    /// The CPUs that the conditions name for the host.
    pub for_host: CpuSet,
    /// The CPUs for vCPUs, as in a plan: without those kept free for the host, which are of the
    /// weakest cores if the conditions give only their number.
    pub for_vcpus: CpuSet,
    pub index: Index<'t>,
}

impl<'t> CpuIndex<'t> {
    pub fn new(topology: &'t Topology, conditions: &Request) -> Self {
        let online = topology.online();
        let usable = online.intersection(&topology.allowed);
        let permitted = usable.difference(&conditions.avoid);
        let for_host = match &conditions.free {
            Some(FreeCpus::These(host)) => host.clone(),
            Some(FreeCpus::Pus(_) | FreeCpus::Percent(_)) | None => CpuSet::new(),
        };
        let own = Request { vnodes: Vec::new(), ..conditions.clone() };
        let for_vcpus =
            usable_for_vcpus(topology, &own).unwrap_or_else(|| permitted.difference(&for_host));
        let index = Index::from_topology(topology);
        Self { topology, online, usable, permitted, for_host, for_vcpus, index }
    }

    pub fn pu(&self, os: PuId) -> Option<&'t Pu> {
        self.index.pu(os)
    }

    /// CPUs in hwloc's order, in which neighbours share most.
    pub fn in_order(&self, pus: &CpuSet) -> Vec<PuId> {
        let mut found: Vec<&Pu> = pus.iter().filter_map(|pu| self.pu(pu)).collect();
        found.sort_by_key(|pu| pu.logical);
        found.into_iter().map(|pu| pu.os).collect()
    }

    /// The value that all CPUs of a set have in common, if any.
    fn common<K: PartialEq>(&self, pus: &CpuSet, key: impl Fn(&Pu) -> K) -> Option<K> {
        let mut keys = pus.iter().map(|pu| self.pu(pu).map(&key));
        let first = keys.next()??;
        keys.all(|other| other.as_ref() == Some(&first)).then_some(first)
    }

    /// Whether all CPUs of a set are of one kind of core.
    pub fn is_of_one_kind(&self, pus: &CpuSet) -> bool {
        self.common(pus, |pu| pu.kind).is_some()
    }

    /// The number of cores that a set touches.
    pub fn count_cores(&self, pus: &CpuSet) -> usize {
        sort(pus.iter().filter_map(|pu| Some(self.pu(pu)?.core))).len()
    }

    /// The number of L3 caches that a set touches.
    pub fn count_l3s(&self, pus: &CpuSet) -> usize {
        sort(pus.iter().filter_map(|pu| self.pu(pu)?.l3)).len()
    }

    pub fn core_of(&self, pus: &CpuSet) -> Option<CoreId> {
        self.common(pus, |pu| pu.core)
    }

    /// The nodes of a set, ascending.
    pub fn nodes_of(&self, pus: &CpuSet) -> Vec<NodeId> {
        self.index.nodes_of(pus).into_iter().collect()
    }

    /// The CPUs of all cores that a set intersects.
    pub fn whole_cores(&self, pus: &CpuSet) -> CpuSet {
        let cores = sort(pus.iter().filter_map(|pu| Some(self.pu(pu)?.core)));
        cores.iter().map(|core| &self.topology.core(*core).pus).collect()
    }
}

fn sort<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<K> {
    let mut keys: Vec<K> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// One layout on a topology.
pub(super) struct LintContext<'a, 't> {
    pub layout: &'a Layout,
    pub lookup: &'a CpuIndex<'t>,
    /// The CPUs of all vCPUs whose mask is a part of the host.
    pub held: CpuSet,
    /// The CPUs of vCPUs that may run on one CPU only.
    pub tight: CpuSet,
}

impl<'a, 't> LintContext<'a, 't> {
    pub fn new(layout: &'a Layout, lookup: &'a CpuIndex<'t>) -> Self {
        let masks: Vec<&CpuSet> = vcpu_pins(layout)
            .filter_map(|pin| pin.pus.as_ref())
            .filter(|pus| !lookup.usable.is_subset(pus))
            .collect();
        let all: CpuSet = masks.iter().copied().collect();
        let tight: CpuSet = masks.into_iter().filter(|pus| pus.len() == 1).collect();
        Self {
            layout,
            lookup,
            held: all.intersection(&lookup.online),
            tight: tight.intersection(&lookup.online),
        }
    }

    /// The vCPUs' pins in ascending order.
    pub fn vcpus(&self) -> impl Iterator<Item = (u32, &'a Pin)> {
        vcpu_pins(self.layout).filter_map(|pin| Some((pin.role.vcpu()?, pin)))
    }

    /// The possible placements of `vcpus` vCPUs.
    pub fn choice(&self, vcpus: usize) -> PlacementOptions<'a> {
        PlacementOptions { index: &self.lookup.index, usable: &self.lookup.for_vcpus, vcpus }
    }

    /// The pins of vCPUs that may run on one CPU only.
    pub fn tight_pins(&self) -> Pins<'_> {
        let shows_threads = self.layout.guest.as_ref().is_some_and(|guest| guest.threads > 1);
        Pins { pus: &self.tight, shows_threads }
    }

    /// A diagnostic of this layout.
    pub fn diagnostic(&self, severity: Severity, fault: &dyn Fault) -> Diagnostic {
        let FaultText { name, what, cost, instead } = fault.words();
        Diagnostic {
            severity,
            name,
            vm: self.layout.name.clone(),
            what,
            places: Vec::new(),
            cost,
            instead,
            is_final: false,
            repairs: Vec::new(),
        }
    }

    /// True if the host has several NUMA nodes with CPUs.
    pub fn has_nodes(&self) -> bool {
        self.lookup.topology.nodes.iter().filter(|node| !node.pus.is_empty()).count() > 1
    }

    /// A pin in the layout's language.
    pub fn write_pin(&self, role: &Role, pus: &CpuSet) -> String {
        match (&self.layout.language, role.vcpu(), role.iothread()) {
            (SourceFormat::Plan, _, _) => format!("\"role\": \"{role}\", \"pus\": \"{pus}\""),
            (SourceFormat::Libvirt, Some(index), _) => {
                format!("<vcpupin vcpu='{index}' cpuset='{pus}'/>")
            }
            (SourceFormat::Libvirt, _, Some(id)) => {
                let number = id.strip_prefix("iothread").unwrap_or(id);
                format!("<iothreadpin iothread='{number}' cpuset='{pus}'/>")
            }
            (SourceFormat::Libvirt, None, None) => format!("<emulatorpin cpuset='{pus}'/>"),
            (SourceFormat::Running(_), _, _) => format!("{} on {pus}", describe(role)),
        }
    }

    /// A memory binding in a language other than domain files.
    pub fn write_memory(&self, nodes: &[NodeId]) -> String {
        let nodes = describe_nodes(nodes);
        match &self.layout.language {
            SourceFormat::Plan | SourceFormat::Libvirt => format!("bind the memory to {nodes}"),
            SourceFormat::Running(_) => format!(
                "start it again with its memory bound to {nodes}; migratepages moves the movable \
                 pages"
            ),
        }
    }

    /// A guest topology in the layout's language.
    pub fn write_shape(&self, sockets: usize, cores: usize, threads: usize) -> String {
        match &self.layout.language {
            SourceFormat::Plan => {
                format!(
                    "\"guest\": \"sockets\": {sockets}, \"cores\": {cores}, \"threads\": {threads}"
                )
            }
            SourceFormat::Libvirt => {
                format!(
                    "<topology sockets='{sockets}' dies='1' cores='{cores}' threads='{threads}'/>"
                )
            }
            SourceFormat::Running(_) => {
                format!("-smp sockets={sockets},cores={cores},threads={threads} at its next start")
            }
        }
    }
}

fn vcpu_pins(layout: &Layout) -> impl Iterator<Item = &Pin> {
    layout.pins.iter().filter(|pin| pin.role.is_vcpu())
}

/// True for `SCHED_FIFO`, `SCHED_RR`, `SCHED_DEADLINE`.
pub(super) fn is_real_time(policy: Option<Policy>) -> bool {
    policy.is_some_and(|it| it.is_real_time() || matches!(it, Policy::Deadline { .. }))
}

/// The positions of pins without duplicates; pins that are not written are skipped.
pub(super) fn places<'a>(pins: impl IntoIterator<Item = &'a Pin>) -> Vec<Place> {
    let mut known = HashSet::new();
    let written = pins.into_iter().map(|pin| &pin.place).filter(|place| !place.text.is_empty());
    written.filter(|place| known.insert(*place)).cloned().collect()
}

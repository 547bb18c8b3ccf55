//! CPUs for an emulator that runs with the host's tasks and not with its vCPUs.
//!
//! It may use all of the host's CPUs that are equally near its vCPUs: on their nodes, else on their
//! packages, else anywhere. The kernel spreads its threads over them.

use std::collections::BTreeSet;

use pinfold_model::{CoreKind, CpuSet, NodeId, PuId};

use crate::cores::available::AvailableCpus;
use crate::cores::host_share::HostShare;

/// The rule that determined a [`EmulatorCpus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmulatorCpusRule {
    /// The weakest part of the machine.
    Weak,
    /// CPUs of the host, its core among them.
    Host,
    /// CPUs near the vCPUs, where the host's core is not.
    Near,
}

/// CPUs for an emulator that runs with the host's tasks.
pub(crate) struct EmulatorCpus {
    /// The CPUs; never empty on an [`AvailableCpus`].
    pub pus: CpuSet,
    /// Description for messages: `of core 0`.
    pub what: String,
    pub kind: EmulatorCpusRule,
}

impl EmulatorCpus {
    /// The same, restricted to the host's core if that is among them.
    pub fn on_core_of(self, host: &HostShare) -> Self {
        match self.kind {
            EmulatorCpusRule::Host => Self {
                pus: self.pus.intersection(&host.pus),
                what: of_host(host),
                kind: EmulatorCpusRule::Host,
            },
            EmulatorCpusRule::Weak | EmulatorCpusRule::Near => self,
        }
    }
}

/// The host's CPUs in messages.
fn of_host(host: &HostShare) -> String {
    if host.asked {
        return "that the request keeps for the host".to_owned();
    }
    format!("of {}", host.name())
}

/// How near CPUs are to the vCPUs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Node,
    Package,
    Machine,
}

const NO_ROOM_NEAR: &str =
    "which have no vCPU; no such CPU is left on the nodes of its machine's vCPUs";

const NO_ROOM: &str = "which its machine's vCPUs use too, because every other CPU has a vCPU";

impl AvailableCpus<'_> {
    /// CPUs for the emulator of a virtual machine whose vCPUs are on `pins`; `taken` are the CPUs
    /// of all vCPUs' cores. On the vCPUs' nodes: the weakest part of the machine if the vCPUs have
    /// a better one, else all of the host's CPUs there. If none is there, the nearest of the host's
    /// CPUs. Where the request names or counts the host's CPUs, only these.
    pub fn choose_emulator_cpus(
        &self,
        host: &HostShare,
        pins: &[PuId],
        taken: &CpuSet,
    ) -> EmulatorCpus {
        let own: CpuSet = pins.iter().copied().collect();
        let nodes = self.nodes_of(&own);
        let rest = self.hostable.difference(&self.free).difference(taken);
        let weak = self.cpus_on_nodes(&self.weaker_than(pins).intersection(&rest), &nodes);
        if !weak.is_empty() {
            let cores =
                self.cores.iter().filter(|core| core.pus.iter().any(|pu| weak.contains(*pu)));
            let what = format!("of {}", self.parts.name(cores));
            return EmulatorCpus { pus: weak, what, kind: EmulatorCpusRule::Weak };
        }
        let named = self.cpus_on_nodes(&host.pus, &nodes);
        if host.asked && !named.is_empty() {
            return EmulatorCpus { pus: named, what: of_host(host), kind: EmulatorCpusRule::Host };
        }
        let hosts = if host.asked { rest } else { rest.union(&host.pus) };
        match self.nearest(&hosts, &own) {
            (_, Reach::Machine) if host.asked => EmulatorCpus {
                pus: host.pus.clone(),
                what: of_host(host),
                kind: EmulatorCpusRule::Host,
            },
            (pus, reach) => self.near_host(pus, reach, host),
        }
    }

    /// The emulator's CPUs with their description.
    fn near_host(&self, pus: CpuSet, reach: Reach, host: &HostShare) -> EmulatorCpus {
        let is_with_host = !pus.is_disjoint(&host.pus);
        let what = match reach {
            _ if pus.is_subset(&host.pus) => of_host(host),
            Reach::Node if is_with_host => "of cores that have no vCPU".to_owned(),
            Reach::Node => format!(
                "of the vCPUs' node that have no vCPU (the host's {} is on another node)",
                host.name()
            ),
            Reach::Package => "of the vCPUs' package, whose node has no other CPU left".to_owned(),
            Reach::Machine => {
                "of other nodes, because no CPU is left on the vCPUs' node".to_owned()
            }
        };
        let kind = if is_with_host { EmulatorCpusRule::Host } else { EmulatorCpusRule::Near };
        EmulatorCpus { pus, what, kind }
    }

    /// Those of some CPUs that are nearest to the CPUs of vCPUs, and how near they are.
    fn nearest(&self, pus: &CpuSet, own: &CpuSet) -> (CpuSet, Reach) {
        let near = self.cpus_on_nodes(pus, &self.nodes_of(own));
        if !near.is_empty() {
            return (near, Reach::Node);
        }
        let near = self.index().packages_of(own).intersection(pus);
        if near.is_empty() { (pus.clone(), Reach::Machine) } else { (near, Reach::Package) }
    }

    /// CPUs over which an emulator floats, with a description; `carried` are those of the vCPUs of
    /// all machines. CPUs without a vCPU, on the nodes of its own vCPUs (`pins`) if there are any;
    /// else the CPUs of its own vCPUs, never those of another machine alone.
    pub fn around(&self, pins: &[PuId], carried: &CpuSet) -> (CpuSet, &'static str) {
        let own: CpuSet = pins.iter().copied().collect();
        let floating = self.floating();
        let without_vcpu = floating.difference(carried);
        if !without_vcpu.is_empty() {
            return match self.nearest(&without_vcpu, &own) {
                (pus, Reach::Node) => (pus, "which have no vCPU"),
                (pus, Reach::Package | Reach::Machine) => (pus, NO_ROOM_NEAR),
            };
        }
        let elsewhere = self.hostable.difference(&self.free).difference(carried);
        if !elsewhere.is_empty() {
            return (elsewhere, NO_ROOM_NEAR);
        }
        let with_own = floating.intersection(&own);
        if !with_own.is_empty() {
            return (with_own, NO_ROOM);
        }
        let near = self.cpus_on_nodes(&floating, &self.nodes_of(&own));
        (if near.is_empty() { floating } else { near }, NO_ROOM)
    }

    /// The CPUs that are neither the host's nor on a core with vCPUs (`taken`): the nearest to the
    /// vCPUs. May be empty.
    pub fn spare(&self, host: &HostShare, pins: &[PuId], taken: &CpuSet) -> CpuSet {
        let rest = self.hostable.difference(&self.free).difference(taken);
        let (near, _) = self.nearest(&rest, &pins.iter().copied().collect());
        near.difference(&host.pus)
    }

    /// The CPUs of one kind in an order: of the most preferred kind that has one for each of
    /// `vcpus`; all CPUs if no kind has.
    pub fn of_one_kind(&self, order: &[PuId], vcpus: usize) -> Vec<PuId> {
        let mut kinds: Vec<(u32, CoreKind)> =
            self.cores.iter().map(|it| (it.part, it.kind)).collect();
        kinds.sort_unstable();
        let of_kind = |kind: CoreKind| -> Vec<PuId> {
            order
                .iter()
                .copied()
                .filter(|pu| self.pu(*pu).is_some_and(|pu| pu.kind == kind))
                .collect()
        };
        kinds.dedup_by_key(|(_, kind)| *kind);
        let mut fitting = kinds.into_iter().map(|(_, kind)| of_kind(kind));
        fitting.find(|pus| pus.len() >= vcpus.max(1)).unwrap_or_else(|| order.to_vec())
    }

    /// The nodes of some CPUs.
    pub fn nodes_of(&self, pus: &CpuSet) -> BTreeSet<NodeId> {
        self.index().nodes_of(pus)
    }

    fn cpus_on_nodes(&self, pus: &CpuSet, nodes: &BTreeSet<NodeId>) -> CpuSet {
        self.index().cpus_on_nodes(pus, nodes)
    }

    /// The CPUs of the parts that are weaker than those of the vCPUs, or of the weakest part if
    /// they use cores of that too. Empty if all cores are alike, or the request names the host's
    /// CPUs.
    fn weaker_than(&self, pins: &[PuId]) -> CpuSet {
        let Some(weakest) = self.weakest.filter(|_| self.free.is_empty()) else {
            return CpuSet::new();
        };
        let used =
            pins.iter().filter_map(|pu| Some(self.available_core(*pu)?.part)).max().unwrap_or(0);
        let from = (used + 1).min(weakest);
        let weaker = self.cores.iter().filter(|core| core.part >= from);
        weaker.flat_map(|core| core.pus.iter().copied()).collect()
    }
}

//! CPUs for an emulator that runs with the host's tasks and not with its vCPUs.

use std::collections::BTreeSet;

use pinfold_model::{CoreKind, CpuSet, NodeId, PuId};

use crate::available::{AvailableCpus, HostShare};

/// The rule that determined a [`EmulatorCpus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HomeKind {
    /// The weakest part of the machine.
    Weak,
    /// The host's core.
    Host,
    /// CPUs of the vCPUs' node.
    Node,
}

/// CPUs for an emulator that runs with the host's tasks.
pub(crate) struct EmulatorCpus {
    /// The CPUs; never empty on an [`AvailableCpus`].
    pub pus: CpuSet,
    /// Description for messages: `of core 0`.
    pub what: String,
    pub kind: HomeKind,
}

const NO_ROOM_NEAR: &str =
    "which carry no vCPU; no such CPU is left for it on the nodes of its machine's vCPUs";

const NO_ROOM: &str =
    "which its machine's vCPUs have too, because no CPU without a vCPU is left for it";

impl AvailableCpus<'_> {
    /// CPUs for the emulator of a virtual machine whose vCPUs are on `pins`; `taken` are the CPUs
    /// of all vCPUs' cores. The first of these that is on the vCPUs' nodes: the weakest part of the
    /// machine if the vCPUs have a better one, the host's CPUs, other free CPUs. If none is there,
    /// the host's CPUs.
    pub fn home(&self, host: &HostShare, pins: &[PuId], taken: &CpuSet) -> EmulatorCpus {
        let nodes = self.nodes_of(&pins.iter().copied().collect());
        let near = |pus: &CpuSet| self.near(pus, &nodes);
        let rest = self.hostable.intersection(&self.usable).difference(taken);
        let weak = near(&self.weaker_than(pins).intersection(&rest));
        if !weak.is_empty() {
            let spots =
                self.cores.iter().filter(|spot| spot.pus.iter().any(|pu| weak.contains(*pu)));
            let what = format!("of {}", self.parts.name(spots));
            return EmulatorCpus { pus: weak, what, kind: HomeKind::Weak };
        }
        let what = match host.asked {
            true => "that the request keeps for the host".to_owned(),
            false => format!("of {}", host.name()),
        };
        let beside = near(&host.pus);
        if !beside.is_empty() {
            return EmulatorCpus { pus: beside, what, kind: HomeKind::Host };
        }
        let left = near(&rest);
        if left.is_empty() {
            return EmulatorCpus { pus: host.pus.clone(), what, kind: HomeKind::Host };
        }
        let what = format!(
            "of the vCPUs' node, which carry none of them (the host's {} is on another node)",
            host.name()
        );
        EmulatorCpus { pus: left, what, kind: HomeKind::Node }
    }

    /// CPUs over which an emulator floats, with a description; `carried` are those of the vCPUs of
    /// all machines. CPUs without a vCPU, on the nodes of its own vCPUs (`pins`) if there are any;
    /// else the CPUs of its own vCPUs, never those of another machine alone.
    pub fn around(&self, pins: &[PuId], carried: &CpuSet) -> (CpuSet, &'static str) {
        let own: CpuSet = pins.iter().copied().collect();
        let floating = self.floating();
        let near = self.near(&floating, &self.nodes_of(&own));
        let elsewhere = self.hostable.difference(&self.free);
        let choices: [(&dyn Fn() -> CpuSet, &str); 5] = [
            (&|| near.difference(carried), "which carry no vCPU"),
            (&|| floating.difference(carried), NO_ROOM_NEAR),
            (&|| elsewhere.difference(carried), NO_ROOM_NEAR),
            (&|| near.intersection(&own), NO_ROOM),
            (&|| near.clone(), NO_ROOM),
        ];
        let mut choices = choices.into_iter().map(|(pus, which)| (pus(), which));
        let found = choices.find(|(pus, _)| !pus.is_empty());
        found.unwrap_or_else(|| (floating.clone(), NO_ROOM))
    }

    /// The CPUs that are neither the host's nor on a core with vCPUs (`taken`): those on the vCPUs'
    /// nodes, else those on other nodes. May be empty.
    pub fn spare(&self, host: &HostShare, pins: &[PuId], taken: &CpuSet) -> CpuSet {
        let rest = self.hostable.intersection(&self.usable).difference(taken);
        let nodes = self.nodes_of(&pins.iter().copied().collect());
        let all = if self.near(&rest, &nodes).is_empty() { rest } else { self.near(&rest, &nodes) };
        all.difference(&host.pus)
    }

    /// The CPUs of one kind in an order: of the most preferred kind that has one for each of
    /// `vcpus`; all CPUs if no kind has.
    pub fn of_one_kind(&self, order: &[PuId], vcpus: usize) -> Vec<PuId> {
        let mut kinds: Vec<(u32, CoreKind)> =
            self.cores.iter().map(|it| (it.part, it.kind)).collect();
        kinds.sort_unstable();
        let of_kind = |kind: CoreKind| -> Vec<PuId> {
            let is_of = |pu: &PuId| self.pu(*pu).is_some_and(|pu| pu.kind == kind);
            order.iter().copied().filter(is_of).collect()
        };
        kinds.dedup_by_key(|(_, kind)| *kind);
        let mut fitting = kinds.into_iter().map(|(_, kind)| of_kind(kind));
        fitting.find(|pus| pus.len() >= vcpus.max(1)).unwrap_or_else(|| order.to_vec())
    }

    /// The nodes of some CPUs.
    pub fn nodes_of(&self, pus: &CpuSet) -> BTreeSet<NodeId> {
        self.index().nodes_of(pus)
    }

    fn near(&self, pus: &CpuSet, nodes: &BTreeSet<NodeId>) -> CpuSet {
        self.index().near(pus, nodes)
    }

    /// The CPUs of the parts that are weaker than those of the vCPUs, or of the weakest part if
    /// they use cores of that too. Empty if all cores are alike, or the request names the host's
    /// CPUs.
    fn weaker_than(&self, pins: &[PuId]) -> CpuSet {
        let Some(weakest) = self.weakest_part().filter(|_| self.free.is_empty()) else {
            return CpuSet::new();
        };
        let used = pins.iter().filter_map(|pu| Some(self.spot_of(*pu)?.part)).max().unwrap_or(0);
        let from = (used + 1).min(weakest);
        let weaker = self.cores.iter().filter(|spot| spot.part >= from);
        weaker.flat_map(|spot| spot.pus.iter().copied()).collect()
    }
}

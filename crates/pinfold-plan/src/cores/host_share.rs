//! The CPUs that stay with the host.

use pinfold_model::text::pus_text;
use pinfold_model::{CoreId, CpuSet, L3Id, NodeId, PackageId};

/// The core that is reserved for the host.
#[derive(Clone, Debug)]
pub(crate) struct HostShare {
    pub core: Option<CoreId>,
    /// The level-2 cache that the core shares with other cores.
    pub l2: Option<u32>,
    /// The L3 domain of that core.
    pub l3: Option<L3Id>,
    /// The NUMA node of that core.
    pub node: Option<NodeId>,
    /// The package of that core.
    pub package: Option<PackageId>,
    /// The host's CPUs: of that core, or all that the request keeps free; never empty on an
    /// [`AvailableCpus`].
    pub pus: CpuSet,
    /// True if the request names its CPUs or gives their number.
    pub asked: bool,
    /// Why this core was chosen.
    pub why: String,
}

impl HostShare {
    /// Name for messages: `core 0`, or `the CPUs 0-3` if the request names or counts them.
    pub fn name(&self) -> String {
        match (self.core, self.asked) {
            (Some(core), false) => format!("core {core}"),
            (Some(_) | None, _) => pus_text(&self.pus),
        }
    }

    /// The same with its verb: `core 0 stays`, `the CPUs 0-3 stay`.
    pub fn with_verb(&self, of_one: &str, of_many: &str) -> String {
        let many = (self.asked || self.core.is_none()) && self.pus.len() > 1;
        format!("{} {}", self.name(), if many { of_many } else { of_one })
    }
}

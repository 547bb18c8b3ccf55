//! CPUs, counts and sizes in messages.

use pinfold_model::text::select_verb;
use pinfold_model::{CpuSet, NodeId, PuId};

/// The verb that goes with these CPUs.
pub fn verb<'a>(pus: &CpuSet, of_one: &'a str, of_many: &'a str) -> &'a str {
    select_verb(pus.len(), of_one, of_many)
}

/// The same for nouns given in the plural: `1 vCPU` for `vCPUs`, `1 vCPU or core` for `vCPUs and
/// cores`.
pub(crate) fn count_with_noun(count: u32, plural: &str) -> String {
    if count != 1 {
        return format!("{count} {plural}");
    }
    let nouns = plural.split(" and ").map(|noun| noun.strip_suffix('s').unwrap_or(noun));
    format!("1 {}", nouns.collect::<Vec<_>>().join(" or "))
}

/// A count for a message.
pub(crate) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// `96 MiB`; in KiB if it is not a whole number of MiB.
pub fn mib(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

/// Nodes as a list, `0,2-3`.
#[must_use]
pub fn node_list(nodes: &[NodeId]) -> CpuSet {
    nodes.iter().map(|node| PuId(node.0)).collect()
}

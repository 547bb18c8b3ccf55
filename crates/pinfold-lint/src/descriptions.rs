//! Threads, CPUs and nodes in a sentence.

use pinfold_model::{CpuSet, NodeId, PuId, Role};

/// A role for messages: `vCPU 0`, `the emulator`, `iothread disk`.
pub(super) fn describe(role: &Role) -> String {
    // libvirt calls its iothreads `iothread1`, `iothread2`, …
    let number = role.iothread().and_then(|id| id.strip_prefix("iothread"));
    match number.filter(|number| !number.is_empty()) {
        Some(number) => format!("{} {number}", role.kind().words),
        None => role.describe(),
    }
}

/// Roles in a sentence: `the vCPUs 0-11 and the emulator`.
pub(super) fn describe_all<'r>(roles: impl Iterator<Item = &'r Role>) -> String {
    let (mut vcpus, mut named) = (Vec::new(), Vec::new());
    for role in roles {
        match role.vcpu() {
            Some(index) => vcpus.push(index),
            None => named.push(describe(role)),
        }
    }
    if !vcpus.is_empty() {
        named.insert(0, describe_vcpus(vcpus));
    }
    match named.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}

/// CPUs of the host in a sentence: `CPU 3` or `the CPUs 0-2,5`.
pub(super) fn cpus(set: &CpuSet) -> String {
    if set.len() == 1 { format!("CPU {set}") } else { format!("the CPUs {set}") }
}

/// vCPUs for messages: `vCPU 3` or `the vCPUs 0-2,5`.
pub(super) fn describe_vcpus(indexes: impl IntoIterator<Item = u32>) -> String {
    let set: CpuSet = indexes.into_iter().map(PuId).collect();
    if set.len() == 1 { format!("vCPU {set}") } else { format!("the vCPUs {set}") }
}

/// `node 1` or `nodes 1, 2`.
pub(super) fn describe_nodes(nodes: &[NodeId]) -> String {
    let list: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    format!("{} {}", if list.len() == 1 { "node" } else { "nodes" }, list.join(", "))
}

//! QEMU's memory options: `-m`, backends bound to the host's nodes, and the guest's NUMA cells.
//!
//! ```text
//! -object thread-context,id=pinfold-tc0,node-affinity=0
//! -object memory-backend-ram,id=pinfold-mem0,size=…,host-nodes=0,policy=bind,prealloc=on,prealloc-context=pinfold-tc0
//! -numa node,nodeid=0,cpus=0-3,memdev=pinfold-mem0
//! ```
//! Pages are bound before they are touched, and touched by threads of their own node, so that none
//! must be moved (`thread-context` needs QEMU 7.2). With one node the backend is the machine's own
//! (`-machine memory-backend=`), and the guest needs no cell.

use pinfold_model::{CpuSet, MemoryPlan, NodeId, Topology, VnodePlan};
use pinfold_plan::guest_numa::{self, node_list};

use super::super::common::policy;
use super::Command;

/// Options for the memory, with comments.
pub(super) struct Options {
    /// Options with their values.
    pub words: Vec<(&'static str, String)>,
    /// Comments.
    pub notes: Vec<String>,
}

/// The options for the memory that `vnode` plans.
pub(super) fn options(vnode: &VnodePlan, topology: &Topology, command: &Command<'_>) -> Options {
    let own: Vec<(&'static str, String)> =
        command.values("m").into_iter().map(|value| ("-m", value.to_owned())).collect();
    let Some(memory) = &vnode.memory else {
        return Options { words: own, notes: Vec::new() };
    };
    let nodes = node_list(&memory.nodes);
    let keep = |why: &str| Options {
        words: own.clone(),
        notes: vec![format!("The plan wants the memory on node {nodes}: {why}")],
    };
    if command.places_memory() {
        return keep("your own memory backends are left as they are.");
    }
    let asked = command.line.memory_bytes();
    let Some(bytes) = memory.bytes.or(asked) else {
        return keep(
            "its size is not known; say -m SIZE in the command, or plan with a memory size.",
        );
    };
    let cells = guest_numa::cells(vnode, topology);
    let shares = guest_numa::shares(&cells, bytes, memory.page_bytes.unwrap_or(1 << 20));
    let mut options = Options {
        words: vec![("-m", format!("size={bytes}B{}", room(command)))],
        notes: Vec::new(),
    };
    match &memory.bytes {
        Some(planned) if asked.is_some_and(|asked| asked != *planned) => {
            options.notes.push(format!("The plan's {planned} bytes replace your -m."));
        }
        Some(_) | None => {}
    }
    match shares {
        Some(shares) => {
            for ((cell, share), number) in cells.iter().zip(shares).zip(0_u32..) {
                let backend = backend(memory, topology, number, &[cell.node], share);
                options.words.extend(backend);
                // Each list element is a separate key in QEMU's options.
                let cpus = ranges("cpus", &cell.vcpus);
                let value = format!("node,nodeid={number},{cpus},memdev=pinfold-mem{number}");
                options.words.push(("-numa", value));
            }
        }
        None => {
            options.words.extend(backend(memory, topology, 0, &memory.nodes, bytes));
            options.words.push(("-machine", "memory-backend=pinfold-mem0".to_owned()));
            if memory.nodes.len() > 1 {
                options.notes.push(format!(
                    "The guest is not shown the nodes {nodes}: its vCPUs are not pinned to single nodes, or \
                     the memory cannot be shared out in whole pages."
                ));
            }
        }
    }
    options
}

fn backend(
    memory: &MemoryPlan,
    topology: &Topology,
    number: u32,
    nodes: &[NodeId],
    bytes: u64,
) -> Vec<(&'static str, String)> {
    let mut words = Vec::new();
    let list = node_list(nodes);
    let mut value = match memory.page_bytes {
        Some(page) => format!(
            "memory-backend-memfd,id=pinfold-mem{number},size={bytes}B,hugetlb=on,hugetlbsize={page}B"
        ),
        None => format!("memory-backend-ram,id=pinfold-mem{number},size={bytes}B"),
    };
    let policy = policy(memory);
    value.push_str(&format!(",{},policy={policy},prealloc=on", ranges("host-nodes", &list)));
    if nodes
        .iter()
        .all(|id| topology.nodes.iter().any(|node| node.id == *id && !node.pus.is_empty()))
    {
        let affinity = ranges("node-affinity", &list);
        words.push(("-object", format!("thread-context,id=pinfold-tc{number},{affinity}")));
        value.push_str(&format!(",prealloc-context=pinfold-tc{number}"));
    }
    words.push(("-object", value));
    words
}

/// `key=0-3,key=8`: QEMU's option lists take one range per key.
fn ranges(key: &str, set: &CpuSet) -> String {
    let list = set.to_string();
    let keys: Vec<String> = list.split(',').map(|range| format!("{key}={range}")).collect();
    keys.join(",")
}

/// The rest of `-m` after the size: slots for hot-plugged memory.
fn room(command: &Command<'_>) -> String {
    let said = ["slots", "maxmem"].into_iter().filter_map(|key| {
        Some((key, command.line.all("m").rev().find_map(|option| option.key(key))?))
    });
    said.map(|(key, value)| format!(",{key}={value}")).collect()
}

//! The location of a running machine's memory.

use pinfold_model::{NodeId, Tid};

use super::{Fault, FaultText};
use crate::descriptions::describe_nodes;

/// What determines the intended nodes.
pub(crate) enum Source<'a> {
    /// A plan or domain file.
    Written(&'a str),
    /// The binding of the running machine.
    Bound,
    /// The pins of its vCPUs.
    Pins,
}

pub(crate) enum PagesFault<'a> {
    /// Pages of a process on other nodes than the wanted ones; `many` of them.
    Elsewhere {
        process: Tid,
        total_kib: u64,
        away: &'a [(NodeId, u64)],
        wanted: &'a [NodeId],
        source: &'a Source<'a>,
        many: bool,
    },
    /// It is not known where the pages are.
    Unseen { why: &'a str },
}

impl Fault for PagesFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            PagesFault::Elsewhere { process, total_kib, away, wanted, source, many } => {
                let whose = match source {
                    Source::Written(file) => format!("{file} binds it to"),
                    Source::Bound => "it is bound to".to_owned(),
                    Source::Pins => "its vCPUs are pinned to".to_owned(),
                };
                let far: u64 = away.iter().map(|(_, kib)| kib).sum();
                FaultText::new(
                    "memory-elsewhere",
                    format!(
                        "of the {} MiB of memory that it holds, {} MiB are on another node ({}); {whose} {}",
                        mib(*total_kib),
                        mib(far),
                        mib_by_node(away),
                        describe_nodes(wanted)
                    ),
                    if *many {
                        "each cache miss there crosses the interconnect, which takes up to twice \
                         as long and has less bandwidth; pins do not move existing pages"
                    } else {
                        "little: program text and pages touched before the threads were pinned"
                    },
                )
                .with_replacement([format!(
                    "`migratepages {process} {} {}` moves the movable pages, and so does `pinfold \
                     apply` with a plan that binds memory; bind the memory at the next start",
                    list(&mut away.iter().map(|(node, _)| *node)),
                    list(&mut wanted.iter().copied())
                )])
            }
            PagesFault::Unseen { why } => FaultText::new(
                "memory-unseen",
                format!("cannot read on which nodes its memory is: {why}"),
                "this check would miss pages on another node than the vCPUs",
            )
            .with_replacement(["run the check as root, on a kernel with NUMA (CONFIG_NUMA)"]),
        }
    }
}

fn list(nodes: &mut dyn Iterator<Item = NodeId>) -> String {
    nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(",")
}

/// `node 0 3684 MiB, node 1 412 MiB`.
pub(crate) fn mib_by_node(kib: &[(NodeId, u64)]) -> String {
    let parts: Vec<String> =
        kib.iter().map(|(node, kib)| format!("node {node} {} MiB", mib(*kib))).collect();
    parts.join(", ")
}

/// Whole MiB, rounded up, so that existing memory is never reported as none.
fn mib(kib: u64) -> u64 {
    kib.div_ceil(1024)
}

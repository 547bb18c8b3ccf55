//! Compares the location of a running machine's memory with the intended one.
//!
//! Affinity moves no pages: a machine that was pinned after its start, or whose memory is not
//! bound, can have its pages on another node than its vCPUs. The intended nodes are determined, in
//! this order, by a plan or domain file of the same name that is checked together with it, by
//! libvirt's binding, and by the nodes of its vCPUs' pins.

use pinfold_model::{NodeId, Severity, Tid};
use pinfold_plan::domain_file::Place;
use pinfold_plan::layout::{Layout, MemoryOf, Pages};

use super::Diagnostic;
use super::lookup::{LintContext, spoken};
use super::memory::filled;

/// A warning needs more than this fraction (1/PARTS) elsewhere: program text and libraries belong
/// to the page cache, and are on the node of the process that read them first.
const PARTS: u64 = 16;

pub(super) fn check(
    view: &LintContext<'_, '_>,
    written: Option<&Layout>,
    flaws: &mut Vec<Diagnostic>,
) {
    let Some(pages) = &view.layout.pages else { return };
    if view.lookup.topology.nodes.len() < 2 {
        return;
    }
    match pages {
        Pages::Unseen(why) => flaws.push(unseen(view, why)),
        Pages::Found { process, kib } => {
            let (wanted, whose) = wanted(view, written);
            if !wanted.is_empty() {
                flaws.extend(elsewhere(view, (*process, kib), &wanted, &whose));
            }
        }
    }
}

/// The intended nodes of the memory, and the source of this information.
fn wanted(view: &LintContext<'_, '_>, written: Option<&Layout>) -> (Vec<NodeId>, String) {
    let bound = |memory: &[MemoryOf]| {
        let mut nodes: Vec<NodeId> =
            memory.iter().filter_map(|bound| bound.nodes.clone()).flatten().collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    if let Some(written) = written {
        let nodes = bound(&written.memory);
        if !nodes.is_empty() {
            return (nodes, format!("{} binds it to", written.source));
        }
    }
    let nodes = bound(&view.layout.memory);
    if !nodes.is_empty() {
        return (nodes, "it is bound to".to_owned());
    }
    let nodes = filled(view, view.lookup.nodes_of(&view.held));
    (nodes, "its vCPUs are pinned to".to_owned())
}

fn elsewhere(
    view: &LintContext<'_, '_>,
    (process, kib): (Tid, &[(NodeId, u64)]),
    wanted: &[NodeId],
    whose: &str,
) -> Option<Diagnostic> {
    let total: u64 = kib.iter().map(|(_, kib)| kib).sum();
    let away: Vec<(NodeId, u64)> =
        kib.iter().copied().filter(|(node, _)| !wanted.contains(node)).collect();
    let far: u64 = away.iter().map(|(_, kib)| kib).sum();
    if far < 1024 {
        return None;
    }
    let severity = if far > total / PARTS { Severity::Warning } else { Severity::Note };
    let mut flaw = view.flaw(
        severity,
        "memory-elsewhere",
        format!(
            "of the {} MiB of memory that it holds, {} MiB are on another node ({}); {whose} {}",
            mib(total),
            mib(far),
            mib_by_node(&away),
            spoken(wanted)
        ),
    );
    flaw.places = vec![Place::said(format!("process {process}: {}", mib_by_node(kib)))];
    flaw.cost = match severity {
        Severity::Note => "little: program text and what was touched before the pins".to_owned(),
        Severity::Warning | Severity::Problem => {
            "each cache miss there crosses the interconnect, which takes up to twice as long and has \
             less bandwidth; pins move no page that is already there"
                .to_owned()
        }
    };
    let list = |nodes: &mut dyn Iterator<Item = NodeId>| {
        nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(",")
    };
    flaw.instead = vec![format!(
        "`migratepages {process} {} {}` moves what can move, and so does `pinfold apply` with a plan \
         that binds memory; bind it at its next start",
        list(&mut away.iter().map(|(node, _)| *node)),
        list(&mut wanted.iter().copied())
    )];
    Some(flaw)
}

fn unseen(view: &LintContext<'_, '_>, why: &str) -> Diagnostic {
    let mut flaw = view.flaw(
        Severity::Note,
        "memory-unseen",
        format!("on which nodes its memory is unknown: {why}"),
    );
    flaw.cost = "pages on another node than the vCPUs would go unnoticed".to_owned();
    flaw.instead = vec!["look as root, on a kernel with NUMA (CONFIG_NUMA)".to_owned()];
    flaw
}

/// `node 0 3684 MiB, node 1 412 MiB`.
fn mib_by_node(kib: &[(NodeId, u64)]) -> String {
    let parts: Vec<String> =
        kib.iter().map(|(node, kib)| format!("node {node} {} MiB", mib(*kib))).collect();
    parts.join(", ")
}

/// Whole MiB, rounded up, so that existing memory is never reported as none.
fn mib(kib: u64) -> u64 {
    kib.div_ceil(1024)
}

//! Compares the location of a running machine's memory with the intended one.
//!
//! Affinity moves no pages: a machine that was pinned after its start, or whose memory is not
//! bound, can have its pages on another node than its vCPUs. The intended nodes are determined, in
//! this order, by a plan or domain file of the same name that is checked together with it, by
//! libvirt's binding, and by the nodes of its vCPUs' pins.

use pinfold_model::{NodeId, Severity, Tid};
use pinfold_plan::domain_file::Place;
use pinfold_plan::layout::{Layout, MemoryBinding, MemoryLocation};

use super::Diagnostic;
use super::lookup::LintContext;
use super::memory::fill;
use super::text::pages::{PagesFault, Source, mib_by_node};

/// A warning needs more than this fraction (1/PARTS) elsewhere: program text and libraries belong
/// to the page cache, and are on the node of the process that read them first.
const PARTS: u64 = 16;

pub(super) fn check(
    view: &LintContext<'_, '_>,
    written: Option<&Layout>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let Some(pages) = &view.layout.pages else { return };
    if view.lookup.topology.nodes.len() < 2 {
        return;
    }
    match pages {
        MemoryLocation::Unseen(why) => {
            diagnostics.push(view.diagnostic(Severity::Note, &PagesFault::Unseen { why }));
        }
        MemoryLocation::Found { process, kib } => {
            let (wanted, source) = wanted_bytes(view, written);
            if !wanted.is_empty() {
                diagnostics.extend(check_remote_pages(view, *process, kib, &wanted, &source));
            }
        }
    }
}

/// The intended nodes of the memory, and the source of this information.
fn wanted_bytes<'w>(
    view: &LintContext<'_, '_>,
    written: Option<&'w Layout>,
) -> (Vec<NodeId>, Source<'w>) {
    if let Some(written) = written {
        let nodes = bound_nodes(&written.memory);
        if !nodes.is_empty() {
            return (nodes, Source::Written(&written.source));
        }
    }
    let nodes = bound_nodes(&view.layout.memory);
    if !nodes.is_empty() {
        return (nodes, Source::Bound);
    }
    let nodes = fill(view, view.lookup.nodes_of(&view.held));
    (nodes, Source::Pins)
}

fn bound_nodes(memory: &[MemoryBinding]) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> =
        memory.iter().filter_map(|bound| bound.nodes.clone()).flatten().collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

fn check_remote_pages(
    view: &LintContext<'_, '_>,
    process: Tid,
    kib: &[(NodeId, u64)],
    wanted: &[NodeId],
    source: &Source<'_>,
) -> Option<Diagnostic> {
    let total: u64 = kib.iter().map(|(_, kib)| kib).sum();
    let away: Vec<(NodeId, u64)> =
        kib.iter().copied().filter(|(node, _)| !wanted.contains(node)).collect();
    let far: u64 = away.iter().map(|(_, kib)| kib).sum();
    if far < 1024 {
        return None;
    }
    let many = far > total / PARTS;
    let severity = if many { Severity::Warning } else { Severity::Note };
    let mut diagnostic = view.diagnostic(
        severity,
        &PagesFault::Elsewhere { process, total_kib: total, away: &away, wanted, source, many },
    );
    diagnostic.places = vec![Place::from_text(format!("process {process}: {}", mib_by_node(kib)))];
    Some(diagnostic)
}

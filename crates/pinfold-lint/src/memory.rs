//! Nodes and L3 domains: vCPUs far from each other, and memory far from them.

use std::collections::BTreeSet;

use pinfold_emit::memnode_line;
use pinfold_model::{CpuSet, NodeId, Severity};
use pinfold_plan::alternatives::severity;
use pinfold_plan::capacity::{is_empty_node, room, sizes_are_known};
use pinfold_plan::domain_file::{Domain, RESTRICTIVE, STRICT};
use pinfold_plan::guest_numa::node_list;
use pinfold_plan::layout::{MemoryBinding, Pin, SourceFormat};
use pinfold_plan::locality;

use super::Diagnostic;
use super::lookup::{LintContext, places};
use super::repair::Repair;
use super::text::memory::{FreeResources, MemoryFault};

pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    nodes_that_are_not(view, diagnostics);
    restrictive(view, diagnostics);
    if view.held.is_empty() {
        return;
    }
    if view.has_nodes() {
        far_memory(view, diagnostics);
        unbound_memory(view, diagnostics);
    }
    without_memory(view, diagnostics);
    spread_over_nodes(view, diagnostics);
    spread_over_l3(view, diagnostics);
    cells(view, diagnostics);
}

/// Memory bound to nodes that the host lacks, or that have no memory.
fn nodes_that_are_not(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let known = &view.lookup.topology.nodes;
    // If the topology has no memory sizes, nothing is known.
    let has_sizes = known.iter().any(|node| node.memory_bytes > 0);
    for bound in &view.layout.memory {
        for node in bound.nodes.iter().flatten() {
            let found = known.iter().find(|known| known.id == *node);
            let fault = match found {
                None => {
                    let known = fill(view, known.iter().map(|known| known.id).collect());
                    MemoryFault::AbsentNode { node: *node, known }
                }
                Some(found) if has_sizes && found.memory_bytes == 0 => {
                    MemoryFault::EmptyNode { node: *node }
                }
                Some(_) => continue,
            };
            let mut diagnostic = view.diagnostic(Severity::Problem, &fault);
            diagnostic.places = vec![bound.place.clone()];
            diagnostic.repairs.extend(without_node(view, bound));
            diagnostics.push(diagnostic);
        }
    }
}

/// The change of one binding that removes a missing node, if no pins determine a replacement or it
/// is the only node.
fn without_node(view: &LintContext<'_, '_>, bound: &MemoryBinding) -> Option<Repair> {
    let domain = Domain::read(view.layout.text.as_deref()?).ok()?;
    if !view.held.is_empty() && view.has_nodes() {
        return None;
    }
    if domain.memnodes.is_empty() {
        return Some(Repair::remove(&["numatune"], "memory"));
    }
    let known = &view.lookup.topology.nodes;
    let nodes = fill(view, known.iter().map(|known| known.id).collect());
    let path = &["numatune"];
    match (nodes.as_slice(), &bound.cell) {
        ([_], None) => {
            let mode = domain.memory.as_ref().map_or(STRICT, |memory| memory.value.mode.as_str());
            let line = format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&nodes));
            Some(Repair::set_element(path, "memory", line))
        }
        ([_], Some((cell, _))) => {
            let line = memnode_line(*cell, &domain.memnode(*cell)?.mode, &nodes);
            Some(Repair::put_keyed(path, "memnode", "cellid", &cell.to_string(), line))
        }
        (_, _) => None,
    }
}

/// `restrictive` in only a part of `<numatune>`, and its effect on the guest's cells.
fn restrictive(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(domain) = view.layout.text.as_deref().and_then(|text| Domain::read(text).ok()) else {
        return;
    };
    let whole = domain.memory.as_ref().map_or(STRICT, |bound| bound.value.mode.as_str());
    let others = domain
        .memnodes
        .iter()
        .filter(|memnode| is_restrictive(&memnode.value.mode) != is_restrictive(whole));
    let others: Vec<_> = others.collect();
    if !others.is_empty() {
        let mut diagnostic = view.diagnostic(Severity::Problem, &MemoryFault::ModesMixed);
        diagnostic.places = domain.memory.iter().map(|bound| bound.place.clone()).collect();
        diagnostic.places.extend(others.iter().map(|memnode| memnode.place.clone()));
        let mode = if is_restrictive(whole) { RESTRICTIVE } else { STRICT };
        diagnostic.repairs = others
            .iter()
            .map(|memnode| {
                let (cell, nodes) = (memnode.value.cell.to_string(), &memnode.value.nodes);
                let line = memnode_line(memnode.value.cell, mode, nodes);
                Repair::put_keyed(&["numatune"], "memnode", "cellid", &cell, line)
            })
            .collect();
        diagnostics.push(diagnostic);
    } else if is_restrictive(whole) && domain.memnodes.len() > 1 {
        let mut diagnostic = view.diagnostic(Severity::Note, &MemoryFault::CellsRestricted);
        diagnostic.places = domain.memnodes.iter().map(|memnode| memnode.place.clone()).collect();
        diagnostics.push(diagnostic);
    }
}

fn is_restrictive(mode: &str) -> bool {
    mode == RESTRICTIVE
}

/// Memory bound to other nodes than those of the vCPUs that use it.
fn far_memory(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    for bound in &view.layout.memory {
        let Some(nodes) = &bound.nodes else { continue };
        let users = match &bound.cell {
            None => view.held.clone(),
            Some((_, vcpus)) => {
                let of_cell =
                    view.vcpus().filter(|(index, _)| vcpus.contains(pinfold_model::PuId(*index)));
                of_cell.filter_map(|(_, pin)| pin.pus.as_ref()).collect::<CpuSet>()
            }
        };
        let wanted = fill(view, view.lookup.nodes_of(&users));
        // Nodes without memory have a separate finding: no binding is near them.
        if wanted.iter().all(|node| is_empty_node(view.lookup.topology, *node))
            || nodes.iter().any(|node| wanted.contains(node))
                && (bound.cell.is_none() || *nodes == wanted)
        {
            continue;
        }
        if nodes.iter().all(|node| wanted.contains(node)) {
            continue;
        }
        let cell = bound.cell.as_ref().map(|(cell, _)| *cell);
        let fault = MemoryFault::Far { cell, nodes, vcpu_nodes: &wanted };
        let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
        diagnostic.places = vec![bound.place.clone()];
        diagnostic.places.extend(places(view.vcpus().map(|(_, pin)| pin)).into_iter().take(2));
        diagnostics.push(diagnostic);
    }
}

/// Pinned vCPUs of one node whose memory is not bound.
fn unbound_memory(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let bound = !view.layout.memory.is_empty() && !view.layout.memory.iter().all(is_automatic);
    let nodes = fill(view, view.lookup.nodes_of(&view.held));
    let known = &view.lookup.topology.nodes;
    // Nothing can be bound to nodes without memory.
    let empty = known.iter().any(|node| node.memory_bytes > 0)
        && !nodes.iter().any(|id| known.iter().any(|node| node.id == *id && node.memory_bytes > 0));
    let floats = !locality::is_memory_node_determined(
        &view.lookup.index,
        view.vcpus().map(|(_, pin)| pin.pus.as_ref().unwrap_or(&view.lookup.usable)),
        &nodes,
    );
    let runs = matches!(view.layout.language, SourceFormat::Running(_));
    if bound || nodes.is_empty() || empty || floats || runs {
        return;
    }
    // Memory that exceeds that of the whole host is a separate finding, and no binding helps.
    let Some(holding) = holding(view, &nodes) else { return };
    let fault = MemoryFault::NotBound { nodes: &nodes, holding: &holding };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    diagnostic.places = view.layout.memory.iter().map(|bound| bound.place.clone()).collect();
    diagnostics.push(diagnostic);
}

fn is_automatic(bound: &MemoryBinding) -> bool {
    bound.nodes.is_none()
}

/// Those of some nodes that can hold the machine's memory, with as many others as necessary; `None`
/// if the whole host cannot hold it.
pub(super) fn holding(view: &LintContext<'_, '_>, nodes: &[NodeId]) -> Option<Vec<NodeId>> {
    let topology = view.lookup.topology;
    let bytes = view.layout.bytes.as_ref().map_or(0, |bytes| bytes.value);
    let mut chosen: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let mut others: Vec<_> =
        topology.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id).collect();
    others.retain(|id| !chosen.contains(id));
    let mut others = others.into_iter();
    while sizes_are_known(topology) && room(&chosen, topology) < bytes {
        chosen.insert(others.next()?);
    }
    Some(chosen.into_iter().collect())
}

/// The element that binds the unbound memory of a file to the nodes of its vCPUs, if no vCPU must
/// move for that.
pub(super) fn binding(view: &LintContext<'_, '_>) -> Option<Repair> {
    let layout = view.layout;
    if layout.text.is_none() || layout.cells.len() > 1 || !layout.memory.is_empty() {
        return None;
    }
    let nodes = holding(view, &fill(view, view.lookup.nodes_of(&view.held)))?;
    let mode = pinfold_emit::mode_of_nodes(&nodes, view.lookup.topology);
    let line = format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&nodes));
    Some(Repair::set_element(&["numatune"], "memory", line))
}

/// vCPUs on nodes without memory.
fn without_memory(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let topology = view.lookup.topology;
    let mut nodes = view.lookup.nodes_of(&view.tight);
    nodes.retain(|node| is_empty_node(topology, *node));
    if nodes.is_empty() {
        return;
    }
    let on_them = |pin: &Pin| {
        let theirs = topology.nodes.iter().filter(|node| nodes.contains(&node.id));
        let pus = theirs.map(|node| &node.pus).collect::<CpuSet>();
        pin.pus.as_ref().is_some_and(|own| own.is_subset(&pus))
    };
    let severity = severity(view.choice(view.tight.len()).near_memory());
    let mut diagnostic =
        view.diagnostic(severity, &MemoryFault::NodeWithoutMemory { nodes: &nodes });
    diagnostic.places = places(view.vcpus().map(|(_, pin)| pin).filter(|pin| on_them(pin)));
    diagnostics.push(diagnostic);
}

/// vCPUs on several nodes, although one would be enough or the guest topology does not show it.
fn spread_over_nodes(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let nodes = view.lookup.nodes_of(&view.tight);
    if nodes.len() < 2 {
        return;
    }
    // A guest with several cells on separate nodes is intended to be on several nodes.
    let cells = nodes_of_cells(view);
    if cells.len() > 1 && cells.iter().all(|nodes| nodes.len() == 1) {
        return;
    }
    let roomy = view.choice(view.tight.len()).node_for_all(&view.tight_pins());
    // Memory that is bound to exactly these nodes, per cell or interleaved, shows that several
    // nodes are intended.
    if shares_out(view, &nodes) || roomy.is_none() && view.layout.cells.len() >= nodes.len() {
        return;
    }
    let fault = match roomy {
        Some((node, pus)) => {
            let room = FreeResources { id: node.id, pus: pus.len() };
            MemoryFault::NodesCrossed { nodes: &nodes, room }
        }
        None => {
            let cells = view.layout.cells.len().max(1);
            MemoryFault::NodesHidden { nodes: &nodes, cells }
        }
    };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    diagnostic.places = places(view.vcpus().map(|(_, pin)| pin));
    diagnostics.push(diagnostic);
}

/// The host nodes to which the vCPUs of each guest cell are pinned.
fn nodes_of_cells(view: &LintContext<'_, '_>) -> Vec<Vec<NodeId>> {
    let pinned = |cell: &CpuSet| {
        let pins = view.vcpus().filter(|(index, _)| cell.contains(pinfold_model::PuId(*index)));
        let pus = pins.filter_map(|(_, pin)| pin.pus.as_ref());
        pus.collect::<CpuSet>().intersection(&view.tight)
    };
    view.layout.cells.iter().map(|cell| view.lookup.nodes_of(&pinned(cell))).collect()
}

/// Guest NUMA cells that span host nodes, or that correspond to no node.
fn cells(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    if view.layout.cells.len() < 2 {
        return;
    }
    let nodes = nodes_of_cells(view);
    let crossed = nodes.iter().zip(0_u32..).filter(|(nodes, _)| nodes.len() > 1);
    for (nodes, cell) in crossed {
        let fault = MemoryFault::CellCrosses { cell, nodes };
        diagnostics.push(view.diagnostic(Severity::Warning, &fault));
    }
    let used = view.lookup.nodes_of(&view.tight);
    if used.len() == 1 && nodes.iter().all(|nodes| nodes.len() == 1) {
        let fault = MemoryFault::CellsOnOneNode { cells: nodes.len(), node: &used };
        diagnostics.push(view.diagnostic(Severity::Note, &fault));
    }
}

/// True if the memory is distributed over exactly these nodes: a cell or a plan for each, or
/// interleaved.
fn shares_out(view: &LintContext<'_, '_>, nodes: &[NodeId]) -> bool {
    let nodes = fill(view, nodes.to_vec());
    let of_whole = view.layout.memory.iter().filter(|bound| bound.cell.is_none());
    let of_cells = view.layout.memory.iter().filter(|bound| bound.cell.is_some());
    let is_plan = view.layout.language == SourceFormat::Plan;
    let by_cell: Vec<NodeId> = of_cells.filter_map(|bound| bound.nodes.clone()).flatten().collect();
    of_whole
        .into_iter()
        .any(|bound| bound.nodes.as_ref() == Some(&nodes) && spread(is_plan, &nodes, bound))
        || nodes.len() > 1 && nodes.iter().all(|node| by_cell.contains(node))
}

/// vCPUs on nodes without memory have no nearer memory than that of the other nodes.
fn spread(is_plan: bool, nodes: &[NodeId], bound: &MemoryBinding) -> bool {
    bound.interleaved || is_plan || nodes.len() == 1
}

/// vCPUs on several L3 domains: a warning where one would do.
fn spread_over_l3(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let choice = view.choice(view.tight.len());
    let roomy = choice.crossed_l3s(&view.tight_pins()).filter(|(_, best)| has_a_cpu(view, best));
    let (domains, room) = match (roomy, choice.l3s_of_one_node(&view.tight)) {
        (Some((domains, best)), _) => (domains, Some(best.len())),
        (None, Some(domains)) => (domains, None),
        (None, None) => return,
    };
    let severity = if room.is_some() { Severity::Warning } else { Severity::Note };
    let mut diagnostic = view.diagnostic(severity, &MemoryFault::L3Crossed { domains, room });
    diagnostic.places = places(view.vcpus().map(|(_, pin)| pin));
    diagnostics.push(diagnostic);
}

/// Whether an L3 domain has a CPU also for the vCPUs there that have no pin, for those that share
/// one, and for those that can be added later.
fn has_a_cpu(view: &LintContext<'_, '_>, best: &CpuSet) -> bool {
    let there = view.lookup.nodes_of(best);
    let is_there = |pin: &Pin| {
        let nodes = pin.pus.as_ref().map(|pus| view.lookup.nodes_of(pus));
        nodes.is_none_or(|nodes| nodes.iter().any(|node| there.contains(node)))
    };
    let vcpus = view.vcpus().filter(|(_, pin)| there.is_empty() || is_there(pin)).count();
    best.len() >= vcpus + view.layout.reserve.len()
}

/// Those of the nodes that have memory, if memory sizes are known.
pub(super) fn fill(view: &LintContext<'_, '_>, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let known = &view.lookup.topology.nodes;
    let has = |id: &NodeId| known.iter().any(|node| node.id == *id && node.memory_bytes > 0);
    if nodes.iter().any(has) {
        nodes.retain(has);
    }
    nodes
}

//! Nodes and L3 domains: vCPUs far from each other, and memory far from them.

use std::collections::BTreeSet;

use pinfold_emit::memnode_line;
use pinfold_model::text::counted;
use pinfold_model::{CpuSet, NodeId, Severity};
use pinfold_plan::avoidable::severity;
use pinfold_plan::capacity::{is_empty_node, room, sizes_are_known};
use pinfold_plan::domain_file::{Domain, RESTRICTIVE, STRICT};
use pinfold_plan::guest_numa::node_list;
use pinfold_plan::layout::{Language, MemoryOf, Pin};
use pinfold_plan::locality;

use super::Diagnostic;
use super::lookup::{LintContext, places, spoken};
use super::repair::Repair;

pub(super) fn check(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    nodes_that_are_not(view, flaws);
    restrictive(view, flaws);
    if view.held.is_empty() {
        return;
    }
    if view.has_nodes() {
        far_memory(view, flaws);
        unbound_memory(view, flaws);
    }
    without_memory(view, flaws);
    spread_over_nodes(view, flaws);
    spread_over_l3(view, flaws);
    cells(view, flaws);
}

/// Memory bound to nodes that the host lacks, or that have no memory.
fn nodes_that_are_not(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let known = &view.lookup.topology.nodes;
    // If the topology has no memory sizes, nothing is known.
    let tells = known.iter().any(|node| node.memory_bytes > 0);
    for bound in &view.layout.memory {
        for node in bound.nodes.iter().flatten() {
            let found = known.iter().find(|known| known.id == *node);
            let what = match found {
                None => format!(
                    "memory is bound to node {node}, which this host does not have: it has {}",
                    spoken(&filled(view, known.iter().map(|known| known.id).collect()))
                ),
                Some(found) if tells && found.memory_bytes == 0 => {
                    format!("memory is bound to node {node}, which has no memory")
                }
                Some(_) => continue,
            };
            let mut flaw = view.flaw(Severity::Problem, "absent-node", what);
            flaw.places = vec![bound.place.clone()];
            flaw.cost = "the machine does not start".to_owned();
            flaw.repairs.extend(without_node(view, bound));
            flaws.push(flaw);
        }
    }
}

/// The change of one binding that removes a missing node, if no pins determine a replacement or it
/// is the only node.
fn without_node(view: &LintContext<'_, '_>, bound: &MemoryOf) -> Option<Repair> {
    let domain = Domain::read(view.layout.text.as_deref()?).ok()?;
    if !view.held.is_empty() && view.has_nodes() {
        return None;
    }
    if domain.memnodes.is_empty() {
        return Some(Repair::remove(&["numatune"], "memory"));
    }
    let known = &view.lookup.topology.nodes;
    let nodes = filled(view, known.iter().map(|known| known.id).collect());
    let path = &["numatune"];
    match (nodes.as_slice(), &bound.cell) {
        ([_], None) => {
            let mode = domain.memory.as_ref().map_or(STRICT, |memory| memory.value.mode.as_str());
            let line = format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&nodes));
            Some(Repair::put(path, "memory", line))
        }
        ([_], Some((cell, _))) => {
            let line = memnode_line(*cell, &domain.memnode(*cell)?.mode, &nodes);
            Some(Repair::put_keyed(path, ("memnode", "cellid", &cell.to_string()), line))
        }
        (_, _) => None,
    }
}

/// `restrictive` in only a part of `<numatune>`, and its effect on the guest's cells.
fn restrictive(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let Some(domain) = view.layout.text.as_deref().and_then(|text| Domain::read(text).ok()) else {
        return;
    };
    let whole = domain.memory.as_ref().map_or(STRICT, |bound| bound.value.mode.as_str());
    let is_restrictive = |mode: &str| mode == RESTRICTIVE;
    let others = domain
        .memnodes
        .iter()
        .filter(|memnode| is_restrictive(&memnode.value.mode) != is_restrictive(whole));
    let others: Vec<_> = others.collect();
    if !others.is_empty() {
        let what = "mode='restrictive' is in a part of <numatune> only";
        let mut flaw = view.flaw(Severity::Problem, "memory-modes-mixed", what);
        flaw.places = domain.memory.iter().map(|bound| bound.place.clone()).collect();
        flaw.places.extend(others.iter().map(|memnode| memnode.place.clone()));
        flaw.cost =
            "libvirt takes it for <memory> and each <memnode> or for none: it refuses the file"
                .to_owned();
        let mode = if is_restrictive(whole) { RESTRICTIVE } else { STRICT };
        flaw.repairs = others
            .iter()
            .map(|memnode| {
                let (cell, nodes) = (memnode.value.cell.to_string(), &memnode.value.nodes);
                let line = memnode_line(memnode.value.cell, mode, nodes);
                Repair::put_keyed(&["numatune"], ("memnode", "cellid", &cell), line)
            })
            .collect();
        flaws.push(flaw);
    } else if is_restrictive(whole) && domain.memnodes.len() > 1 {
        let what = "the memory of the guest's cells is restricted to nodes, and not bound to them";
        let mut flaw = view.flaw(Severity::Note, "cells-restricted", what);
        flaw.places = domain.memnodes.iter().map(|memnode| memnode.place.clone()).collect();
        flaw.cost = "under mode='restrictive' libvirt limits threads and gives QEMU no policy: a page \
                     comes from the nodes of the thread that touches it first, so what QEMU touches \
                     itself can be on the node of another cell"
            .to_owned();
        flaw.instead =
            vec!["mode='strict' in <memory> and in each <memnode> binds each cell".to_owned()];
        flaws.push(flaw);
    }
}

/// Memory bound to other nodes than those of the vCPUs that use it.
fn far_memory(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
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
        let wanted = filled(view, view.lookup.nodes_of(&users));
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
        let whose = match &bound.cell {
            None => "the guest's memory".to_owned(),
            Some((cell, _)) => format!("the memory of the guest's cell {cell}"),
        };
        let mut flaw = view.flaw(
            Severity::Warning,
            "memory-far",
            format!("{whose} is on {}, its vCPUs run on {}", spoken(nodes), spoken(&wanted)),
        );
        flaw.places = vec![bound.place.clone()];
        flaw.places.extend(places(view.vcpus().map(|(_, pin)| pin)).into_iter().take(2));
        flaw.cost =
            "each cache miss crosses the interconnect, which takes up to twice as long and has \
                     less bandwidth"
                .to_owned();
        flaws.push(flaw);
    }
}

/// Pinned vCPUs of one node whose memory is not bound.
fn unbound_memory(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let asked_numad = |bound: &MemoryOf| bound.nodes.is_none();
    let bound = !view.layout.memory.is_empty() && !view.layout.memory.iter().all(asked_numad);
    let nodes = filled(view, view.lookup.nodes_of(&view.held));
    let known = &view.lookup.topology.nodes;
    let counts = |id: &NodeId| known.iter().any(|node| node.id == *id && node.memory_bytes > 0);
    // Nothing can be bound to nodes without memory.
    let empty = known.iter().any(|node| node.memory_bytes > 0) && !nodes.iter().any(counts);
    let vcpus = || view.vcpus().map(|(_, pin)| pin.pus.as_ref().unwrap_or(&view.lookup.usable));
    let floats = !locality::says_where(view.lookup.topology, vcpus(), &nodes);
    let runs = matches!(view.layout.language, Language::Running(_));
    if bound || nodes.is_empty() || empty || floats || runs {
        return;
    }
    // Memory that exceeds that of the whole host is a separate finding, and no binding helps.
    let Some(holding) = holding(view, &nodes) else { return };
    let mut what = format!("the vCPUs are pinned to {}, the memory is not bound", spoken(&nodes));
    if holding != nodes {
        what.push_str(&format!("; it is larger than that, {} hold it", spoken(&holding)));
    }
    let mut flaw = view.flaw(Severity::Warning, "memory-not-bound", what);
    flaw.places = view.layout.memory.iter().map(|bound| bound.place.clone()).collect();
    flaw.cost =
        "pages come from the node of the thread that touches them first, often QEMU's own, and \
                 pins move no page that is already there"
            .to_owned();
    flaws.push(flaw);
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
    let nodes = holding(view, &filled(view, view.lookup.nodes_of(&view.held)))?;
    let mode = if nodes.len() == 1 { STRICT } else { "interleave" };
    let line = format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&nodes));
    Some(Repair::put(&["numatune"], "memory", line))
}

/// vCPUs on nodes without memory.
fn without_memory(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
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
    let mut flaw = view.flaw(
        severity(view.choice(view.tight.len()).near_memory()),
        "node-without-memory",
        format!("vCPUs are pinned to {}, which has no memory", spoken(&nodes)),
    );
    flaw.places = places(view.vcpus().map(|(_, pin)| pin).filter(|pin| on_them(pin)));
    flaw.cost = "each cache miss of theirs crosses the interconnect".to_owned();
    flaws.push(flaw);
}

/// vCPUs on several nodes, although one would be enough or the guest topology does not show it.
fn spread_over_nodes(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
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
    let what = format!("the vCPUs are pinned to CPUs of {}", spoken(&nodes));
    let mut flaw = match roomy {
        Some((node, pus)) => view.flaw(
            Severity::Warning,
            "nodes-crossed",
            format!("{what}, although node {} has {} CPUs for them", node.id, pus.len()),
        ),
        None => view.flaw(
            Severity::Warning,
            "nodes-hidden",
            format!(
                "{what}, and the guest is shown {}",
                counted(view.layout.cells.len().max(1), "NUMA node")
            ),
        ),
    };
    flaw.places = places(view.vcpus().map(|(_, pin)| pin));
    flaw.cost =
        "the guest cannot keep a task near its memory: half of all misses cross the interconnect"
            .to_owned();
    flaws.push(flaw);
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
fn cells(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    if view.layout.cells.len() < 2 {
        return;
    }
    let nodes = nodes_of_cells(view);
    let crossed = nodes.iter().zip(0_u32..).filter(|(nodes, _)| nodes.len() > 1);
    for (nodes, cell) in crossed {
        let mut flaw = view.flaw(
            Severity::Warning,
            "cell-crosses-nodes",
            format!("the vCPUs of the guest's cell {cell} are pinned to CPUs of {}", spoken(nodes)),
        );
        flaw.cost =
            "the guest takes the cell's memory for near to all of them: for some each miss \
                     crosses the interconnect"
                .to_owned();
        flaws.push(flaw);
    }
    let used = view.lookup.nodes_of(&view.tight);
    if used.len() == 1 && nodes.iter().all(|nodes| nodes.len() == 1) {
        let mut flaw = view.flaw(
            Severity::Note,
            "cells-on-one-node",
            format!("the guest is shown {} NUMA nodes, all on {}", nodes.len(), spoken(&used)),
        );
        flaw.cost =
            "the guest keeps tasks and memory apart, and moves pages between its nodes, for a \
                     distance that is none"
                .to_owned();
        flaw.instead =
            vec!["take <numa> out of <cpu>, unless a program in the guest needs it".to_owned()];
        flaws.push(flaw);
    }
}

/// True if the memory is distributed over exactly these nodes: a cell or a plan for each, or
/// interleaved.
fn shares_out(view: &LintContext<'_, '_>, nodes: &[NodeId]) -> bool {
    let nodes = filled(view, nodes.to_vec());
    let same = |bound: &MemoryOf| bound.nodes.as_ref() == Some(&nodes);
    let of_whole = view.layout.memory.iter().filter(|bound| bound.cell.is_none());
    let of_cells = view.layout.memory.iter().filter(|bound| bound.cell.is_some());
    let is_plan = view.layout.language == Language::Plan;
    // vCPUs on nodes without memory have no nearer memory than that of the other nodes.
    let spread = |bound: &MemoryOf| bound.interleaved || is_plan || nodes.len() == 1;
    let by_cell: Vec<NodeId> = of_cells.filter_map(|bound| bound.nodes.clone()).flatten().collect();
    of_whole.into_iter().any(|bound| same(bound) && spread(bound))
        || nodes.len() > 1 && nodes.iter().all(|node| by_cell.contains(node))
}

/// vCPUs on several L3 domains: a warning where one would do.
fn spread_over_l3(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let choice = view.choice(view.tight.len());
    let roomy = choice.crossed_l3s(&view.tight_pins()).filter(|(_, best)| has_a_cpu(view, best));
    let mut flaw = match (roomy, choice.l3s_of_one_node(&view.tight)) {
        (Some((domains, best)), _) => view.flaw(
            Severity::Warning,
            "l3-crossed",
            format!(
                "the vCPUs are spread over {domains} L3 caches, although one of them has {} CPUs for \
                 them",
                best.len()
            ),
        ),
        (None, Some(domains)) => view.flaw(
            Severity::Note,
            "l3-crossed",
            format!("the vCPUs are spread over {domains} L3 caches"),
        ),
        (None, None) => return,
    };
    flaw.places = places(view.vcpus().map(|(_, pin)| pin));
    flaw.cost =
        "what vCPUs share (locks, queues, frames) travels between the caches, several times \
                 slower than within one"
            .to_owned();
    if flaw.severity == Severity::Warning {
        flaw.cost.push_str("; the guest does not see the boundary");
    }
    flaws.push(flaw);
}

/// Whether an L3 domain has a CPU also for the vCPUs there that have no pin, and for those that
/// share one.
fn has_a_cpu(view: &LintContext<'_, '_>, best: &CpuSet) -> bool {
    let there = view.lookup.nodes_of(best);
    let is_there = |pin: &Pin| {
        let nodes = pin.pus.as_ref().map(|pus| view.lookup.nodes_of(pus));
        nodes.is_none_or(|nodes| nodes.iter().any(|node| there.contains(node)))
    };
    let vcpus = view.vcpus().filter(|(_, pin)| there.is_empty() || is_there(pin)).count();
    best.len() >= vcpus
}

/// Those of the nodes that have memory, if memory sizes are known.
pub(super) fn filled(view: &LintContext<'_, '_>, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let known = &view.lookup.topology.nodes;
    let has = |id: &NodeId| known.iter().any(|node| node.id == *id && node.memory_bytes > 0);
    if nodes.iter().any(has) {
        nodes.retain(has);
    }
    nodes
}

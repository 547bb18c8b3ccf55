//! More memory than the nodes have to which it is bound, and more vCPUs than CPUs: of one machine,
//! and of several that are checked together.

use std::collections::BTreeSet;

use pinfold_model::{CpuSet, NodeId, PuId, Severity};
use pinfold_plan::capacity::{Demand, Excess, excesses, room};
use pinfold_plan::domain_file::{Domain, Place};
use pinfold_plan::guest_numa::{GuestCell, shares};
use pinfold_plan::layout::SourceFormat;

use super::Diagnostic;
use super::lookup::LintContext;
use super::overlap::InvolvedMachines;
use super::text::capacity::RoomFault;

/// Checks one machine.
pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let demands = demands(view);
    for excess in excesses(&demands, view.lookup.topology) {
        let elsewhere = find_elsewhere(view, &demands, &excess);
        let fault = RoomFault::TooLarge { excess: &excess, demands: &demands, elsewhere };
        let mut diagnostic = view.diagnostic(Severity::Problem, &fault);
        diagnostic.places = places(view, &demands, &excess);
        diagnostic.is_final = true;
        diagnostics.push(diagnostic);
    }
}

/// The parts of a layout's memory, each with the nodes to which it is bound.
fn demands(view: &LintContext<'_, '_>) -> Vec<Demand> {
    let layout = view.layout;
    let bytes = layout.bytes.as_ref().map(|bytes| bytes.value);
    if let Some(domain) = domain(view) {
        return domain.demands(bytes);
    }
    let Some(bytes) = bytes else { return Vec::new() };
    let bound = bound_nodes(view);
    let nodes = bound.map(|nodes| nodes.iter().copied().collect());
    let cells = planned_cells(view);
    match shares(&cells, bytes, 1 << 20).filter(|_| layout.language == SourceFormat::Plan) {
        Some(sizes) => cells
            .iter()
            .zip(sizes)
            .zip(0..)
            .map(|((cell, bytes), id)| Demand {
                bytes,
                nodes: Some(BTreeSet::from([cell.node])),
                cell: Some(id),
            })
            .collect(),
        None => vec![Demand { bytes, nodes, cell: None }],
    }
}

/// The nodes to which the memory is bound; none if it may be elsewhere.
fn bound_nodes<'l>(view: &LintContext<'l, '_>) -> Option<&'l Vec<NodeId>> {
    let mut bound = view.layout.memory.iter().filter(|bound| !bound.preferred);
    bound.find_map(|bound| bound.nodes.as_ref())
}

/// The domain file of a layout, parsed.
fn domain(view: &LintContext<'_, '_>) -> Option<Domain> {
    view.layout.text.as_deref().and_then(|text| Domain::read(text).ok())
}

/// The cells that are emitted for a plan's memory on several nodes: one for each node, if each vCPU
/// is on one of them.
fn planned_cells(view: &LintContext<'_, '_>) -> Vec<GuestCell> {
    let bound = bound_nodes(view);
    let Some(nodes) = bound.filter(|nodes| nodes.len() > 1) else { return Vec::new() };
    let cells: Vec<GuestCell> = nodes
        .iter()
        .map(|node: &NodeId| {
            let here = view.vcpus().filter(|(_, pin)| {
                pin.pus.as_ref().is_some_and(|pus: &CpuSet| view.lookup.nodes_of(pus) == [*node])
            });
            let vcpus = here.map(|(index, _)| PuId(index)).collect();
            GuestCell { node: *node, vcpus }
        })
        .collect();
    let count: usize = cells.iter().map(|cell| cell.vcpus.len()).sum();
    if count == view.vcpus().count() && cells.iter().all(|cell| !cell.vcpus.is_empty()) {
        cells
    } else {
        Vec::new()
    }
}

/// The positions of the sizes and bindings of an excess.
fn places(view: &LintContext<'_, '_>, demands: &[Demand], excess: &Excess) -> Vec<Place> {
    let domain = domain(view);
    let mut found: Vec<Place> = Vec::new();
    for demand in excess.whose.iter().filter_map(|at| demands.get(*at)) {
        let cells = domain.iter().flat_map(|domain| &domain.cells);
        let cell = cells.filter(|cell| Some(cell.value.id) == demand.cell);
        found.extend(cell.map(|cell| cell.place.clone()));
        found.extend(
            view.layout
                .memory
                .iter()
                .filter(|bound| {
                    bound.cell.as_ref().map(|(id, _)| *id) == demand.cell && demand.nodes.is_some()
                })
                .map(|bound| bound.place.clone()),
        );
    }
    let has_cells =
        domain.is_some_and(|domain| domain.cells.iter().any(|c| c.value.bytes.is_some()));
    if !has_cells {
        found.splice(0..0, view.layout.bytes.iter().map(|bytes| bytes.place.clone()));
    }
    found
}

/// Other nodes that can hold the memory.
fn find_elsewhere(
    view: &LintContext<'_, '_>,
    demands: &[Demand],
    excess: &Excess,
) -> Option<Vec<NodeId>> {
    let topology = view.lookup.topology;
    let own = excess.nodes.as_ref()?;
    let ids: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    let fits = |nodes: &BTreeSet<NodeId>| {
        let moved = demands.iter().enumerate().map(|(at, demand)| Demand {
            nodes: if excess.whose.contains(&at) {
                Some(nodes.clone())
            } else {
                demand.nodes.clone()
            },
            ..demand.clone()
        });
        room(nodes, topology) > 0 && excesses(&moved.collect::<Vec<_>>(), topology).is_empty()
    };
    let single = ids.iter().map(|id| BTreeSet::from([*id])).find(fits);
    Some(
        single
            .or_else(|| {
                let mut nodes: BTreeSet<NodeId> = own.iter().copied().collect();
                for id in &ids {
                    if fits(&nodes) {
                        break;
                    }
                    nodes.insert(*id);
                }
                Some(nodes).filter(fits)
            })?
            .into_iter()
            .collect(),
    )
}

/// Several machines: memory that fits alone but not together, and more vCPUs than CPUs.
pub(super) fn check_together(views: &[&LintContext<'_, '_>], diagnostics: &mut Vec<Diagnostic>) {
    let Some(first) = views.first().filter(|_| views.len() > 1) else { return };
    let topology = first.lookup.topology;
    let mut owners = Vec::new();
    let mut all = Vec::new();
    for (owner, view) in views.iter().enumerate() {
        let demands = demands(view);
        owners.extend(demands.iter().map(|_| owner));
        all.extend(demands);
    }
    for excess in excesses(&all, topology) {
        let mut claimants: Vec<usize> = excess.whose.iter().map(|at| owners[*at]).collect();
        claimants.dedup();
        let bytes = |owner: usize| -> u64 {
            let own = excess.whose.iter().filter(|at| owners[**at] == owner);
            own.map(|at| all[*at].bytes).sum()
        };
        // Memory that is too large by itself is a separate finding.
        if claimants.len() > 1 && claimants.iter().all(|owner| bytes(*owner) <= excess.room) {
            diagnostics.push(memory_together(views, &claimants, &excess, &bytes));
        }
    }
    diagnostics.extend(vcpus_together(views));
}

fn memory_together(
    views: &[&LintContext<'_, '_>],
    claimants: &[usize],
    excess: &Excess,
    bytes: &dyn Fn(usize) -> u64,
) -> Diagnostic {
    let machines = InvolvedMachines::new(views, claimants);
    let moved = find_moved(views, claimants, excess, bytes);
    let fault = RoomFault::Overcommitted { machines: machines.names(), excess, moved };
    let mut diagnostic = machines.diagnostic(&fault);
    diagnostic.places = machines.places(|view: &LintContext<'_, '_>| {
        let bound = view.layout.memory.iter().filter(|_| excess.nodes.is_some());
        let size = view.layout.bytes.iter().map(|bytes| bytes.place.clone());
        size.chain(bound.map(|bound| bound.place.clone())).collect()
    });
    diagnostic
}

/// A node that has room for the memory of one machine, and the name of that machine.
fn find_moved<'v>(
    views: &[&LintContext<'v, '_>],
    claimants: &[usize],
    excess: &Excess,
    bytes: &dyn Fn(usize) -> u64,
) -> Option<(NodeId, &'v str)> {
    let own = excess.nodes.as_ref()?;
    let topology = views.first()?.lookup.topology;
    let others = topology.nodes.iter().filter(|node| !own.contains(&node.id));
    let free: Vec<(NodeId, u64)> = others
        .map(|node| (node.id, node.memory_bytes.saturating_sub(bytes_used(views, node.id))))
        .collect();
    let too_much = excess.bytes - excess.room;
    claimants.iter().filter(|owner| bytes(**owner) >= too_much).find_map(|owner| {
        let (node, _) = free.iter().find(|(_, free)| *free >= bytes(*owner))?;
        Some((*node, views.get(*owner)?.layout.name.as_str()))
    })
}

fn bytes_used(views: &[&LintContext<'_, '_>], id: NodeId) -> u64 {
    let all = views.iter().flat_map(|view| demands(view));
    let here = all.filter(|one| one.nodes.as_ref().is_none_or(|nodes| nodes.contains(&id)));
    here.map(|one| one.bytes).sum()
}

/// More vCPUs than CPUs on the whole host, if no other finding about shared masks covers it.
fn vcpus_together(views: &[&LintContext<'_, '_>]) -> Option<Diagnostic> {
    let cpus = views.first()?.lookup.usable.len();
    let all: usize = views.iter().map(|view| count(view)).sum();
    let alone = views.iter().any(|view| count(view) > cpus);
    if all <= cpus || alone || !views.iter().any(is_floating) {
        return None;
    }
    let claimants: Vec<usize> = (0..views.len()).collect();
    let machines = InvolvedMachines::new(views, &claimants);
    let fault = RoomFault::VcpusOvercommitted { machines: machines.names(), vcpus: all, cpus };
    let mut diagnostic = machines.diagnostic(&fault);
    diagnostic.places =
        machines.places(|view| domain(view).map(|domain| domain.vcpus.place).into_iter().collect());
    Some(diagnostic)
}

fn is_floating(view: &&LintContext<'_, '_>) -> bool {
    view.vcpus()
        .any(|(_, pin)| pin.pus.as_ref().is_none_or(|pus| view.lookup.usable.is_subset(pus)))
}

fn count(view: &LintContext<'_, '_>) -> usize {
    view.layout.vcpus as usize
}

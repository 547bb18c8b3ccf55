//! The single placement that all advice for a layout quotes.
//!
//! Each rule of the check sees one fault. If each rule invented its own advice, the results would
//! not fit together: a new CPU for the emulator may be one that another rule gives to a vCPU. So
//! this machine is planned as a whole. The first placement in which the check finds at most notes
//! is taken, and every finding quotes its lines of it. The vCPUs keep their CPUs if such a
//! placement exists with them.

use pinfold_model::{
    CellRequest, CpuSet, GuestTopology, MemoryPlan, NodeId, Plan, Policy, PolicyRequest, PuId,
    Request, Role, Severity, ThreadPlan, VcpuCount, VmRequest, VnodePlan, VnodeRequest, Work,
};
use pinfold_plan::domain_file::{Domain, DomainError};
use pinfold_plan::layout::{Layout, MemoryBinding, SourceFormat};
use pinfold_plan::{guest_cells, in_turn, pin_vcpus, plan_if_possible};

use super::lookup::{CpuIndex, LintContext, is_real_time};
use super::placement::placement;
use super::{Diagnostic, cores, memory, repair, resized};

/// A placement without faults for one layout.
#[derive(Debug)]
pub(super) struct Target {
    /// The strategy that made it; `None` if the vCPUs keep their CPUs.
    pub strategy: Option<&'static str>,
    /// The new layout.
    pub layout: Layout,
    /// Parts of it that libvirt cannot express, and elements of the file that were replaced.
    pub notes: Vec<String>,
    /// Names of remaining faults worse than a note; empty if a placement without them exists.
    pub left: Vec<&'static str>,
}

/// Finds a target for `view`.
///
/// # Errors
/// The reason why no plan can be merged into the file; `None` if one can, but none is better than
/// the file.
pub(super) fn find(
    view: &LintContext<'_, '_>,
    conditions: &Request,
) -> Result<Target, Option<DomainError>> {
    let request = request(view, conditions);
    let topology = view.lookup.topology;
    // First the machine's present nodes, then the whole host.
    let stay = restrict_to_nodes(view, &request);
    let everywhere = stay.iter().chain(std::iter::once(&request));
    let names = strategies(view.layout);
    let planned = everywhere
        .flat_map(|request| names.iter().map(move |name| (request, *name)))
        .filter_map(|(request, name)| {
            Some((Some(name), remove_names(plan_if_possible(name, topology, request)?)))
        });
    let known = finals(view);
    let faults = |layout: &Layout| faults(layout, view.lookup, &known);
    let now = faults(view.layout);
    // Another guest topology does not bring distant vCPUs together.
    let apart =
        now.iter().any(|diagnostic| ["l3-crossed", "nodes-crossed"].contains(&diagnostic.name));
    let own = if apart { Vec::new() } else { plans_on_present_cpus(view, &request) };
    let kept = own.into_iter().map(|plan| (None, plan));
    let (mut best, mut best_weight): (Option<Target>, _) = (None, weight(&now));
    let (mut merged, mut refusal) = (false, None);
    for (strategy, mut plan) in kept.chain(planned) {
        leave_fifo_cores(view, &mut plan, &request.avoid);
        let (layout, notes) = match realize(view, &plan) {
            Ok(realized) => realized,
            Err(error) => {
                refusal = Some(error);
                continue;
            }
        };
        merged = true;
        if is_torn(view, &layout, &request.avoid) || lets_real_time_float(view, &layout) {
            continue;
        }
        let mut layout = layout;
        let mut left = faults(&layout);
        if left.iter().any(|diagnostic| diagnostic.name == "memory-not-bound")
            && let Some(bound) = bind_layout(&layout, view.lookup)
        {
            layout = bound;
            left = faults(&layout);
        }
        let found = weight(&left);
        let left = left.iter().map(|diagnostic| diagnostic.name).collect::<Vec<_>>();
        let is_sound = left.is_empty();
        // Advice must not lead to another finding.
        let is_new = left.iter().any(|name| now.iter().all(|diagnostic| diagnostic.name != *name));
        if is_sound || found < best_weight && !is_new {
            (best, best_weight) = (Some(Target { strategy, layout, notes, left }), found);
        }
        if is_sound {
            break;
        }
    }
    best.ok_or(refusal.filter(|_| !merged))
}

/// The plan without its strategy's name: the user did not request the strategy, so its costs by
/// definition count.
fn remove_names(plan: Plan) -> Plan {
    Plan { strategy: String::new(), ..plan }
}

/// Faults worse than a note in a layout's placement, except those that no placement changes.
fn faults(layout: &Layout, lookup: &CpuIndex<'_>, known: &[&str]) -> Vec<Diagnostic> {
    let mut diagnostics = placement(&LintContext::new(layout, lookup), None);
    diagnostics.retain(|diagnostic| {
        diagnostic.severity >= Severity::Warning
            && diagnostic.repairs.is_empty()
            && !known.contains(&diagnostic.name)
    });
    diagnostics
}

/// A layout whose memory the plan left unbound, with the memory bound to the nodes of its vCPUs.
fn bind_layout(layout: &Layout, lookup: &CpuIndex<'_>) -> Option<Layout> {
    let repair = memory::binding(&LintContext::new(layout, lookup))?;
    let text = repair::apply(layout.text.as_deref()?, [&repair]).ok()?;
    Layout::of_text(&text, &layout.source).ok()
}

/// The names of faults that no placement changes.
fn finals(view: &LintContext<'_, '_>) -> Vec<&'static str> {
    let found = placement(view, None);
    found
        .iter()
        .filter(|diagnostic| diagnostic.is_final)
        .map(|diagnostic| diagnostic.name)
        .collect()
}

/// Sort key: a problem counts more than any number of warnings.
fn weight(diagnostics: &[Diagnostic]) -> (usize, usize) {
    let problems =
        diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Problem).count();
    (problems, diagnostics.len() - problems)
}

/// A similar number of vCPUs for which there is a placement without faults.
pub(super) fn other_count(view: &LintContext<'_, '_>, conditions: &Request) -> Option<u32> {
    const TRIES: u32 = 3;
    const MOST_SEARCHED: u32 = 256;
    // For larger machines, planning each number takes too long for an interactive command.
    if view.layout.vcpus > MOST_SEARCHED {
        return None;
    }
    let (now, most) = (view.layout.vcpus, u32::try_from(view.lookup.for_vcpus.len()).ok()?);
    let counts = (1..=TRIES).flat_map(|step| {
        // Above the number of CPUs, the search continues downwards from that number.
        let lower = now.min(most + 1).checked_sub(step).filter(|count| *count > 0);
        lower.into_iter().chain((now + step < most).then_some(now + step))
    });
    counts.into_iter().find(|count| {
        let Some(resized) = resized::with_count(view.layout, *count) else { return false };
        let target = find(&LintContext::new(&resized, view.lookup), conditions);
        target.is_ok_and(|target| target.left.is_empty())
    })
}

/// The node of all vCPUs, if it has a CPU for each of them.
pub(super) fn home(view: &LintContext<'_, '_>, avoid: &CpuSet) -> Option<NodeId> {
    match view.lookup.nodes_of(&view.held).as_slice() {
        [only] if view.has_nodes() && has_room(view, &[*only], avoid) => Some(*only),
        _ => None,
    }
}

/// True if the nodes have a CPU for each vCPU and can hold the memory.
fn has_room(view: &LintContext<'_, '_>, nodes: &[NodeId], avoid: &CpuSet) -> bool {
    if memory::holding(view, nodes).is_none_or(|holding| holding != nodes) {
        return false;
    }
    let left = view.lookup.for_vcpus.difference(avoid);
    left.iter()
        .filter(|pu: &PuId| node_of(view, pu).is_some_and(|node| nodes.contains(&node)))
        .count()
        >= view.layout.vcpus as usize
}

fn node_of(view: &LintContext<'_, '_>, pu: &PuId) -> Option<NodeId> {
    view.lookup.pu(*pu).and_then(|pu| pu.node)
}

/// True if a placement is on more nodes than the machine is now, although the present ones have
/// room for it. Guests with cells of their own are not considered.
fn is_torn(view: &LintContext<'_, '_>, placed: &Layout, avoid: &CpuSet) -> bool {
    let now = view.lookup.nodes_of(&view.held);
    let placed = LintContext::new(placed, view.lookup);
    let pins = placed.vcpus().map(|(_, pin)| pin.pus.as_ref().unwrap_or(&view.lookup.usable));
    let then = view.lookup.nodes_of(&pins.collect::<CpuSet>());
    view.layout.cells.len() < 2
        && !now.is_empty()
        && then.len() > now.len()
        && has_room(view, &now, avoid)
}

/// True if real-time vCPUs would share a mask: one that spins blocks all others of the mask.
fn lets_real_time_float(view: &LintContext<'_, '_>, placed: &Layout) -> bool {
    let placed = LintContext::new(placed, view.lookup);
    let mut masks = placed.vcpus().filter_map(|(_, pin)| pin.pus.as_ref());
    view.vcpus().any(|(_, pin)| is_real_time(pin.policy)) && masks.any(|pus| pus.len() > 1)
}

/// The request with the machine restricted to the nodes of its memory or, if that is not bound, to
/// the node of its vCPUs; `None` if there are no such nodes.
fn restrict_to_nodes(view: &LintContext<'_, '_>, request: &Request) -> Option<Request> {
    let text = view.layout.text.as_deref()?;
    let asked = Domain::read(text).ok()?.request(view.lookup.topology);
    let home = home(view, &request.avoid);
    let mut request = request.clone();
    let Work::Vm(vm) = &mut request.vnodes.first_mut()?.work else { return None };
    let is_whole = asked.nodes.is_empty() && vm.cells.is_empty();
    vm.nodes = if is_whole { home.into_iter().collect() } else { asked.nodes };
    (!vm.nodes.is_empty()).then_some(request)
}

/// The strategies to try, starting with the one most similar to the guest topology.
fn strategies(layout: &Layout) -> Vec<&'static str> {
    let first = match &layout.guest {
        Some(guest) if guest.threads > 1 => "balanced",
        Some(guest) if !guest.place.text.is_empty() => "low-latency",
        Some(_) | None => "auto",
    };
    let rest = in_turn(|turns| turns.check).into_iter().map(|other| other.name);
    std::iter::once(first).chain(rest.filter(|name| *name != first)).collect()
}

/// The layout as a request, with the user's conditions.
pub(super) fn request(view: &LintContext<'_, '_>, conditions: &Request) -> Request {
    let (layout, topology) = (view.layout, view.lookup.topology);
    let domain = layout.text.as_deref().and_then(|text| Domain::read(text).ok());
    let roles = layout.pins.iter().map(|pin| &pin.role);
    let vm = VmRequest {
        iothreads: roles.clone().filter_map(|role| role.iothread().map(str::to_owned)).collect(),
        vhosts: u32::try_from(roles.filter(|role| matches!(role, Role::Vhost(_))).count())
            .unwrap_or(0),
        cells: cells(view),
        ..VmRequest::from_vcpus(VcpuCount::Exactly(layout.vcpus))
    };
    let mut vnode = VnodeRequest::vm(&layout.name, vm);
    vnode.memory = domain.and_then(|domain| domain.memory_request(topology));
    // A domain file keeps its schedulers when a plan without policies is merged into it.
    if layout.language != SourceFormat::Libvirt {
        let real_time = layout.pins.iter().filter(|pin| is_real_time(pin.policy));
        vnode.policies = real_time
            .filter_map(|pin| {
                Some(PolicyRequest { role: pin.role.to_string(), policy: pin.policy? })
            })
            .collect();
    }
    Request { vnodes: vec![vnode], ..conditions.clone() }
}

/// The guest's NUMA cells, each with the nodes of its memory, if they contain each vCPU exactly
/// once.
fn cells(view: &LintContext<'_, '_>) -> Vec<CellRequest> {
    let layout = view.layout;
    let all: usize = layout.cells.iter().map(CpuSet::len).sum();
    let whole = layout.cells.iter().collect::<CpuSet>();
    let vcpus = layout.vcpus as usize;
    if layout.cells.len() < 2 || all != vcpus || whole.len() != vcpus {
        return Vec::new();
    }
    let nodes = |vcpus: Option<&CpuSet>| {
        let bound =
            layout.memory.iter().find(|bound| bound.cell.as_ref().map(|cell| &cell.1) == vcpus);
        bound.and_then(|bound| bound.nodes.clone()).unwrap_or_default()
    };
    let numbers: Vec<u32> = view.vcpus().map(|(index, _)| index).collect();
    let positions = |vcpus: &CpuSet| {
        let of = numbers.iter().zip(0_u32..).filter(|(number, _)| vcpus.contains(PuId(**number)));
        of.map(|(_, position)| PuId(position)).collect()
    };
    let cells = layout.cells.iter().map(|vcpus| CellRequest {
        vcpus: positions(vcpus),
        nodes: nodes(Some(vcpus)),
        bytes: None,
    });
    guest_cells::of_file(cells, &nodes(None), view.lookup.topology)
}

/// Placements on the present CPUs of the vCPUs, in the file's order and in sibling order; emulator
/// and iothreads stay unless they cause a fault.
fn plans_on_present_cpus(view: &LintContext<'_, '_>, request: &Request) -> Vec<Plan> {
    let vcpus = view.layout.vcpus as usize;
    let pins: Option<Vec<PuId>> =
        view.vcpus().map(|(_, pin)| pin.pus.as_ref().and_then(single_cpu)).collect();
    let Some(pins) = pins.filter(|pins| pins.len() == vcpus && view.tight.len() == vcpus) else {
        return Vec::new();
    };
    let outside = !view.tight.is_subset(&view.lookup.usable);
    if view.layout.language != SourceFormat::Libvirt
        || outside
        || !view.tight.is_disjoint(&request.avoid)
    {
        return Vec::new();
    }
    let sorted = view.lookup.in_order(&view.tight);
    let orders = [Some(pins.clone()), (sorted != pins).then_some(sorted)];
    orders.into_iter().flatten().filter_map(|order| plan_on(view, &order, request)).collect()
}

fn single_cpu(pus: &CpuSet) -> Option<PuId> {
    if pus.len() == 1 { pus.first() } else { None }
}

/// Moves the emulator, iothreads and vhost workers off the cores of FIFO vCPUs, to other CPUs of
/// the vCPUs' nodes, as the strategy `realtime` does: a helper slows what runs on its core. Helpers
/// that are real-time threads themselves stay, because they could starve the host's tasks; so do
/// all of them if no other core is free.
fn leave_fifo_cores(view: &LintContext<'_, '_>, plan: &mut Plan, avoid: &CpuSet) {
    let fifo: Vec<usize> = (0..)
        .zip(view.vcpus())
        .filter(|(_, (_, pin))| matches!(pin.policy, Some(Policy::Fifo { .. })))
        .map(|(place, _)| place)
        .collect();
    let Some(vnode) = plan.vnodes.first_mut().filter(|_| !fifo.is_empty()) else { return };
    let held: CpuSet = vnode.vcpus().map(|thread| &thread.pus).collect();
    let cores = view.lookup.whole_cores(&cpus_of(vnode, &fifo));
    let better = cores::better_place(view, &held).difference(avoid);
    if better.is_empty() || !better.is_disjoint(&cores) {
        return;
    }
    for thread in vnode.threads.iter_mut().filter(|thread| !thread.role.is_vcpu()) {
        let policy = view.layout.pin(&thread.role).and_then(|pin| pin.policy);
        let floats = thread.role == Role::Emulator && is_redundant_pin(view, thread);
        if !is_real_time(policy) && !floats && !thread.pus.is_disjoint(&cores) {
            thread.pus = better.clone();
        }
    }
}

fn cpus_of(vnode: &VnodePlan, places: &[usize]) -> CpuSet {
    let vcpus = vnode.vcpus().enumerate().filter(|(place, _)| places.contains(place));
    vcpus.map(|(_, thread)| &thread.pus).collect()
}

/// A plan with the vCPUs on these CPUs in this order.
fn plan_on(view: &LintContext<'_, '_>, order: &[PuId], request: &Request) -> Option<Plan> {
    let mut plan = pin_vcpus(view.lookup.topology, request, order)?;
    let held: CpuSet = order.iter().copied().collect();
    let better = cores::better_place(view, &held).difference(&request.avoid);
    let vnode = plan.vnodes.first_mut()?;
    for thread in &mut vnode.threads {
        thread.pus = match thread.role.vcpu() {
            Some(_) => continue,
            None => {
                let now = view.layout.pin(&thread.role).and_then(|pin| pin.pus.clone());
                now.filter(|pus| {
                    pus.is_disjoint(&held)
                        && pus.is_subset(&view.lookup.usable)
                        && pus.is_disjoint(&request.avoid)
                        && !cores::is_far(view, pus, &held)
                })
                .unwrap_or_else(|| better.clone())
            }
        };
        if thread.pus.is_empty() {
            return None;
        }
    }
    vnode.memory = binding(view, &held, request);
    Some(plan)
}

/// The present pins and guest topology of a layout, if each vCPU has its own CPU.
pub(super) fn as_written(view: &LintContext<'_, '_>) -> Option<VnodePlan> {
    let vcpus = view.layout.vcpus;
    let shape = view.layout.guest.as_ref()?;
    let request = Request::vm(&view.layout.name, VcpuCount::Exactly(vcpus));
    let mut vnode =
        pinfold_plan::plan("none", view.lookup.topology, &request).ok()?.vnodes.pop()?;
    let pins: Vec<_> = view.vcpus().map(|(_, pin)| pin).collect();
    for thread in &mut vnode.threads {
        let pin = match thread.role.vcpu() {
            Some(index) => pins.get(index as usize).copied(),
            None => view.layout.pin(&thread.role),
        };
        if let Some(pus) = pin.and_then(|pin| pin.pus.clone()) {
            thread.pus = pus;
        }
    }
    let cores = vcpus / shape.threads.max(1) / shape.sockets.max(1);
    vnode.guest = Some(GuestTopology {
        sockets: shape.sockets,
        cores: cores.max(1),
        threads: shape.threads,
        reason: String::new(),
    });
    Some(vnode)
}

/// A binding to the nodes of these CPUs, unless the file already binds its memory to them.
fn binding(view: &LintContext<'_, '_>, held: &CpuSet, request: &Request) -> Option<MemoryPlan> {
    let nodes = memory::fill(view, view.lookup.nodes_of(held));
    let nodes = memory::holding(view, &nodes)?;
    let bound = view.layout.memory.iter().flat_map(|bound| bound.nodes.iter().flatten());
    let fits = !view.layout.memory.is_empty() && bound.clone().all(|node| nodes.contains(node));
    let asked = request.vnodes.first().and_then(|vnode| vnode.memory);
    (view.has_nodes() && !fits && !nodes.is_empty()).then(|| MemoryPlan {
        nodes,
        bytes: asked.map(|asked| asked.bytes),
        page_bytes: None,
        is_preferred: false,
        reason: String::new(),
    })
}

/// The layout with this plan, in the layout's own language.
fn realize(view: &LintContext<'_, '_>, plan: &Plan) -> Result<(Layout, Vec<String>), DomainError> {
    let old = view.layout;
    if let (SourceFormat::Libvirt, Some(text), Some(vnode)) =
        (&old.language, &old.text, plan.vnodes.first())
    {
        let mut vnode = vnode.clone();
        vnode.threads.retain(|thread| !is_redundant_pin(view, thread));
        let merged = pinfold_emit::merge_libvirt_domain(text, plan, &vnode, view.lookup.topology)?;
        return Ok((Layout::of_text(&merged.text, &old.source)?, merged.notes));
    }
    // The request has one vnode, so the plan has one too.
    let mut placed = old.clone();
    if let Some(layout) = Layout::of_plan(plan, &old.source).pop() {
        placed = Layout { language: old.language.clone(), ..layout };
        if placed.memory.is_empty() {
            placed.memory = bound_on(view, &placed);
        }
    }
    Ok((placed, Vec::new()))
}

/// True for a pin of the emulator to all CPUs where the layout has none: it changes nothing.
fn is_redundant_pin(view: &LintContext<'_, '_>, thread: &ThreadPlan) -> bool {
    let now = view.layout.pin(&Role::Emulator).and_then(|pin| pin.pus.as_ref());
    thread.role == Role::Emulator && now.is_none() && view.lookup.usable.is_subset(&thread.pus)
}

/// The binding of memory that a plan says nothing of: as it is, if that is where the vCPUs go, and
/// else with them. Memory that is bound stays bound.
fn bound_on(view: &LintContext<'_, '_>, placed: &Layout) -> Vec<MemoryBinding> {
    let then =
        memory::fill(view, view.lookup.nodes_of(&LintContext::new(placed, view.lookup).held));
    let covers = |bound: &MemoryBinding| {
        let nodes = bound.nodes.as_ref();
        nodes.is_none_or(|nodes| then.iter().all(|node| nodes.contains(node)))
    };
    let mut memory = view.layout.memory.clone();
    for bound in memory.iter_mut().filter(|bound| bound.cell.is_none() && !covers(bound)) {
        bound.nodes = Some(then.clone());
    }
    memory
}

/// True for a finding that another placement removes.
pub(super) fn asks_for_another_place(diagnostic: &Diagnostic) -> bool {
    diagnostic.severity >= Severity::Warning
        && diagnostic.repairs.is_empty()
        && !diagnostic.is_final
        && diagnostic.name != "memory-elsewhere"
}

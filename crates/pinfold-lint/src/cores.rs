//! Tasks that share a CPU or a core with a vCPU: the emulator, iothreads, the host's tasks;
//! real-time threads.

use pinfold_model::{CpuSet, Role, Severity};
use pinfold_plan::alternatives::severity;
use pinfold_plan::domain_file::Place;
use pinfold_plan::layout::Pin;

use super::Diagnostic;
use super::lookup::{LintContext, is_real_time, places};
use super::text::cores::{Common, CoreFault, not_mentioned};

pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    for pin in &view.layout.pins {
        if pin.role == Role::Emulator || pin.role.is_device() {
            helper(view, pin, diagnostics);
            check_far(view, pin, diagnostics);
        }
    }
    siblings_of_host(view, diagnostics);
    mixed_kinds(view, diagnostics);
}

/// CPUs for the emulator and the iothreads of a machine whose vCPUs are on `held`: off the vCPUs'
/// cores and near them, if possible; none that the user's conditions exclude.
pub(super) fn better_place(view: &LintContext<'_, '_>, held: &CpuSet) -> CpuSet {
    let free = view.lookup.permitted.difference(held).difference(&view.lookup.topology.isolated);
    let off_cores = free.difference(&view.lookup.whole_cores(held));
    let nodes = view.lookup.nodes_of(held);
    let mut there = CpuSet::new();
    for node in view.lookup.topology.nodes.iter().filter(|node| nodes.contains(&node.id)) {
        there.add(&node.pus);
    }
    let choices = [off_cores.intersection(&there), free.intersection(&there), off_cores, free];
    choices.into_iter().find(|set| !set.is_empty()).unwrap_or_default()
}

/// The emulator, an iothread or a vhost worker on the CPUs of vCPUs.
fn helper(view: &LintContext<'_, '_>, pin: &Pin, diagnostics: &mut Vec<Diagnostic>) {
    let mask = pin.pus.clone().unwrap_or_else(|| view.lookup.usable.clone());
    let common = mask.intersection(&view.held);
    let float_together = view.tight.is_empty()
        && view.vcpus().all(|(_, vcpu): (u32, &Pin)| {
            vcpu.pus.as_ref().is_some_and(|pus| pus.is_subset(&mask))
        });
    let real_time: CpuSet = view
        .vcpus()
        .filter(|(_, vcpu)| is_real_time(vcpu.policy))
        .filter_map(|(_, vcpu)| vcpu.pus.as_ref())
        .collect::<CpuSet>();
    let starves = !mask.is_empty() && mask.is_subset(&real_time) && !is_real_time(pin.policy);
    // Threads that all float over a part of the host do not take a vCPU's own CPU. But the kernel
    // never takes a CPU from a real-time vCPU.
    if common.is_empty() || float_together && real_time.is_disjoint(&mask) {
        return;
    }
    let severity = if !starves {
        severity(view.choice(view.held.len()).with_free_helpers(&view.held))
    } else if float_together {
        // At times a CPU may carry no vCPU.
        Severity::Warning
    } else {
        Severity::Problem
    };
    let meets = match (&pin.pus, mask.is_subset(&view.held)) {
        (None, _) => Common::WithoutPin(&common),
        (Some(_), true) => Common::Only(&mask),
        (Some(_), false) => Common::Some(&common),
    };
    let fault = CoreFault::OnVcpu { role: &pin.role, common: meets, starves };
    let mut diagnostic = view.diagnostic(severity, &fault);
    diagnostic.places = match pin.pus {
        // One of the vCPUs' pins is shown; the map shows the others.
        Some(_) => {
            let first = view
                .vcpus()
                .map(|(_, vcpu)| vcpu)
                .find(|vcpu| vcpu.pus.as_ref().is_some_and(|pus| !pus.is_disjoint(&common)));
            places(std::iter::once(pin).chain(first))
        }
        None => vec![Place::from_text(not_mentioned(&pin.role))],
    };
    diagnostics.push(diagnostic);
}

/// True if a thread on `pus` is on other nodes than the vCPUs on `held`, although one of the vCPUs'
/// nodes has room for it.
pub(super) fn is_far(view: &LintContext<'_, '_>, pus: &CpuSet, held: &CpuSet) -> bool {
    let (own, theirs) = (view.lookup.nodes_of(pus), view.lookup.nodes_of(held));
    let room = better_place(view, held).difference(&view.layout.exclusive);
    let has_room = view.lookup.nodes_of(&room).iter().any(|node| theirs.contains(node));
    !own.is_empty() && !theirs.is_empty() && has_room && own.iter().all(|n| !theirs.contains(n))
}

/// The emulator, an iothread or a vhost worker on another node than all vCPUs. For the emulator it
/// is a note, because few requests wait for it if iothreads and vhost serve the devices.
fn check_far(view: &LintContext<'_, '_>, pin: &Pin, diagnostics: &mut Vec<Diagnostic>) {
    let Some(pus) = pin.pus.as_ref().filter(|pus| is_far(view, pus, &view.tight)) else { return };
    let is_emulator = pin.role == Role::Emulator;
    let severity = if is_emulator { Severity::Note } else { Severity::Warning };
    let (nodes, vcpu_nodes) = (view.lookup.nodes_of(pus), view.lookup.nodes_of(&view.tight));
    let fault = CoreFault::Far { role: &pin.role, pus, nodes, vcpu_nodes };
    let mut diagnostic = view.diagnostic(severity, &fault);
    let first = view.vcpus().map(|(_, vcpu)| vcpu).next();
    diagnostic.places = places(std::iter::once(pin).chain(first));
    if is_emulator {
        diagnostic.instead = vec![view.write_pin(&pin.role, &better_place(view, &view.held))];
    }
    diagnostics.push(diagnostic);
}

/// Siblings of the vCPUs' CPUs that the host's tasks may use.
fn siblings_of_host(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let pinned = &view.tight;
    let others = view
        .lookup
        .whole_cores(pinned)
        .difference(&view.held)
        .difference(&view.lookup.topology.isolated)
        .difference(&view.layout.exclusive)
        .difference(
            &view.layout.pin(&Role::Emulator).and_then(|pin| pin.pus.clone()).unwrap_or_default(),
        )
        .intersection(&view.lookup.online);
    if others.is_empty() {
        return;
    }
    let fault = CoreFault::SiblingLeft { siblings: &others };
    let mut diagnostic = view.diagnostic(Severity::Note, &fault);
    diagnostic.places = places(view.vcpus().map(|(_, pin)| pin).find(|pin| {
        let cores = pin.pus.as_ref().map(|pus| view.lookup.whole_cores(pus));
        cores.is_some_and(|cores| !cores.is_disjoint(&others))
    }));
    diagnostics.push(diagnostic);
}

/// vCPUs on fast and on slow cores.
fn mixed_kinds(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let kind = |pin: &Pin| {
        let pu = pin.pus.as_ref().filter(|pus| pus.len() == 1)?.first()?;
        Some(view.lookup.pu(pu)?.kind)
    };
    let kinds: Vec<_> =
        view.vcpus().filter_map(|(index, pin)| Some((index, pin, kind(pin)?))).collect();
    let Some(fastest) = kinds.iter().map(|(_, _, kind)| *kind).min() else {
        return;
    };
    let slower: Vec<_> = kinds.iter().filter(|(_, _, kind)| *kind != fastest).collect();
    if slower.is_empty() {
        return;
    }
    let fault =
        CoreFault::MixedKinds { slower: slower.iter().map(|(index, _, _)| *index).collect() };
    let mut diagnostic = view.diagnostic(severity(view.choice(kinds.len()).of_one_kind()), &fault);
    diagnostic.places = places(slower.iter().map(|(_, pin, _)| *pin));
    diagnostics.push(diagnostic);
}

//! Single masks: missing CPUs, missing threads, vCPUs that share a CPU.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, PuId, Severity};
use pinfold_plan::alternatives::severity;
use pinfold_plan::layout::Pin;

use super::Diagnostic;
use super::lookup::{LintContext, places};
use super::text::masks::MaskFault;

pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    absent(view, diagnostics);
    strays(view, diagnostics);
    reserve(view, diagnostics);
    half_pinned(view, diagnostics);
    check_shared(view, diagnostics);
    check_crowded(view, diagnostics);
    check_excluded(view, diagnostics);
    check_unbalanced(view, diagnostics);
}

/// Pins to CPUs that cannot be used; those of which no CPU can are one finding.
fn absent(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let topology = view.lookup.topology;
    let all = view.layout.pins.iter().chain(&view.layout.strays);
    let (mut offline, mut gone): (Vec<AbsentPins<'_>>, Vec<AbsentPins<'_>>) = Default::default();
    for pins in by_place(all) {
        let Some(pus) = pins.first().and_then(|pin| pin.pus.as_ref()) else { continue };
        let left = pus.intersection(&view.lookup.usable);
        let is_offline = pus.intersection(&topology.offline);
        let is_gone = pus.difference(&view.lookup.usable).difference(&is_offline);
        if !is_offline.is_empty() {
            let (pins, left) = (pins.clone(), left.clone());
            add(&mut offline, AbsentPins { pins, absent: is_offline, barred: false, left });
        }
        if !is_gone.is_empty() {
            let barred = is_gone.is_subset(&view.lookup.online);
            add(&mut gone, AbsentPins { pins, absent: is_gone, barred, left });
        }
    }
    for AbsentPins { pins, absent, left, .. } in &offline {
        let fault = MaskFault::OfflinePu { pins, offline: absent, left };
        let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
        diagnostic.places = places(pins.iter().copied());
        // The pins are right: the host is what changes.
        diagnostic.is_final = true;
        diagnostics.push(diagnostic);
    }
    for AbsentPins { pins, absent, barred, left } in &gone {
        // Such a mask works if at least one of its CPUs exists; the kernel ignores the others.
        let severity = if left.is_empty() { Severity::Problem } else { Severity::Warning };
        let fault = MaskFault::AbsentPu { pins, gone: absent, barred: *barred, left };
        let mut diagnostic = view.diagnostic(severity, &fault);
        diagnostic.places = places(pins.iter().copied());
        diagnostics.push(diagnostic);
    }
}

/// Pins to CPUs that cannot be used.
struct AbsentPins<'p> {
    pins: Vec<&'p Pin>,
    absent: CpuSet,
    /// The CPUs exist, but not for this process.
    barred: bool,
    /// The CPUs of the pins that can be used.
    left: CpuSet,
}

/// Adds pins to those with the same cause, if none of their CPUs can be used.
fn add<'p>(known: &mut Vec<AbsentPins<'p>>, new: AbsentPins<'p>) {
    match known
        .iter_mut()
        .find(|one| one.barred == new.barred && one.left.is_empty() && new.left.is_empty())
    {
        Some(one) => {
            one.pins.extend(new.pins);
            one.absent.add(&new.absent);
        }
        None => known.push(new),
    }
}

/// The pins by where they are written: those that one attribute gives are together.
fn by_place<'p>(pins: impl Iterator<Item = &'p Pin>) -> Vec<Vec<&'p Pin>> {
    let mut groups: Vec<Vec<&Pin>> = Vec::new();
    let mut known: BTreeMap<(u32, &str), usize> = BTreeMap::new();
    for pin in pins.filter(|pin| pin.pus.is_some()) {
        let group = match pin.place.line {
            Some(line) => *known.entry((line, &pin.place.text)).or_insert(groups.len()),
            None => groups.len(),
        };
        match groups.get_mut(group) {
            Some(group) => group.push(pin),
            None => groups.push(vec![pin]),
        }
    }
    groups
}

/// vCPUs that can be added later have no threads, and no pin until then.
fn reserve(context: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let reserve = &context.layout.reserve;
    if !reserve.is_empty() {
        diagnostics
            .push(context.diagnostic(Severity::Note, &MaskFault::Reserve { vcpus: reserve }));
    }
}

fn strays(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let (vcpus, others): (Vec<&Pin>, Vec<&Pin>) =
        view.layout.strays.iter().partition(|pin: &&Pin| pin.role.is_vcpu());
    for pins in [vcpus, others].into_iter().filter(|pins| !pins.is_empty()) {
        let fault = MaskFault::PinOfNothing { pins: &pins, vcpus: view.layout.vcpus };
        let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
        diagnostic.places = places(pins.iter().copied());
        diagnostics.push(diagnostic);
    }
}

/// Some vCPUs are pinned and others float over the pinned ones' CPUs.
fn half_pinned(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    if view.held.is_empty() {
        return;
    }
    let floating: Vec<u32> = view
        .vcpus()
        .filter(|(_, pin)| is_floating(&pin.pus, view))
        .map(|(index, _)| index)
        .collect();
    if floating.is_empty() {
        return;
    }
    let fault = MaskFault::HalfPinned { floating: &floating, held: &view.held };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    diagnostic.places =
        places(view.vcpus().filter(|(_, pin)| !is_floating(&pin.pus, view)).map(|(_, pin)| pin));
    diagnostics.push(diagnostic);
}

fn is_floating(pus: &Option<CpuSet>, view: &LintContext<'_, '_>) -> bool {
    pus.as_ref().is_none_or(|pus| view.lookup.usable.is_subset(pus))
}

/// Two vCPUs that may only run on the same CPU.
fn check_shared(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let mut by_pu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, pin) in view.vcpus() {
        if let Some(pus) = pin.pus.as_ref().filter(|pus| pus.len() == 1)
            && let Some(pu) = pus.first()
        {
            by_pu.entry(pu.0).or_default().push(index);
        }
    }
    for (pu, indexes) in by_pu.iter().filter(|(_, indexes)| indexes.len() > 1) {
        let severity = severity(view.choice(view.vcpus().count()).with_another_pu());
        let mut diagnostic =
            view.diagnostic(severity, &MaskFault::SharePu { vcpus: indexes, pu: *pu });
        diagnostic.places =
            places(view.vcpus().filter(|(index, _)| indexes.contains(index)).map(|(_, pin)| pin));
        diagnostics.push(diagnostic);
    }
}

/// More vCPUs than CPUs in a mask, although the mask's nodes have at least half as many again.
/// Fewer may be what the host needs.
fn check_crowded(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let mut by_mask: BTreeMap<&CpuSet, Vec<u32>> = BTreeMap::new();
    for (index, pin) in view.vcpus() {
        if let Some(pus) = pin.pus.as_ref().filter(|pus| pus.len() > 1) {
            by_mask.entry(pus).or_default().push(index);
        }
    }
    for (mask, indexes) in by_mask.into_iter().filter(|(mask, vcpus)| vcpus.len() > mask.len()) {
        let nodes = view.lookup.nodes_of(mask);
        let near = |pu: &PuId| view.lookup.pu(*pu).and_then(|pu| pu.node);
        let left = view.lookup.for_vcpus.difference(mask);
        let left = left.difference(&view.lookup.topology.isolated);
        if 2 * left.iter().filter(|pu| near(pu).is_none_or(|node| nodes.contains(&node))).count()
            < mask.len()
        {
            continue;
        }
        let fault = MaskFault::Crowded { vcpus: indexes.len(), mask };
        let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
        diagnostic.places =
            places(view.vcpus().filter(|(index, _)| indexes.contains(index)).map(|(_, pin)| pin));
        diagnostics.push(diagnostic);
    }
}

/// Threads on CPUs that the user's conditions exclude: `--avoid`, and for vCPUs `--host-cpus`.
fn check_excluded(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let for_vcpus = view.lookup.permitted.difference(&view.lookup.for_host);
    let wrong: Vec<(&Pin, CpuSet)> = view
        .layout
        .pins
        .iter()
        .filter_map(|pin| Some((pin, find_outside(view, &for_vcpus, pin)?)))
        .collect();
    let Some((first, pus)) = wrong.first() else { return };
    let fault = MaskFault::Excluded { role: &first.role, pus, threads: wrong.len() };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    diagnostic.places = places(wrong.iter().map(|(pin, _)| *pin));
    diagnostics.push(diagnostic);
}

fn find_outside(view: &LintContext<'_, '_>, for_vcpus: &CpuSet, pin: &Pin) -> Option<CpuSet> {
    let pus = pin
        .pus
        .as_ref()?
        .intersection(&view.lookup.usable)
        .difference(if pin.role.is_vcpu() { for_vcpus } else { &view.lookup.permitted });
    (!pus.is_empty()).then_some(pus)
}

/// Masks of several isolated CPUs, over which the kernel does not balance tasks.
fn check_unbalanced(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let isolated = &view.lookup.topology.isolated;
    let wide = view
        .layout
        .pins
        .iter()
        .filter(|pin| pin.pus.as_ref().is_some_and(|pus| pus.intersection(isolated).len() > 1));
    let wide: Vec<_> = wide.collect();
    let Some(first) = wide.first().and_then(|pin| pin.pus.as_ref()) else {
        return;
    };
    let fault = MaskFault::OnIsolated { pins: &wide, pus: first.intersection(isolated) };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    diagnostic.places = places(wide.iter().copied());
    diagnostics.push(diagnostic);
}

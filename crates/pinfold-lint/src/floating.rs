//! vCPUs that the kernel places: on the whole host, or within a mask of several cores.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, Role, Severity};
use pinfold_plan::layout::Pin;

use super::Diagnostic;
use super::lookup::{LintContext, places};
use super::text::floating::{FloatFault, Range, Unknown};

pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let masks = masks(view);
    let one = |pin: &Pin| {
        let pus = pin.pus.as_ref().filter(|pus| !view.lookup.usable.is_subset(pus));
        pus.is_some_and(|pus| pus.len() == 1 || view.lookup.core_of(pus).is_some())
    };
    // Of a mask that is not there, or that only some have, another finding speaks.
    if view.layout.vcpus > 0
        && !view.vcpus().any(|(_, pin)| one(pin))
        && !diagnostics
            .iter()
            .any(|diagnostic| ["absent-pu", "half-pinned"].contains(&diagnostic.name))
    {
        diagnostics.push(report_unpinned(view, &masks));
    }
    for (mask, vcpus) in &masks {
        of_mask(view, mask, vcpus, diagnostics);
    }
}

/// The masks of several cores that are narrower than the host, each with its vCPUs.
fn masks<'v>(view: &LintContext<'v, '_>) -> BTreeMap<&'v CpuSet, Vec<u32>> {
    let mut found: BTreeMap<&CpuSet, Vec<u32>> = BTreeMap::new();
    for (index, pin) in view.vcpus() {
        let narrower = pin.pus.as_ref().filter(|pus| !view.lookup.usable.is_subset(pus));
        if let Some(pus) = narrower {
            found.entry(pus).or_default().push(index);
        }
    }
    found.retain(|pus, _| view.lookup.count_cores(pus) > 1);
    found
}

fn report_unpinned(view: &LintContext<'_, '_>, masks: &BTreeMap<&CpuSet, Vec<u32>>) -> Diagnostic {
    let all: CpuSet = masks.keys().copied().collect();
    let range = match masks.len() {
        0 if view.layout.is_placed_by_numad => Range::Numad,
        0 => Range::Host,
        1 => {
            let others = view
                .layout
                .pins
                .iter()
                .filter(|pin: &&Pin| !pin.role.is_vcpu() && pin.pus.as_ref() == Some(&all))
                .map(|pin| pin.role.clone());
            let vcpus = masks.values().flatten().map(|index| Role::Vcpu(*index));
            Range::OneMask { threads: vcpus.chain(others).collect(), pus: &all }
        }
        count => Range::Masks { count, pus: &all },
    };
    let mut diagnostic = view.diagnostic(Severity::Note, &FloatFault::NotPinned(range));
    diagnostic.places = of_vcpus(view, &masks.values().flatten().copied().collect::<Vec<_>>());
    diagnostic
}

/// Where the vCPUs of one mask are bound.
fn of_vcpus(view: &LintContext<'_, '_>, vcpus: &[u32]) -> Vec<pinfold_plan::domain_file::Place> {
    places(view.vcpus().filter(|(index, _)| vcpus.contains(index)).map(|(_, pin)| pin))
}

/// What a guest cannot know of the CPUs that its vCPUs float over.
fn of_mask(
    view: &LintContext<'_, '_>,
    mask: &CpuSet,
    vcpus: &[u32],
    diagnostics: &mut Vec<Diagnostic>,
) {
    let lookup = view.lookup;
    if !lookup.is_of_one_kind(&mask.intersection(&lookup.usable)) {
        note(view, vcpus, mask, diagnostics, Unknown::Kinds);
    }
    let (nodes, l3s) = (lookup.nodes_of(mask), lookup.count_l3s(mask));
    if nodes.len() > 1 {
        note(view, vcpus, mask, diagnostics, Unknown::Nodes(&nodes));
    } else if l3s > 1 {
        note(view, vcpus, mask, diagnostics, Unknown::L3s(l3s));
    }
    let (cores, threads) = (lookup.count_cores(mask), view.layout.guest.as_ref());
    let are_cores = threads.is_some_and(|guest| guest.threads == 1);
    if are_cores && (cores + 1..=mask.len()).contains(&vcpus.len()) {
        note(view, vcpus, mask, diagnostics, Unknown::Siblings(cores));
    }
}

fn note(
    view: &LintContext<'_, '_>,
    vcpus: &[u32],
    mask: &CpuSet,
    diagnostics: &mut Vec<Diagnostic>,
    what: Unknown<'_>,
) {
    let mut diagnostic = view.diagnostic(Severity::Note, &FloatFault::Over { vcpus, mask, what });
    diagnostic.places = of_vcpus(view, vcpus);
    diagnostics.push(diagnostic);
}

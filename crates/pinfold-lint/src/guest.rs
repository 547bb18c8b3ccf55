//! Compares the guest topology with the CPUs of the vCPUs: siblings, cores, sockets.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CoreId, CpuSet, Role, Severity};
use pinfold_plan::alternatives::severity;
use pinfold_plan::layout::{GuestShape, Pin};

use super::Diagnostic;
use super::lookup::{LintContext, places};
use super::properties::File;
use super::repair::Repair;
use super::text::guest::{GuestFault, SocketLimit, Spot};
use pinfold_plan::domain_file::{Windows, most_sockets};

pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    if let Some((product, place)) = &view.layout.wrong_product {
        let vcpus = view.layout.vcpus;
        let fault = GuestFault::Count { product: *product, vcpus };
        let mut diagnostic = view.diagnostic(Severity::Problem, &fault);
        diagnostic.places = vec![place.clone()];
        diagnostics.push(diagnostic);
        return;
    }
    let Some(guest) = &view.layout.guest else {
        return;
    };
    let lied = siblings_lie(view, guest, diagnostics);
    if !lied && guest.threads == 1 {
        siblings_hidden(view, guest, diagnostics);
    }
    sockets(view, guest, diagnostics);
}

/// The host core of each vCPU that stays on one core.
fn cores(view: &LintContext<'_, '_>) -> BTreeMap<u32, CoreId> {
    view.vcpus().filter_map(|(index, pin)| Some((index, core(view, pin)?))).collect()
}

fn core(view: &LintContext<'_, '_>, pin: &Pin) -> Option<CoreId> {
    view.lookup.core_of(pin.pus.as_ref()?)
}

/// Guest siblings that are not host siblings.
fn siblings_lie(
    view: &LintContext<'_, '_>,
    guest: &GuestShape,
    diagnostics: &mut Vec<Diagnostic>,
) -> bool {
    let cores = cores(view);
    let apart = |siblings: &&Vec<u32>| {
        let found: Vec<Option<&CoreId>> = siblings.iter().map(|index| cores.get(index)).collect();
        // Two masks of one CPU each, on different cores. A vCPU that may run on several cores is no
        // permanent sibling of another one either.
        let known = found.iter().flatten().collect::<Vec<_>>();
        siblings.len() > 1
            && (known.windows(2).any(|pair| pair[0] != pair[1])
                || (known.len() < siblings.len() && !view.held.is_empty()))
    };
    let wrong: Vec<&Vec<u32>> = guest.cores.iter().filter(apart).collect();
    let Some(first) = wrong.first() else {
        return false;
    };
    let fault = GuestFault::SiblingsLie {
        first: first
            .iter()
            .map(|index| Spot {
                vcpu: *index,
                pus: view.layout.pin(&Role::Vcpu(*index)).and_then(|pin| pin.pus.as_ref()),
                core: cores.get(index).copied(),
            })
            .collect(),
        cores: wrong.len(),
    };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    let pins = wrong.iter().flat_map(|siblings| siblings.iter());
    let pins = pins.filter_map(|index| view.layout.pin(&Role::Vcpu(*index)));
    diagnostic.places = [vec![guest.place.clone()], places(pins)].concat();
    diagnostic.places.retain(|place| !place.text.is_empty());
    diagnostics.push(diagnostic);
    true
}

/// vCPUs on host siblings that the guest topology shows as cores.
fn siblings_hidden(
    view: &LintContext<'_, '_>,
    guest: &GuestShape,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let mut by_core: BTreeMap<CoreId, Vec<u32>> = BTreeMap::new();
    for (index, core) in cores(view) {
        by_core.entry(core).or_default().push(index);
    }
    let shares = |indexes: &Vec<u32>| {
        let masks: CpuSet = indexes.iter().fold(CpuSet::new(), |set, index| {
            let pin = view.layout.pin(&Role::Vcpu(*index)).and_then(|pin| pin.pus.as_ref());
            pin.map_or(set.clone(), |pus| set.union(pus))
        });
        indexes.len() > 1 && masks.len() > 1
    };
    let pairs: Vec<(CoreId, Vec<u32>)> =
        by_core.into_iter().filter(|(_, indexes)| shares(indexes)).collect();
    let Some((core, indexes)) = pairs.first() else {
        return;
    };
    let vcpus = view.vcpus().count();
    let fault = GuestFault::SiblingsHidden { vcpus: indexes, core: *core, cores: pairs.len() };
    let severity = severity(view.choice(vcpus).with_true_siblings(&view.held));
    let mut diagnostic = view.diagnostic(severity, &fault);
    let pins = pairs.iter().flat_map(|(_, indexes)| indexes);
    let pins = pins.filter_map(|index| view.layout.pin(&Role::Vcpu(*index)));
    diagnostic.places = [vec![guest.place.clone()], places(pins)].concat();
    diagnostic.places.retain(|place| !place.text.is_empty());
    diagnostics.push(diagnostic);
}

/// More guest sockets than host packages.
fn sockets(view: &LintContext<'_, '_>, guest: &GuestShape, diagnostics: &mut Vec<Diagnostic>) {
    if view.tight.is_empty() || guest.sockets <= 1 {
        return;
    }
    let mut packages: Vec<_> =
        view.tight.iter().filter_map(|pu| Some(view.lookup.pu(pu)?.package)).collect();
    packages.sort_unstable();
    packages.dedup();
    if guest.sockets as usize <= packages.len() {
        return;
    }
    let mut places = vec![guest.place.clone()];
    places.retain(|place| !place.text.is_empty());
    let fault = GuestFault::Sockets {
        sockets: guest.sockets,
        limit: SocketLimit::Vcpus(packages.len()),
        written: !places.is_empty(),
    };
    let mut diagnostic = view.diagnostic(Severity::Warning, &fault);
    diagnostic.places = places;
    diagnostics.push(diagnostic);
}

/// More guest sockets than the host has, although no vCPU is pinned to one CPU: written, or more
/// than Windows' desktop editions use. It needs no other placement, only another topology.
pub(super) fn sockets_of_file(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let (layout, lookup) = (file.view.layout, file.view.lookup);
    let Some(guest) = layout.guest.as_ref().filter(|_| layout.wrong_product.is_none()) else {
        return;
    };
    let is_written = !guest.place.text.is_empty();
    let most = most_sockets(file.root).filter(|most| guest.sockets > *most);
    let packages: BTreeSet<_> = lookup.topology.pus.iter().map(|pu| pu.package).collect();
    let is_floating = file.view.tight.is_empty();
    let is_known = diagnostics.iter().any(|diagnostic| diagnostic.name == "guest-sockets-lie");
    let limit = match most {
        Some(most) if guest.sockets as usize <= packages.len() => SocketLimit::Windows(most),
        None if !is_written && file.windows != Windows::Yes => return,
        Some(_) | None if !is_floating || guest.sockets as usize <= packages.len() => return,
        Some(_) | None => SocketLimit::Host(packages.len()),
    };
    if is_known || guest.threads == 0 || !layout.vcpus.is_multiple_of(guest.threads) {
        return;
    }
    let fault = GuestFault::Sockets { sockets: guest.sockets, limit, written: is_written };
    let mut diagnostic = file.view.diagnostic(Severity::Warning, &fault);
    diagnostic.places = is_written.then(|| guest.place.clone()).into_iter().collect();
    diagnostic.repairs =
        vec![Repair::set_element(&["cpu"], "topology", in_one_socket(file, guest))];
    diagnostics.push(diagnostic);
}

/// A topology of one socket; of pinned vCPUs, whose L3 caches are known, its sockets become dies.
fn in_one_socket(file: &File<'_>, guest: &GuestShape) -> String {
    let node = file.find(&["cpu", "topology"]);
    let dies = node.and_then(|node| node.attribute("dies"));
    let dies = dies.and_then(|dies| dies.trim().parse::<u32>().ok()).unwrap_or(1);
    let dies = if file.x86 && !file.view.tight.is_empty() { dies * guest.sockets } else { 1 };
    let cores = file.view.layout.vcpus / guest.threads / dies.max(1);
    let dies = if dies > 1 { format!(" dies='{dies}'") } else { String::new() };
    format!("<topology sockets='1'{dies} cores='{cores}' threads='{}'/>", guest.threads)
}

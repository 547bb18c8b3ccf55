//! Compares the guest topology with the CPUs of the vCPUs: siblings, cores, sockets.

use std::collections::BTreeMap;

use pinfold_model::text::counted;
use pinfold_model::{CoreId, CpuSet, Role, Severity};
use pinfold_plan::avoidable::severity;
use pinfold_plan::layout::{GuestShape, Pin};

use super::Diagnostic;
use super::lookup::{LintContext, cpus, describe_vcpus, places};

pub(super) fn check(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    if let Some((product, place)) = &view.layout.wrong_product {
        let vcpus = view.layout.vcpus;
        let mut flaw = view.flaw(
            Severity::Problem,
            "topology-count",
            format!("the topology makes {product} vCPUs, the machine has {vcpus}"),
        );
        flaw.places = vec![place.clone()];
        flaw.cost = "libvirt refuses to define or start it".to_owned();
        flaws.push(flaw);
        return;
    }
    let Some(guest) = &view.layout.guest else {
        return;
    };
    let lied = siblings_lie(view, guest, flaws);
    if !lied && guest.threads == 1 {
        siblings_hidden(view, guest, flaws);
    }
    sockets(view, guest, flaws);
}

/// The host core of each vCPU that stays on one core.
fn cores(view: &LintContext<'_, '_>) -> BTreeMap<u32, CoreId> {
    let core = |pin: &Pin| view.lookup.core_of(pin.pus.as_ref()?);
    view.vcpus().filter_map(|(index, pin)| Some((index, core(pin)?))).collect()
}

/// Guest siblings that are not host siblings.
fn siblings_lie(
    view: &LintContext<'_, '_>,
    guest: &GuestShape,
    flaws: &mut Vec<Diagnostic>,
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
    let on = |index: &u32| {
        let pin = view.layout.pin(&Role::Vcpu(*index)).and_then(|pin| pin.pus.as_ref());
        let core = cores.get(index).map_or("no one core".to_owned(), |core| format!("core {core}"));
        let pus = pin.map_or("any CPU".to_owned(), cpus);
        format!("vCPU {index} is on {pus} ({core})")
    };
    let example: Vec<String> = first.iter().map(on).collect();
    let rest = match wrong.len() {
        1 => String::new(),
        count => format!("; the same for {} more of the guest's cores", count - 1),
    };
    let mut flaw = view.flaw(
        Severity::Warning,
        "guest-siblings-lie",
        format!(
            "the guest takes {} for threads of one core, but {}{rest}",
            describe_vcpus(first.iter().copied()),
            example.join(", ")
        ),
    );
    let pins = wrong.iter().flat_map(|siblings| siblings.iter());
    let pins = pins.filter_map(|index| view.layout.pin(&Role::Vcpu(*index)));
    flaw.places = [vec![guest.place.clone()], places(pins)].concat();
    flaw.places.retain(|place| !place.text.is_empty());
    flaw.cost = "the guest's scheduler spreads work over what it takes for cores: it puts two busy \
                 tasks on one real core while another is idle, and shares caches that are not shared"
        .to_owned();
    flaws.push(flaw);
    true
}

/// vCPUs on host siblings that the guest topology shows as cores.
fn siblings_hidden(view: &LintContext<'_, '_>, guest: &GuestShape, flaws: &mut Vec<Diagnostic>) {
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
    let rest = match pairs.len() {
        1 => String::new(),
        count => format!(", and {} more cores likewise", count - 1),
    };
    let vcpus = view.vcpus().count();
    let mut flaw = view.flaw(
        severity(view.choice(vcpus).with_true_siblings(&view.held)),
        "guest-siblings-hidden",
        format!(
            "{} are on siblings of core {core}{rest}, but the guest takes each for a core of its own",
            describe_vcpus(indexes.iter().copied())
        ),
    );
    let pins = pairs.iter().flat_map(|(_, indexes)| indexes);
    let pins = pins.filter_map(|index| view.layout.pin(&Role::Vcpu(*index)));
    flaw.places = [vec![guest.place.clone()], places(pins)].concat();
    flaw.places.retain(|place| !place.text.is_empty());
    flaw.cost =
        "the guest's scheduler cannot know which of its CPUs slow each other down: with half \
                 of them busy, two tasks share a core while another core is idle"
            .to_owned();
    flaws.push(flaw);
}

/// More guest sockets than host packages.
fn sockets(view: &LintContext<'_, '_>, guest: &GuestShape, flaws: &mut Vec<Diagnostic>) {
    if view.tight.is_empty() || guest.sockets <= 1 {
        return;
    }
    let mut packages: Vec<_> =
        view.tight.iter().filter_map(|pu| Some(view.lookup.pu(pu)?.package)).collect();
    packages.sort_unstable();
    packages.dedup();
    // A socket for each of the guest's NUMA cells, because none may span two.
    if guest.sockets as usize <= packages.len().max(view.layout.cells.len()) {
        return;
    }
    let mut flaw = view.flaw(
        Severity::Warning,
        "guest-sockets-lie",
        format!(
            "the guest is shown {} sockets, its vCPUs are in {} of the host",
            guest.sockets,
            counted(packages.len(), "package")
        ),
    );
    flaw.places = vec![guest.place.clone()];
    flaw.places.retain(|place| !place.text.is_empty());
    let unwritten = match flaw.places.is_empty() {
        true => "without <topology> each vCPU is a socket of its own: ",
        false => "",
    };
    flaw.cost = format!(
        "{unwritten}the guest believes that its CPUs share no L3 and keeps tasks apart that should be \
         near; Windows' desktop editions use at most two sockets and leave the other vCPUs idle"
    );
    flaws.push(flaw);
}

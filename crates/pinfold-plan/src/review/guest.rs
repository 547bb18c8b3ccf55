//! What the guest is shown against where its vCPUs are: siblings, cores, sockets.

use std::collections::BTreeMap;

use pinfold_model::{CoreId, CpuSet, PuId, Role, Severity};

use super::lookup::{View, places, speak_vcpus};
use super::{Flaw, GuestShape};

pub(super) fn check(view: &View<'_, '_>, flaws: &mut Vec<Flaw>) {
    if let Some((product, place)) = &view.layout.wrong_product {
        let vcpus = view.layout.vcpus;
        let mut flaw = view.flaw(
            Severity::Problem,
            "topology-count",
            format!("the topology makes {product} vCPUs, the machine has {vcpus}"),
        );
        flaw.places = vec![place.clone()];
        flaw.cost = "libvirt refuses to define or start it".to_owned();
        flaw.instead = better(view);
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

/// The host core of each vCPU that stays on one.
fn cores(view: &View<'_, '_>) -> BTreeMap<u32, CoreId> {
    let core = |pin: &super::Pin| view.lookup.core_of(pin.pus.as_ref()?);
    view.vcpus().filter_map(|(index, pin)| Some((index, core(pin)?))).collect()
}

/// Guest siblings that are not host siblings.
fn siblings_lie(view: &View<'_, '_>, guest: &GuestShape, flaws: &mut Vec<Flaw>) -> bool {
    let cores = cores(view);
    let apart = |siblings: &&Vec<u32>| {
        let found: Vec<Option<&CoreId>> = siblings.iter().map(|index| cores.get(index)).collect();
        // Two masks of one PU each, on different cores. A vCPU that may run on several cores
        // is nobody's sibling for long either.
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
        let pus = pin.map_or("any PU".to_owned(), |pus| format!("PU {pus}"));
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
            speak_vcpus(first.iter().copied()),
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
    flaw.instead = better(view);
    flaws.push(flaw);
    true
}

/// vCPUs on host siblings that the guest takes for cores.
fn siblings_hidden(view: &View<'_, '_>, guest: &GuestShape, flaws: &mut Vec<Flaw>) {
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
    let mut flaw = view.flaw(
        Severity::Warning,
        "guest-siblings-hidden",
        format!(
            "{} are on siblings of core {core}{rest}, but the guest takes each for a core of its own",
            speak_vcpus(indexes.iter().copied())
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
    flaw.instead = better(view);
    flaws.push(flaw);
}

/// Pins, and a topology, that tell the guest the truth: the same PUs in sibling order if they fill
/// cores evenly, else whole cores, else one thread for each core.
fn better(view: &View<'_, '_>) -> Vec<String> {
    let vcpus = view.layout.vcpus as usize;
    let same = view.lookup.in_order(&view.tight);
    if same.len() != vcpus {
        return vec![format!(
            "pin each vCPU to one PU first, or {}",
            view.write_shape(1, vcpus.max(1), 1)
        )];
    }
    let order = repinned(view).unwrap_or(same);
    let threads = even(&counts(view, &order)).unwrap_or(1);
    let sockets = sockets_of(view, &order)
        .filter(|count| (vcpus / threads).is_multiple_of(*count))
        .unwrap_or(1);
    let mut lines = vec![view.write_shape(sockets, vcpus / threads / sockets, threads)];
    let now: Vec<Option<PuId>> =
        view.vcpus().map(|(_, pin)| pin.pus.as_ref().and_then(CpuSet::first)).collect();
    if threads > 1 && order.iter().map(|pu| Some(*pu)).ne(now.iter().copied()) {
        lines.extend(view.write_pins(&order));
    }
    lines
}

/// Other PUs for the vCPUs than they have: whole cores, because theirs are partly filled and no
/// topology can say so. The first core is left to the host where there are enough.
pub(super) fn repinned(view: &View<'_, '_>) -> Option<Vec<PuId>> {
    let vcpus = view.layout.vcpus as usize;
    let same = view.lookup.in_order(&view.tight);
    let counts = counts(view, &same);
    if same.len() != vcpus || even(&counts).is_some() {
        return None;
    }
    let width = counts.iter().copied().max().filter(|width| vcpus.is_multiple_of(*width))?;
    let whole: Vec<CpuSet> = view
        .lookup
        .topology
        .cores
        .iter()
        .map(|core| core.pus.intersection(&view.lookup.usable))
        .filter(|pus| pus.len() == width)
        .collect();
    let skipped = usize::from(whole.len() > vcpus / width);
    let chosen = whole.get(skipped..skipped + vcpus / width)?;
    let chosen = chosen.iter().fold(CpuSet::new(), |set, pus| set.union(pus));
    Some(view.lookup.in_order(&chosen))
}

/// The common value, if all are equal.
fn even(counts: &[usize]) -> Option<usize> {
    let first = counts.first()?;
    counts.iter().all(|count| count == first).then_some(*first)
}

/// How many of the PUs, which are in hwloc's order, lie on each of their cores.
fn counts(view: &View<'_, '_>, order: &[PuId]) -> Vec<usize> {
    let cores: Vec<CoreId> =
        order.iter().filter_map(|pu| Some(view.lookup.pu(*pu)?.core)).collect();
    cores.chunk_by(|one, next| one == next).map(<[CoreId]>::len).collect()
}

/// The number of packages, if each carries the same number of the PUs.
fn sockets_of(view: &View<'_, '_>, order: &[PuId]) -> Option<usize> {
    let packages: Vec<_> =
        order.iter().filter_map(|pu| Some(view.lookup.pu(*pu)?.package)).collect();
    let sizes: Vec<usize> = packages.chunk_by(|one, next| one == next).map(<[_]>::len).collect();
    even(&sizes).map(|_| sizes.len())
}

/// More guest sockets than packages.
fn sockets(view: &View<'_, '_>, guest: &GuestShape, flaws: &mut Vec<Flaw>) {
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
    let mut flaw = view.flaw(
        Severity::Warning,
        "guest-sockets-lie",
        format!(
            "the guest is shown {} sockets, its vCPUs are in {} of the host",
            guest.sockets,
            crate::draft::counted(packages.len(), "package")
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
    flaw.instead = better(view);
    flaws.push(flaw);
}

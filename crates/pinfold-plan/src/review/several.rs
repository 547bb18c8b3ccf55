//! Several machines on one host: PUs and cores that two of them claim.

use pinfold_model::{CpuSet, Severity};

use super::lookup::{Lookup, View, places};
use super::{Flaw, Layout};
use crate::draft::pus_text;

pub(super) fn check(layouts: &[Layout], lookup: &Lookup<'_>, flaws: &mut Vec<Flaw>) {
    let views: Vec<View<'_, '_>> = layouts.iter().map(|layout| View::of(layout, lookup)).collect();
    for (index, one) in views.iter().enumerate() {
        for other in views.iter().skip(index + 1) {
            if one.held.is_empty() || other.held.is_empty() {
                continue;
            }
            pair(one, other, flaws);
        }
    }
}

fn pair(one: &View<'_, '_>, other: &View<'_, '_>, flaws: &mut Vec<Flaw>) {
    let both = one.held.intersection(&other.held);
    let free = one.lookup.usable.difference(&one.held).difference(&other.held);
    let instead = match free.is_empty() {
        false => format!("PUs that neither uses: {free}"),
        true => "no PU is left: give one of them fewer vCPUs".to_owned(),
    };
    let name = &other.layout.name;
    if !both.is_empty() {
        let mut flaw = one.flaw(
            Severity::Warning,
            "pu-used-twice",
            format!("{} carry vCPUs of {:?} and of {name:?}", pus_text(&both), one.layout.name),
        );
        flaw.places = [touching(one, &both), touching(other, &both)].concat();
        flaw.cost =
            "the two machines take turns there; each sees it as stolen time, when the other is \
                     busy and never otherwise"
                .to_owned();
        flaw.instead = vec![instead];
        flaws.push(flaw);
        return;
    }
    let cores = one.lookup.whole_cores(&one.tight).intersection(&other.tight);
    if !cores.is_empty() {
        let mut flaw = one.flaw(
            Severity::Warning,
            "core-used-twice",
            format!(
                "{:?} and {name:?} have vCPUs on siblings of the same cores ({name:?} on {})",
                one.layout.name,
                pus_text(&cores)
            ),
        );
        flaw.places =
            [touching(one, &one.lookup.whole_cores(&cores)), touching(other, &cores)].concat();
        flaw.cost =
            "each slows the other down when both are busy, and each can observe the other through \
                     the core's caches"
                .to_owned();
        flaw.instead = vec![format!("give each whole cores; {instead}")];
        flaws.push(flaw);
    }
}

/// Where a machine's vCPUs are pinned to some of these PUs.
fn touching(view: &View<'_, '_>, pus: &CpuSet) -> Vec<crate::domain_file::Place> {
    let pins = view.vcpus().map(|(_, pin)| pin);
    places(pins.filter(|pin| pin.pus.as_ref().is_some_and(|own| !own.is_disjoint(pus))))
        .into_iter()
        .map(|place| crate::domain_file::Place {
            text: format!("{}: {}", view.layout.source, place.text),
            ..place
        })
        .collect()
}

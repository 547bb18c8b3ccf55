//! vCPUs that the kernel places: on the whole host, or within a mask of several cores.

use std::collections::BTreeMap;

use pinfold_model::text::counted;
use pinfold_model::{CpuSet, Role, Severity};
use pinfold_plan::layout::Pin;

use super::Diagnostic;
use super::lookup::spoken;
use super::lookup::{LintContext, cpus, describe_all, describe_vcpus, places};

pub(super) fn check(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let masks = masks(view);
    let one = |pin: &Pin| {
        let pus = pin.pus.as_ref().filter(|pus| !view.lookup.usable.is_subset(pus));
        pus.is_some_and(|pus| pus.len() == 1 || view.lookup.core_of(pus).is_some())
    };
    // Of a mask that is not there, or that only some have, another finding speaks.
    let is_known = |flaw: &Diagnostic| ["absent-pu", "half-pinned"].contains(&flaw.name);
    if view.layout.vcpus > 0
        && !view.vcpus().any(|(_, pin)| one(pin))
        && !flaws.iter().any(is_known)
    {
        flaws.push(unpinned(view, &masks));
    }
    for (mask, vcpus) in &masks {
        of_mask(view, (mask, vcpus), flaws);
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

fn unpinned(view: &LintContext<'_, '_>, masks: &BTreeMap<&CpuSet, Vec<u32>>) -> Diagnostic {
    let all: CpuSet = masks.keys().copied().collect();
    let where_to = match masks.len() {
        0 => "places them".to_owned(),
        1 => {
            let is_on_it =
                |pin: &&Pin| !matches!(pin.role, Role::Vcpu(_)) && pin.pus.as_ref() == Some(&all);
            let others = view.layout.pins.iter().filter(is_on_it).map(|pin| &pin.role);
            let vcpus = masks.values().flatten().map(|index| Role::Vcpu(*index));
            let vcpus: Vec<Role> = vcpus.collect();
            format!("moves {} over {}", describe_all(vcpus.iter().chain(others)), cpus(&all))
        }
        count => format!("moves them within {} ({all})", counted(count, "mask")),
    };
    let mut flaw = view.flaw(
        Severity::Note,
        "not-pinned",
        format!("no vCPU is pinned to one CPU: the kernel {where_to}, which is a legal choice"),
    );
    flaw.places = of_vcpus(view, &masks.values().flatten().copied().collect::<Vec<_>>());
    flaw.cost =
        "vCPUs move between cores, and share them with the host's tasks under load".to_owned();
    flaw.instead = vec![
        "`pinfold plan --list` shows what else there is; `pinfold tune` measures what it buys"
            .to_owned(),
    ];
    flaw
}

/// Where the vCPUs of one mask are bound.
fn of_vcpus(view: &LintContext<'_, '_>, vcpus: &[u32]) -> Vec<pinfold_plan::domain_file::Place> {
    places(view.vcpus().filter(|(index, _)| vcpus.contains(index)).map(|(_, pin)| pin))
}

/// What a guest cannot know of the CPUs that its vCPUs float over.
fn of_mask(
    view: &LintContext<'_, '_>,
    (mask, vcpus): (&CpuSet, &[u32]),
    flaws: &mut Vec<Diagnostic>,
) {
    let lookup = view.lookup;
    let who = describe_vcpus(vcpus.iter().copied());
    let float = if vcpus.len() == 1 { "floats" } else { "float" };
    let mut note = |name, what: String, cost: &str| {
        let mut flaw = view.flaw(Severity::Note, name, format!("{who} {float} over {what}"));
        flaw.places = of_vcpus(view, vcpus);
        flaw.cost = cost.to_owned();
        flaws.push(flaw);
    };
    if !lookup.is_of_one_kind(&mask.intersection(&lookup.usable)) {
        let what = format!("cores of several kinds ({mask})");
        let cost = "the guest takes all its CPUs for equal, and each is now fast, now slow";
        note("mixed-cores", what, cost);
    }
    let (nodes, l3s) = (lookup.nodes_of(mask), lookup.count_l3s(mask));
    if nodes.len() > 1 {
        let cost = "part of the memory is remote to wherever one of them runs";
        note("nodes-crossed", format!("{} ({mask})", spoken(&nodes)), cost);
    } else if l3s > 1 {
        let cost = "a vCPU that moves to another L3 cache finds none of its data there, and what \
                    vCPUs share travels between the caches";
        note("l3-crossed", format!("{} ({mask})", counted(l3s, "L3 cache")), cost);
    }
    let (cores, threads) = (lookup.count_cores(mask), view.layout.guest.as_ref());
    let are_cores = threads.is_some_and(|guest| guest.threads == 1);
    if are_cores && (cores + 1..=mask.len()).contains(&vcpus.len()) {
        let what = format!(
            "{} ({mask}), and the guest takes each vCPU for a core of its own",
            counted(cores, "core")
        );
        let cost = "the guest's scheduler cannot know which of its CPUs slow each other down";
        note("guest-siblings-hidden", what, cost);
    }
}

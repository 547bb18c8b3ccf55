//! Single masks: missing CPUs, missing threads, vCPUs that share a CPU.

use std::collections::BTreeMap;

use pinfold_model::text::counted;
use pinfold_model::{CpuSet, PuId, Role, Severity};
use pinfold_plan::avoidable::severity;
use pinfold_plan::layout::Pin;
use pinfold_plan::online;
use pinfold_plan::text::verb;

use super::Diagnostic;
use super::lookup::{LintContext, cpus, describe, describe_all, describe_vcpus, places};

pub(super) fn check(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    absent(view, flaws);
    strays(view, flaws);
    half_pinned(view, flaws);
    shared(view, flaws);
    crowded(view, flaws);
    excluded(view, flaws);
    unbalanced(view, flaws);
}

fn absent(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let topology = view.lookup.topology;
    let all = view.layout.pins.iter().chain(&view.layout.strays);
    for pins in by_place(all) {
        let Some(pus) = pins.first().and_then(|pin| pin.pus.as_ref()) else { continue };
        let offline = pus.intersection(&topology.offline);
        let gone = pus.difference(&view.lookup.usable).difference(&offline);
        let left = pus.intersection(&view.lookup.usable);
        if !offline.is_empty() {
            flaws.push(waiting(view, &pins, (&offline, &left)));
        }
        if gone.is_empty() {
            continue;
        }
        let barred = gone.is_subset(&view.lookup.online);
        let why = match barred {
            true => verb(
                &gone,
                "is not in the cpuset of this process's cgroup",
                "are not in the cpuset of this process's cgroup",
            ),
            false => verb(&gone, "is not on this host", "are not on this host"),
        };
        // Such a mask works if at least one of its CPUs exists; the kernel ignores the others.
        let severity = if left.is_empty() { Severity::Problem } else { Severity::Warning };
        let mut flaw = view.flaw(
            severity,
            "absent-pu",
            format!("{} to {pus}, of which {} {why}", bound(&pins), cpus(&gone)),
        );
        flaw.places = places(pins.iter().copied());
        flaw.cost = match left.is_empty() {
            true => "the machine does not start, or the pin is refused (EINVAL)".to_owned(),
            false => format!("{} on {left} only, not where the text says", runs(&pins)),
        };
        flaws.push(flaw);
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

/// Threads that one text binds: `vCPU 3 is pinned`, `the vCPUs 0-3 and the emulator are limited`.
fn bound(pins: &[&Pin]) -> String {
    let roles = describe_all(pins.iter().map(|pin| &pin.role));
    if pins.len() == 1 { format!("{roles} is pinned") } else { format!("{roles} are limited") }
}

fn runs(pins: &[&Pin]) -> &'static str {
    if pins.len() == 1 { "it runs" } else { "they run" }
}

/// Pins to PUs that a compute service may have taken offline while no guest needed them.
fn waiting(
    view: &LintContext<'_, '_>,
    pins: &[&Pin],
    (offline, left): (&CpuSet, &CpuSet),
) -> Diagnostic {
    let is = verb(offline, "is offline", "are offline");
    let mut flaw = view.flaw(
        Severity::Warning,
        "offline-pu",
        format!("{} to {}, which {is}: usable once online", bound(pins), cpus(offline)),
    );
    flaw.places = places(pins.iter().copied());
    flaw.cost = match left.is_empty() {
        true => "until then the machine does not start, or the pin is refused (EINVAL)".to_owned(),
        false => format!("until then {} on {left} only", runs(pins)),
    };
    flaw.instead = vec![format!("`{}`", online::command(offline))];
    // The pins are right: the host is what changes.
    flaw.is_final = true;
    flaw
}

fn strays(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    for pin in &view.layout.strays {
        let role = describe(&pin.role);
        let counted = match &pin.role {
            Role::Vcpu(_) => format!("the machine has {} vCPUs, from 0", view.layout.vcpus),
            Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker | Role::Task => {
                "the machine has no such thread".to_owned()
            }
        };
        let mut flaw = view.flaw(
            Severity::Warning,
            "pin-of-nothing",
            format!("{role} is pinned, but {counted}"),
        );
        flaw.places = places([pin]);
        flaw.cost =
            "libvirt drops such a pin of a vCPU in silence and refuses one of an iothread; often \
             the count or a number is a typing error, and another thread has no pin"
                .to_owned();
        flaws.push(flaw);
    }
}

/// Some vCPUs are pinned and others float over the pinned ones' CPUs.
fn half_pinned(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    if view.held.is_empty() {
        return;
    }
    let floats =
        |pus: &Option<CpuSet>| pus.as_ref().is_none_or(|pus| view.lookup.usable.is_subset(pus));
    let floating: Vec<u32> =
        view.vcpus().filter(|(_, pin)| floats(&pin.pus)).map(|(index, _)| index).collect();
    if floating.is_empty() {
        return;
    }
    let mut flaw = view.flaw(
        Severity::Warning,
        "half-pinned",
        format!(
            "{} {} no pin, while others are pinned to {}",
            describe_vcpus(floating.iter().copied()),
            if floating.len() == 1 { "has" } else { "have" },
            view.held
        ),
    );
    flaw.places = places(view.vcpus().filter(|(_, pin)| !floats(&pin.pus)).map(|(_, pin)| pin));
    flaw.cost = "a vCPU that floats takes turns with the pinned ones on their own CPUs".to_owned();
    flaws.push(flaw);
}

/// Two vCPUs that may only run on the same PU.
fn shared(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let mut by_pu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, pin) in view.vcpus() {
        if let Some(pus) = pin.pus.as_ref().filter(|pus| pus.len() == 1)
            && let Some(pu) = pus.first()
        {
            by_pu.entry(pu.0).or_default().push(index);
        }
    }
    for (pu, indexes) in by_pu.iter().filter(|(_, indexes)| indexes.len() > 1) {
        let mut flaw = view.flaw(
            severity(view.choice(view.vcpus().count()).with_another_pu()),
            "vcpus-share-pu",
            format!("{} are all pinned to CPU {pu}", describe_vcpus(indexes.iter().copied())),
        );
        flaw.places =
            places(view.vcpus().filter(|(index, _)| indexes.contains(index)).map(|(_, pin)| pin));
        flaw.cost =
            "they take turns: one that holds a guest lock can be off the CPU while another spins for it"
                .to_owned();
        flaws.push(flaw);
    }
}

/// More vCPUs than CPUs in a mask, although the mask's nodes have at least half as many again.
/// Fewer may be what the host needs.
fn crowded(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let mut by_mask: BTreeMap<&CpuSet, Vec<u32>> = BTreeMap::new();
    for (index, pin) in view.vcpus() {
        if let Some(pus) = pin.pus.as_ref().filter(|pus| pus.len() > 1) {
            by_mask.entry(pus).or_default().push(index);
        }
    }
    for (mask, indexes) in by_mask.into_iter().filter(|(mask, vcpus)| vcpus.len() > mask.len()) {
        let nodes = view.lookup.nodes_of(mask);
        let near = |pu: &PuId| view.lookup.pu(*pu).and_then(|pu| pu.node);
        let near = |pu: &PuId| near(pu).is_none_or(|node| nodes.contains(&node));
        let left = view.lookup.for_vcpus.difference(mask);
        let left = left.difference(&view.lookup.topology.isolated);
        if 2 * left.iter().filter(near).count() < mask.len() {
            continue;
        }
        let mut flaw = view.flaw(
            Severity::Warning,
            "vcpus-crowded",
            format!(
                "{} may run on {} only ({mask}), and more are left",
                counted(indexes.len(), "vCPU"),
                counted(mask.len(), "CPU")
            ),
        );
        flaw.places =
            places(view.vcpus().filter(|(index, _)| indexes.contains(index)).map(|(_, pin)| pin));
        flaw.cost =
            "they take turns: one that holds a guest lock can be off the CPU while another spins \
             for it"
                .to_owned();
        flaws.push(flaw);
    }
}

/// Threads on CPUs that the user's conditions exclude: `--avoid`, and for vCPUs `--host-pus`.
fn excluded(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let for_vcpus = view.lookup.permitted.difference(&view.lookup.for_host);
    let of = |role: &Role| match role {
        Role::Vcpu(_) => &for_vcpus,
        Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker | Role::Task => {
            &view.lookup.permitted
        }
    };
    let outside = |pin: &Pin| {
        let pus = pin.pus.as_ref()?.intersection(&view.lookup.usable).difference(of(&pin.role));
        (!pus.is_empty()).then_some(pus)
    };
    let wrong: Vec<(&Pin, CpuSet)> =
        view.layout.pins.iter().filter_map(|pin| Some((pin, outside(pin)?))).collect();
    let Some((first, pus)) = wrong.first() else { return };
    let more = match wrong.len() {
        1 => String::new(),
        several => format!(", and {} more likewise", counted(several - 1, "thread")),
    };
    let mut flaw = view.flaw(
        Severity::Warning,
        "cpu-excluded",
        format!(
            "{} may run on {}, excluded by your options{more}",
            describe(&first.role),
            cpus(pus)
        ),
    );
    flaw.places = places(wrong.iter().map(|(pin, _)| *pin));
    flaw.cost = "another task was meant to have these CPUs".to_owned();
    flaws.push(flaw);
}

/// Masks of several isolated CPUs, over which the kernel does not balance tasks.
fn unbalanced(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
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
    let mut flaw = view.flaw(
        Severity::Warning,
        "mask-on-isolated",
        format!(
            "{} may run on several isolated CPUs at once ({})",
            describe_all(wide.iter().map(|pin| &pin.role)),
            first.intersection(isolated)
        ),
    );
    flaw.places = places(wide.iter().copied());
    flaw.cost =
        "load is not balanced over isolated CPUs: a thread stays on the first one of its mask, and \
         two with one mask share it while its neighbours idle"
            .to_owned();
    flaws.push(flaw);
}

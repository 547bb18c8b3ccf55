//! Hyper-V enlightenments for Windows guests.
//!
//! Source: QEMU's `docs/system/i386/hyperv.rst`, "Recommendations": all except those for debugging,
//! nesting and hosts with shared CPUs. Only those that every current KVM supports are recommended.

use pinfold_model::Severity;
use roxmltree::Node;

use super::Diagnostic;
use super::properties::{File, Windows};
use super::repair::Repair;

const HYPERV: &[&str] = &["features", "hyperv mode='custom'"];

/// Each with the severity if it is missing, and the cost.
const WANTED: [(&str, Severity, &str); 9] = [
    ("relaxed", Severity::Warning, "without relaxed a vCPU that waits can trip a watchdog"),
    ("vapic", Severity::Warning, "without vapic each end of an interrupt leaves the guest"),
    ("vpindex", Severity::Warning, "without vpindex there is no synic, tlbflush and ipi"),
    ("runtime", Severity::Note, "without runtime Windows counts the time that the host took"),
    ("synic", Severity::Warning, "without synic there are no synthetic timers"),
    (
        "stimer",
        Severity::Warning,
        "without synthetic timers (stimer) Windows uses the HPET or RTC, also when idle",
    ),
    ("frequencies", Severity::Note, "without frequencies Windows measures its clocks at boot"),
    ("tlbflush", Severity::Note, "without tlbflush a flush waits for vCPUs that do not run"),
    ("ipi", Severity::Note, "without ipi a vCPU leaves the guest for each target of an interrupt"),
];

/// True if an enlightenment is enabled.
pub(super) fn has(hyperv: Node<'_, '_>, name: &str) -> bool {
    let on = |node: &Node<'_, '_>| node.attribute("state").unwrap_or("on") == "on";
    hyperv.children().any(|child| child.has_tag_name(name) && on(&child))
}

pub(super) fn check(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
    let hyperv = file.find(&["features", "hyperv"]);
    let passed = hyperv.is_some_and(|hyperv| hyperv.attribute("mode") == Some("passthrough"));
    if !file.x86 || file.windows == Windows::No || passed {
        return;
    }
    let missing: Vec<_> = WANTED
        .iter()
        .filter(|(name, ..)| !hyperv.is_some_and(|hyperv| has(hyperv, name)))
        .collect();
    let Some(worst) = missing.iter().map(|(_, severity, _)| *severity).max() else { return };
    let severity = if file.windows == Windows::Yes { worst } else { Severity::Note };
    let names: Vec<&str> = missing.iter().map(|(name, ..)| *name).collect();
    let which = match hyperv {
        Some(_) => format!("lacks the Hyper-V enlightenments {}", names.join(", ")),
        None => "has no Hyper-V enlightenments".to_owned(),
    };
    let nodes: Vec<_> = hyperv.or(file.find(&["features"])).into_iter().collect();
    // The costs of those with the highest severity; the others are only named.
    let costs = missing.iter().filter(|(_, severity, _)| *severity == worst);
    let costs: Vec<&str> = costs.map(|(.., cost)| *cost).collect();
    let mut flaw = file.flaw(
        (severity, "hyperv-missing"),
        (format!("{} {which}", file.guest()), &costs.join("; ")),
        &nodes,
    );
    flaw.repairs = names
        .iter()
        .map(|name| Repair::put(HYPERV, name, format!("<{name} state='on'/>")))
        .collect();
    // The clock that libvirt requires for synthetic timers is a separate finding.
    flaws.push(flaw);
}

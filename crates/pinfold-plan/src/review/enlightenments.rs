//! Hyper-V enlightenments for Windows guests.
//!
//! Source: QEMU's `docs/system/i386/hyperv.rst`, "Recommendations": all of them but some for
//! debugging, nesting and hosts whose CPUs are shared. Those that every KVM of today has are asked for.

use pinfold_model::Severity;
use roxmltree::Node;

use super::Flaw;
use super::file::{File, Windows};
use super::repair::Repair;

const HYPERV: &[&str] = &["features", "hyperv mode='custom'"];

/// Each with whether Windows is slow without it, or only a little less quick.
const WANTED: [(&str, Severity); 9] = [
    ("relaxed", Severity::Warning),
    ("vapic", Severity::Warning),
    ("vpindex", Severity::Warning),
    ("runtime", Severity::Note),
    ("synic", Severity::Warning),
    ("stimer", Severity::Warning),
    ("frequencies", Severity::Note),
    ("tlbflush", Severity::Note),
    ("ipi", Severity::Note),
];

/// Whether an enlightenment is on.
pub(super) fn has(hyperv: Node<'_, '_>, name: &str) -> bool {
    let on = |node: &Node<'_, '_>| node.attribute("state").unwrap_or("on") == "on";
    hyperv.children().any(|child| child.has_tag_name(name) && on(&child))
}

pub(super) fn check(file: &File<'_>, flaws: &mut Vec<Flaw>) {
    let hyperv = file.find(&["features", "hyperv"]);
    let passed = hyperv.is_some_and(|hyperv| hyperv.attribute("mode") == Some("passthrough"));
    if !file.x86 || file.windows == Windows::No || passed {
        return;
    }
    let missing: Vec<_> =
        WANTED.iter().filter(|(name, _)| !hyperv.is_some_and(|hyperv| has(hyperv, name))).collect();
    let Some(worst) = missing.iter().map(|(_, severity)| *severity).max() else { return };
    let severity = if file.windows == Windows::Yes { worst } else { Severity::Note };
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let which = match hyperv {
        Some(_) => format!("lacks the Hyper-V enlightenments {}", names.join(", ")),
        None => "has no Hyper-V enlightenments".to_owned(),
    };
    let nodes: Vec<_> = hyperv.into_iter().collect();
    let mut flaw = file.flaw(
        (severity, "hyperv-missing"),
        (
            format!("{} {which}", file.guest()),
            "without synthetic timers Windows uses the HPET or RTC, also when idle; without vapic each \
             end of an interrupt leaves the guest; without relaxed a vCPU that waits can trip a watchdog",
        ),
        &nodes,
    );
    flaw.repairs = names
        .iter()
        .map(|name| Repair::put(HYPERV, name, format!("<{name} state='on'/>")))
        .collect();
    // The clock that libvirt asks for with synthetic timers is a finding of its own.
    flaws.push(flaw);
}

//! Hyper-V enlightenments for Windows guests.

use pinfold_model::Severity;
use roxmltree::Node;

use super::Diagnostic;
use super::properties::File;
use super::repair::Repair;
use super::text::enlightenments::{Hidden, Missing, WANTED};
use pinfold_plan::domain_file::Windows;

const HYPERV: &[&str] = &["features", "hyperv mode='custom'"];

/// True if an enlightenment is enabled.
pub(super) fn has(hyperv: Node<'_, '_>, name: &str) -> bool {
    hyperv
        .children()
        .any(|child| child.has_tag_name(name) && (child.attribute("state").unwrap_or("on") == "on"))
}

pub(super) fn check(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let hyperv = file.find(&["features", "hyperv"]);
    let passed = hyperv.is_some_and(|hyperv| hyperv.attribute("mode") == Some("passthrough"));
    if !file.x86 || file.windows == Windows::No || passed {
        return;
    }
    let features = file.find(&["cpu"]).into_iter().flat_map(|cpu| cpu.children());
    if let Some(feature) = features.filter(|node| node.has_tag_name("feature")).find(is_hidden) {
        if hyperv.is_some() {
            let mut diagnostic = file.diagnostic(Severity::Warning, &Hidden, &[feature]);
            diagnostic.is_final = true;
            diagnostics.push(diagnostic);
        }
        return;
    }
    let missing: Vec<_> = WANTED
        .iter()
        .filter(|(name, ..)| !hyperv.is_some_and(|hyperv| has(hyperv, name)))
        .collect();
    let Some(worst) = missing.iter().map(|(_, severity, _)| *severity).max() else { return };
    let severity = if file.windows == Windows::Yes { worst } else { Severity::Note };
    let nodes: Vec<_> = hyperv.or(file.find(&["features"])).into_iter().collect();
    let fault = Missing { guest: file.guest(), missing: &missing, has_others: hyperv.is_some() };
    let mut diagnostic = file.diagnostic(severity, &fault, &nodes);
    diagnostic.repairs = missing
        .iter()
        .map(|(name, ..)| Repair::set_element(HYPERV, name, format!("<{name} state='on'/>")))
        .collect();
    // The clock that libvirt requires for synthetic timers is a separate finding.
    diagnostics.push(diagnostic);
}

fn is_hidden(node: &Node<'_, '_>) -> bool {
    node.attribute("name") == Some("hypervisor")
        && matches!(node.attribute("policy"), Some("disable" | "forbid"))
}

//! A domain file that another program writes.

use pinfold_model::Severity;
use pinfold_plan::domain_file::{Manager, place};
use roxmltree::Node;

use super::Diagnostic;
use super::lookup::LintContext;
use super::text::manager::Managed;

/// Changes of such a file are lost at the next start of the machine.
pub(super) fn check(
    context: &LintContext<'_, '_>,
    root: Node<'_, '_>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let Some((manager, element)) = Manager::from_root(root) else { return };
    let mut diagnostic = context.diagnostic(Severity::Note, &Managed(manager));
    diagnostic.places = vec![place(element)];
    diagnostics.push(diagnostic);
}

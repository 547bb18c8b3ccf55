//! The rules for a domain file other than its placement.
//!
//! Except for the one about the program that writes the file they apply to `<domain type='kvm'>`:
//! CPU emulation costs more than any timer.

use pinfold_plan::domain_file::parse;

use super::Diagnostic;
use super::lookup::LintContext;
use super::properties::File;

/// The faults in the rest of a domain file.
pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(text) = view.layout.text.as_deref() else { return };
    let Ok(document) = parse(text) else { return };
    let root = document.root_element();
    super::manager::check(view, root, diagnostics);
    if root.attribute("type") != Some("kvm") {
        return;
    }
    let file = File::new(view, root);
    super::timers::check(&file, diagnostics);
    super::enlightenments::check(&file, diagnostics);
    super::guest::sockets_of_file(&file, diagnostics);
    super::processor::check(&file, diagnostics);
    super::quotas::check(&file, diagnostics);
    super::devices::check(&file, diagnostics);
    super::backing::check(&file, diagnostics);
}

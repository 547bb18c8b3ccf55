//! The rules for a domain file other than its placement.
//!
//! Except for the one about the program that writes the file they apply to `<domain type='kvm'>`:
//! CPU emulation costs more than any timer.

use pinfold_plan::domain_file::parse;

use super::Diagnostic;
use super::lookup::LintContext;
use super::properties::File;

/// The faults in the rest of a domain file.
pub(super) fn check(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let Some(text) = view.layout.text.as_deref() else { return };
    let Ok(document) = parse(text) else { return };
    let root = document.root_element();
    super::manager::check(view, root, flaws);
    if root.attribute("type") != Some("kvm") {
        return;
    }
    let file = File::of(view, root);
    super::timers::check(&file, flaws);
    super::enlightenments::check(&file, flaws);
    super::guest::sockets_of_file(&file, flaws);
    super::processor::check(&file, flaws);
    super::quotas::check(&file, flaws);
    super::devices::check(&file, flaws);
    super::backing::check(&file, flaws);
}

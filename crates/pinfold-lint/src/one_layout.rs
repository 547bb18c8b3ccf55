//! All rules for one layout: placement and the rest of the file.

use pinfold_plan::domain_file::{Place, parse, place};
use pinfold_plan::layout::Layout;

use super::diagnostic::Diagnostic;
use super::file;
use super::lookup::LintContext;
use super::placement::placement;

/// The faults of one layout, worst first, without advice.
pub(super) fn of_one(view: &LintContext<'_, '_>, written: Option<&Layout>) -> Vec<Diagnostic> {
    let mut diagnostics = placement(view, written);
    file::check(view, &mut diagnostics);
    if !view.layout.is_running() {
        let root = view.layout.text.as_deref().and_then(|text| parse(text).ok());
        let root = root.map(|document| place(document.root_element())).unwrap_or_default();
        let root = Place { file: view.layout.source.clone(), ..root };
        diagnostics.iter_mut().for_each(|diagnostic| diagnostic.add_file_position(&root));
    }
    diagnostics.sort_by_key(|diagnostic| std::cmp::Reverse(diagnostic.severity));
    diagnostics
}

//! The rules about a layout's thread and memory placement.

use pinfold_model::Severity;
use pinfold_plan::definition;
use pinfold_plan::layout::Layout;

use super::diagnostic::Diagnostic;
use super::lookup::LintContext;
use super::{capacity, cores, floating, guest, host, masks, memory, pages};

/// The faults of a layout's thread and memory placement.
pub(super) fn placement(view: &LintContext<'_, '_>, written: Option<&Layout>) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    masks::check(view, &mut diagnostics);
    floating::check(view, &mut diagnostics);
    cores::check(view, &mut diagnostics);
    guest::check(view, &mut diagnostics);
    memory::check(view, &mut diagnostics);
    capacity::check(view, &mut diagnostics);
    pages::check(view, written, &mut diagnostics);
    host::check(view, &mut diagnostics);
    if let Some(strategy) = &view.layout.defined_by {
        for diagnostic in diagnostics.iter_mut().filter(|diagnostic| is_cost(strategy, diagnostic))
        {
            diagnostic.severity = Severity::Note;
            diagnostic.what.push_str(&definition::reason(strategy));
        }
    }
    diagnostics
}

fn is_cost(strategy: &str, diagnostic: &&mut Diagnostic) -> bool {
    diagnostic.severity == Severity::Warning && definition::is_cost(strategy, diagnostic.name)
}

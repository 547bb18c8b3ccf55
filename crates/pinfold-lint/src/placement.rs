//! The rules about a layout's thread and memory placement.

use pinfold_model::Severity;
use pinfold_plan::definition;
use pinfold_plan::layout::Layout;

use super::diagnostic::Diagnostic;
use super::lookup::LintContext;
use super::{cores, floating, guest, host, masks, memory, pages, room};

/// The faults of a layout's thread and memory placement.
pub(super) fn placement(view: &LintContext<'_, '_>, written: Option<&Layout>) -> Vec<Diagnostic> {
    let mut flaws = Vec::new();
    masks::check(view, &mut flaws);
    floating::check(view, &mut flaws);
    cores::check(view, &mut flaws);
    guest::check(view, &mut flaws);
    memory::check(view, &mut flaws);
    room::check(view, &mut flaws);
    pages::check(view, written, &mut flaws);
    host::check(view, &mut flaws);
    if let Some(strategy) = &view.layout.defined_by {
        let is_cost = |flaw: &&mut Diagnostic| {
            flaw.severity == Severity::Warning && definition::is_cost(strategy, flaw.name)
        };
        for flaw in flaws.iter_mut().filter(is_cost) {
            flaw.severity = Severity::Note;
            flaw.what.push_str(&definition::reason(strategy));
        }
    }
    flaws
}

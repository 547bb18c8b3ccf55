//! A fault of a placement, as the rules report it.

use pinfold_model::Severity;
use pinfold_plan::domain_file::Place;

use super::repair::Repair;

/// One fault of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Severity: a problem does not start or can hang; a warning costs performance; a note is
    /// information.
    pub severity: Severity,
    /// Short name for scripts: `guest-siblings-lie`.
    pub name: &'static str,
    /// Name of the machine.
    pub vm: String,
    /// The fault, as a sentence without full stop.
    pub what: String,
    /// Positions of the values concerned.
    pub places: Vec<Place>,
    /// The cost, as a sentence without full stop.
    pub cost: String,
    /// The replacement, line by line, in the layout's language.
    pub instead: Vec<String>,
    /// True if no change of the layout removes it, because every placement has it.
    pub is_final: bool,
    /// Changes of single elements that remove it; empty if that takes another placement or a
    /// decision of the user.
    pub(crate) repairs: Vec<Repair>,
}

impl Diagnostic {
    /// Adds file and line to each place; a value that is not written gets those of the whole
    /// machine.
    pub(crate) fn add_file_position(&mut self, root: &Place) {
        if self.places.is_empty() {
            self.places.push(root.clone());
        }
        for place in &mut self.places {
            root.file.clone_into(&mut place.file);
            place.line = place.line.or(root.line);
        }
    }
}

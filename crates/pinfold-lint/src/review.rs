//! The JSON of a check, `pinfold-review/1`; keys are described in `docs/json.md`.

use pinfold_plan::layout::Layout;
use serde::Serialize;

use crate::Diagnostic;

/// Name of the format.
const FORMAT: &str = "pinfold-review/1";

/// What was checked, and what was found.
///
/// ```
/// let written = serde_json::json!(pinfold_lint::Review::new(&[], &[]));
/// assert_eq!(written["format"], "pinfold-review/1");
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Review {
    format: &'static str,
    checked: Vec<String>,
    findings: Vec<ReviewFinding>,
}

#[derive(Clone, Debug, Serialize)]
struct ReviewFinding {
    severity: String,
    name: &'static str,
    vm: String,
    what: String,
    r#where: Vec<ReviewPlace>,
    cost: String,
    instead: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct ReviewPlace {
    file: String,
    line: Option<u32>,
    text: String,
}

impl Review {
    /// The review of these placements.
    pub fn new(layouts: &[Layout], diagnostics: &[Diagnostic]) -> Self {
        Self {
            format: FORMAT,
            checked: layouts.iter().map(|layout| layout.source.clone()).collect(),
            findings: diagnostics.iter().map(ReviewFinding::new).collect(),
        }
    }
}

impl ReviewFinding {
    fn new(diagnostic: &Diagnostic) -> Self {
        let places = diagnostic.places.iter();
        Self {
            severity: diagnostic.severity.to_string(),
            name: diagnostic.name,
            vm: diagnostic.vm.clone(),
            what: diagnostic.what.clone(),
            r#where: places
                .map(|place| ReviewPlace {
                    file: place.file.clone(),
                    line: place.line,
                    text: place.text.clone(),
                })
                .collect(),
            cost: diagnostic.cost.clone(),
            instead: diagnostic.instead.clone(),
        }
    }
}

//! The JSON format of a plan, `pinfold-plan/1`; later versions must still read it.
//!
//! The parts of a plan are serialised by the model (its feature `serde`). Sets of CPUs are texts in
//! the kernel's list format (`0-3,8`), roles are written as Pinfold prints them (`vcpu(0)`,
//! `emulator`, `iothread(disk)`). A line break is refused in a name that Pinfold
//! prints unchanged; sentences are read as one line. An unknown field is refused: a plan that is
//! understood only in part must not be applied.
//!
//! ```json
//! { "format": "pinfold-plan/1", "strategy": "low-latency", …,
//!   "vnodes": [ { "name": "vm", "kind": "virtual-machine", "threads": [
//!     { "role": "vcpu(0)", "pus": "1", "policy": null, "reason": "…" } ], … } ] }
//! ```

mod strategy_list;
mod tuning;
mod v1;

use pinfold_model::{Plan, escape};
use serde::Deserialize;
pub use strategy_list::StrategyList;
use thiserror::Error;

use crate::analysis::validate::faults;

/// The name of the format, which is the value of the field `format`.
pub const FORMAT: &str = "pinfold-plan/1";

/// Why a text is not a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemaError {
    /// The text is not JSON.
    #[error("the text is not JSON: {why}")]
    NotJson {
        /// The parser's message, with line and column.
        why: String,
    },
    /// The JSON has no plan format that this version reads.
    #[error("the format is {}, not {FORMAT:?}", .found.as_ref().map_or_else(|| "missing".to_owned(), |found| format!("{found:?}")))]
    Format {
        /// The value of the field `format`, if present.
        found: Option<String>,
    },
    /// A field is missing, unknown or invalid.
    #[error("{field}: {why}")]
    Field {
        /// Path of the field, such as `vnodes[0].threads[2].pus`.
        field: String,
        /// The fault.
        why: String,
    },
}

impl SchemaError {
    /// What the user can do about the error, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            SchemaError::NotJson { .. } => Some("`pinfold plan --json` writes a plan".to_owned()),
            SchemaError::Format { found: Some(found) } if found.starts_with("pinfold-plan/") => {
                Some("another version of Pinfold wrote it; create a new plan".to_owned())
            }
            SchemaError::Format { .. } => Some("`pinfold plan --json` writes a plan".to_owned()),
            SchemaError::Field { .. } => None,
        }
    }
}

/// Formats the plan as indented JSON with a line feed at its end.
pub fn to_json(plan: &Plan) -> String {
    text(serde_json::to_string_pretty(&v1::PlanV1::from_plan(plan))) + "\n"
}

/// Formats the plan as JSON in one line, for programs.
#[must_use]
pub fn to_json_line(plan: &Plan) -> String {
    text(serde_json::to_string(&v1::PlanV1::from_plan(plan)))
}

fn text(written: serde_json::Result<String>) -> String {
    // Only texts, numbers and lists: no map with keys of another type, and the writer cannot fail.
    written.unwrap_or_else(|error| unreachable!("a plan is always expressible as JSON: {error}"))
}

/// Parses a plan, and refuses one that violates the rules for all plans.
///
/// # Errors
/// [`SchemaError`] with the path of the invalid field.
pub fn from_json(text: &str) -> Result<Plan, SchemaError> {
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| SchemaError::NotJson { why: error.to_string() })?;
    let head = Head::deserialize(&value).ok();
    let found = head.and_then(|head| head.format);
    if found.as_deref() != Some(FORMAT) {
        return Err(SchemaError::Format { found });
    }
    // Parsed from the text, not from a JSON value, because a duplicate field must be refused.
    let mut reader = serde_json::Deserializer::from_str(text);
    let document: v1::PlanV1 = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "plan".to_owned() } else { path };
        let why = escape::name(&error.into_inner().to_string()).into_owned();
        SchemaError::Field { field: escape::name(&field).into_owned(), why }
    })?;
    let plan = document.into_plan()?;
    match faults(&plan).into_iter().next() {
        None => Ok(plan),
        Some(fault) => Err(SchemaError::Field { field: fault.field, why: fault.why }),
    }
}

/// Fields that every version of the format has.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
}

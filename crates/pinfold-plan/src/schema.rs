//! The JSON form of a plan, `pinfold-plan/1`: written, and read again for years.
//!
//! The types here are twins of the model's, so that the model can change without
//! the format. Sets of CPUs are texts in the kernel's list format (`0-3,8`), roles are
//! written as Pinfold prints them (`vcpu(0)`, `emulator`, `iothread(disk)`). A line break in a
//! name that Pinfold prints as it is, is refused; sentences are read as one line. A field
//! that is not known is refused: a plan that is only half understood must not be applied.
//!
//! ```json
//! { "format": "pinfold-plan/1", "strategy": "low-latency", …,
//!   "vnodes": [ { "name": "vm", "kind": "virtual-machine", "threads": [
//!     { "role": "vcpu(0)", "pus": "1", "policy": null, "reason": "…" } ], … } ] }
//! ```

mod cpus;
mod tuning;
mod v1;

use pinfold_model::{Plan, shown};
use serde::Deserialize;
use thiserror::Error;

use crate::validate::faults;

/// The name of the format, the value of the field `format`.
pub const FORMAT: &str = "pinfold-plan/1";

/// Why a text is not a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemaError {
    /// The text is not JSON.
    #[error("the text is not JSON: {why}")]
    NotJson {
        /// What the reader says, with line and column.
        why: String,
    },
    /// The JSON is not a plan of a format that this version reads.
    #[error("the format is {}, not {FORMAT:?}", .found.as_ref().map_or_else(|| "missing".to_owned(), |found| format!("{found:?}")))]
    Format {
        /// The value of its field `format`, if it has one.
        found: Option<String>,
    },
    /// A field is missing, unknown or wrong.
    #[error("{field}: {why}")]
    Field {
        /// Path of the field, such as `vnodes[0].threads[2].pus`.
        field: String,
        /// What is wrong.
        why: String,
    },
}

impl SchemaError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            SchemaError::NotJson { .. } => {
                Some("a plan is written by `pinfold plan --json`".to_owned())
            }
            SchemaError::Format { found: Some(found) } if found.starts_with("pinfold-plan/") => {
                Some("it was written by another version of Pinfold; plan anew".to_owned())
            }
            SchemaError::Format { .. } => {
                Some("a plan is written by `pinfold plan --json`".to_owned())
            }
            SchemaError::Field { .. } => None,
        }
    }
}

/// The plan as JSON, indented, with a line feed at its end.
#[must_use]
pub fn to_json(plan: &Plan) -> String {
    text(serde_json::to_string_pretty(&v1::PlanTwin::of(plan))) + "\n"
}

/// The same in one line, for programs.
#[must_use]
pub fn to_json_line(plan: &Plan) -> String {
    text(serde_json::to_string(&v1::PlanTwin::of(plan)))
}

fn text(written: serde_json::Result<String>) -> String {
    // Texts, numbers and lists only: no map with keys that are not texts, no failing writer.
    written.unwrap_or_else(|error| unreachable!("a plan is always expressible as JSON: {error}"))
}

/// Reads a plan, and refuses one that breaks the rules that every plan keeps.
///
/// # Errors
/// [`SchemaError`] with the path of the field that is wrong.
pub fn from_json(text: &str) -> Result<Plan, SchemaError> {
    let not_json = |error: &serde_json::Error| SchemaError::NotJson { why: error.to_string() };
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    let head = Head::deserialize(&value).ok();
    let found = head.and_then(|head| head.format);
    if found.as_deref() != Some(FORMAT) {
        return Err(SchemaError::Format { found });
    }
    // From the text, not from the value: a field that is given twice must not pass.
    let mut reader = serde_json::Deserializer::from_str(text);
    let twin: v1::PlanTwin = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "plan".to_owned() } else { path };
        let why = shown::name(&error.into_inner().to_string()).into_owned();
        SchemaError::Field { field: shown::name(&field).into_owned(), why }
    })?;
    let plan = twin.into_plan()?;
    match faults(&plan).into_iter().next() {
        None => Ok(plan),
        Some(fault) => Err(SchemaError::Field { field: fault.field, why: fault.why }),
    }
}

/// What every version of the format has.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
}

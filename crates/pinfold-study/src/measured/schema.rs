//! `pinfold-measure/1`: the JSON of a measurement. The format is stable.
//!
//! ```json
//! { "format": "pinfold-measure/1", "probe": "wakeup", "place": "CPU 1", "tool": "pinload 0.1.0",
//!   "origin": { … }, "blocks": [ { "steal_ticks": 0, "pressure_us": 81, "figures": [
//!     { "probe": "wakeup", "labels": { "period-us": "1000" }, "unit": "ns", "family": "tail",
//!       "cpu": 1, "duration_ns": 1000, "dropped": 0, "disturbed": 0, "flags": [],
//!       "samples": [4310.0] } ] } ] }
//! ```

use pinfold_model::Figure;
use serde::{Deserialize, Serialize};

use super::{MeasuredError, Measurement};
use crate::study::{ABSENT, FINDING};

/// Name and version of the format.
pub const FORMAT: &str = "pinfold-measure/1";

#[derive(Serialize)]
struct Document<'m> {
    format: &'static str,
    #[serde(flatten)]
    measurement: &'m Measurement,
}

#[derive(Deserialize)]
struct Head {
    format: Option<String>,
}

/// The measurement as JSON.
///
/// # Errors
/// [`MeasuredError::Json`] for a sample that is not a number.
pub fn to_json(measurement: &Measurement) -> Result<String, MeasuredError> {
    Ok(serde_json::to_string(&Document { format: FORMAT, measurement })?)
}

/// Parses and validates a measurement.
///
/// # Errors
/// [`MeasuredError`] with the location of the error.
pub fn from_json(text: &str) -> Result<Measurement, MeasuredError> {
    let head: Head = serde_json::from_str(text)?;
    if head.format.as_deref() != Some(FORMAT) {
        return Err(MeasuredError::Format(head.format));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let read: Measurement = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (field, why) = (error.path().to_string(), error.inner().to_string());
        if error.inner().is_data() {
            MeasuredError::Value { field, why: format!("is not valid: {why}") }
        } else {
            MeasuredError::Json(error.into_inner())
        }
    })?;
    reader.end()?;
    for (index, block) in read.blocks.iter().enumerate() {
        for (number, figure) in block.figures.iter().enumerate() {
            let place = format!("blocks[{index}].figures[{number}]");
            check(figure).map_err(|why| wrong(place, why))?;
        }
        if block.figures.is_empty() {
            return Err(wrong(format!("blocks[{index}].figures"), "is empty".to_owned()));
        }
    }
    if read.blocks.is_empty() {
        return Err(wrong("blocks".to_owned(), "is empty".to_owned()));
    }
    Ok(read)
}

fn wrong(field: String, why: String) -> MeasuredError {
    MeasuredError::Value { field, why }
}

fn check(figure: &Figure) -> Result<(), String> {
    // A difference of two measurements may be negative, and then has a flag.
    let is_difference = figure.flags.iter().any(|flag| flag.starts_with("negative "));
    match figure.samples.iter().find(|one| **one < 0.0 && !is_difference) {
        Some(sample) => Err(format!("holds the sample {sample}")),
        None => check_finite(figure),
    }
}

/// Checks a figure; the values of a workload's own figures may be negative.
///
/// # Errors
/// What is invalid.
pub fn check_finite(figure: &Figure) -> Result<(), String> {
    if let Some(sample) = figure.samples.iter().find(|one| !one.is_finite()) {
        return Err(format!("holds the sample {sample}"));
    }
    // A figure that the host does not provide has its reason instead of samples.
    let has_reason = figure
        .flags
        .iter()
        .any(|flag: &String| flag.starts_with(ABSENT) || flag.starts_with(FINDING));
    if figure.samples.is_empty() && !figure.family.may_be_empty() && !has_reason {
        return Err("holds no sample".to_owned());
    }
    Ok(())
}

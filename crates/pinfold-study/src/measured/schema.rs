//! `pinfold-measure/1`: the JSON of a measurement. The format is stable.
//!
//! ```json
//! { "format": "pinfold-measure/1", "probe": "wakeup", "place": "CPU 1", "tool": "pinload 0.1.0",
//!   "origin": { … }, "blocks": [ { "steal_ticks": 0, "pressure_us": 81, "figures": [
//!     { "probe": "wakeup", "labels": { "period-us": "1000" }, "unit": "ns", "family": "tail",
//!       "cpu": 1, "duration_ns": 1000, "dropped": 0, "disturbed": 0, "flags": [],
//!       "samples": [4310.0] } ] } ] }
//! ```

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Origin, SystemNoise, Unit};
use serde::{Deserialize, Serialize};

use super::{MeasuredBlock, MeasuredError, Measurement};
use crate::study::{ABSENT, FINDING};

/// Name and version of the format.
pub const FORMAT: &str = "pinfold-measure/1";

#[derive(Serialize, Deserialize)]
struct MeasurementV1 {
    format: String,
    probe: String,
    command: Vec<String>,
    place: String,
    tool: String,
    #[serde(with = "crate::schema::origin")]
    origin: Origin,
    unix_seconds: u64,
    blocks: Vec<BlockV1>,
}

#[derive(Serialize, Deserialize)]
struct BlockV1 {
    steal_ticks: Option<u64>,
    pressure_us: Option<u64>,
    figures: Vec<FigureV1>,
}

/// A figure in documents.
#[derive(Serialize, Deserialize)]
pub struct FigureV1 {
    probe: String,
    labels: BTreeMap<String, String>,
    unit: String,
    family: String,
    cpu: Option<u32>,
    duration_ns: u64,
    dropped: u64,
    disturbed: u64,
    flags: Vec<String>,
    samples: Vec<f64>,
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
    Ok(serde_json::to_string(&MeasurementV1 {
        format: FORMAT.to_owned(),
        probe: measurement.probe.clone(),
        command: measurement.command.clone(),
        place: measurement.place.clone(),
        tool: measurement.tool.clone(),
        origin: measurement.origin.clone(),
        unix_seconds: measurement.unix_seconds,
        blocks: measurement
            .blocks
            .iter()
            .map(|block| BlockV1 {
                steal_ticks: block.surroundings.steal_ticks,
                pressure_us: block.surroundings.pressure_us,
                figures: block.figures.iter().map(FigureV1::from_figure).collect(),
            })
            .collect(),
    })?)
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
    let read: MeasurementV1 = serde_json::from_str(text)?;
    let wrong = |field: String, why: String| MeasuredError::Value { field, why };
    let mut blocks = Vec::new();
    for (index, block) in read.blocks.into_iter().enumerate() {
        let mut figures = Vec::new();
        for (number, one) in block.figures.into_iter().enumerate() {
            let place = format!("blocks[{index}].figures[{number}]");
            figures.push(one.into_figure().map_err(|why| wrong(place, why))?);
        }
        if figures.is_empty() {
            return Err(wrong(format!("blocks[{index}].figures"), "is empty".to_owned()));
        }
        let surroundings =
            SystemNoise { steal_ticks: block.steal_ticks, pressure_us: block.pressure_us };
        blocks.push(MeasuredBlock { figures, surroundings });
    }
    if blocks.is_empty() {
        return Err(wrong("blocks".to_owned(), "is empty".to_owned()));
    }
    Ok(Measurement {
        probe: read.probe,
        command: read.command,
        place: read.place,
        tool: read.tool,
        origin: read.origin,
        unix_seconds: read.unix_seconds,
        blocks,
    })
}

impl FigureV1 {
    /// The figure in its stored form.
    #[must_use]
    pub fn from_figure(figure: &Figure) -> Self {
        Self {
            probe: figure.probe.clone(),
            labels: figure.labels.clone(),
            unit: figure.unit.name().to_owned(),
            family: figure.family.name().to_owned(),
            cpu: figure.cpu,
            duration_ns: figure.duration_ns,
            dropped: figure.dropped,
            disturbed: figure.disturbed,
            flags: figure.flags.clone(),
            samples: figure.samples.clone(),
        }
    }

    fn into_figure(self) -> Result<Figure, String> {
        // A difference of two measurements may be negative, and then has a flag.
        let is_difference = self.flags.iter().any(|flag| flag.starts_with("negative "));
        if let Some(sample) = self.samples.iter().find(|one| **one < 0.0 && !is_difference) {
            return Err(format!("holds the sample {sample}"));
        }
        self.into_finite()
    }

    /// The figure; the values of a workload's own figures may be negative.
    ///
    /// # Errors
    /// What is invalid.
    pub fn into_finite(self) -> Result<Figure, String> {
        let unit = Unit::from_name(&self.unit)
            .ok_or_else(|| format!("has the unknown unit {:?}", self.unit))?;
        let family = Family::from_name(&self.family)
            .ok_or_else(|| format!("has the unknown family {:?}", self.family))?;
        if let Some(sample) = self.samples.iter().find(|one| !one.is_finite()) {
            return Err(format!("holds the sample {sample}"));
        }
        // A figure that the host does not provide has its reason instead of samples.
        let has_reason =
            self.flags.iter().any(|flag| flag.starts_with(ABSENT) || flag.starts_with(FINDING));
        if self.samples.is_empty() && !family.may_be_empty() && !has_reason {
            return Err("holds no sample".to_owned());
        }
        Ok(Figure {
            probe: self.probe,
            labels: self.labels,
            unit,
            family,
            cpu: self.cpu,
            duration_ns: self.duration_ns,
            samples: self.samples,
            dropped: self.dropped,
            disturbed: self.disturbed,
            flags: self.flags,
        })
    }
}

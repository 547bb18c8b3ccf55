//! Parses and checks the figures that `pinload` prints, except those of the benchmarks.
//!
//! One line per figure, for example:
//!
//! ```text
//! {"probe":"bandwidth","unit":"bytes-per-second","family":"capacity","cpu":1,
//!  "duration_ns":20000000,"dropped":0,"disturbed":2,"labels":{"bytes":"4096","kernel":"read"},
//!  "flags":[],"samples":[2.7e11,2.8e11]}
//! ```
//!
//! All output is validated. Each of these is an error that names it: an unknown unit or family; two
//! figures with the same labels; a figure without samples (except a tail, or counts of places in
//! which nothing happened); a sample that is negative or not finite; a tail with windows that were
//! left out. Only a figure that is the difference of two measurements may have negative samples;
//! its flag `negative 3` gives their number.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Family, Figure, Unit};
use serde::Deserialize;

use crate::benchmarks::BenchmarkError;
use crate::cpu_speed::SpeedBenchmark;

/// One run of a `pinload` command that prints figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instrument {
    /// Name of the `pinload` subcommand.
    pub command: &'static str,
    /// Arguments after the subcommand.
    pub arguments: Vec<String>,
    /// Approximate duration (ns); the timeout is three times this plus one minute.
    pub duration_ns: u64,
}

impl SpeedBenchmark for Instrument {
    type Outcome = Vec<Figure>;

    fn probe(&self) -> &'static str {
        self.command
    }

    fn argv(&self) -> Vec<String> {
        [self.command.to_owned()].into_iter().chain(self.arguments.iter().cloned()).collect()
    }

    fn timeout_ns(&self) -> u64 {
        self.duration_ns.saturating_mul(3).saturating_add(60_000_000_000)
    }

    fn parse(&self, output: &str) -> Result<Vec<Figure>, BenchmarkError> {
        parse(self.command, output)
    }
}

#[derive(Deserialize)]
struct Line {
    probe: String,
    unit: String,
    family: String,
    cpu: Option<u32>,
    duration_ns: u64,
    dropped: u64,
    disturbed: u64,
    labels: BTreeMap<String, String>,
    flags: Vec<String>,
    samples: Vec<f64>,
}

/// Parses all figures in the output of one command.
///
/// # Errors
/// [`BenchmarkError::Line`] or [`BenchmarkError::Output`].
pub fn parse(command: &'static str, output: &str) -> Result<Vec<Figure>, BenchmarkError> {
    let mut figures = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, text) in output.lines().enumerate() {
        let wrong = |why: String| BenchmarkError::Line { probe: command, line: index + 1, why };
        let line = line_of(text).map_err(wrong)?;
        if !seen.insert((line.probe.clone(), line.labels.clone(), line.cpu)) {
            return Err(wrong(format!("has the labels of an earlier one: {:?}", line.labels)));
        }
        figures.push(one(line).map_err(wrong)?);
    }
    if figures.is_empty() {
        return Err(BenchmarkError::Output { probe: command, why: "is empty".to_owned() });
    }
    Ok(figures)
}

/// Parses one line that is a figure.
pub(crate) fn figure(text: &str) -> Result<Figure, String> {
    line_of(text).and_then(one)
}

fn line_of(text: &str) -> Result<Line, String> {
    serde_json::from_str(text).map_err(|error| format!("is not a figure: {error}"))
}

fn one(line: Line) -> Result<Figure, String> {
    let unit = Unit::from_name(&line.unit)
        .ok_or_else(|| format!("is in the unknown unit {:?}", line.unit))?;
    let family = Family::from_name(&line.family)
        .ok_or_else(|| format!("is of the unknown family {:?}", line.family))?;
    let negative = line.samples.iter().filter(|sample| **sample < 0.0).count();
    let reported: Option<usize> =
        line.flags.iter().find_map(|flag| flag.strip_prefix("negative ")?.parse().ok());
    if let Some(sample) = line
        .samples
        .iter()
        .find(|sample| !sample.is_finite() || reported.is_none() && **sample < 0.0)
    {
        return Err(format!("holds the sample {sample}"));
    }
    if reported.is_some_and(|reported| reported != negative) {
        return Err(format!("holds {negative} negative samples and reports otherwise"));
    }
    if line.samples.is_empty() && !family.may_be_empty() {
        return Err(format!("holds no samples ({} windows were disturbed)", line.disturbed));
    }
    if family != Family::Capacity && line.disturbed > 0 {
        return Err(format!("leaves out {} samples of a {}", line.disturbed, family.name()));
    }
    Ok(Figure {
        probe: line.probe,
        labels: line.labels,
        unit,
        family,
        cpu: line.cpu,
        duration_ns: line.duration_ns,
        samples: line.samples,
        dropped: line.dropped,
        disturbed: line.disturbed,
        flags: line.flags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"probe":"bandwidth","unit":"bytes-per-second","family":"capacity","cpu":1,"duration_ns":20,"dropped":0,"disturbed":2,"labels":{"bytes":"4096"},"flags":["huge"],"samples":[2.5e11,3]}"#;

    #[test]
    fn a_figure_is_read_whole() {
        let figures = parse("memory", GOOD).unwrap();
        let figure = &figures[0];
        assert_eq!(figure.probe, "bandwidth");
        assert_eq!(figure.labels["bytes"], "4096");
        assert_eq!((figure.unit, figure.family), (Unit::BytesPerSecond, Family::Capacity));
        assert_eq!((figure.cpu, figure.samples.clone()), (Some(1), vec![2.5e11, 3.0]));
        assert_eq!(figure.disturbed, 2);
    }

    #[test]
    fn a_difference_below_zero_is_kept_and_reported() {
        let line = GOOD.replace("2.5e11", "-1").replace("huge", "negative 1");
        assert_eq!(parse("switch", &line).unwrap()[0].samples, [-1.0, 3.0]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let cases = [
            (GOOD.replace("bytes-per-second", "furlongs"), "unknown unit \"furlongs\""),
            (GOOD.replace("capacity", "median"), "unknown family \"median\""),
            (GOOD.replace("2.5e11", "-1"), "the sample -1"),
            (GOOD.replace("2.5e11", "-1").replace("huge", "negative 2"), "1 negative samples and"),
            (GOOD.replace("2.5e11,3", ""), "no samples (2 windows were disturbed)"),
            (GOOD.replace("capacity", "tail"), "leaves out 2 samples of a tail"),
            (format!("{GOOD}\n{GOOD}"), "line 2 of the output of memory has the labels"),
            ("x".to_owned(), "is not a figure"),
            (String::new(), "is empty"),
        ];
        for (output, expected) in cases {
            let reported = parse("memory", &output).unwrap_err().to_string();
            assert!(reported.contains(expected), "{reported}");
        }
    }
}

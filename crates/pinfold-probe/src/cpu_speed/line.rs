//! Parses the one JSON line of a benchmark of speed.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::benchmarks::BenchmarkError;

/// The first members of every line.
#[derive(Deserialize)]
struct Head {
    probe: String,
}

/// Parses the only line and passes it to `check`, which returns the error in the line if there is
/// one.
pub(super) fn read<Line: DeserializeOwned, Outcome>(
    probe: &'static str,
    output: &str,
    check: impl FnOnce(Line) -> Result<Outcome, String>,
) -> Result<Outcome, BenchmarkError> {
    let mut lines = output.lines();
    let (Some(text), None) = (lines.next(), lines.next()) else {
        let why = format!("has {} lines instead of one", output.lines().count());
        return Err(BenchmarkError::Output { probe, why });
    };
    let wrong = |why| BenchmarkError::Line { probe, line: 1, why };
    let head: Head =
        serde_json::from_str(text).map_err(|error| wrong(format!("is not a result: {error}")))?;
    if head.probe != probe {
        return Err(wrong(format!("is of the benchmark {:?}", head.probe)));
    }
    check(serde_json::from_str(text).map_err(|error| wrong(format!("is not a result: {error}")))?)
        .map_err(wrong)
}

/// Rejects a result without work or time.
pub(super) fn something_done(units: u64, elapsed_ns: u64) -> Result<(), String> {
    if units == 0 || elapsed_ns == 0 {
        return Err(format!("reports {units} units in {elapsed_ns} ns"));
    }
    Ok(())
}

/// Rejects a total that is not the sum of its parts.
pub(super) fn adds_up(
    what: &str,
    total: u64,
    parts: impl Iterator<Item = u64>,
) -> Result<(), String> {
    let sum: u128 = parts.map(u128::from).sum();
    if sum != u128::from(total) {
        return Err(format!("reports {total} {what} whose parts are {sum}"));
    }
    Ok(())
}

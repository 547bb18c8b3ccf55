//! oslat compared with the log of the injected stalls: how many it saw, and the longest.
//!
//! Its histogram has at most 1,024 buckets of one microsecond, and the last one contains all longer
//! stalls: so it gives the number of stalls of at least one millisecond, and its maximum gives the
//! longest. A stall lasts at least as long as the injecting thread spins, so none is shorter.

use std::collections::BTreeMap;

use pinfold_host::files::{self, StateDir};
use pinfold_host::process::Spawn;
use pinfold_model::PuId;
use pinfold_probe::reference_tools::ReferenceTool;
use serde_json::Value;

use super::microseconds;
use crate::arguments::Failure;
use crate::benchmarks::{Goal, Row};

const FILE: &str = "oslat.json";
const BUCKETS: u64 = 1_024;
/// Minimum length of a stall: the shortest that is injected (µs).
const STALL_US: u64 = 1_000;
const MINUTE_NS: u64 = 60_000_000_000;

/// Result of a run.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// The longest (ns).
    longest: f64,
    /// Number of stalls of at least one millisecond.
    stalls: u64,
}

/// Runs it at normal priority on a CPU.
pub fn run(pu: PuId, duration_ns: u64, scratch: &StateDir) -> Result<Found, Failure> {
    let file = scratch.path_of(FILE);
    if scratch.contains(FILE) {
        scratch.remove(FILE)?; // an old result must not be taken for a new one
    }
    let (pu, seconds) = (pu.to_string(), duration_ns.div_ceil(1_000_000_000).to_string());
    // Its main thread sleeps, so it causes no disturbance on the same CPU.
    let output = Spawn::new(&ReferenceTool::Oslat.program()?)
        .args(["-q", "-c", &pu, "-C", &pu, "-D", &seconds, "-b", &BUCKETS.to_string()])
        .args(["--json", &file])
        .die_with_parent(true)
        .capture(duration_ns + MINUTE_NS)?;
    if !output.status.success() {
        return Err(format!("oslat failed: {}", output.stderr_text().trim()).into());
    }
    found(&files::read_text(&file)?)
}

fn found(text: &str) -> Result<Found, Failure> {
    let document: Value = serde_json::from_str(text)?;
    let threads: BTreeMap<String, Value> = serde_json::from_value(document["thread"].clone())?;
    let thread = threads.values().next().ok_or("oslat reports no thread")?;
    let longest = thread["max"].as_u64().ok_or("oslat reports no maximum")?;
    let histogram: BTreeMap<String, u64> = serde_json::from_value(thread["histogram"].clone())?;
    let mut stalls = 0;
    for (bucket, count) in &histogram {
        if bucket.parse::<u64>()? >= STALL_US {
            stalls += count;
        }
    }
    // 1234 µs means between 1234 and 1235.
    Ok(Found { longest: (longest as f64 + 0.5) * 1e3, stalls })
}

/// The results of oslat by run, and the log of the injected stalls.
#[derive(Default)]
pub struct Runs {
    longest: [Vec<f64>; 2],
    counts: [Vec<f64>; 2],
}

impl Runs {
    /// Adds a run, and the spin time of each stall in it.
    pub fn add(&mut self, found: &Found, log: &[f64]) {
        self.longest[0].push(found.longest);
        self.longest[1].push(log.iter().copied().fold(0.0, f64::max));
        self.counts[0].push(found.stalls as f64);
        self.counts[1].push(log.len() as f64);
    }

    /// A note on them.
    pub fn note(&self, length_ms: u64) -> String {
        let [seen, made] = &self.counts;
        let sum = |values: &[f64]| values.iter().sum::<f64>();
        let short = seen.iter().zip(made).filter(|(seen, made)| seen < made).count();
        format!(
            "Of {} stalls of {length_ms} ms in {} runs of oslat its histograms hold {} readings of a millisecond or more, whatever caused them, and {short} runs have fewer than were made.",
            sum(made),
            made.len(),
            sum(seen)
        )
    }

    /// Its rows.
    pub fn rows(self, length_ms: u64) -> [Row; 2] {
        let row = |benchmark, [ours, theirs]: [Vec<f64>; 2], text, goal| Row {
            benchmark,
            how: format!("oslat -b {BUCKETS}"),
            reference_tool: "the log of the thread that made them".to_owned(),
            ours,
            theirs,
            text,
            goal,
        };
        let number: fn(f64) -> String = |value| value.to_string();
        [
            row(
                format!("oslat itself, stalls of {length_ms} ms: those of 1 ms or more"),
                self.counts,
                number,
                Goal::AtLeast(1.0),
            ),
            row(
                format!("oslat itself, longest of stalls of {length_ms} ms"),
                self.longest,
                microseconds,
                Goal::None,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, Runs, found};

    #[test]
    fn its_histogram_reports_how_many_it_saw() {
        // Output of version 2.40 with -b 1024.
        let text = r#"{"file_version":1,"thread":{"0":{"cpu":1,"max":10203,"duration":1.588,"histogram":{"1":78807167,"999":1,"1000":2,"1023":1,"1024":7}}}}"#;
        let run = found(text).unwrap();
        assert_eq!(run, Found { longest: 10_203_500.0, stalls: 10 });
        let mut runs = Runs::default();
        runs.add(&run, &[10e6; 10]);
        runs.add(&Found { stalls: 9, ..run }, &[10e6; 10]);
        let note = runs.note(10);
        assert!(note.contains("Of 20 stalls of 10 ms in 2 runs"), "{note}");
        assert!(note.contains("hold 19 readings") && note.contains("and 1 runs"), "{note}");
        assert!(found(r#"{"thread":{}}"#).unwrap_err().to_string().contains("no thread"));
    }
}

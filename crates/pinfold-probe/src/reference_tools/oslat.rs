//! oslat (rt-tests): a thread that reads the clock in a loop.
//!
//! It sorts every reading into buckets of one microsecond, also readings without a stall. The last
//! bucket contains all longer ones; only `max` is comparable with our stalls. Its average is over
//! all readings of the clock and has no meaning for stalls.
//!
//! ```text
//! { "file_version": 1, "thread": { "0": { "cpu": 1, "freq": 2597, "min": 1, "avg": 1.001,
//!     "max": 49210, "duration": 1.999, "histogram": { "1": 78807167, "2": 5977 } } } }
//! ```

use std::collections::BTreeMap;

use pinfold_host::files::StateDir;
use pinfold_model::Statistic;
use serde::Deserialize;

use super::{Call, Found, check_sample_value, reading, whole_seconds};
use crate::benchmarks::SchedPolicy;
use crate::settings::Settings;

const FILE: &str = "oslat.json";

pub(super) fn call(settings: &Settings, scratch: &StateDir) -> Call {
    let mut argv = vec!["-q".to_owned(), "-c".to_owned(), settings.cpus.to_string()];
    argv.extend(["-D".to_owned(), whole_seconds(settings.duration_ns)]);
    // Its main thread sleeps, so it can share a measured CPU without disturbing it; there may be no
    // other CPU.
    if let Some(first) = settings.cpus.iter().next() {
        argv.extend(["-C".to_owned(), first.0.to_string()]);
    }
    if let SchedPolicy::Fifo(priority) = settings.policy {
        argv.extend(["-f".to_owned(), priority.to_string()]);
    }
    argv.extend(["--json".to_owned(), scratch.path_of(FILE)]);
    Call::new(argv, Some(FILE))
}

#[derive(Deserialize)]
struct Document {
    file_version: u32,
    thread: BTreeMap<String, Thread>,
}

#[derive(Deserialize)]
struct Thread {
    max: u64,
    duration: f64,
    histogram: BTreeMap<String, u64>,
}

pub(super) fn parse(text: &str) -> Result<Found, String> {
    let document: Document =
        serde_json::from_str(text).map_err(|error| format!("is not its JSON: {error}"))?;
    if document.file_version != 1 {
        return Err(format!("has the version {}", document.file_version));
    }
    let mut longest = None;
    for thread in document.thread.values() {
        let seen = thread.histogram.values().any(|count| *count > 0);
        if !seen || check_sample_value("a duration of", thread.duration)? <= 0.0 {
            return Err("reports no reading".to_owned());
        }
        longest = longest.max(Some(thread.max));
    }
    let longest = longest.ok_or("reports no thread")?;
    // A stall of 1234 µs is between 1234 and 1235 µs.
    let readings = vec![reading(Statistic::Max, (longest as f64 + 0.5) * 1_000.0)];
    Ok(Found { readings, samples: None })
}

//! likwid-bench: memory bandwidth by block size.
//!
//! On machines with steal time, its calibration of the clock (`Cycle Clock`) is wrong by up to 15
//! %, and so are all its times in seconds. `kB` is 1000 bytes, and a size is rounded down to whole
//! loop iterations. Its `triad` is not that of STREAM; its `stream` is. It reports the mean of its
//! run, which is compared with the median of our windows.
//!
//! ```text
//! Cycles: 4927675324
//! Cycle Clock: 2596086381
//! Data volume (Byte): 401579442176
//! ```

use std::collections::BTreeMap;

use pinfold_model::{Figure, Statistic};

use super::{Call, Found, check_sample_value, pu_of, reading, whole_seconds};
use crate::settings::Settings;

/// The labels of a figure that give the block size in bytes, the operation, and the width of loads
/// and stores.
const LABELS: [&str; 3] = ["bytes", "operation", "width"];

/// Our operations and widths, and the corresponding tests of likwid.
const TESTS: [(&str, &str, &str); 14] = [
    ("read", "avx512", "load_avx512"),
    ("read", "avx2", "load_avx"),
    ("read", "128", "load_sse"),
    ("read", "scalar", "load"),
    ("write", "avx512", "store_avx512"),
    ("write", "avx2", "store_avx"),
    ("write", "128", "store_sse"),
    ("write", "scalar", "store"),
    ("copy", "avx512", "copy_avx512"),
    ("copy", "avx2", "copy_avx"),
    ("copy", "128", "copy_sse"),
    ("copy", "scalar", "copy"),
    ("write-nt", "avx2", "store_mem_avx"),
    ("copy-nt", "avx2", "copy_mem_avx"),
];

/// One call for each of our figures for which likwid has a test.
pub(super) fn calls(settings: &Settings, ours: &[Figure]) -> Result<Vec<Call>, String> {
    let mut calls: Vec<Call> = Vec::new();
    for figure in ours {
        let [Some(bytes), Some(operation), Some(width)] =
            LABELS.map(|name| figure.labels.get(name).map(String::as_str))
        else {
            continue;
        };
        let test = TESTS.iter().find(|(one, wide, _)| (*one, *wide) == (operation, width));
        if let Some((_, _, test)) = test {
            let place = format!("N:{bytes}B:1");
            let seconds = whole_seconds(settings.duration_ns);
            let argv = ["-t", test, "-w", &place, "-s", &seconds].map(str::to_owned).to_vec();
            let labels = LABELS
                .into_iter()
                .zip([bytes, operation, width])
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .collect::<BTreeMap<_, _>>();
            if calls.iter().all(|call| call.labels != labels) {
                let pu = pu_of(ours, "bandwidth")?;
                calls.push(Call { labels, ..Call::new(argv, None).on(pu) });
            }
        }
    }
    if calls.is_empty() {
        Err(format!(
            "has no test that corresponds to these figures; its tests are selected by {}",
            LABELS.join(", ")
        ))
    } else {
        Ok(calls)
    }
}

pub(super) fn parse(text: &str) -> Result<Found, String> {
    let (cycles, clock) = (number_of("Cycles", text)?, number_of("Cycle Clock", text)?);
    let volume = number_of("Data volume (Byte)", text)?;
    let value = volume / (cycles / clock);
    if cycles <= 0.0 || clock <= 0.0 || volume <= 0.0 || !value.is_finite() {
        return Err(format!("reports {volume} bytes in {cycles} cycles of {clock} Hz"));
    }
    Ok(Found { readings: vec![reading(Statistic::Median, value)], samples: None })
}

fn number_of(key: &str, text: &str) -> Result<f64, String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .ok_or_else(|| format!("has no line {key:?}"))?;
    let word = line.split_whitespace().next().unwrap_or("");
    let value: f64 = word.parse().map_err(|_| format!("reports {key} {word:?}"))?;
    check_sample_value(key, value)
}

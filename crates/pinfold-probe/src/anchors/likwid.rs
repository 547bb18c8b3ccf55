//! likwid-bench: memory bandwidth by block size.
//!
//! Its calibration of the clock errs on machines that are robbed of time (up to 15 %), and with it
//! its `Time` and `MByte/s`: the rate is taken from `Cycles`, the data volume, and the clock's
//! rate as the kernel knows it, or as the highest that likwid ever finds. `kB` is 1000 bytes.
//! Its `triad` is not STREAM's; its `stream` is.
//!
//! ```text
//! Cycles:			4927675324
//! CPU Clock:		2596086381
//! Data volume (Byte):	401579442176
//! ```

use std::collections::BTreeMap;

use pinfold_model::{Figure, Statistic};

use super::{Call, Found, Reading, sound, whole_seconds};
use crate::registry::Settings;

/// The label of a figure that says how many bytes a block has.
const BYTES: &str = "bytes";
/// The label of a figure that says what is done with them.
const KERNEL: &str = "kernel";
/// The label of a figure that says how wide its loads and stores are.
const WIDTH: &str = "width";

/// Our kernels and widths, and likwid's tests of the same.
const TESTS: [(&str, &str, &str); 9] = [
    ("read", "avx512", "load_avx512"),
    ("read", "avx2", "load_avx"),
    ("read", "scalar", "load"),
    ("write", "avx512", "store_avx512"),
    ("write", "avx2", "store_avx"),
    ("write", "scalar", "store"),
    ("copy", "avx512", "copy_avx512"),
    ("copy", "avx2", "copy_avx"),
    ("copy", "scalar", "copy"),
];

/// One call for each of our figures that it has a test for.
pub(super) fn calls(settings: &Settings, ours: &[Figure]) -> Result<Vec<Call>, String> {
    let mut calls = Vec::new();
    for figure in ours {
        let label = |name: &str| figure.labels.get(name).map(String::as_str);
        let (Some(bytes), Some(kernel), Some(width)) = (label(BYTES), label(KERNEL), label(WIDTH))
        else {
            continue;
        };
        let test = TESTS.iter().find(|(ours, wide, _)| (*ours, *wide) == (kernel, width));
        if let Some((_, _, test)) = test {
            let argv = ["-t", test, "-w", &format!("N:{bytes}B:1"), "-s"].map(str::to_owned);
            let argv = [&argv[..], &[whole_seconds(settings.duration_ns)]].concat();
            calls.push(Call { argv, file: None, by_affinity: true });
        }
    }
    match calls.is_empty() {
        true => Err(format!(
            "has no test like these figures; it needs the labels {BYTES}, {KERNEL} and {WIDTH}"
        )),
        false => Ok(calls),
    }
}

pub(super) fn parse(text: &str) -> Result<Found, String> {
    let number = |key: &str| -> Result<f64, String> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .ok_or_else(|| format!("has no line {key:?}"))?;
        let word = line.split_whitespace().next().unwrap_or("");
        let value: f64 = word.parse().map_err(|_| format!("tells {key} {word:?}"))?;
        sound(key, value)
    };
    let (cycles, clock) = (number("Cycles")?, number("Cycle Clock")?);
    let (volume, size) = (number("Data volume (Byte)")?, number("Size (Byte)")?);
    let test = text
        .lines()
        .find_map(|line| line.strip_prefix("Test: "))
        .ok_or("does not tell its test")?
        .trim();
    let (kernel, width, _) = TESTS
        .iter()
        .find(|(_, _, name)| *name == test)
        .ok_or_else(|| format!("is of the test {test:?}"))?;
    if cycles <= 0.0 || clock <= 0.0 || volume <= 0.0 {
        return Err(format!("tells {volume} bytes in {cycles} cycles of {clock} Hz"));
    }
    let labels = BTreeMap::from([
        (KERNEL.to_owned(), (*kernel).to_owned()),
        (WIDTH.to_owned(), (*width).to_owned()),
        (BYTES.to_owned(), size.to_string()),
    ]);
    let value = volume / (cycles / clock);
    let readings = vec![Reading { labels, statistic: Statistic::Median, value }];
    Ok(Found { readings, samples: None })
}

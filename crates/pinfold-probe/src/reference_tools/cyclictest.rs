//! cyclictest (rt-tests): timer wake-ups.
//!
//! The keys of its JSON have a stray colon (`"cmdline:"`). Its histogram omits values above `-h`,
//! while `max` and `cycles` include them, so quantiles are computed from `cycles`. Times are
//! truncated to whole microseconds, so 0.5 µs is added. It keeps all CPUs out of deep idle states
//! (`cpu_dma_latency` 0), unless `--default-system` is given; the call follows the setting of our
//! probe.
//!
//! ```text
//! { "file_version": 1, "cmdline:": "…", "thread": { "0": {
//!     "histogram": { "12": 44, "13": 322 }, "cycles": 2000, "min": 12, "max": 2359,
//!     "avg": 22.11, "cpu": 1, "node": 0 } } }
//! ```

use std::collections::BTreeMap;

use pinfold_host::files::StateDir;
use pinfold_model::Statistic;
use serde::Deserialize;

use super::{Call, Found, check_sample_value, reading};
use crate::benchmarks::SchedPolicy;
use crate::settings::Settings;

const FILE: &str = "cyclictest.json";
/// Longest latency in the histogram (µs).
const LONGEST_US: &str = "100000";
const NS_PER_US: f64 = 1_000.0;
/// Minimum number of samples for the 99.9 % quantile.
const P999_SAMPLES: u64 = 10_000;

pub(super) fn call(settings: &Settings, scratch: &StateDir) -> Call {
    let period_us = u64::from(settings.period_us.unwrap_or(1_000));
    let loops = (settings.duration_ns / (period_us * 1_000)).max(1);
    let mut argv: Vec<String> = ["-m", "-q", "-h", LONGEST_US].map(str::to_owned).to_vec();
    if !settings.keep_awake {
        argv.push("--default-system".to_owned());
    }
    argv.extend(["-t".to_owned(), settings.cpus.len().to_string()]);
    argv.extend(["-a".to_owned(), settings.cpus.to_string()]);
    argv.extend(["-i".to_owned(), period_us.to_string()]);
    argv.extend(["-l".to_owned(), loops.to_string()]);
    argv.extend(match settings.policy {
        SchedPolicy::Other => vec!["--policy=other".to_owned()],
        SchedPolicy::Fifo(priority) => vec!["-p".to_owned(), priority.to_string()],
    });
    argv.push(format!("--json={}", scratch.path_of(FILE)));
    Call::new(argv, Some(FILE))
}

#[derive(Deserialize)]
struct Document {
    file_version: u32,
    thread: BTreeMap<String, Thread>,
}

#[derive(Deserialize)]
struct Thread {
    histogram: BTreeMap<String, u64>,
    cycles: u64,
    max: u64,
    avg: f64,
}

pub(super) fn parse(text: &str) -> Result<Found, String> {
    let document: Document =
        serde_json::from_str(text).map_err(|error| format!("is not its JSON: {error}"))?;
    if document.file_version != 1 {
        return Err(format!("has the version {}", document.file_version));
    }
    let cycles = document
        .thread
        .values()
        .try_fold(0_u64, |sum, thread| sum.checked_add(thread.cycles))
        .ok_or("reports more cycles than possible")?;
    if document.thread.is_empty() || cycles == 0 {
        return Err("reports no cycle".to_owned());
    }
    let (mut sum, mut max) = (0.0, 0_u64);
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for thread in document.thread.values() {
        sum += check_sample_value("an average of", thread.avg)? * thread.cycles as f64;
        max = max.max(thread.max);
        let mut inside = 0_u64;
        for (place, count) in &thread.histogram {
            let us: u64 = place.parse().map_err(|_| format!("has the bucket {place:?}"))?;
            inside = inside.checked_add(*count).ok_or("counts more than possible")?;
            *counts.entry(us).or_default() += count;
        }
        if inside > thread.cycles {
            return Err(format!("counts {inside} of {} cycles", thread.cycles));
        }
    }
    let mut readings = vec![
        reading(Statistic::Mean, to_ns(sum / cycles as f64)),
        reading(Statistic::Max, to_ns(max as f64)),
    ];
    readings
        .extend(at(&counts, cycles, 0.5).map(|us| reading(Statistic::Median, to_ns(us as f64))));
    if cycles >= P999_SAMPLES {
        let quantile = at(&counts, cycles, 0.999);
        readings.extend(quantile.map(|us| reading(Statistic::P999, to_ns(us as f64))));
    }
    Ok(Found { readings, samples: Some(cycles) })
}

fn to_ns(us: f64) -> f64 {
    (us + 0.5) * NS_PER_US
}

/// The bucket of a quantile of all cycles; `None` if it is above the histogram.
pub(super) fn at(counts: &BTreeMap<u64, u64>, cycles: u64, quantile: f64) -> Option<u64> {
    let rank = (cycles - 1) as f64 * quantile;
    let mut below = 0_u64;
    for (place, count) in counts {
        below = below.saturating_add(*count);
        if below as f64 > rank {
            return Some(*place);
        }
    }
    None
}

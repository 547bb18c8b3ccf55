//! fio: random reads of a file or a block device.
//!
//! The JSON is written to a file (`--output=`), because fio mixes other lines into its standard
//! output. Percentiles are in `clat_ns` only. With `json+` it also has the histogram (`bins`: ns →
//! count), from which the duration of every read is known to 1 %. The names of the keys contain the
//! unit. With one request at a time, `clat_ns` is the duration of the system call, which is what
//! our own I/O benchmark measures too.
//!
//! ```text
//! { "fio version": "fio-3.33", "jobs": [ { "error": 0, "read": { "total_ios": 27756,
//!     "clat_ns": { "min": 40270, "max": 7409752, "mean": 70123.7, "N": 27756,
//!       "percentile": { "50.000000": 63744 }, "bins": { "41728": 12 } } } } ] }
//! ```

use std::collections::BTreeMap;

use pinfold_host::files::StateDir;
use pinfold_model::{Family, Figure, Statistic, Unit};
use serde::Deserialize;

use super::{Call, Found, ReferenceTool, ReferenceToolError, check_sample_value, path_of, reading};
use crate::benchmarks::{IoTarget, seconds};
use crate::loads::Placement;
use crate::settings::Settings;

const FILE: &str = "fio.json";
const P999_SAMPLES: u64 = 10_000;
const BLOCK: u32 = 4096;
/// Why there is no cross-check where reads cannot bypass the page cache.
pub(super) const BUFFERED: &str = "drops the page cache only once, but Pinfold's probe before each \
    read, so buffered reads cannot be compared: use a file on another file system with --file";
/// Limit for the number of reads that are expanded to single samples.
const MOST_SAMPLES: u64 = 5_000_000;

pub(super) fn call(settings: &Settings, target: &IoTarget, scratch: &StateDir) -> Call {
    let seconds = seconds(settings.duration_ns.max(1_000_000_000));
    let runtime = seconds.split('.').next().unwrap_or("1");
    let argv = vec![
        "--name=pinfold".to_owned(),
        format!("--filename={}", path_of(target).replace(':', "\\:")),
        "--readonly".to_owned(),
        "--rw=randread".to_owned(),
        format!("--bs={BLOCK}"),
        "--ioengine=psync".to_owned(),
        "--direct=1".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={runtime}"),
        "--thread".to_owned(),
        "--percentile_list=50:99:99.9".to_owned(),
        "--output-format=json+".to_owned(),
        format!("--output={}", scratch.path_of(FILE)),
    ];
    Call::new(argv, Some(FILE)).on(settings.cpus.clone())
}

/// True if our reads used the page cache, because the file system does not support others.
pub fn is_buffered(ours: &[Figure]) -> bool {
    ours.iter().any(|figure| figure.flags.iter().any(|flag| flag == "buffered"))
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    error: i64,
    read: Read,
}

#[derive(Deserialize)]
struct Read {
    runtime: u64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(default)]
    percentile: BTreeMap<String, u64>,
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

fn read(text: &str) -> Result<Read, String> {
    let document: Document =
        serde_json::from_str(text).map_err(|error| format!("is not its JSON: {error}"))?;
    let mut jobs = document.jobs.into_iter();
    let (Some(job), None) = (jobs.next(), jobs.next()) else {
        return Err("is not of one job".to_owned());
    };
    if job.error != 0 {
        return Err(format!("reports the error {}", job.error));
    }
    let latency = &job.read.clat_ns;
    if latency.count == 0 {
        return Err("reports no read".to_owned());
    }
    if latency.min > latency.max {
        return Err(format!(
            "reports a minimum of {} and a maximum of {} ns",
            latency.min, latency.max
        ));
    }
    check_sample_value("a mean of", latency.mean)?;
    Ok(job.read)
}

pub(super) fn parse(text: &str) -> Result<Found, String> {
    let latency = read(text)?.clat_ns;
    let at = |quantile: &str| latency.percentile.get(quantile).map(|ns| *ns as f64);
    let mut readings =
        vec![reading(Statistic::Mean, latency.mean), reading(Statistic::Max, latency.max as f64)];
    readings.extend(at("50.000000").map(|ns| reading(Statistic::Median, ns)));
    if latency.count >= P999_SAMPLES {
        readings.extend(at("99.900000").map(|ns| reading(Statistic::P999, ns)));
    }
    Ok(Found { readings, samples: Some(latency.count) })
}

/// Measures with fio instead of our own I/O benchmark: every read, from fio's histogram.
///
/// # Errors
/// [`ReferenceToolError`].
pub fn figure(
    settings: &Settings,
    placement: &Placement,
    scratch: &StateDir,
) -> Result<Vec<Figure>, ReferenceToolError> {
    let reference_tool = ReferenceTool::Fio;
    let target = settings.target.as_ref().ok_or_else(|| ReferenceToolError::Cannot {
        reference_tool,
        why: "needs a file or a block device to read".to_owned(),
    })?;
    let call = call(settings, target, scratch);
    let text = reference_tool.text_of(&call, settings, placement, scratch)?;
    let figure =
        samples(&text).map_err(|why| ReferenceToolError::Output { reference_tool, why })?;
    Ok(vec![figure])
}

/// The reads in a document, as a figure.
pub(super) fn samples(text: &str) -> Result<Figure, String> {
    let Read { runtime, clat_ns: latency } = read(text)?;
    if latency.count > MOST_SAMPLES {
        return Err(format!("reports {} reads, more than are stored individually", latency.count));
    }
    let mut bins = Vec::new();
    for (place, count) in &latency.bins {
        let ns: u64 = place.parse().map_err(|_| format!("has the bin {place:?}"))?;
        bins.push((ns, *count));
    }
    bins.sort_unstable();
    let inside: u64 = bins.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
    if inside != latency.count {
        return Err(format!("has {inside} reads in its bins and {} in all", latency.count));
    }
    let mut samples = Vec::new();
    for (ns, count) in bins {
        // The name of a bin is its midpoint, which can be outside of the observed range.
        let ns = ns.clamp(latency.min, latency.max) as f64;
        samples.extend((0..count).map(|_| ns));
    }
    if let Some(last) = samples.last_mut() {
        *last = latency.max as f64;
    }
    Ok(Figure {
        probe: "io-latency".to_owned(),
        labels: BTreeMap::from([
            ("block-bytes".to_owned(), BLOCK.to_string()),
            ("tool".to_owned(), "fio".to_owned()),
        ]),
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        cpu: None,
        duration_ns: runtime.saturating_mul(1_000_000),
        samples,
        dropped: 0,
        disturbed: 0,
        flags: vec!["sorted, to 1 %".to_owned()],
    })
}

//! Parses and validates the JSON lines of a benchmark.

use pinfold_model::{Metric, PuId, Series};
use serde::Deserialize;

use super::{Benchmark, BenchmarkError, Cpus};

/// The members that Pinfold needs; benchmarks print more, for the user.
#[derive(Deserialize)]
struct Line {
    probe: String,
    cpu: u32,
    duration_ns: u64,
    observed_ns: u64,
    unit: String,
    dropped: u64,
    /// Indexes of the windows in which the thread lost its CPU; only for benchmarks of rates.
    #[serde(default)]
    disturbed: Vec<usize>,
    flags: Vec<String>,
    samples: Vec<f64>,
    /// Only for stalls: the monotonic time to which `begins_ns` is relative.
    start_ns: Option<u64>,
    /// Start of each stall; missing in the output of older `pinload` versions.
    begins_ns: Option<Vec<u64>>,
}

/// A series, and its disturbed windows.
pub(crate) struct Observation {
    pub(crate) series: Series,
    /// Indexes of the disturbed samples, ascending.
    pub(crate) disturbed: Vec<usize>,
    /// Start of each sample by the monotonic clock (ns), if the output has it.
    pub(crate) starts_ns: Option<Vec<u64>>,
}

pub(super) fn observations(
    benchmark: &Benchmark,
    output: &str,
) -> Result<Vec<Observation>, BenchmarkError> {
    let mut all = Vec::new();
    for (index, text) in output.lines().enumerate() {
        let wrong =
            |why: String| BenchmarkError::Line { probe: benchmark.probe(), line: index + 1, why };
        let line: Line = serde_json::from_str(text)
            .map_err(|error| wrong(format!("is not a result: {error}")))?;
        all.push(one(benchmark, line).map_err(wrong)?);
    }
    all.sort_by_key(|one: &Observation| one.series.cpu);
    match wrong_cpus(benchmark, &all) {
        None => Ok(all),
        Some(why) => Err(BenchmarkError::Output { probe: benchmark.probe(), why }),
    }
}

fn one(benchmark: &Benchmark, line: Line) -> Result<Observation, String> {
    let metric = benchmark.metric();
    if line.probe != benchmark.probe() {
        return Err(format!("is of the benchmark {:?}", line.probe));
    }
    if line.unit != metric.unit().name() {
        return Err(format!("is in the unit {:?}", line.unit));
    }
    if line.observed_ns == 0 || line.observed_ns > line.duration_ns {
        return Err(format!("observed {} of {} ns", line.observed_ns, line.duration_ns));
    }
    if let Some(sample) = line.samples.iter().find(|sample| !sample.is_finite() || **sample < 0.0) {
        return Err(format!("holds the sample {sample}"));
    }
    if line.samples.is_empty() && metric != Metric::SpinGap {
        return Err("holds no samples".to_owned());
    }
    let sum: f64 = line.samples.iter().sum();
    // A whole number of nanoseconds: a double represents up to 104 days of stalls exactly.
    if metric == Metric::SpinGap && sum > line.observed_ns as f64 {
        return Err(format!("holds {sum} ns of gaps in {} ns of observation", line.observed_ns));
    }
    let is_ascending = line.disturbed.windows(2).all(|pair| pair[0] < pair[1]);
    if !is_ascending || line.disturbed.last().is_some_and(|last| *last >= line.samples.len()) {
        return Err(format!("calls other than its {} windows disturbed", line.samples.len()));
    }
    let starts_ns = starts(&line)?;
    let series = Series {
        metric,
        cpu: line.cpu,
        duration_ns: line.duration_ns,
        observed_ns: line.observed_ns,
        dropped: line.dropped,
        samples: line.samples,
        flags: line.flags,
    };
    Ok(Observation { series, disturbed: line.disturbed, starts_ns })
}

/// Start of each sample by the monotonic clock (ns).
fn starts(line: &Line) -> Result<Option<Vec<u64>>, String> {
    let (start, begins) = match (line.start_ns, &line.begins_ns) {
        (Some(start), Some(begins)) => (start, begins),
        (None, None) => return Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            return Err("holds only one of start_ns and begins_ns".to_owned());
        }
    };
    if begins.len() != line.samples.len() {
        return Err(format!("holds {} begins of {} gaps", begins.len(), line.samples.len()));
    }
    let all: Option<Vec<u64>> = begins.iter().map(|begin| start.checked_add(*begin)).collect();
    all.map(Some)
        .ok_or_else(|| format!("began at {start} ns, and gaps end after the clock's range"))
}

/// The error in the set of CPUs of all lines together, if there is one.
fn wrong_cpus(benchmark: &Benchmark, observations: &[Observation]) -> Option<String> {
    let all: Vec<&Series> = observations.iter().map(|one| &one.series).collect();
    if all.is_empty() {
        return Some("is empty".to_owned());
    }
    if let Some(pair) = all.windows(2).find(|pair| pair[0].cpu == pair[1].cpu) {
        return Some(format!("has two lines for CPU {}", pair[0].cpu));
    }
    match &benchmark.cpus {
        Cpus::All => None,
        Cpus::Any if all.len() == 1 => None,
        Cpus::Any => Some(format!("has {} lines instead of one", all.len())),
        Cpus::These(set) => {
            let missing = set.iter().find(|pu| !all.iter().any(|series| series.cpu == pu.0));
            let extra = all.iter().find(|series| !set.contains(PuId(series.cpu)));
            missing
                .map(|pu| format!("has no line for CPU {pu}"))
                .or_else(|| extra.map(|series| format!("has a line for CPU {}", series.cpu)))
        }
    }
}

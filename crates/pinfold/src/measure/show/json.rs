//! A measurement as JSON: the contents of `--save`, with statistics.

use pinfold_model::Family;
use pinfold_probe::registry::Probe;
use pinfold_run::{Exit, Failure};
use pinfold_stats::{Capacity, RandomArrival, SteadyState};
use pinfold_study::measured::{Measurement, StealTime, to_json};
use serde_json::{Value, json};

use super::{Pooled, direction, pool_figures, tail};

/// The document.
pub fn json(measurement: &Measurement, probe: &Probe) -> Result<String, Failure> {
    let saved = to_json(measurement).map_err(|error| wrong(&error))?;
    let saved: Value = serde_json::from_str(&saved).map_err(|error| wrong(&error))?;
    let summary: Vec<Value> = pool_figures(measurement).iter().map(one).collect();
    Ok(json!({
        "format": "pinfold-measured/1",
        "what": probe.what,
        "summary": summary,
        "stolen": steal_value(&StealTime::from_blocks(&measurement.blocks)),
        "measurement": saved,
    })
    .to_string())
}

fn wrong(error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Host, error.to_string())
}

/// Steal time; null if no block has it.
pub fn steal_value(of: &StealTime) -> Value {
    json!({
        "ticks": (of.unknown < of.blocks).then_some(of.ticks),
        "contaminated_blocks": of.contaminated,
        "unknown_blocks": of.unknown,
        "blocks": of.blocks,
        "windows_left_out": of.windows,
    })
}

fn one(pooled: &Pooled) -> Value {
    let figure = &pooled.figure;
    let mut summary = json!({
        "probe": figure.probe,
        "labels": figure.labels,
        "cpu": figure.cpu,
        "unit": figure.unit.name(),
        "family": figure.family.name(),
        "n": figure.samples.len(),
        "dropped": figure.dropped,
    });
    let more = match figure.family {
        Family::Capacity => {
            let found = Capacity::new(&figure.samples, figure.disturbed, direction(figure));
            json!({
                "best": found.map(|one| one.best),
                "p10": found.map(|one| one.p10),
                "median": found.map(|one| one.median),
                "left_out": found.map(|one| one.excluded_share()),
                "contended": found.map(|one| one.is_contended()),
                "steady": match pooled.steadiness {
                    SteadyState::From(_) => Some(true),
                    SteadyState::No { .. } => Some(false),
                    SteadyState::TooFew => None,
                },
            })
        }
        Family::Tail => {
            let tail = tail(figure);
            let arrivals = RandomArrival::new(figure.samples.clone(), figure.duration_ns);
            let over: Vec<Value> = tail
                .exceedances
                .iter()
                .map(|one| {
                    json!({
                        "limit_ns": one.limit_ns,
                        // Without samples nothing was counted.
                        "count": (one.samples > 0).then_some(one.count),
                        "share_at_most": one.upper_bound,
                        "arrivals_share": arrivals.as_ref().map(|all| all.exceedance_probability(one.limit_ns)),
                    })
                })
                .collect();
            let wakeups = pooled.wakeups.as_ref().map(super::wakeups::Wakeups::json);
            json!({
                "open_loop": wakeups,
                "observed_ns": tail.observed_ns,
                "p50_ns": tail.p50_ns,
                "p99_ns": tail.p99_ns,
                "p999_ns": tail.p999_ns,
                "max_ns": tail.max_ns,
                "exceedances": over,
            })
        }
        // For each block separately, as in `measurement`.
        Family::Place => json!({ "places": figure.samples }),
        Family::Count => json!({ "median": pinfold_stats::median(&figure.samples) }),
    };
    if let (Some(all), Some(more)) = (summary.as_object_mut(), more.as_object()) {
        all.extend(more.clone());
    }
    summary
}

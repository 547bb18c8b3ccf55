//! JSON of observations: the results that are not in the figures.

use pinfold_model::Role;
use pinfold_probe::counters::Counters;
use pinfold_probe::locks::{self, Locks};
use pinfold_probe::sched_latency::{self, SchedLatency};
use serde_json::{Value, json};

/// The result of `sched` as JSON.
pub fn sched(found: &SchedLatency) -> Value {
    let (level, why) = match &found.level {
        sched_latency::Level::Tracepoints => ("tracepoints", None),
        sched_latency::Level::Schedstat { why } => ("schedstat", Some(why)),
    };
    let quotas: Vec<Value> = found
        .quotas
        .iter()
        .map(|(group, stopped)| {
            json!({ "group": group, "periods": stopped.periods, "throttled_ns": stopped.ns })
        })
        .collect();
    json!({ "level": level, "why": why, "quotas": quotas, "lost": found.lost })
}

/// The result of `counters` as JSON.
pub fn counters(found: &Counters) -> Value {
    let absent: Vec<Value> = found
        .absent()
        .iter()
        .map(|(quantity, why, roles)| {
            let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
            json!({ "quantity": quantity.name(), "because": why, "roles": roles })
        })
        .collect();
    json!({ "absent": absent, "restless": found.threads_kept_changing })
}

/// The result of `locks` as JSON.
pub fn locks(found: &Locks) -> Value {
    let sites = found.sites.as_ref().map(|all| {
        let kept = all.frame_pointers.map(|verdict| verdict == locks::FramePointers::Kept);
        let sites: Vec<Value> = all
            .sites
            .iter()
            .map(|site| {
                json!({
                    "kind": locks::kind_name(site.kind),
                    "frames": site.frames,
                    "calls": site.spent.count,
                    "time_ns": site.spent.sum_ns,
                })
            })
            .collect();
        json!({ "frame_pointers": kept, "missing": all.missing, "sites": sites })
    });
    json!({ "lost": found.lost, "sites": sites })
}

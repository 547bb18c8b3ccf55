//! The status of a platform, as JSON between processes.

use pinfold_emulate::NodeStatus;
use pinfold_model::{Command, CpuSet, EmulationPlan, Tid};
use serde_json::{Value, json};

/// Version of the format.
const FORMAT: &str = "pinfold-emulation/1";

/// Whether other commands can access the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// At the socket of the state directory.
    Open,
    /// No other command can access it.
    Closed,
}

/// The text of a platform in its journal.
pub fn journal_json(plan: &EmulationPlan, door: Endpoint) -> String {
    let vnodes = plan.vnodes.iter().map(|vnode| {
        json!({
            "vnode": vnode.name,
            "pus": vnode.cpus().to_string(),
            "method": vnode.method.map(pinfold_model::Method::name),
        })
    });
    let answers = door == Endpoint::Open;
    json!({ "format": FORMAT, "answers": answers, "vnodes": vnodes.collect::<Vec<_>>() })
        .to_string()
}

/// False for the text of a platform that other commands cannot access: that of `run --speed` or of
/// a study, which ends with its process.
pub fn is_reachable(text: &str) -> bool {
    let value: Option<Value> = serde_json::from_str(text).ok();
    value.is_none_or(|value| value.get("answers").and_then(Value::as_bool) != Some(false))
}

/// How to end a platform with a running supervisor.
pub fn describe_end(text: &str, supervisor: Tid) -> String {
    if is_reachable(text) {
        format!("end it with `{}`", Command::new("emulate down"))
    } else {
        format!(
            "it ends with the command of process {supervisor}: kill -INT {supervisor} ends both"
        )
    }
}

/// The CPUs of the vnodes in the text of [`journal_json`]; `None` if it cannot be read.
pub fn cpus_of(text: &str) -> Option<CpuSet> {
    let value: Value = serde_json::from_str(text).ok()?;
    let mut all = CpuSet::new();
    for vnode in value.get("vnodes")?.as_array()? {
        all.add(&CpuSet::parse_list(vnode.get("pus")?.as_str()?).ok()?);
    }
    Some(all)
}

/// True for the text of [`journal_json`].
pub fn is_platform(text: &str) -> bool {
    let value: Option<Value> = serde_json::from_str(text).ok();
    value.is_some_and(|value| value.get("format").and_then(Value::as_str) == Some(FORMAT))
}

/// The status of all vnodes.
pub fn to_json(nodes: &[NodeStatus], plan: &EmulationPlan) -> Value {
    let vnodes: Vec<Value> = nodes
        .iter()
        .map(|node| {
            let cores: Vec<Value> = node
                .cores
                .iter()
                .map(|core| {
                    json!({
                        "pu": core.pu.0,
                        "asked": share(core.asked.millionths()),
                        "got": core.achieved_millionths.map(share),
                        "got_by_wall_clock": core.wall_millionths.map(share),
                        "cost_known": core.cost_known,
                        "idle": core.is_idle,
                    })
                })
                .collect();
            let vnode = plan.vnodes.iter().find(|vnode| vnode.name == node.name);
            let disk = vnode.and_then(|vnode| vnode.disk.as_ref());
            let disk = disk.filter(|_| node.attached.is_none());
            let mut notes = node.notes.clone();
            notes.extend(disk.map(|disk| {
                format!("disk of {}: at most {disk}, for reading and for writing", disk.path)
            }));
            json!({
                "vnode": node.name,
                "attached": node.attached,
                "method": node.method.name(),
                "cores": cores,
                "disk": disk.map(|disk| json!({
                    "bytes_per_second": disk.bytes,
                    "operations_per_second": disk.operations,
                    "path": disk.path,
                })),
                "notes": notes,
            })
        })
        .collect();
    json!({
        "format": FORMAT,
        "running": true,
        "housekeeping": plan.plan.housekeeping.to_string(),
        "vnodes": vnodes,
    })
}

fn share(millionths: u32) -> f64 {
    f64::from(millionths) / 1e6
}

/// The status without a platform, with the reason.
pub fn none(why: &str) -> Value {
    json!({ "format": FORMAT, "running": false, "why": why, "vnodes": [] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_of_a_platform_are_read_or_unknown() {
        let both = r#"{"vnodes":[{"pus":"1-2"},{"pus":"5"}]}"#;
        assert_eq!(cpus(both).as_deref(), Some("1-2,5"));
        for broken in ["", "{}", r#"{"vnodes":[{}]}"#, r#"{"vnodes":[{"pus":"1-"}]}"#] {
            assert_eq!(cpus(broken), None, "{broken}");
        }
    }

    fn cpus(text: &str) -> Option<String> {
        cpus_of(text).map(|cpus| cpus.to_string())
    }
}

//! The status of a platform as text.

use pinfold_model::CpuSet;
use pinfold_model::text::cpus_text;
use serde_json::Value;

use crate::{output, screen};

/// The status as text.
pub fn to_text(status: &Value) -> String {
    let mut table = screen::rows();
    table.set_header([
        "vnode",
        "method",
        "CPU",
        "requested",
        "achieved per CPU time",
        "by wall clock",
        "error",
    ]);
    let empty = Vec::new();
    let vnodes = list(status, "vnodes").unwrap_or_else(|| empty.clone());
    let mut notes = String::new();
    for vnode in &vnodes {
        for core in list(vnode, "cores").unwrap_or_else(|| empty.clone()) {
            let number = |key: &str| core.get(key).and_then(Value::as_f64);
            let error = number("got").zip(number("asked")).map(|(got, asked)| got - asked);
            table.add_row([
                match text(vnode, "attached") {
                    attached if attached.is_empty() => text(vnode, "vnode"),
                    attached => format!("{}: {attached}", text(vnode, "vnode")),
                },
                text(vnode, "method"),
                core.get("pu").map(Value::to_string).unwrap_or_default(),
                number("asked").map(percent).unwrap_or_default(),
                number("got").map_or_else(|| without_speed(&core).to_owned(), percent),
                number("got_by_wall_clock").map(percent).unwrap_or_default(),
                match error {
                    Some(error) => format!("{:+.2} points", error * 100.0),
                    None => String::new(),
                },
            ]);
        }
        for note in list(vnode, "notes").unwrap_or_else(|| empty.clone()) {
            let note = note.as_str().map(output::name).unwrap_or_default();
            notes.push_str(&format!("\n{}: {note}", text(vnode, "vnode")));
        }
    }
    for attached in list(status, "attached").unwrap_or_default() {
        let note = text(&attached, "note");
        if !note.is_empty() {
            let (vnode, what) = (text(&attached, "vnode"), text(&attached, "what"));
            notes.push_str(&format!("\n{vnode}: {what} {note}"));
        }
    }
    let table = screen::draw_table(table, 2..7);
    let host = text(status, "housekeeping");
    let host = CpuSet::parse_list(&host).map_or(host, |cpus| cpus_text(&cpus));
    format!("{table}\nthe host's own tasks: {host}{notes}")
}

fn list(value: &Value, key: &str) -> Option<Vec<Value>> {
    value.get(key).and_then(Value::as_array).cloned()
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).map(output::name).unwrap_or_default()
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// Why a core has no achieved speed: nothing slows it, no task ran, the method keeps no statistics,
/// or its own cost is not known.
fn without_speed(core: &Value) -> &'static str {
    if core.get("asked").and_then(Value::as_f64) == Some(1.0) {
        return "full speed";
    }
    if is_uncalibrated(core) {
        return "not calibrated";
    }
    match core.get("idle").and_then(Value::as_bool) {
        Some(true) => "no task ran",
        Some(false) | None => "not measured",
    }
}

/// True if the method's own cost is not known, so that it is missing in the achieved speed.
fn is_uncalibrated(core: &Value) -> bool {
    core.get("cost_known").and_then(Value::as_bool) == Some(false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_without_the_methods_cost_is_not_stated() {
        let calibrated = row(json!(0.41), true);
        assert!(calibrated.contains("requested") && calibrated.contains("achieved per CPU time"));
        assert!(calibrated.contains("+1.00 points"), "{calibrated}");
        let unknown = row(Value::Null, false);
        assert!(!unknown.contains(" 0.00%"), "{unknown}");
        assert!(unknown.contains("not calibrated") && !unknown.contains("points"), "{unknown}");
        let idle = row(Value::Null, true);
        assert!(idle.contains("no task ran") && !idle.contains("points"), "{idle}");
    }

    #[test]
    fn nothing_slows_a_core_at_full_speed() {
        let core = json!({ "pu": 1, "asked": 1.0, "got": null, "cost_known": false });
        let text = text_of(core);
        assert!(text.contains("full speed") && !text.contains("not calibrated"), "{text}");
    }

    fn row(got: Value, cost_known: bool) -> String {
        let idle = got.is_null();
        let core = json!({
            "pu": 1, "asked": 0.4, "got": got, "cost_known": cost_known, "idle": idle,
        });
        text_of(core)
    }

    fn text_of(core: Value) -> String {
        let vnode = json!({ "vnode": "slow", "method": "stall", "cores": [core] });
        to_text(&json!({ "vnodes": [vnode], "housekeeping": "0" }))
    }
}

//! The status of a platform as text.

use serde_json::Value;

use crate::{output, screen};

/// The status as text.
pub fn to_text(status: &Value) -> String {
    let mut table = screen::rows();
    table.set_header(["vnode", "method", "CPU", "asked", "got (last s)", "error"]);
    let empty = Vec::new();
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned();
    let vnodes = list(status, "vnodes").unwrap_or_else(|| empty.clone());
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).map(output::name).unwrap_or_default()
    };
    let mut notes = String::new();
    for vnode in &vnodes {
        for core in list(vnode, "cores").unwrap_or_else(|| empty.clone()) {
            let number = |key: &str| core.get(key).and_then(Value::as_f64);
            let percent = |share: f64| format!("{:.2}%", share * 100.0);
            let error = number("got").zip(number("asked")).map(|(got, asked)| got - asked);
            table.add_row([
                text(vnode, "vnode"),
                text(vnode, "method"),
                core.get("pu").map(Value::to_string).unwrap_or_default(),
                number("asked").map(percent).unwrap_or_default(),
                number("got").map_or_else(|| "not known".to_owned(), percent),
                error.map(|error| format!("{:+.2} points", error * 100.0)).unwrap_or_default(),
            ]);
        }
        for note in list(vnode, "notes").unwrap_or_else(|| empty.clone()) {
            let note = note.as_str().map(output::name).unwrap_or_default();
            notes.push_str(&format!("\n{}: {note}", text(vnode, "vnode")));
        }
    }
    let table = screen::drawn(table, 2..6);
    format!("{table}\nthe host's own tasks: CPUs {}{notes}", text(status, "housekeeping"))
}

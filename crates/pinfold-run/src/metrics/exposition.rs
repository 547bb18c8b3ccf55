//! Lines of the text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

pub(super) fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    text.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n"));
}

pub(super) fn line(text: &mut String, name: &str, labels: &str, value: &str) {
    text.push_str(&format!("{name}{{{labels}}} {value}\n"));
}

pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

//! The example of this crate runs and prints diagnostics.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../pinfold-topology/tests/common/example.rs"]
mod example;

#[test]
fn lint_domain_finds_the_diagnostics_of_the_example_file() {
    let text = example::run("lint_domain", &[]);
    assert!(text.contains("desktop.xml:14: <emulatorpin"), "{text}");
    assert!(text.contains("instead: <"), "{text}");
    assert!(text.lines().last().unwrap().contains("warning"), "{text}");
}

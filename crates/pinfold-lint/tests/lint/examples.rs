//! The example of this crate runs and prints diagnostics.

#[test]
fn lint_domain_finds_the_diagnostics_of_the_example_file() {
    let text = crate::example::run("lint_domain", &[]);
    assert!(text.contains("desktop.xml:14: <emulatorpin"), "{text}");
    assert!(text.contains("instead: <"), "{text}");
    assert!(text.lines().last().unwrap().contains("warning"), "{text}");
}

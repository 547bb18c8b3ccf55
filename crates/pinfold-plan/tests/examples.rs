//! The examples of this crate run and print a plan, libvirt XML and diagnostics.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../pinfold-topology/tests/common/example.rs"]
mod example;

#[test]
fn plan_and_emit_prints_pins_reasons_and_a_domain_fragment() {
    let text = example::run("plan_and_emit", &[]);
    assert!(text.starts_with("guest vcpu(0): CPUs "), "{text}");
    assert!(text.contains("balanced for guest: 4 vCPUs"), "{text}");
    assert_eq!(text.matches("<vcpupin vcpu=").count(), 4, "{text}");
    let (code, _, errors) = example::try_run("plan_and_emit", &["nonsense"]);
    assert!(code == Some(1) && errors.contains("nonsense"), "{code:?}: {errors}");
}

#[test]
fn lint_domain_finds_the_flaws_of_the_example_file() {
    let text = example::run("lint_domain", &[]);
    assert!(text.contains("desktop.xml:14: <emulatorpin"), "{text}");
    assert!(text.contains("instead: <"), "{text}");
    assert!(text.lines().last().unwrap().contains("warning"), "{text}");
}

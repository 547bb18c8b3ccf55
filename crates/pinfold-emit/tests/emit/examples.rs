//! The example of this crate runs and prints a plan and libvirt XML.

#[test]
fn plan_and_emit_prints_pins_reasons_and_a_domain_fragment() {
    let text = crate::example::run("plan_and_emit", &[]);
    assert!(text.starts_with("guest vcpu(0): CPU "), "{text}");
    assert!(text.contains("balanced for guest: 4 vCPUs"), "{text}");
    assert_eq!(text.matches("<vcpupin vcpu=").count(), 4, "{text}");
    let (code, _, errors) = crate::example::try_run("plan_and_emit", &["nonsense"]);
    assert!(code == Some(1) && errors.contains("nonsense"), "{code:?}: {errors}");
}

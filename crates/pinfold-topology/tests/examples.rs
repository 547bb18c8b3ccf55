//! The example of this crate runs and prints what it reads.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/example.rs"]
mod example;

#[test]
fn read_topology_prints_a_described_host_and_this_one() {
    let text = example::run("read_topology", &["package:2 l3:2 core:4 pu:2"]);
    assert!(text.contains("32 CPUs, 16 cores"), "{text}");
    assert!(text.contains("L3 domain 3: CPUs 24-31"), "{text}");
    let here = example::run("read_topology", &[]);
    assert!(here.contains(": CPU"), "{here}");
    let (code, _, errors) = example::try_run("read_topology", &["nonsense"]);
    assert!(code == Some(1) && !errors.is_empty(), "{code:?}: {errors}");
}

//! The example of this crate runs a whole tuning run and prints its winner.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each test file uses its own part of the runner")]

#[path = "../../pinfold-topology/tests/common/example.rs"]
mod example;

#[test]
fn tune_prints_its_winner() {
    assert_eq!(example::run("tune", &[]), "winner: balanced\n");
}

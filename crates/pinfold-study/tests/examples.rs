//! The example of this crate runs a whole tuning run and prints its winner.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../pinfold-topology/tests/common/example.rs"]
mod example;

#[test]
fn tune_prints_its_winner() {
    assert_eq!(example::run("tune", &[]), "winner: balanced\n");
}

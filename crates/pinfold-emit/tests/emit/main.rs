//! What the formats give to the programs that read them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod answers;
mod boot;
#[path = "../../../pinfold-topology/tests/common/example.rs"]
mod example;
mod examples;

//! Strategies and platforms on the hosts of `fixtures/hosts`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod fixtures;
mod pictures;
mod platforms;

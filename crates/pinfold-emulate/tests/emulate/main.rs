//! Virtual nodes on simulated hosts and on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod common;
mod disks;
mod held;
mod live;
mod notes;
mod simulated;

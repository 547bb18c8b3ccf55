//! The report page.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod contrast;
#[path = "../demo/mod.rs"]
mod demo;
mod page;

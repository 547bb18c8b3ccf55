//! Real QEMU processes and a real libvirt daemon.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

#[path = "../daemon/mod.rs"]
mod daemon;
mod libvirt;
mod qemu;

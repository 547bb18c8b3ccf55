//! `pinload` on this machine, and what is observed of processes from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod arguments;
mod benchmarks;
mod checksums;
mod common;
mod counters;
mod cpu_speed;
mod cross;
mod futex_cycles;
mod locks;
mod memory;
mod os;
mod parallel;
mod roles;
mod sanitizers;
mod sched_latency;
mod supervision;

//! Steps, journal, undo and watch on simulated hosts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod changed_tunables;
#[path = "../common/mod.rs"]
mod common;
mod counted;
mod guard;
mod journal;
mod kept;
mod layers;
mod order;
mod others;
mod partition;
mod policies;
mod reads;
mod replace;
mod shares;
mod sim_undo;
mod threaded;
mod tunables;
mod tuning;
mod vnodes;
mod watch;

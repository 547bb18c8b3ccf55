//! Apply and undo with real processes, on the machine that the tests run on.
//!
//! A program of its own, whose tests take turns: until a child executes its own program it holds
//! the locks of its parent's journals, and the memory and open files of this process are measured.
//!
//! Everything touched is a test's own: a cpuset group that it makes, and processes that are this
//! very program, started again with a role in an environment variable.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "most of it is for simulated hosts")]
mod common;
#[path = "../../../pinfold-topology/tests/common/example.rs"]
mod example;

use std::sync::{Mutex, MutexGuard, PoisonError};

mod endurance;
mod examples;
mod kills;
mod policies;
mod stage;

static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test of this program has its turn.
fn take_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this program is when it was started by one of the tests; else nothing.
#[test]
fn actor() {
    match std::env::var(stage::ROLE).as_deref() {
        Ok("machine") => stage::be_machine(3),
        Ok("load") => stage::be_machine(1),
        Ok("pinfold") => kills::be_pinfold(),
        Ok("restless") => endurance::be_restless(),
        Ok("storm") => endurance::be_storm(),
        Ok(_) | Err(_) => {}
    }
}

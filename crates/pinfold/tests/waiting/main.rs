//! Tests that mostly wait: for libvirt daemons and for guests that boot. `cargo xtask test` runs
//! them next to all others.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "the daemon's part")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../pinfold-vm/tests/daemon/mod.rs"]
mod daemon;

mod domain;
mod hook;
mod hook_page;
mod interleaved;
mod libvirt;
mod many_hooks;
mod migration;
mod numad;
mod pin_after;
mod study_guests;

//! Tests that run one at a time, each with `take_turn`: their vnodes get the same CPUs, their loads
//! would disturb each other, or they compare what is on the whole host before and after.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

#[path = "../common/mod.rs"]
mod common;

mod attach;
mod claims;
mod groups;
mod launchers;
mod leftovers;
mod readme;
mod signals;
mod start_lock;
mod vnode_masks;
mod vnodes;

//! Tests on virtual machines and processes of their own: placed, watched, measured, undone.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

#[path = "../common/mod.rs"]
mod common;

mod back_ends;
mod elsewhere;
mod end_waiter;
mod exits;
mod full_disk;
mod gaps;
mod guard;
mod interrupted;
mod live;
mod measure;
mod measure_guest;
mod metrics;
mod named;
mod outside;
mod run;
mod security;
mod top;
mod tune;
mod vcpu_numbers;
mod watch;

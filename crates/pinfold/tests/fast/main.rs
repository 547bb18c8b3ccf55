//! Tests that compute, read and print: none starts a virtual machine for long, and none measures
//! how fast something is.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;

mod advise;
mod check;
mod completions;
mod doctor;
mod hints;
mod hostile_input;
mod install;
mod journal;
mod json_formats;
mod numad_package;
mod outputs;
mod pages;
mod qemu_line;
mod quiet;
mod report;
mod requests;
mod study;
mod systemd;
mod terminal;
mod traps;
mod watchers;

//! Checks of existing placements, and what replaces them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic, and reports why it was skipped"
)]

mod advice;
mod by_definition;
mod emit_check;
#[path = "../../../pinfold-topology/tests/common/example.rs"]
mod example;
mod examples;
mod fix;
mod fix_domains;
mod fix_limits;
mod hints;
mod memory;
mod process_groups;
mod reserve;
mod sockets;

/// `full` if every host and every random case was asked for, which takes minutes
/// (`PINFOLD_TEST_SIZE=full`), else `usual`.
fn by_size<Size>(full: Size, usual: Size) -> Size {
    match std::env::var("PINFOLD_TEST_SIZE").as_deref() {
        Ok("full") => full,
        Ok(_) | Err(_) => usual,
    }
}

//! A QEMU of a test's own.

use pinfold_host::process::{Child, Spawn, Stdio};

/// Starts it without a terminal; it ends with the test.
pub fn start(command: Spawn) -> Child {
    command
        .stdin(Stdio::Null)
        .stderr(Stdio::Null)
        .own_group()
        .die_with_parent(true)
        .start()
        .expect("QEMU starts")
}

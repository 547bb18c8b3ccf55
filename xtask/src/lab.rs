//! `cargo xtask lab`: runs all cases in QEMU guests as hosts under test, and writes their table.

use std::path::Path;

use crate::packages::{ensure, Purpose};
use crate::run::run;

/// Instruction sets of hosts under test in addition to that of this machine.
const TARGETS: [&str; 2] = ["aarch64-unknown-linux-gnu", "riscv64gc-unknown-linux-gnu"];

/// Installs the packages, builds, and runs the lab; `words` select cases by their names.
pub fn lab(root: &Path, words: &[String]) -> Result<(), String> {
    ensure(&Purpose::Lab);
    // Without rustup or a network, the lab reports which hosts it skips.
    let mut add = vec!["target", "add"];
    add.extend(TARGETS);
    if let Err(error) = run(root, "rustup", &add) {
        println!("{}", error);
    }
    run(root, "cargo", &["build", "--release", "--quiet", "-p", "pinfold", "-p", "pinfold-lab"])?;
    let program = root.join("target/release/pinfold-lab");
    let mut arguments = vec!["target/release/pinfold", "target/lab", "docs"];
    arguments.extend(words.iter().map(String::as_str));
    run(root, &program.to_string_lossy(), &arguments)
}

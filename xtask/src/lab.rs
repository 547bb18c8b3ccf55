//! `cargo xtask lab`: all cases in QEMU guests as hosts under test, with their table.

use std::path::Path;

use crate::packages::{ensure, Purpose};
use crate::run::run;

/// Installs, builds, and runs the lab; `words` choose cases by their names.
pub fn lab(root: &Path, words: &[String]) -> Result<(), String> {
    ensure(&Purpose::Lab);
    run(root, "cargo", &["build", "--release", "--quiet", "-p", "pinfold", "-p", "pinfold-lab"])?;
    let program = root.join("target/release/pinfold-lab");
    let mut arguments = vec!["target/release/pinfold", "target/lab", "docs"];
    arguments.extend(words.iter().map(String::as_str));
    run(root, &program.to_string_lossy(), &arguments)
}

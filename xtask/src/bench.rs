//! `cargo xtask bench`: the benchmarks, each together with its competitor in the same run.

use std::path::Path;

use crate::packages::{ensure, Purpose};
use crate::run::run;

/// Installs the packages, builds with optimisation, and runs the given benchmarks.
pub fn bench(root: &Path, more: &[String]) -> Result<(), String> {
    ensure(&Purpose::Bench);
    run(root, "cargo", &["build", "--release", "--quiet", "-p", "pinfold", "-p", "pinfold-bench"])?;
    let binary = root.join("target/release/pinfold-bench");
    let arguments: Vec<&str> = more.iter().map(String::as_str).collect();
    run(root, &binary.to_string_lossy(), &arguments)
}

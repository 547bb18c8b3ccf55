//! `cargo xtask bench`: the benchmarks behind the figures in `docs/figures.md`.

use std::path::Path;

use crate::packages::{ensure, Purpose};
use crate::run::run;

/// Runs `pinfold-bench`, which prints each figure with its rival, ratio and spread.
pub fn bench(root: &Path, names: &[String]) -> Result<(), String> {
    ensure(&Purpose::Demo);
    let mut arguments = vec!["run", "--release", "--quiet", "-p", "pinfold", "--example", "bench", "--"];
    arguments.extend(names.iter().map(String::as_str));
    run(root, "cargo", &arguments)
}

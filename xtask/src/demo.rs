//! `cargo xtask demo`: runs `pinfold tune` on a real guest of this machine.

use std::path::Path;

use crate::packages::{ensure, Purpose};
use crate::run::run;

/// Installs, builds, and runs `pinfold tune` on the demo guest.
pub fn demo(root: &Path, more: &[String]) -> Result<(), String> {
    ensure(&Purpose::Demo);
    run(root, "cargo", &["build", "--release", "--quiet", "-p", "pinfold"])?;
    let binary = root.join("target/release/pinfold");
    let binary = binary.to_string_lossy();
    let mut arguments =
        vec!["tune", "--demo", "--budget", "330s", "--report", "target/demo/report.html"];
    arguments.extend(["--store", "target/demo/tune.sqlite"]);
    arguments.extend(more.iter().map(String::as_str));
    std::fs::create_dir_all(root.join("target/demo")).map_err(|e| format!("target/demo: {}", e))?;
    run(root, &binary, &arguments)
}

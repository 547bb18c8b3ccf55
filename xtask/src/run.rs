//! Runs a program: prints it, runs it, and reports a failure with its name.

use std::path::Path;
use std::process::Command;

/// Runs `program` in `root` with the terminal's own input and output.
pub fn run(root: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
    println!("$ {} {}", program, arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run {}: {}", program, error))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{} {}` failed ({})", program, arguments.join(" "), status))
    }
}

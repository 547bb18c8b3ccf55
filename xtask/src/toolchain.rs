//! Reports in one line what to install if cargo is too old.

use std::path::Path;
use std::process::Command;

/// Compares `cargo --version` with the version that `rust-toolchain.toml` pins.
pub fn check(root: &Path) -> Result<(), String> {
    let pinned = std::fs::read_to_string(root.join("rust-toolchain.toml"))
        .map_err(|e| format!("xtask: rust-toolchain.toml: {}", e))?;
    let pinned = pinned
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .map(|value| value.trim().trim_matches('"').to_string())
        .ok_or_else(|| "xtask: rust-toolchain.toml names no channel".to_string())?;
    let output = Command::new("cargo").arg("--version").current_dir(root).output();
    let text = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return Err(format!("xtask: cannot run cargo: {}", error)),
    };
    let found = text.split_whitespace().nth(1).unwrap_or("unknown").to_string();
    if number(&found) < number(&pinned) {
        return Err(format!(
            "xtask: this is cargo {}, Pinfold needs {} or newer: install rustup from https://rustup.rs, then run `rustup toolchain install {}`",
            found, pinned, pinned
        ));
    }
    Ok(())
}

/// `1.95.0` as numbers that compare.
fn number(version: &str) -> Vec<u32> {
    version.split(|c| c == '.' || c == '-').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn versions_compare_by_number() {
        assert!(number("1.9.0") < number("1.95.0"));
        assert!(number("1.100.0") > number("1.95.0"));
        assert!(number("1.97.0-nightly") > number("1.95.0"));
        assert!(number("unknown") < number("1.95.0"));
    }
}

//! `cargo xtask test`: every check that CI runs, with the counts at the end.
//!
//! A test that cannot run on this machine prints a line `skipped: REASON`; such lines
//! are counted apart and listed, so that a skipped test never passes for a green one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::packages::{ensure, Purpose};
use crate::run::run;
use crate::tidy;

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
}

/// Installs what is missing, then runs format, lints, docs, tidy and all tests.
pub fn test(root: &Path) -> Result<(), String> {
    ensure(&Purpose::Test);
    let mut counts = Counts::default();
    let mut broken = Vec::new();
    let checks: [(&str, Box<dyn Fn() -> Result<(), String>>); 5] = [
        ("format", Box::new(|| run(root, "cargo", &["fmt", "--all", "--check"]))),
        (
            "lints",
            Box::new(|| {
                let words = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
                run(root, "cargo", &words)
            }),
        ),
        ("docs", Box::new(|| docs(root))),
        ("tidy", Box::new(|| tidy::report(root))),
        (
            "xtask",
            Box::new(|| {
                let words = ["test", "--quiet", "--manifest-path", "xtask/Cargo.toml", "--target-dir", "target/xtask"];
                run(root, "cargo", &words)
            }),
        ),
    ];
    for (name, check) in checks.iter() {
        match check() {
            Ok(()) => counts.passed += 1,
            Err(why) => {
                counts.failed += 1;
                broken.push(format!("{}: {}", name, why));
            }
        }
    }
    cargo_test(root, &["test", "--workspace", "--no-fail-fast"], &mut counts)?;
    finish(&counts, &broken)
}

/// Rewrites golden files; a person reads the difference before it is committed.
pub fn golden(root: &Path) -> Result<(), String> {
    std::env::set_var("PINFOLD_BLESS", "1");
    run(root, "cargo", &["test", "--quiet", "-p", "pinfold-topology", "-p", "pinfold-plan"])
}

fn docs(root: &Path) -> Result<(), String> {
    std::env::set_var("RUSTDOCFLAGS", "-D warnings");
    run(root, "cargo", &["doc", "--workspace", "--no-deps", "--quiet"])
}

fn cargo_test(root: &Path, words: &[&str], counts: &mut Counts) -> Result<(), String> {
    println!("$ cargo {}", words.join(" "));
    let mut child = Command::new("cargo")
        .args(words)
        .args(["--", "--show-output"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run cargo: {}", error))?;
    let stdout = child.stdout.take().ok_or("cargo gave no output")?;
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|error| format!("reading cargo's output: {}", error))?;
        count_line(&line, counts);
        println!("{}", line);
    }
    let status = child.wait().map_err(|error| format!("waiting for cargo: {}", error))?;
    if !status.success() && counts.failed == 0 {
        counts.failed += 1; // it did not even build
    }
    Ok(())
}

/// `test result: ok. 12 passed; 0 failed; 0 ignored; …` and `skipped: REASON`.
fn count_line(line: &str, counts: &mut Counts) {
    if let Some(reason) = line.trim().strip_prefix("skipped: ") {
        counts.skipped.push(reason.to_string());
    }
    if let Some(rest) = line.strip_prefix("test result: ") {
        for part in rest.split(|c| c == '.' || c == ';') {
            let mut words = part.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<u64>().ok());
            match (number, words.next()) {
                (Some(n), Some("passed")) => counts.passed += n,
                (Some(n), Some("failed")) => counts.failed += n,
                _ => {}
            }
        }
    }
}

fn finish(counts: &Counts, broken: &[String]) -> Result<(), String> {
    println!();
    for reason in &counts.skipped {
        println!("skipped: {}", reason);
    }
    for why in broken {
        println!("failed: {}", why);
    }
    let skipped = counts.skipped.len() as u64;
    let passed = counts.passed.saturating_sub(skipped);
    println!("{} passed, {} failed, {} skipped", passed, counts.failed, skipped);
    if counts.failed == 0 {
        Ok(())
    } else {
        Err(format!("{} failed", counts.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::{count_line, Counts};

    #[test]
    fn counts_results_and_skips() {
        let mut counts = Counts::default();
        for line in [
            "test a ... ok",
            "skipped: no libvirt here",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            count_line(line, &mut counts);
        }
        assert_eq!((counts.passed, counts.failed, counts.skipped.len()), (15, 2, 1));
    }
}

//! `cargo xtask test`: every check that CI runs, with the counts at the end.
//!
//! A test that cannot run on this machine prints a line `skipped: REASON`; such lines
//! are counted apart and listed, so that a skipped test never passes for a green one.
//!
//! Tests are built once and run in two lanes: in the second are programs that mostly wait, for
//! daemons, guests and programs that sleep, in folders of their own. The first has all others,
//! one after the other, as `cargo test` does.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::dist;
use crate::packages::{ensure, Purpose};
use crate::run::run;
use crate::tidy;

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
    /// What the failed tests printed, as `cargo test` repeats it: it stands once more at the end,
    /// where a reader of a long log looks.
    failures: Vec<String>,
    is_in_failures: bool,
}

/// Installs what is missing, then runs format, lints, docs, tidy, packages and all tests; with
/// `--quick` no docs and only the unit tests, which need nothing that is not installed for the
/// build.
pub fn test(root: &Path, words: &[String]) -> Result<(), String> {
    let is_quick = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--quick"] => true,
        _ => return Err(format!("test takes --quick and nothing else, not {:?}", words.join(" "))),
    };
    if !is_quick {
        ensure(&Purpose::Test);
    }
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
        ("tidy", Box::new(|| tidy::report(root, &[]))),
        (
            "xtask",
            Box::new(|| {
                let words = ["test", "--quiet", "--manifest-path", "xtask/Cargo.toml", "--target-dir", "target/xtask"];
                run(root, "cargo", &words)
            }),
        ),
    ];
    for (name, check) in checks.iter().filter(|(name, _)| !(is_quick && *name == "docs")) {
        match check() {
            Ok(()) => counts.passed += 1,
            Err(why) => {
                counts.failed += 1;
                broken.push(format!("{}: {}", name, why));
            }
        }
    }
    if !is_quick {
        match dist::quick(root) {
            Ok(skipped) => {
                counts.passed += 1 + skipped.len() as u64;
                counts.skipped.extend(skipped);
            }
            Err(why) => {
                counts.failed += 1;
                broken.push(format!("packages: {}", why));
            }
        }
    }
    if is_quick { unit_tests(root, &mut counts)? } else { cargo_tests(root, &mut counts)? }
    finish(&counts, &broken)
}

/// Rewrites golden files; review the differences before you commit them.
pub fn golden(root: &Path) -> Result<(), String> {
    std::env::set_var("PINFOLD_BLESS", "1");
    let crates = ["topology", "plan", "emit", "lint"].map(|name| format!("--package=pinfold-{}", name));
    let mut words = vec!["test", "--quiet"];
    words.extend(crates.iter().map(String::as_str));
    run(root, "cargo", &words)
}

fn docs(root: &Path) -> Result<(), String> {
    std::env::set_var("RUSTDOCFLAGS", "-D warnings");
    run(root, "cargo", &["doc", "--workspace", "--no-deps", "--quiet"])
}

/// Test programs of the second lane, by name: each starts its own daemons or machines, and makes no
/// assumptions about the rest of the machine.
const WAITING: [&str; 3] = ["slurm", "vm", "waiting"];

/// Builds all tests and runs them in two lanes, then the documentation tests.
fn cargo_tests(root: &Path, counts: &mut Counts) -> Result<(), String> {
    // Build errors are reported by the lanes.
    if run(root, "cargo", &["test", "--workspace", "--no-run", "--quiet"]).is_err() {
        counts.failed += 1;
        return Ok(());
    }
    let names = test_files(root)?;
    let of_lane = |is_waiting: bool| {
        let names = names.iter().filter(|name| WAITING.contains(&name.as_str()) == is_waiting);
        names.flat_map(|name| vec!["--test".to_string(), name.clone()]).collect::<Vec<_>>()
    };
    let (first, second) = (of_lane(false), of_lane(true));
    let path = root.to_path_buf();
    let waiting = thread::spawn(move || {
        let mut lines = Vec::new();
        cargo_test(&path, &second, &mut |line| lines.push(line)).map(|good| (good, lines))
    });
    let mut words = of_units(root)?;
    words.extend(first);
    let mut good = cargo_test(root, &words, &mut |line| received(&line, counts))?;
    let (also_good, lines) = waiting.join().map_err(|_| "a lane panicked".to_string())??;
    lines.iter().for_each(|line| received(line, counts));
    let doc = ["--doc".to_string()];
    good &= also_good & cargo_test(root, &doc, &mut |line| received(&line, counts))?;
    if !good && counts.failed == 0 {
        counts.failed += 1; // a program that ended without a result
    }
    Ok(())
}

/// The unit tests of all packages.
fn unit_tests(root: &Path, counts: &mut Counts) -> Result<(), String> {
    let good = cargo_test(root, &of_units(root)?, &mut |line| received(&line, counts))?;
    if !good && counts.failed == 0 {
        counts.failed += 1; // a program that ended without a result
    }
    Ok(())
}

/// What chooses the unit tests. Not `--bins`: that takes those too that have no tests.
fn of_units(root: &Path) -> Result<Vec<String>, String> {
    let binaries = binaries(root)?.into_iter().flat_map(|name| vec!["--bin".to_string(), name]);
    Ok(std::iter::once("--lib".to_string()).chain(binaries).collect())
}

/// The folders of all packages, with their names.
fn packages(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let crates = list(&root.join("crates"))?;
    let crates = crates.into_iter().filter_map(|path| Some((path.clone(), name_of(&path)?)));
    let others = ["bench", "fuzz", "lab"].iter();
    let others = others.map(|name| (root.join(name), format!("pinfold-{}", name)));
    Ok(crates.chain(others).collect())
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.map_err(|error| format!("{}: {}", folder.display(), error))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// The binaries of all packages that have unit tests: those with a `src/main.rs`.
fn binaries(root: &Path) -> Result<Vec<String>, String> {
    let all = packages(root)?.into_iter();
    let with_main = all.filter(|(folder, _)| folder.join("src/main.rs").is_file());
    Ok(with_main.map(|(_, name)| name).collect())
}

/// The names of the test programs of all packages: `tests/NAME.rs` and `tests/NAME/main.rs` of each.
fn test_files(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    let folders = packages(root)?.into_iter().map(|(folder, _)| folder.join("tests"));
    for folder in folders.filter(|path| path.is_dir()) {
        let files = list(&folder)?.into_iter();
        let files = files.filter(|path| {
            path.extension().map_or(false, |end| end == "rs") || path.join("main.rs").is_file()
        });
        names.extend(files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_string())));
    }
    Ok(names)
}

fn received(line: &str, counts: &mut Counts) {
    count_line(line, counts);
    println!("{}", line);
}

/// Runs some tests of the workspace; false if one failed.
fn cargo_test(root: &Path, words: &[String], hear: &mut dyn FnMut(String)) -> Result<bool, String> {
    let all = ["test", "--workspace", "--no-fail-fast"];
    hear(format!("$ cargo {} {}", all.join(" "), words.join(" ")));
    let mut child = Command::new("cargo")
        .args(&all)
        .args(words)
        .args(&["--", "--show-output"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run cargo: {}", error))?;
    let stdout = child.stdout.take().ok_or("cargo gave no output")?;
    for line in BufReader::new(stdout).lines() {
        hear(line.map_err(|error| format!("reading cargo's output: {}", error))?);
    }
    let status = child.wait().map_err(|error| format!("waiting for cargo: {}", error))?;
    Ok(status.success())
}

/// `test result: ok. 12 passed; 0 failed; 0 ignored; …` and `skipped: REASON`.
fn count_line(line: &str, counts: &mut Counts) {
    if let Some(reason) = line.trim().strip_prefix("skipped: ") {
        counts.skipped.push(reason.to_string());
    }
    counts.is_in_failures |= line == "failures:";
    if let Some(rest) = line.strip_prefix("test result: ") {
        counts.is_in_failures = false;
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
    if counts.is_in_failures {
        counts.failures.push(line.to_string());
    }
}

fn finish(counts: &Counts, broken: &[String]) -> Result<(), String> {
    println!();
    for reason in &counts.skipped {
        println!("skipped: {}", reason);
    }
    for line in &counts.failures {
        println!("{}", line);
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
    use std::path::Path;

    use super::{binaries, count_line, test_files, Counts, WAITING};

    #[test]
    fn each_test_of_the_second_lane_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = test_files(root).unwrap();
        assert!(names.contains("alone") && names.contains("corpus"), "{:?}", names);
        for name in &WAITING {
            assert!(names.contains(*name), "there is no test {}", name);
        }
        let mut binaries = binaries(root).unwrap();
        binaries.sort();
        assert_eq!(binaries, ["pinfold", "pinfold-bench", "pinfold-lab"]);
    }

    #[test]
    fn counts_results_and_skips() {
        let mut counts = Counts::default();
        for line in [
            "test a ... ok",
            "skipped: no libvirt here",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "failures:",
            "---- b stdout ----",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test c ... ok",
        ] {
            count_line(line, &mut counts);
        }
        assert_eq!((counts.passed, counts.failed, counts.skipped.len()), (15, 2, 1));
        assert_eq!(counts.failures, ["failures:", "---- b stdout ----"]);
    }
}

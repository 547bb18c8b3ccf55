//! `cargo xtask test`: every check that CI runs, with the counts at the end.
//!
//! A test that cannot run on this machine prints a line `skipped: REASON`; such lines
//! are counted apart and listed, so that a skipped test never passes for a green one.
//!
//! Tests that fail, if they are few, run once more with nothing beside them. Those that pass then are
//! listed as unstable: a busy machine is no fault, but it is not hidden either.
//!
//! Tests are built once and run in three lanes, each one program after the other, as `cargo test`
//! does: the lab's guests, programs that mostly wait (for daemons, guests and programs that sleep,
//! in folders of their own), and all others. The first two run beside the checks that compile, so
//! that no CPU waits.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::dist;
use crate::packages::{ensure, Purpose};
use crate::run::run;
use crate::tidy;

mod counts;

use counts::Counts;

/// Installs what is missing, then runs format, lints, docs, tidy, packages and all tests; with
/// `--quick` no docs and only the unit tests, which need nothing that is not installed for the
/// build.
pub fn test(root: &Path, words: &[String]) -> Result<(), String> {
    let is_quick = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--quick"] => true,
        _ => return Err(format!("test takes --quick and nothing else, not {:?}", words.join(" "))),
    };
    let began = Instant::now();
    if !is_quick {
        ensure(&Purpose::Build);
    }
    if !root.join("target/debug/incremental").exists() {
        // A clone in which nothing was changed and compiled: what the compiler would keep for the
        // next change takes a part of its time.
        std::env::set_var("CARGO_INCREMENTAL", "0");
    }
    let mut counts = Counts::default();
    let mut broken = Vec::new();
    let format = ["fmt", "--all", "--check"];
    note("format", run(root, "cargo", &format), &mut counts, &mut broken);
    note("tidy", tidy::report(root, &[]), &mut counts, &mut broken);
    if is_quick {
        checks(root, &mut counts, &mut broken);
        unit_tests(root, &mut counts)?
    } else {
        all_tests(root, &mut counts, &mut broken)?
    }
    println!("It took {} s", began.elapsed().as_secs());
    counts.finish(&broken)
}

/// The checks that compile something, in addition to the tests.
fn checks(root: &Path, counts: &mut Counts, broken: &mut Vec<String>) {
    let lints = ["check", "--workspace", "--all-targets", "--quiet"];
    note("lints", with_clippy(root, &lints), counts, broken);
    let folder = ["--manifest-path", "xtask/Cargo.toml", "--target-dir", "target/xtask"];
    let words = [&["test", "--quiet"], &folder[..]].concat();
    note("xtask", run(root, "cargo", &words), counts, broken);
}

/// The documentation of all packages.
fn docs(root: &Path) -> Result<(), String> {
    with_clippy(root, &["doc", "--workspace", "--no-deps", "--quiet"])
}

/// Runs cargo with Clippy as the compiler of the workspace, as `cargo clippy -- -D warnings` does.
/// Lints and documentation read each crate once for both.
fn with_clippy(root: &Path, words: &[&str]) -> Result<(), String> {
    println!("$ cargo {} (with clippy-driver)", words.join(" "));
    let status = Command::new("cargo")
        .args(words)
        .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
        .env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__")
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run cargo: {}", error))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`cargo {}` with clippy-driver failed ({})", words.join(" "), status))
    }
}

/// Counts a check.
fn note(name: &str, result: Result<(), String>, counts: &mut Counts, broken: &mut Vec<String>) {
    match result {
        Ok(()) => counts.passed += 1,
        Err(why) => {
            counts.failed += 1;
            broken.push(format!("{}: {}", name, why));
        }
    }
}

/// Rewrites golden files; review the differences before you commit them.
pub fn golden(root: &Path) -> Result<(), String> {
    std::env::set_var("PINFOLD_BLESS", "1");
    let crates = ["topology", "plan", "emit", "lint", "top"]
        .map(|name| format!("--package=pinfold-{}", name));
    let mut words = vec!["test", "--quiet"];
    words.extend(crates.iter().map(String::as_str));
    run(root, "cargo", &words)
}

/// Test programs of the lanes beside the first, by name: each starts its own daemons or machines,
/// and makes no assumptions about the rest of the machine.
const LANES: [&[&str]; 2] = [&["lab"], &["slurm", "vm", "waiting"]];

/// Builds all tests and runs them in three lanes; beside the two that wait first the checks that
/// compile and the documentation tests.
fn all_tests(root: &Path, counts: &mut Counts, broken: &mut Vec<String>) -> Result<(), String> {
    // What the tests need is installed while they are compiled.
    let packages = thread::spawn(|| ensure(&Purpose::Test));
    let build = run(root, "cargo", &["test", "--workspace", "--no-run", "--quiet"]);
    packages.join().map_err(|_| "the installation of packages panicked".to_string())?;
    if let Err(why) = build {
        counts.failed += 1;
        broken.push(why);
        return Ok(());
    }
    let mut first = test_files(root)?;
    first.retain(|name| !LANES.concat().contains(&name.as_str()));
    let lanes = LANES.map(|names| start_lane(root, options(names)));
    checks(root, counts, broken);
    note("docs", docs(root), counts, broken);
    let skipped = dist::quick(root);
    let skipped = skipped.map(|skipped| {
        counts.passed += skipped.len() as u64;
        counts.skipped.extend(skipped);
    });
    note("packages", skipped, counts, broken);
    let mut words = of_units(root)?;
    words.extend(options(&first));
    let mut good = true;
    for words in [vec!["--doc".to_string()], words] {
        good &= cargo_test(root, &words, &[], &mut |line| received(&line, counts))?;
    }
    for lane in lanes {
        let (is_good, lines) = lane.join().map_err(|_| "a lane panicked".to_string())??;
        lines.iter().for_each(|line| received(line, counts));
        good &= is_good;
    }
    counts.end_of_programs(good);
    run_again(root, counts)
}

/// What chooses test programs by name.
fn options(names: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    names.into_iter().flat_map(|name| vec!["--test".to_string(), name.to_string()]).collect()
}

/// Whether all tests of a lane passed, and what it printed.
type Lane = JoinHandle<Result<(bool, Vec<String>), String>>;

/// Runs programs beside others; what they print is kept until the end.
fn start_lane(root: &Path, words: Vec<String>) -> Lane {
    let root = root.to_path_buf();
    thread::spawn(move || {
        let mut lines = Vec::new();
        cargo_test(&root, &words, &[], &mut |line| lines.push(line)).map(|good| (good, lines))
    })
}

/// The unit tests of all packages.
fn unit_tests(root: &Path, counts: &mut Counts) -> Result<(), String> {
    let good = cargo_test(root, &of_units(root)?, &[], &mut |line| received(&line, counts))?;
    counts.end_of_programs(good);
    Ok(())
}

/// What chooses the unit tests. Not `--bins`: that takes those too that have no tests.
fn of_units(root: &Path) -> Result<Vec<String>, String> {
    let binaries = binaries(root)?.into_iter().flat_map(|name| vec!["--bin".to_string(), name]);
    Ok(std::iter::once("--lib".to_string()).chain(binaries).collect())
}

/// The folders of all packages, with their names.
fn packages(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let crates = list(&root.join("crates"))?;
    let crates = crates.into_iter().filter_map(|path| {
        Some((path.clone(), path.file_name().map(|name| name.to_string_lossy().into_owned())?))
    });
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
    counts.count_line(line);
    println!("{}", line);
}

/// Failures that are few enough to come from a busy machine.
const AGAIN: usize = 10;

/// Runs the tests that failed once more, one after the other: a test that passes then is reported
/// as unstable and does not fail the run. Many failures are a fault, and are not tried again.
fn run_again(root: &Path, counts: &mut Counts) -> Result<(), String> {
    if counts.failed_names.is_empty() || counts.failed_names.len() > AGAIN {
        return Ok(());
    }
    let mut words = of_units(root)?;
    words.push("--tests".to_string());
    let mut filter = vec!["--exact".to_string(), "--test-threads=1".to_string()];
    filter.extend(counts.failed_names.iter().cloned());
    let mut second = Counts::default();
    let good = cargo_test(root, &words, &filter, &mut |line| received(&line, &mut second))?;
    second.end_of_programs(good);
    counts.take_second_run(&second);
    Ok(())
}

/// Runs some tests of the workspace, of each program those of the filter; false if one failed.
fn cargo_test(
    root: &Path,
    words: &[String],
    filter: &[String],
    hear: &mut dyn FnMut(String),
) -> Result<bool, String> {
    let all = ["test", "--workspace", "--no-fail-fast"];
    hear(format!("$ cargo {} {}", all.join(" "), words.join(" ")));
    let mut child = Command::new("cargo")
        .args(&all)
        .args(words)
        .args(&["--", "--show-output"])
        .args(filter)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{binaries, test_files, LANES};

    #[test]
    fn each_test_of_a_lane_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = test_files(root).unwrap();
        assert!(names.contains("alone") && names.contains("corpus"), "{:?}", names);
        for name in LANES.concat() {
            assert!(names.contains(name), "there is no test {}", name);
        }
        let mut binaries = binaries(root).unwrap();
        binaries.sort();
        assert_eq!(binaries, ["pinfold", "pinfold-bench", "pinfold-lab"]);
    }
}

//! `cargo xtask fuzz`: every parser under coverage-guided fuzzing (libFuzzer), on stable Rust.
//!
//! `RUSTFLAGS` makes the compiler instrument the edges; the engine is a crate that nothing else
//! builds. The work is kept in `target/fuzz/`, so that a second run continues the first. The
//! permanent corpus is one file per target in `fixtures/fuzz/`, and a test runs it.

use std::path::Path;
use std::process::Command;

use crate::packages::{ensure, Purpose};
use crate::run::run;

/// Flags to instrument edges and comparisons; `fuzzing` is the cfg of cargo-fuzz.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares";
/// Longest input, in bytes.
const LONGEST: &str = "-max_len=4096";

struct FuzzRequest {
    minutes: f64,
    keep: bool,
    targets: Vec<String>,
}

/// Runs the given targets, or all, each for its time.
pub fn fuzz(root: &Path, words: &[String]) -> Result<(), String> {
    let fuzz_options = read(words)?;
    ensure(&Purpose::Fuzz);
    run(root, "cargo", &["build", "--quiet", "-p", "pinfold-fuzz", "--bin", "pinfold-corpus"])?;
    let known = targets(root)?;
    if let Some(stranger) = fuzz_options.targets.iter().find(|name| !known.contains(name)) {
        return Err(format!("there is no target {:?}; there are {}", stranger, known.join(", ")));
    }
    let chosen = if fuzz_options.targets.is_empty() { known } else { fuzz_options.targets.clone() };
    build(root)?;
    let mut crashed = Vec::new();
    for name in &chosen {
        if let Err(why) = one(root, name, &fuzz_options) {
            println!("{}", why);
            crashed.push(name.clone());
        }
    }
    println!(
        "{} targets fuzzed for {} minutes each, {} crashed",
        chosen.len(),
        fuzz_options.minutes,
        crashed.len()
    );
    if crashed.is_empty() {
        Ok(())
    } else {
        Err(format!("crashed: {}", crashed.join(", ")))
    }
}

fn read(words: &[String]) -> Result<FuzzRequest, String> {
    let mut fuzz_options = FuzzRequest { minutes: 10.0, keep: false, targets: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--keep" => fuzz_options.keep = true,
            "--minutes" => {
                let value = words.next().ok_or("--minutes needs a number")?;
                let minutes =
                    value.parse::<f64>().ok().filter(|minutes| *minutes > 0.0 && *minutes < 1e6);
                fuzz_options.minutes =
                    minutes.ok_or(format!("--minutes: {:?} is no number of minutes", value))?;
            }
            option if option.starts_with('-') => {
                return Err(format!(
                    "there is no option {:?}: [TARGET…] [--minutes N] [--keep]",
                    option
                ))
            }
            target => fuzz_options.targets.push(target.to_string()),
        }
    }
    Ok(fuzz_options)
}

fn targets(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new(root.join("target/debug/pinfold-corpus"))
        .arg("targets")
        .output()
        .map_err(|error| format!("cannot run pinfold-corpus: {}", error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.split('\t').next()).map(str::to_string).collect())
}

/// With a target triple, the flags do not apply to build scripts.
fn build(root: &Path) -> Result<(), String> {
    std::env::set_var("RUSTFLAGS", FLAGS);
    let triple = host()?;
    let words =
        ["build", "--quiet", "--profile", "fuzz", "-p", "pinfold-fuzz", "--features", "engine"];
    let more = ["--bin", "pinfold-fuzz", "--target", &triple, "--target-dir", "target/fuzz"];
    let built = run(root, "cargo", &[&words[..], &more[..]].concat());
    std::env::remove_var("RUSTFLAGS");
    built
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("cannot run rustc: {}", error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_string).ok_or("rustc does not report its host".to_string())
}

fn one(root: &Path, name: &str, fuzz_options: &FuzzRequest) -> Result<(), String> {
    let kept = format!("fixtures/fuzz/{}.corpus", name);
    let work = format!("target/fuzz/corpus/{}", name);
    let crashes = format!("target/fuzz/crashes/{}", name);
    corpus(root, &["unpack", &kept, &work])?;
    std::fs::create_dir_all(root.join(&crashes))
        .map_err(|error| format!("{}: {}", crashes, error))?;
    let time = format!("-max_total_time={}", (fuzz_options.minutes * 60.0).ceil() as u64);
    let prefix = format!("-artifact_prefix={}/", crashes);
    let limits = ["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"];
    let mut words: Vec<&str> = vec![&work, LONGEST, &time, &prefix];
    words.extend(limits);
    println!("fuzz {}", name);
    if let Err(why) = engine(root, name, &words) {
        for entry in std::fs::read_dir(root.join(&crashes)).into_iter().flatten().flatten() {
            corpus(root, &["show", &entry.path().to_string_lossy()])?;
        }
        return Err(format!("{}; mend it and add the line above to {}", why, kept));
    }
    if fuzz_options.keep {
        keep(root, name, &work, &kept)
    } else {
        Ok(())
    }
}

/// A small set of inputs that covers every edge of the whole set, as far as it fits into one file.
fn keep(root: &Path, name: &str, work: &str, kept: &str) -> Result<(), String> {
    let small = format!("target/fuzz/small/{}", name);
    let folder = root.join(&small);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {}", small, error))?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {}", small, error))?;
    let words = [
        "-set_cover_merge=1",
        "-use_counters=0",
        "-use_cmp=0",
        "-verbosity=0",
        LONGEST,
        &small,
        work,
    ];
    engine(root, name, &words)?;
    corpus(root, &["pack", &small, kept])
}

fn engine(root: &Path, name: &str, words: &[&str]) -> Result<(), String> {
    let program = format!("target/fuzz/{}/fuzz/pinfold-fuzz", host()?);
    let status = Command::new(root.join(&program))
        .args(words)
        .env("PINFOLD_FUZZ_TARGET", name)
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run {}: {}", program, error))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} ended with {}", name, status))
    }
}

fn corpus(root: &Path, words: &[&str]) -> Result<(), String> {
    let status = Command::new(root.join("target/debug/pinfold-corpus"))
        .args(words)
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run pinfold-corpus: {}", error))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("pinfold-corpus {} failed", words.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn words_are_read() {
        fn words(text: &str) -> Vec<String> {
            text.split(' ').map(str::to_string).collect::<Vec<_>>()
        }
        let fuzz_options = read(&words("qmp --minutes 0.5 journal --keep")).unwrap();
        assert_eq!(
            (fuzz_options.minutes, fuzz_options.keep, fuzz_options.targets.len()),
            (0.5, true, 2)
        );
        for wrong in ["--minutes", "--minutes x", "--minutes -1", "--other"] {
            assert!(read(&words(wrong)).is_err(), "{}", wrong);
        }
    }
}

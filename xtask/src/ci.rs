//! `cargo xtask ci-local`: the jobs of `.github/workflows/ci.yml`, on this machine.
//!
//! The workflow calls the same jobs by name, so that the two cannot differ. A job that lacks a
//! compiler target installs it with rustup.

use std::path::Path;
use std::process::Command;

use crate::run::run;

/// A job: its name in the workflow, the compiler target that it needs, its commands.
struct Job {
    name: &'static str,
    target: Option<&'static str>,
    commands: &'static [&'static str],
}

const JOBS: &[Job] = &[
    Job { name: "test", target: None, commands: &["cargo xtask test"] },
    Job {
        name: "msrv",
        target: None,
        commands: &["cargo check --workspace --all-targets --locked --quiet"],
    },
    Job {
        name: "stable",
        target: None,
        commands: &["cargo +stable check --workspace --all-targets --locked --quiet"],
    },
    Job {
        name: "aarch64",
        target: Some("aarch64-unknown-linux-gnu"),
        commands: &[
            "cargo check --workspace --locked --quiet --target aarch64-unknown-linux-gnu",
        ],
    },
    Job { name: "musl", target: Some(crate::musl::TARGET), commands: &["cargo xtask musl"] },
    Job { name: "dist", target: Some(crate::musl::TARGET), commands: &["cargo xtask dist --check"] },
    Job { name: "docs", target: None, commands: &["cargo doc --workspace --no-deps --locked --quiet"] },
    Job { name: "fuzz", target: None, commands: &["cargo xtask fuzz --minutes 0.1"] },
];

/// Runs the named jobs, or all but the whole test suite, which `cargo xtask test` runs.
pub fn ci(root: &Path, names: &[String]) -> Result<(), String> {
    let known = || JOBS.iter().map(|job| job.name).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = names.iter().find(|name| JOBS.iter().all(|job| job.name != **name)) {
        return Err(format!("there is no job {:?}; there are {}", unknown, known()));
    }
    let chosen = JOBS.iter().filter(|job| {
        if names.is_empty() {
            return job.name != "test";
        }
        names.iter().any(|name| name == job.name)
    });
    let mut failed = Vec::new();
    for job in chosen {
        println!("job {}", job.name);
        if let Err(why) = one(root, job) {
            println!("{}", why);
            failed.push(job.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn one(root: &Path, job: &Job) -> Result<(), String> {
    if let Some(target) = job.target {
        if !has_target(root, target) {
            run(root, "rustup", &["target", "add", target])?;
        }
        // A check links nothing: the description of this machine's hwloc is enough.
        std::env::set_var("PKG_CONFIG_ALLOW_CROSS", "1");
    }
    for command in job.commands {
        let words: Vec<&str> = command.split(' ').collect();
        run(root, words[0], &words[1..])?;
    }
    Ok(())
}

fn has_target(root: &Path, target: &str) -> bool {
    let output = Command::new("rustup").args(&["target", "list", "--installed"]).current_dir(root).output();
    output.map_or(false, |output| String::from_utf8_lossy(&output.stdout).lines().any(|line| line == target))
}

#[cfg(test)]
mod tests {
    use super::JOBS;

    #[test]
    fn the_workflow_runs_every_job() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../.github/workflows/ci.yml");
        let workflow = std::fs::read_to_string(path).unwrap();
        for job in JOBS {
            assert!(workflow.contains(&format!("- {}\n", job.name)), "{} is not in {}", job.name, path);
        }
        assert!(workflow.contains("cargo xtask ci-local ${{ matrix.job }}"));
    }
}

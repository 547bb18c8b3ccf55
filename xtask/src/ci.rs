//! `cargo xtask ci-local`: the jobs of `.github/workflows/ci.yml`, on this machine.
//!
//! The workflow calls the same jobs by name, so that the two cannot differ. A job that lacks a
//! compiler target installs it with rustup, a cargo command with `cargo install --locked`.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::run::run;

/// In a command: the tag of the last release before this commit. Without one the job is skipped.
const LAST_RELEASE: &str = "LAST_RELEASE";

/// What a job needs in addition to the compiler.
enum Need {
    Nothing,
    /// A compiler target.
    Target(&'static str),
    /// A program of crates.io.
    Tool(&'static str),
}

/// A job: its name in the workflow, what it needs, its commands.
struct Job {
    name: &'static str,
    need: Need,
    commands: &'static [&'static str],
}

const JOBS: &[Job] = &[
    Job { name: "test", need: Need::Nothing, commands: &["cargo xtask test"] },
    Job {
        name: "msrv",
        need: Need::Nothing,
        commands: &["cargo check --workspace --all-targets --locked --quiet"],
    },
    Job {
        name: "stable",
        need: Need::Nothing,
        commands: &["cargo +stable check --workspace --all-targets --locked --quiet"],
    },
    Job {
        name: "aarch64",
        need: Need::Target("aarch64-unknown-linux-gnu"),
        commands: &["cargo check --workspace --locked --quiet --target aarch64-unknown-linux-gnu"],
    },
    Job { name: "musl", need: Need::Target(crate::musl::TARGET), commands: &["cargo xtask musl"] },
    Job {
        name: "dist",
        need: Need::Target(crate::musl::TARGET),
        commands: &["cargo xtask dist --check"],
    },
    Job {
        name: "docs",
        need: Need::Nothing,
        commands: &["cargo doc --workspace --no-deps --locked --quiet"],
    },
    Job { name: "fuzz", need: Need::Nothing, commands: &["cargo xtask fuzz --minutes 0.1"] },
    Job {
        name: "parquet",
        need: Need::Nothing,
        commands: &["cargo test --package pinfold-report --features parquet --locked --quiet"],
    },
    Job {
        name: "deny",
        need: Need::Tool("cargo-deny"),
        commands: &["cargo deny check licenses bans sources"],
    },
    // The libraries for other programs: docs/json.md.
    Job {
        name: "semver",
        need: Need::Tool("cargo-semver-checks"),
        commands: &["cargo semver-checks --baseline-rev LAST_RELEASE --package pinfold-model \
             --package pinfold-topology --package pinfold-plan --package pinfold-qemu \
             --package pinfold-emit --package pinfold-lint"],
    },
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
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

fn one(root: &Path, job: &Job) -> Result<(), String> {
    let mut release = None;
    if job.commands.iter().any(|command| command.contains(LAST_RELEASE)) {
        release = last_release(root)?;
        if release.is_none() {
            println!("skipped: there is no earlier release to compare with");
            return Ok(());
        }
    }
    match job.need {
        Need::Nothing => {}
        Need::Tool(tool) => dist::require_tool(root, tool)?,
        Need::Target(target) => {
            if !has_target(root, target) {
                run(root, "rustup", &["target", "add", target])?;
            }
            // A check links nothing: the description of this machine's hwloc is enough.
            std::env::set_var("PKG_CONFIG_ALLOW_CROSS", "1");
        }
    }
    for command in job.commands {
        let words = command.split_whitespace();
        let words: Vec<&str> = words
            .map(|word| release.as_deref().filter(|_| word == LAST_RELEASE).unwrap_or(word))
            .collect();
        run(root, words[0], &words[1..])?;
    }
    Ok(())
}

/// The newest tag `v*` before this commit; `None` before the first release.
fn last_release(root: &Path) -> Result<Option<String>, String> {
    let words = [
        "tag",
        "--list",
        "v*",
        "--merged",
        "HEAD",
        "--no-contains",
        "HEAD",
        "--sort",
        "-v:refname",
    ];
    let output = Command::new("git").args(&words).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot run git: {}", error))?;
    if !output.status.success() {
        return Err(format!("git tag: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_string))
}

fn has_target(root: &Path, target: &str) -> bool {
    let output =
        Command::new("rustup").args(&["target", "list", "--installed"]).current_dir(root).output();
    output.map_or(false, |output| {
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line == target)
    })
}

#[cfg(test)]
mod tests {
    use super::JOBS;

    #[test]
    fn the_workflow_runs_every_job() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../.github/workflows/ci.yml");
        let workflow = std::fs::read_to_string(path).unwrap();
        for job in JOBS {
            assert!(
                workflow.contains(&format!("- {}\n", job.name)),
                "{} is not in {}",
                job.name,
                path
            );
        }
        assert!(workflow.contains("cargo xtask ci-local ${{ matrix.job }}"));
    }
}

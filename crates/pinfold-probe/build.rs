//! Compiles `pinload` statically with the system's C compiler, for embedding.
//!
//! The compiler is `CC_<target>`, else `CC`, else `cc` (or, when building for another
//! architecture, Debian's name of its cross compiler). The program is static because the
//! same file is the init of measurement guests that hold nothing else. The sources are embedded
//! too: guests of other instruction sets get a `pinload` that is compiled when it is wanted.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script runs before the door to the host exists"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const FLAGS: [&str; 9] = [
    "-std=c11",
    "-O2",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffp-contract=off", // the parallel programs' checksums are the same on each architecture
    "-static",
    "-pthread",
];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            for line in why.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let sources = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../pinload/src");
    let output = Path::new(&variable("OUT_DIR")?).join("pinload");
    let (compiler, leading) = compiler()?;
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rustc-env=PINLOAD_FLAGS={}", FLAGS.join(" "));
    embed(&sources)?;
    let mut command = Command::new(&compiler);
    command.args(leading).args(FLAGS).arg("-o").arg(&output);
    command.args(c_files(&sources)?).arg("-lm");
    let answer = command.output().map_err(|error| {
        format!(
            "no C compiler: cannot run {compiler}: {error}\n\
             pinload is written in C; install a compiler (Debian: apt-get install gcc libc6-dev) or name one in CC"
        )
    })?;
    if answer.status.success() {
        return Ok(());
    }
    Err(format!(
        "{compiler} cannot build pinload (static linking needs the C library's archives; \
         Fedora: dnf install glibc-static, or set CC=musl-gcc)\n{}",
        String::from_utf8_lossy(&answer.stderr)
    ))
}

/// Writes the list of all sources as Rust, and a number that is another one when they are.
fn embed(sources: &Path) -> Result<(), String> {
    let mut rust = String::new();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    for path in files(sources, &["c", "h"])? {
        let name = path.strip_prefix(sources).unwrap_or(&path).display().to_string();
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for byte in name.bytes().chain(bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        rust.push_str(&format!("({name:?}, include_bytes!({:?})),\n", path.display()));
    }
    println!("cargo::rustc-env=PINLOAD_SOURCES={hash:016x}");
    let list = Path::new(&variable("OUT_DIR")?).join("sources.rs");
    std::fs::write(&list, format!("[{rust}]"))
        .map_err(|error| format!("{}: {error}", list.display()))
}

/// The compiler and the arguments that its variable holds before ours, as in `CC="ccache gcc"`.
fn compiler() -> Result<(String, Vec<String>), String> {
    let target = variable("TARGET")?;
    let of_target = format!("CC_{}", target.replace('-', "_"));
    for name in [of_target.as_str(), "CC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let text = env::var(&of_target)
        .or_else(|_| env::var("CC"))
        .ok()
        .filter(|text| !text.trim().is_empty())
        .unwrap_or_else(|| default_compiler(&target));
    let mut words = text.split_whitespace().map(str::to_owned);
    let program = words.next().ok_or("CC is empty")?;
    Ok((program, words.collect()))
}

fn default_compiler(target: &str) -> String {
    if env::var("HOST").as_deref() == Ok(target) {
        return "cc".to_owned();
    }
    let architecture = target.split('-').next().unwrap_or(target).replace("riscv64gc", "riscv64");
    format!("{architecture}-linux-gnu-gcc")
}

/// The sources in a folder and in those in it.
fn c_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    files(directory, &["c"])
}

/// The files with one of these endings.
fn files(directory: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, String> {
    let fail = |error| format!("cannot list {}: {error}", directory.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            found.extend(files(&path, endings)?);
        } else if path.extension().is_some_and(|own| endings.iter().any(|ending| own == *ending)) {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(format!("{} holds no C files", directory.display()));
    }
    Ok(found)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}

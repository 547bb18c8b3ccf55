//! The static binary: Pinfold and hwloc without a C library of the host.
//!
//! Debian's libhwloc is built against glibc, so hwloc's source is fetched, checked and built with
//! musl's compiler first. The binary runs on any x86-64 Linux.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::{self, Purpose};
use crate::run::run;

pub const TARGET: &str = "x86_64-unknown-linux-musl";

const SOURCE: &str = "https://deb.debian.org/debian/pool/main/h/hwloc/hwloc_2.9.0.orig.tar.bz2";
const SHA256: &str = "b3fb1a43a14d8fbcd8e976de5ede2ea7ce1d768ed173adb33c7ceaaf098dc970";
const FOLDER: &str = "hwloc-2.9.0";
/// Only what reads topologies: hwloc has its own reader for XML.
const CONFIGURE: &[&str] = &[
    "--host=x86_64-linux-musl",
    "--enable-static",
    "--disable-shared",
    "--disable-cairo",
    "--disable-libxml2",
    "--disable-io",
    "--disable-libudev",
];

/// Builds the static binary, lets it read a topology, and returns its path.
pub fn build(root: &Path) -> Result<PathBuf, String> {
    packages::ensure(&Purpose::Static);
    // Without rustup, the compiler says what is missing.
    if let Err(error) = run(root, "rustup", &["target", "add", TARGET]) {
        println!("{}", error);
    }
    let work = root.join("target/musl");
    let installed = work.join("hwloc");
    if !installed.join("lib/pkgconfig/hwloc.pc").exists() {
        hwloc(&work, &installed)?;
    }
    std::env::set_var("PKG_CONFIG_ALLOW_CROSS", "1");
    std::env::set_var("PKG_CONFIG_LIBDIR", installed.join("lib/pkgconfig"));
    run(
        root,
        "cargo",
        &["build", "--package", "pinfold", "--release", "--locked", "--quiet", "--target", TARGET],
    )?;
    let path = root.join("target").join(TARGET).join("release/pinfold");
    let binary = path.to_string_lossy();
    is_static(&binary)?;
    run(root, &binary, &["plan", "--input", "node:2 core:4 pu:2", "--vcpus", "4"])?;
    Ok(path)
}

/// Fetches, checks, builds and installs hwloc.
fn hwloc(work: &Path, installed: &Path) -> Result<(), String> {
    fs::create_dir_all(work).map_err(|error| format!("{}: {}", work.display(), error))?;
    let archive = work.join("hwloc.tar.bz2");
    let archive = archive.to_string_lossy();
    run(
        work,
        "curl",
        &["--fail", "--silent", "--show-error", "--location", "--output", &archive, SOURCE],
    )?;
    let sum = output("sha256sum", &[&archive])?;
    if !sum.starts_with(SHA256) {
        return Err(format!("{}: its SHA-256 is {}, not {}", SOURCE, sum.trim(), SHA256));
    }
    run(work, "tar", &["xf", &archive])?;
    let source = work.join(FOLDER);
    let prefix = format!("--prefix={}", installed.display());
    let mut arguments = vec!["CC=musl-gcc", prefix.as_str()];
    arguments.extend(CONFIGURE);
    run(&source, "./configure", &arguments)?;
    for part in &["include", "hwloc"] {
        run(&source.join(part), "make", &["-j2", "install"])?;
    }
    // musl's libc contains libm and libpthread; named, they would be found in the host's glibc.
    run(&source, "sed", &["--in-place", "/^Libs.private/d", "hwloc.pc"])?;
    run(&source, "make", &["install-hwlocpkgconfigDATA"])
}

/// Fails if the program needs a dynamic linker.
fn is_static(binary: &str) -> Result<(), String> {
    let headers = output("readelf", &["--program-headers", binary])?;
    if headers.contains("INTERP") {
        Err(format!("{} needs a dynamic linker", binary))
    } else {
        Ok(())
    }
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {}: {}", program, error))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

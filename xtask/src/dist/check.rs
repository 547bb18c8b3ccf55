//! What the packages contain, and that they leave nothing: each is installed, run and removed in a
//! directory of its own, as root of the file system.
//!
//! The directory has a shell (busybox) for the scripts of the packages, and nothing else: a static
//! program needs no more. The host's own packages are not touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{empty, files_below, one_of, output};
use crate::packages::prefix;

/// What the program does in each directory.
const PLAN: [&str; 5] = ["plan", "--input", "node:2 core:4 pu:2", "--vcpus", "4"];
/// Folders of the package managers' own records, and of devices, which are none here.
const RECORDS: [&str; 4] = ["/var/lib/dpkg/", "/var/lib/rpm/", "/var/log/", "/dev/"];
const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 5] = ["sh", "rm", "grep", "sed", "cat"];
/// Made by the check in place of what `apply` and a user would leave.
const STATE: [&str; 2] = ["/var/lib/pinfold/journal", "/etc/pinfold/domains"];

/// Installs, runs and removes the packages and the archive.
pub fn all(root: &Path, folder: &Path, archive: &Path, numad: &Path) -> Result<(), String> {
    if prefix().is_none() {
        return Err("--check installs packages with chroot, which needs root or sudo".to_string());
    }
    let deb = one_of(folder, "pinfold_", ".deb")?;
    let rpm = one_of(folder, "pinfold-", ".rpm")?;
    with_deb(&deb, &stage(folder, "check-deb")?)?;
    with_numad(&deb, numad, &stage(folder, "check-numad")?)?;
    with_rpm(&rpm, &stage(folder, "check-rpm")?)?;
    with_archive(archive, &stage(folder, "check-archive")?)?;
    for name in &["check-deb", "check-numad", "check-rpm", "check-archive"] {
        output(as_root("rm").arg("-rf").arg(folder.join(name)))?;
    }
    println!("checked: installed, run and removed in {}", root.join("target/dist").display());
    Ok(())
}

/// A command as root, through sudo if need be.
fn as_root(program: &str) -> Command {
    let words: Vec<&str> =
        prefix().unwrap_or_default().iter().copied().chain(Some(program)).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The files of a `.deb`; it compresses man pages, and has a `copyright`.
pub fn files_of_deb(path: &Path) -> Result<BTreeSet<String>, String> {
    let list = output(Command::new("dpkg-deb").arg("--contents").arg(path))?;
    let paths = list.lines().filter(|line| !line.starts_with('d'));
    let paths = paths.filter_map(|line| line.split_whitespace().last()?.strip_prefix('.'));
    let plain = paths.map(|path| path.strip_suffix(".gz").unwrap_or(path).to_string());
    Ok(plain.filter(|path| !path.ends_with("/copyright")).collect())
}

/// The files of a `.rpm`.
pub fn files_of_rpm(path: &Path) -> Result<BTreeSet<String>, String> {
    let list = output(Command::new("rpm").args(["-qpl"]).arg(path))?;
    Ok(list.lines().map(str::to_string).collect())
}

/// Fails with the differences.
pub fn same(what: &str, found: &BTreeSet<String>, wanted: &BTreeSet<String>) -> Result<(), String> {
    let other: Vec<&String> = found.symmetric_difference(wanted).collect();
    if other.is_empty() && !wanted.is_empty() {
        return Ok(());
    }
    Err(format!("{}: {:?} differ from the {} expected files", what, other, wanted.len()))
}

/// An empty root with a shell.
fn stage(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let stage = empty(folder.join(name))?;
    for made in &["bin", "dev", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"] {
        fs::create_dir_all(stage.join(made)).map_err(|error| failed(error, &stage))?;
    }
    fs::write(stage.join("var/lib/dpkg/status"), "").map_err(|error| failed(error, &stage))?;
    fs::copy(BUSYBOX, stage.join("bin/busybox")).map_err(|error| failed(error, &stage))?;
    for applet in &APPLETS {
        std::os::unix::fs::symlink("busybox", stage.join("bin").join(applet)).map_err(|error| failed(error, &stage))?;
    }
    Ok(stage)
}

fn failed(error: std::io::Error, stage: &Path) -> String {
    format!("{}: {}", stage.display(), error)
}

/// The files of a root, without those of the package manager.
fn look(stage: &Path) -> Result<BTreeSet<String>, String> {
    let all = files_below(stage)?.into_iter();
    Ok(all.filter(|path| !RECORDS.iter().any(|folder| path.starts_with(folder))).collect())
}

/// Runs the installed program, and leaves what a user of it would leave.
fn used(stage: &Path, program: &str) -> Result<(), String> {
    let plan = output(as_root("chroot").arg(stage).arg(program).args(PLAN))?;
    if !plan.contains("4 vCPUs") {
        return Err(format!("the installed program prints {:?}", plan));
    }
    for folder in &STATE {
        let folder = stage.join(&folder[1..]);
        output(as_root("mkdir").arg("-p").arg(&folder))?;
        output(as_root("touch").arg(folder.join("kept")))?;
    }
    Ok(())
}

/// Fails unless what is there now is what was there before and the named files.
fn left(what: &str, stage: &Path, before: &BTreeSet<String>, more: &[&str]) -> Result<(), String> {
    let files = more.iter().map(|folder| format!("{}/kept", folder));
    let wanted = before.iter().cloned().chain(files).collect();
    let found = look(stage)?.into_iter().filter(|path| !path.ends_with("/lock")).collect();
    same(what, &found, &wanted)
}

fn said(text: &str) -> Result<(), String> {
    if STATE
        .iter()
        .all(|folder| text.contains(folder.rsplit_once('/').map_or("", |(above, _)| above)))
    {
        return Ok(());
    }
    Err(format!("the removal does not say what stays: {:?}", text))
}

/// Runs dpkg on this root.
fn run_dpkg(stage: &Path, words: &[&str]) -> Result<String, String> {
    let at = format!("--root={}", stage.display());
    output(as_root("env").args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "dpkg", &at]).args(words))
}

/// The program answers under the name that `pinfold-numad` gives it. That this package and `numad`
/// take each other's place is a test of the crate `pinfold`.
fn with_numad(deb: &Path, numad: &Path, stage: &Path) -> Result<(), String> {
    let before = look(stage)?;
    run_dpkg(stage, &["--install", &deb.to_string_lossy(), &numad.to_string_lossy()])?;
    let nodes = output(as_root("chroot").arg(stage).args(["/usr/bin/numad", "-w", "1:1"]))?;
    if nodes.trim().is_empty()
        || !nodes.trim().chars().all(|one| one.is_ascii_digit() || "-,".contains(one))
    {
        return Err(format!("numad prints {:?}, which are no nodes", nodes));
    }
    run_dpkg(stage, &["--purge", "pinfold-numad", "pinfold"])?;
    left("after the purge of pinfold-numad", stage, &before, &[])
}

fn with_deb(deb: &Path, stage: &Path) -> Result<(), String> {
    let before = look(stage)?;
    let dpkg = |words: &[&str]| run_dpkg(stage, words);
    let needs = output(Command::new("dpkg-deb").arg("--field").arg(deb).arg("Depends"))?;
    if !needs.trim().is_empty() {
        return Err(format!("the .deb needs {}", needs));
    }
    dpkg(&["--install", &deb.to_string_lossy()])?;
    used(stage, "/usr/bin/pinfold")?;
    // A second version in place of the first reverts nothing.
    dpkg(&["--install", &deb.to_string_lossy()])?;
    said(&dpkg(&["--remove", "pinfold"])?)?;
    left("after the removal of the .deb", stage, &before, &STATE)?;
    dpkg(&["--purge", "pinfold"])?;
    left("after the purge of the .deb", stage, &before, &[])
}

fn with_rpm(rpm: &Path, stage: &Path) -> Result<(), String> {
    let before = look(stage)?;
    let needs = output(Command::new("rpm").args(["-qp", "--requires"]).arg(rpm))?;
    if let Some(other) =
        needs.lines().find(|need| !need.starts_with("rpmlib(") && *need != "/bin/sh")
    {
        return Err(format!("the .rpm needs {}", other));
    }
    // The shell is there, but not as a package.
    run_rpm(&["--install", "--nodeps", &rpm.to_string_lossy()], stage)?;
    used(stage, "/usr/bin/pinfold")?;
    said(&run_rpm(&["--erase", "pinfold"], stage)?)?;
    left("after the removal of the .rpm", stage, &before, &STATE)
}

fn run_rpm(words: &[&str], stage: &Path) -> Result<String, String> {
        output(
            as_root("rpm").arg("--root").arg(stage).args(["--dbpath", "/var/lib/rpm"]).args(words),
        )
    }

/// The archive as a user installs it on a system with busybox, with another prefix.
fn with_archive(archive: &Path, stage: &Path) -> Result<(), String> {
    output(as_root("chroot").arg(stage).args([BUSYBOX, "--install", "-s", "/bin"]))?;
    let before = look(stage)?;
    let top = stage.join("tmp/pinfold");
    output(Command::new("mkdir").arg(&top))?;
    let unpack = ["--strip-components=1", "--directory"];
    output(Command::new("tar").arg("-xzf").arg(archive).args(unpack).arg(&top))?;
    run_in_root("/tmp/pinfold/install.sh", stage)?;
    used(stage, "/opt/pinfold/bin/pinfold")?;
    run_in_root("/tmp/pinfold/install.sh", stage)?;
    output(Command::new("rm").arg("-rf").arg(&top))?;
    said(&run_in_root("/opt/pinfold/share/pinfold/uninstall.sh", stage)?)?;
    left("after uninstall.sh", stage, &before, &STATE)?;
    if stage.join("opt").exists() {
        Err("uninstall.sh leaves its folders".to_string())
    } else {
        Ok(())
    }
}

fn run_in_root(script: &str, stage: &Path) -> Result<String, String> {
        let words = [BUSYBOX, "env", "PATH=/bin", "PREFIX=/opt/pinfold", "sh", script];
        output(as_root("chroot").arg(stage).args(words))
    }

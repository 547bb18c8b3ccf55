//! `cargo xtask dist`: a `.deb`, a `.rpm` and an archive with `install.sh`, in `target/dist`, and the
//! package `pinfold-numad`.
//!
//! `packaging/install.sh` is the only list of what is installed: the packages are made from what it
//! installs into `target/dist/root`, and their lists are compared with that. The program is the
//! static one, so that the packages need no other package.

mod check;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::musl;
use crate::packages::{self, Purpose};
use crate::run::run;

/// The programs that make packages, with the files that they make.
const TOOLS: [(&str, &str); 2] = [("cargo-deb", "deb"), ("cargo-generate-rpm", "rpm")];
/// What the archive has in addition to the files that are installed.
const SCRIPTS: [&str; 4] =
    ["packaging/files", "packaging/install.sh", "packaging/uninstall.sh", "packaging/scripts"];

/// Makes the packages; with `--check`, installs and removes each in a directory of its own; with
/// `--quick`, only what `cargo xtask test` does.
pub fn dist(root: &Path, words: &[String]) -> Result<(), String> {
    let is_check = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--check"] => true,
        ["--quick"] => {
            for reason in quick(root)? {
                println!("skipped: {}", reason);
            }
            return Ok(());
        }
        _ => return Err(format!("dist takes --check or --quick, not {:?}", words.join(" "))),
    };
    packages::ensure(&Purpose::Dist);
    for (tool, _) in &TOOLS {
        require_tool(root, tool)?;
    }
    let binary = musl::build(root)?;
    let folder = empty(root.join("target/dist"))?;
    let made = made(root, &binary, &folder, &[])?;
    let archive = archive(root, &binary, &folder)?;
    let numad = numad(root, &folder)?;
    if is_check {
        check::all(root, &folder, &archive, &numad)?;
    }
    let mut names = vec!["--tag".to_string()];
    for path in made.iter().chain(&[archive, numad]) {
        println!(
            "{} ({} kB)",
            path.display(),
            fs::metadata(path).map_or(0, |meta| meta.len() / 1000)
        );
        names.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    let sums = output(Command::new("sha256sum").args(&names).current_dir(&folder))?;
    fs::write(folder.join("SHA256SUMS"), sums).map_err(|error| format!("SHA256SUMS: {}", error))
}

/// Installs a program of crates.io if it is missing.
pub fn require_tool(root: &Path, tool: &str) -> Result<(), String> {
    if has_program(tool) {
        return Ok(());
    }
    println!("{} is missing: it is built and installed into cargo's folder of programs", tool);
    run(root, "cargo", &["install", "--locked", tool])
}

/// For `cargo xtask test`: packages of the debug program, without compression, if the tools are
/// installed. Returns the reasons for what was skipped.
pub fn quick(root: &Path) -> Result<Vec<String>, String> {
    // With the features of the whole workspace, as the tests that are built next.
    run(root, "cargo", &["build", "--workspace", "--bin", "pinfold", "--quiet"])?;
    // Packages that were made before stay.
    let folder = empty(root.join("target/dist/quick"))?;
    made(root, &root.join("target/debug/pinfold"), &folder, &["--fast"])?;
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {}", folder.display(), error))?;
    let missing = TOOLS.iter().filter(|(tool, _)| !has_program(tool));
    Ok(missing
        .map(|(tool, end)| format!("the .{}: `cargo xtask dist` installs {}", end, tool))
        .collect())
}

/// Installs the program into the folder that `crates/pinfold/Cargo.toml` names, and makes the
/// packages for which there is a tool.
fn made(
    root: &Path,
    binary: &Path,
    folder: &Path,
    options: &[&str],
) -> Result<Vec<PathBuf>, String> {
    let staged = empty(root.join("target/dist/root"))?;
    install(root, &[("BINARY", binary), ("DESTDIR", &staged), ("PREFIX", Path::new("/usr"))])?;
    let wanted = files_below(&staged)?;
    let into = format!("{}/", folder.display());
    let mut made = Vec::new();
    if has_program("cargo-deb") {
        let words =
            ["deb", "--quiet", "--package", "pinfold", "--no-build", "--no-strip", "--no-dbgsym"];
        run(root, "cargo", &[&words, options, &["--output", &into]].concat())?;
        let path = one_of(folder, "pinfold_", ".deb")?;
        check::same("the .deb", &check::files_of_deb(&path)?, &wanted)?;
        made.push(path);
    }
    if has_program("cargo-generate-rpm") {
        let compress = if options.is_empty() { "zstd" } else { "none" };
        let words = ["generate-rpm", "--package", "crates/pinfold", "--payload-compress", compress];
        run(root, "cargo", &[&words[..], &["--output", &into]].concat())?;
        let path = one_of(folder, "pinfold-", ".rpm")?;
        if has_program("rpm") {
            check::same("the .rpm", &check::files_of_rpm(&path)?, &wanted)?;
        }
        made.push(path);
    }
    Ok(made)
}

/// Runs `install.sh` of `top` with these variables, as for a package.
fn install(top: &Path, variables: &[(&str, &Path)]) -> Result<(), String> {
    let script = top.join("packaging/install.sh");
    let mut command = Command::new("sh");
    command.arg(&script).env("UNINSTALLER", "no").envs(variables.iter().copied());
    output(&mut command).map(|_| ())
}

/// The archive: the static program and what `install.sh` needs, under their names in the
/// repository.
fn archive(root: &Path, binary: &Path, folder: &Path) -> Result<PathBuf, String> {
    let name = format!("pinfold-{}-{}-linux", version(root)?, std::env::consts::ARCH);
    let top = folder.join(&name);
    fs::create_dir_all(top.join("bin")).map_err(|error| format!("{}: {}", top.display(), error))?;
    let list =
        fs::read_to_string(root.join("packaging/files")).map_err(|error| error.to_string())?;
    let sources = list.lines().filter(|line| !line.starts_with('#'));
    let sources = sources.filter_map(|line| line.split_whitespace().next());
    // A shell expands the patterns.
    let words: Vec<&str> = SCRIPTS.iter().copied().chain(sources).collect();
    let copy = format!("cp --recursive --parents {} {}", words.join(" "), top.display());
    run(root, "sh", &["-c", &copy])?;
    let target = top.join("bin/pinfold");
    fs::copy(binary, &target).map_err(|error| format!("{}: {}", target.display(), error))?;
    for script in &["install.sh", "uninstall.sh"] {
        std::os::unix::fs::symlink(format!("packaging/{}", script), top.join(script))
            .map_err(|error| format!("{}: {}", script, error))?;
    }
    let archive = format!("{}.tar.gz", name);
    let words = ["--sort=name", "--owner=0", "--group=0", "-czf", archive.as_str(), name.as_str()];
    run(folder, "tar", &words)?;
    fs::remove_dir_all(&top).map_err(|error| format!("{}: {}", top.display(), error))?;
    Ok(folder.join(archive))
}

/// The package with the link `/usr/bin/numad`.
fn numad(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let script = root.join("packaging/numad/make-deb.sh");
    let made = output(Command::new("sh").arg(script).arg(folder))?;
    Ok(PathBuf::from(made.trim()))
}

/// The version of the workspace.
fn version(root: &Path) -> Result<String, String> {
    let text = fs::read_to_string(root.join("Cargo.toml"))
        .map_err(|error| format!("Cargo.toml: {}", error))?;
    let value = text.lines().find_map(|line| line.strip_prefix("version = "));
    value
        .map(|value| value.trim_matches('"').to_string())
        .ok_or("Cargo.toml has no version".to_string())
}

fn one_of(folder: &Path, start: &str, end: &str) -> Result<PathBuf, String> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("{}: {}", folder.display(), error))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            name.map_or(false, |name| name.starts_with(start) && name.ends_with(end))
        })
        .ok_or_else(|| format!("there is no {}…{} in {}", start, end, folder.display()))
}

/// The files and links below a folder, as `/usr/bin/pinfold`.
fn files_below(folder: &Path) -> Result<BTreeSet<String>, String> {
    let list =
        output(Command::new("find").arg(folder).args(["!", "-type", "d", "-printf", "/%P\\n"]))?;
    Ok(list.lines().map(str::to_string).collect())
}

fn empty(folder: PathBuf) -> Result<PathBuf, String> {
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error: std::io::Error| format!("{}: {}", folder.display(), error))?;
    }
    fs::create_dir_all(&folder).map_err(|error: std::io::Error| format!("{}: {}", folder.display(), error))?;
    Ok(folder)
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Runs a command that must succeed, and returns its output.
fn output(command: &mut Command) -> Result<String, String> {
    let found = command.output().map_err(|error| format!("cannot run {:?}: {}", command, error))?;
    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }
    if found.status.success() {
        return Ok(text(&found.stdout));
    }
    Err(format!("{:?}: {}{}", command, text(&found.stdout), text(&found.stderr)))
}

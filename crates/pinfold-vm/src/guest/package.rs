//! Queries apt for the current kernel package, and downloads it.
//!
//! ```text
//! Package: linux-image-amd64
//! Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)
//! ```
//! `apt-get download` checks the file against the signed metadata. The SHA-256 of that metadata is
//! read as well, to check it again and to store it.
//!
//! A kernel of a suite other than the machine's own is fetched with a separate apt configuration in
//! the cache, with its own sources, lists and downloads. The machine's apt is not changed.

use pinfold_host::{HostError, files, process};
use rustix::io::Errno;

use super::GuestError;
use super::flavour::Flavour;

const MINUTE_NS: u64 = 60_000_000_000;
const ARCHIVE: &str = "http://deb.debian.org/debian";
/// Name prefixes of the packages that contain the files of a kernel whose own package is empty.
const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];
/// It installs nothing: further options make it only print or download.
const INSTALL: [&str; 6] = [
    "--quiet",
    "--yes",
    "--no-install-recommends",
    "--option",
    "Acquire::ForceHash=SHA256",
    "install",
];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A package version, with the hash of its file from apt's signed metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageName {
    /// Package name.
    pub package: String,
    /// Package version.
    pub version: String,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

/// A package's file, with its name in apt's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) name: String,
    /// SHA-256 from the signed metadata, lower-case hex.
    pub(super) sha256: String,
}

/// The apt configuration to use.
#[derive(Clone, Debug)]
pub(super) struct Apt {
    /// The directory with its configuration and all its state; `None` for the machine's apt.
    home: Option<String>,
}

impl Apt {
    /// Uses the machine's own sources, or those of a flavour's suite in a directory below `cache`.
    pub(super) fn open(cache: &str, flavour: &Flavour) -> Result<Self, GuestError> {
        let Some(suite) = flavour.suite else { return Ok(Self { home: None }) };
        let home = match flavour.isa {
            None => format!("{cache}/apt/{suite}"),
            Some(isa) => format!("{cache}/apt/{suite}-{isa}"),
        };
        files::make_dirs(&format!("{home}/lists/partial"))?;
        files::make_dirs(&format!("{home}/cache/archives/partial"))?;
        let arch =
            flavour.isa.map_or_else(String::new, |isa| format!("arch={} ", isa.debian_name()));
        let source = format!("deb [{arch}signed-by={KEYRING}] {ARCHIVE} {suite} main\n");
        files::write_atomic(&format!("{home}/sources.list"), source.as_bytes())?;
        // What is installed on this machine is downloaded too: a root has all that it needs.
        files::write_atomic(&format!("{home}/status"), b"")?;
        let configuration = configuration(&home, flavour);
        files::write_atomic(&format!("{home}/apt.conf"), configuration.as_bytes())?;
        Ok(Self { home: Some(home) })
    }

    /// Updates a private suite's lists; the machine's own lists are not updated.
    pub(super) fn update(&self) -> Result<(), String> {
        if self.home.is_none() {
            return Ok(());
        }
        let output = self
            .capture("apt-get", &["--quiet", "update"], 5 * MINUTE_NS)
            .map_err(|error| format!("cannot run apt-get: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// The kernel that a metapackage depends on today, as the packages that contain its files.
    /// Since Debian's 7.x the image and the modules are in separate packages, and the kernel's own
    /// package is empty. The error is the reason why there is none.
    pub(super) fn resolve(&self, flavour: &str) -> Result<Vec<PackageName>, String> {
        let meta = self.show(flavour)?;
        let package = depends(&meta)
            .find(|name| name.starts_with("linux-image-"))
            .ok_or_else(|| format!("apt's metadata for {flavour} names no linux-image"))?;
        let entry = self.show(&package)?;
        let mut packages = vec![read_description(&package, &entry)?];
        for part in depends(&entry).filter(|name| is_part(name)) {
            packages.push(read_description(&part, &self.show(&part)?)?);
        }
        Ok(packages)
    }

    /// Downloads a package into `folder` and returns the file's path.
    pub(super) fn download(&self, name: &PackageName, folder: &str) -> Result<String, GuestError> {
        let wanted = format!("{}={}", name.package, name.version);
        let apt = find_program("apt-get")?;
        let words = ["--chdir", folder, &apt, "--quiet", "download", &wanted];
        let output = self.capture("env", &words, 10 * MINUTE_NS)?;
        let prefix = format!("{}_", name.package);
        let file = files::list(folder)?
            .into_iter()
            .find(|entry: &String| entry.starts_with(&prefix) && entry.ends_with(".deb"));
        match file {
            Some(file) if output.status.success() => Ok(format!("{folder}/{file}")),
            Some(_) | None => Err(GuestError::Tool {
                program: format!("apt-get download {wanted}"),
                message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    /// The files of packages and of all their dependencies. Only for a private configuration: the
    /// machine's own apt cache would have to be emptied. The error is the reason why there are
    /// none.
    pub(super) fn closure(&self, packages: &[&str]) -> Result<Vec<File>, String> {
        if self.home.is_none() {
            return Err("only apt configurations with a suite of their own are queried".to_owned());
        }
        let words = [&INSTALL[..], &["--print-uris"], packages].concat();
        // Files that are already in its cache would not be printed.
        let output = self
            .capture("apt-get", &["clean"], MINUTE_NS)
            .and_then(|_| self.capture("apt-get", &words, MINUTE_NS))
            .map_err(|error| format!("cannot run apt-get: {error}"))?;
        if output.status.success() {
            files(&output.stdout_text())
        } else {
            Err(output.stderr_text().trim().to_owned())
        }
    }

    /// Downloads these files and returns the directory that contains them.
    pub(super) fn download_all(&self, packages: &[&str]) -> Result<String, GuestError> {
        let words = [&INSTALL[..], &["--download-only"], packages].concat();
        let output = self.capture("apt-get", &words, 30 * MINUTE_NS)?;
        match &self.home {
            Some(home) if output.status.success() => Ok(format!("{home}/cache/archives")),
            Some(_) | None => Err(GuestError::Tool {
                program: format!("apt-get install --download-only {}", packages.join(" ")),
                message: output.stderr_text().trim().to_owned(),
            }),
        }
    }

    fn show(&self, package: &str) -> Result<String, String> {
        let output = self
            .capture("apt-cache", &["show", "--no-all-versions", package], MINUTE_NS)
            .map_err(|error| format!("cannot run apt-cache: {error}"))?;
        if output.status.success() && !output.stdout.is_empty() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("apt knows no package {package}"))
        }
    }

    fn capture(
        &self,
        program: &str,
        words: &[&str],
        timeout_ns: u64,
    ) -> Result<process::Output, HostError> {
        let setting = self.home.as_ref().map(|home| format!("APT_CONFIG={home}/apt.conf"));
        let program = find_program(program)?;
        let all = setting.iter().map(String::as_str).chain([program.as_str()]);
        process::capture("env", all.chain(words.iter().copied()), timeout_ns)
    }
}

fn is_part(name: &str) -> bool {
    PARTS.iter().any(|part| name.starts_with(part))
}

/// The path of a program: `env` would also search relative entries of `PATH`.
fn find_program(program: &str) -> Result<String, HostError> {
    process::find_program(program)
        .ok_or_else(|| HostError::file("find in PATH", program, Errno::NOENT))
}

/// An apt configuration that keeps everything inside `home`.
fn configuration(home: &str, flavour: &Flavour) -> String {
    let foreign = flavour.isa.map_or_else(String::new, |isa| {
        let name = isa.debian_name();
        format!("APT::Architecture \"{name}\";\nAPT::Architectures {{ \"{name}\"; }};\n")
    });
    format!(
        "Dir::Etc::SourceList \"{home}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::State::Lists \"{home}/lists\";\nDir::State::status \"{home}/status\";\n\
         Dir::Cache \"{home}/cache\";\n{foreign}"
    )
}

/// The package of a metadata entry.
fn read_description(package: &str, entry: &str) -> Result<PackageName, String> {
    let field = |key: &str| {
        field(entry, key).ok_or_else(|| format!("apt's metadata for {package} has no {key}"))
    };
    let (version, sha256) = (field("Version")?, field("SHA256")?);
    Ok(PackageName { package: package.to_owned(), version, sha256 })
}

/// Parses the lines of `apt-get --print-uris`: address in quotes, file, size, hash.
fn files(text: &str) -> Result<Vec<File>, String> {
    let lines = text.lines().filter(|line| line.starts_with('\''));
    lines.map(|line| file(line).ok_or_else(|| format!("apt-get prints {line:?}"))).collect()
}

fn file(line: &str) -> Option<File> {
    let mut words = line.split(' ').skip(1);
    let (name, hash) = (words.next()?, words.nth(1)?);
    let sha256 = hash.strip_prefix("SHA256:")?.to_owned();
    Some(File { name: name.to_owned(), sha256 })
}

/// The names in the `Depends:` field.
fn depends(entry: &str) -> impl Iterator<Item = String> {
    let list = field(entry, "Depends").unwrap_or_default();
    list.split([',', '|'])
        .map(|part: &str| part.trim().split([' ', '(']).next().unwrap_or("").to_owned())
        .collect::<Vec<_>>()
        .into_iter()
}

fn field(entry: &str, key: &str) -> Option<String> {
    entry
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
        .map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_files_are_read() {
        let text = "Reading package lists...\n'http://d/x/libc6_2.41_arm64.deb' libc6_2.41_arm64.deb 2483572 SHA256:00ff\n";
        let file = File { name: "libc6_2.41_arm64.deb".to_owned(), sha256: "00ff".to_owned() };
        assert_eq!(files(text), Ok(vec![file]));
        assert!(files("'http://d/x' x 1 MD5Sum:0\n").is_err());
        assert_eq!(files("nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn the_metapackage_names_the_kernel() {
        check(
            "Package: x\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n",
            &["linux-image-6.1.0-56-amd64"],
        );
        check(
            "Depends: dracut | initramfs-tools (>= 0.120), linux-binary-7.3.4-cloud-amd64 (= 7.3.4-1)\n",
            &["dracut", "initramfs-tools", "linux-binary-7.3.4-cloud-amd64"],
        );
        check("Depends: kmod\n", &["kmod"]);
        check("Package: x\n", &[""]);
    }

    fn check(entry: &str, expected: &[&str]) {
        assert_eq!(depends(entry).collect::<Vec<_>>(), expected);
    }
}

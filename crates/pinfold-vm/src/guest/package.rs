//! Asks apt which kernel package is current, and downloads it.
//!
//! ```text
//! Package: linux-image-amd64
//! Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)
//! ```
//! `apt-get download` checks the file against the signed metadata; the SHA-256 that this
//! metadata names is read as well, to be checked again and stored.
//!
//! A kernel of another suite than the machine's own comes through an apt configuration in the
//! cache, with its own sources, lists and downloads: the machine's apt is not touched.

use pinfold_host::{HostError, process, user};

use super::GuestError;
use super::kernel::Flavour;

const MINUTE_NS: u64 = 60_000_000_000;
const ARCHIVE: &str = "http://deb.debian.org/debian";
/// What holds the files of a kernel whose package is empty.
const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A package at a version, with the hash of its file from apt's signed metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageName {
    /// Name.
    pub package: String,
    /// Version.
    pub version: String,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

/// Where apt looks for packages.
#[derive(Clone, Debug)]
pub(super) struct Apt {
    /// Its configuration file; `None` for the machine's own.
    config: Option<String>,
}

impl Apt {
    /// The machine's own sources, or those of a flavour's suite in a folder below `cache`.
    pub(super) fn open(cache: &str, flavour: &Flavour) -> Result<Self, GuestError> {
        let Some(suite) = flavour.suite else { return Ok(Self { config: None }) };
        let home = match flavour.isa {
            None => format!("{cache}/apt/{suite}"),
            Some(isa) => format!("{cache}/apt/{suite}-{isa}"),
        };
        user::make_dirs(&format!("{home}/lists/partial"))?;
        user::make_dirs(&format!("{home}/cache/archives/partial"))?;
        let arch =
            flavour.isa.map_or_else(String::new, |isa| format!("arch={} ", isa.debian_name()));
        let source = format!("deb [{arch}signed-by={KEYRING}] {ARCHIVE} {suite} main\n");
        user::write_atomic(&format!("{home}/sources.list"), source.as_bytes())?;
        let config = format!("{home}/apt.conf");
        // What is installed here is nothing to packages of another instruction set.
        user::write_atomic(&format!("{home}/status"), b"")?;
        user::write_atomic(&config, configuration(&home, flavour).as_bytes())?;
        Ok(Self { config: Some(config) })
    }

    /// Reads a private suite's lists anew; the machine's own are its owner's business.
    pub(super) fn update(&self) -> Result<(), String> {
        if self.config.is_none() {
            return Ok(());
        }
        let output = self
            .capture("apt-get", &["--quiet", "update"], 5 * MINUTE_NS)
            .map_err(|error| format!("apt-get cannot be run: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// The kernel that a metapackage depends on today, as the packages that hold its files; the
    /// error says why not. Since Debian's 7.x the image and the modules are packages of their
    /// own, and the first is empty.
    pub(super) fn resolve(&self, flavour: &str) -> Result<Vec<PackageName>, String> {
        let meta = self.show(flavour)?;
        let package = depends(&meta)
            .find(|name| name.starts_with("linux-image-"))
            .ok_or_else(|| format!("apt's entry of {flavour} depends on no linux-image"))?;
        let entry = self.show(&package)?;
        let mut packages = vec![described(&package, &entry)?];
        let is_part = |name: &String| PARTS.iter().any(|part| name.starts_with(part));
        for part in depends(&entry).filter(is_part) {
            packages.push(described(&part, &self.show(&part)?)?);
        }
        Ok(packages)
    }

    /// Downloads into `folder`; gives the file's path.
    pub(super) fn download(&self, name: &PackageName, folder: &str) -> Result<String, GuestError> {
        let wanted = format!("{}={}", name.package, name.version);
        let words = ["--chdir", folder, "apt-get", "--quiet", "download", &wanted];
        let output = self.capture("env", &words, 10 * MINUTE_NS)?;
        let prefix = format!("{}_", name.package);
        let is_it = |entry: &String| entry.starts_with(&prefix) && entry.ends_with(".deb");
        let file = user::list(folder)?.into_iter().find(is_it);
        match file {
            Some(file) if output.status.success() => Ok(format!("{folder}/{file}")),
            Some(_) | None => Err(GuestError::Tool {
                program: format!("apt-get download {wanted}"),
                message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    fn show(&self, package: &str) -> Result<String, String> {
        let output = self
            .capture("apt-cache", &["show", "--no-all-versions", package], MINUTE_NS)
            .map_err(|error| format!("apt-cache cannot be asked: {error}"))?;
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
        let setting = self.config.as_ref().map(|path| format!("APT_CONFIG={path}"));
        let all = setting.iter().map(String::as_str).chain([program]);
        process::capture("env", all.chain(words.iter().copied()), timeout_ns)
    }
}

/// An apt configuration of which nothing is outside `home`.
fn configuration(home: &str, flavour: &Flavour) -> String {
    let foreign = flavour.isa.map_or_else(String::new, |isa| {
        let name = isa.debian_name();
        format!(
            "Dir::State::status \"{home}/status\";\nAPT::Architecture \"{name}\";\n\
             APT::Architectures {{ \"{name}\"; }};\n"
        )
    });
    format!(
        "Dir::Etc::SourceList \"{home}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::State::Lists \"{home}/lists\";\nDir::Cache \"{home}/cache\";\n{foreign}"
    )
}

/// A package by its entry.
fn described(package: &str, entry: &str) -> Result<PackageName, String> {
    let field = |key: &str| {
        field(entry, key).ok_or_else(|| format!("apt's entry of {package} has no {key}"))
    };
    let (version, sha256) = (field("Version")?, field("SHA256")?);
    Ok(PackageName { package: package.to_owned(), version, sha256 })
}

/// The names in the `Depends:` field.
fn depends(entry: &str) -> impl Iterator<Item = String> {
    let list = field(entry, "Depends").unwrap_or_default();
    let name = |part: &str| part.trim().split([' ', '(']).next().unwrap_or("").to_owned();
    list.split([',', '|']).map(name).collect::<Vec<_>>().into_iter()
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
    fn the_metapackage_names_the_kernel() {
        let check = |entry: &str, expected: &[&str]| {
            assert_eq!(depends(entry).collect::<Vec<_>>(), expected);
        };
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
}

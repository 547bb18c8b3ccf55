//! Asks apt which kernel package is current, and downloads it.
//!
//! ```text
//! Package: linux-image-amd64
//! Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)
//! ```
//! `apt-get download` checks the file against the signed metadata; the SHA-256 that this
//! metadata names is read as well, to be checked again and stored.

use pinfold_host::{process, user};

use super::GuestError;

const MINUTE_NS: u64 = 60_000_000_000;

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

/// The package that the metapackage `flavour` depends on today; the error says why not.
pub(super) fn resolve(flavour: &str) -> Result<PackageName, String> {
    let meta = show(flavour)?;
    let package = kernel_of(&meta)
        .ok_or_else(|| format!("apt's entry of {flavour} depends on no linux-image"))?;
    let entry = show(&package)?;
    let field = |key: &str| {
        field(&entry, key).ok_or_else(|| format!("apt's entry of {package} has no {key}"))
    };
    Ok(PackageName { version: field("Version")?, sha256: field("SHA256")?, package })
}

/// Downloads into `folder`; gives the file's path.
pub(super) fn download(name: &PackageName, folder: &str) -> Result<String, GuestError> {
    let wanted = format!("{}={}", name.package, name.version);
    let arguments = ["--chdir", folder, "apt-get", "--quiet", "download", &wanted];
    let output = process::capture("env", arguments, 10 * MINUTE_NS)?;
    let file = user::list(folder)?.into_iter().find(|entry| entry.ends_with(".deb"));
    match file {
        Some(file) if output.status.success() => Ok(format!("{folder}/{file}")),
        Some(_) | None => Err(GuestError::Tool {
            program: format!("apt-get download {wanted}"),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
    }
}

fn show(package: &str) -> Result<String, String> {
    let arguments = ["show", "--no-all-versions", package];
    let output = process::capture("apt-cache", arguments, MINUTE_NS)
        .map_err(|error| format!("apt-cache cannot be asked: {error}"))?;
    if output.status.success() && !output.stdout.is_empty() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("apt knows no package {package}"))
    }
}

/// The first `linux-image-…` of the `Depends:` field.
fn kernel_of(entry: &str) -> Option<String> {
    field(entry, "Depends")?
        .split([',', '|'])
        .map(|part| part.trim().split([' ', '(']).next().unwrap_or("").to_owned())
        .find(|name| name.starts_with("linux-image-"))
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
        let check = |entry: &str, expected: Option<&str>| {
            assert_eq!(kernel_of(entry).as_deref(), expected);
        };
        check(
            "Package: x\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n",
            Some("linux-image-6.1.0-56-amd64"),
        );
        check(
            "Depends: kmod, linux-image-6.12.1-cloud-amd64\n",
            Some("linux-image-6.12.1-cloud-amd64"),
        );
        check("Depends: kmod\n", None);
        check("", None);
    }
}

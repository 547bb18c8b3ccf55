//! Programs and libraries of another instruction set from Debian's packages, unpacked into a
//! directory that has the layout of a root file system. Nothing is installed.
//!
//! apt resolves the dependencies from an empty package state and prints a line for each file:
//! ```text
//! 'http://…/strace_6.13+ds-1_arm64.deb' strace_6.13+ds-1_arm64.deb 1295248 SHA256:c1…
//! ```
//! A hash of these lines is stored next to the directory, which is rebuilt when Debian has other
//! files.

use pinfold_host::files;
use pinfold_model::Isa;
use sha2::{Digest, Sha256};

use super::GuestError;
use super::kernel::{hex, lock_cache, run};
use super::package::{Apt, File};
use super::{Flavour, flavour_of};

/// System directories that Debian merged into `usr`, each with its link target.
const MERGED: [(&str, &str); 3] = [("bin", "usr/bin"), ("lib", "usr/lib"), ("sbin", "usr/sbin")];

/// Gets Debian packages of an instruction set and their dependencies, from the suite of its kernel.
/// They are kept in the directory `cache`. Returns the directory that is their root.
///
/// # Errors
/// [`GuestError`] if apt does not know them, the download fails, or a hash differs from the signed
/// one.
pub fn fetch(cache: &str, isa: Isa, packages: &[&str]) -> Result<String, GuestError> {
    fetch_from(cache, &Flavour { package: "programs", ..flavour_of(isa) }, packages)
}

/// The same of this machine's instruction set from a suite of Debian: programs that are newer than
/// this machine, with their own C library.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_of_suite(
    cache: &str,
    suite: &'static str,
    packages: &[&str],
) -> Result<String, GuestError> {
    let flavour = Flavour { package: "programs", suite: Some(suite), isa: None };
    fetch_from(cache, &flavour, packages)
}

fn fetch_from(cache: &str, flavour: &Flavour, packages: &[&str]) -> Result<String, GuestError> {
    let home = format!("{cache}/roots/{flavour}");
    let kept = format!("{home}.sha256");
    files::make_dirs(&format!("{cache}/roots"))?;
    let _alone = lock_cache(cache)?;
    let apt = Apt::open(cache, flavour)?;
    let updated = apt.update();
    let files = apt.closure(packages).map_err(|why| {
        let message = updated.err().map_or(why.clone(), |first| format!("{why}: {first}"));
        GuestError::Tool { program: format!("apt-get install {}", packages.join(" ")), message }
    })?;
    let all = files.iter().fold(Sha256::new(), |all, file| all.chain_update(&file.sha256));
    let hash = hex(&all.finalize());
    if files::exists(&kept) && files::read_text(&kept)? == hash {
        return Ok(home);
    }
    if files::exists(&kept) {
        files::remove(&kept)?;
    }
    if files::exists(&home) {
        files::remove_tree(&home)?;
    }
    unpack(&apt, packages, &files, &home)?;
    files::write_atomic(&kept, hash.as_bytes())?;
    Ok(home)
}

fn unpack(apt: &Apt, packages: &[&str], files: &[File], root: &str) -> Result<(), GuestError> {
    for (link, target) in MERGED {
        files::make_dirs(&format!("{root}/{target}"))?;
        run("ln", &["--symbolic", target, &format!("{root}/{link}")])?;
    }
    let folder = apt.download_all(packages)?;
    for file in files {
        let deb = format!("{folder}/{}", file.name);
        let sha256 = hex(&Sha256::digest(&files::read(&deb)?));
        if sha256 != file.sha256 {
            return Err(GuestError::Package {
                package: file.name.clone(),
                why: format!(
                    "its SHA-256 is {sha256}, but the signed metadata lists {}",
                    file.sha256
                ),
            });
        }
        run("dpkg-deb", &["--extract", &deb, root])?;
        files::remove(&deb)?;
    }
    Ok(())
}

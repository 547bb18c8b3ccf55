//! A guest kernel from Debian's packages, unpacked into a cache and never installed.
//!
//! The version is the one in apt's signed metadata at run time, so that no version is pinned that
//! Debian later deletes. The package's hash is checked again here and stored with every result.
//! Only what a boot needs is kept: the kernel image and the requested modules.
//!
//! The image is decompressed with `xz`, if installed, and booted through its PVH entry: under TCG
//! the guest would take seconds to decompress itself. Only the kernel's own decompressor can switch
//! to page tables of five levels, so the image is kept as packaged too.

use std::collections::BTreeMap;

use pinfold_host::files::{Lock, StateDir};
use pinfold_host::{Clock as _, SystemClock, files, process};
use sha2::{Digest, Sha256};

use super::GuestError;
use super::flavour::Flavour;
use super::modules;
use super::package::{Apt, PackageName};

const MINUTE_NS: u64 = 60_000_000_000;
/// Polling interval for the lock of the cache.
const TURN_NS: u64 = 250_000_000;
/// File of an image that was decompressed, as packaged.
const PACKAGED: &str = "vmlinuz";
const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";

/// A kernel that is ready to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// Name of its Debian package, such as `linux-image-6.1.0-56-amd64`.
    pub package: String,
    /// Version of the package.
    pub version: String,
    /// SHA-256 of the package file; of several, joined by `+`.
    pub sha256: String,
    /// Absolute path of the image for QEMU's `-kernel`.
    pub image: String,
    /// Absolute path of the image as packaged: the same file if it is not decompressed.
    pub packaged_image: String,
    /// Absolute paths of the modules in the order of insertion.
    pub modules: Vec<String>,
    /// Tick rate (`CONFIG_HZ`) and maximum number of CPUs (`CONFIG_NR_CPUS`), if the package
    /// contains the kernel's configuration.
    pub limits: KernelLimits,
    /// True if apt was not available and an earlier version from the cache is used.
    pub from_cache_only: bool,
}

/// Limits from a kernel's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLimits {
    /// Ticks per second.
    pub hz: Option<u32>,
    /// Maximum number of CPUs.
    pub cpus: Option<u32>,
}

impl KernelLimits {
    /// Reads the limits from a kernel's configuration or an extract of it.
    fn parse(config: &str) -> Self {
        let number = |key: &str| {
            let mut lines = config.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('=')?.trim().parse().ok())
        };
        Self { hz: number("CONFIG_HZ"), cpus: number("CONFIG_NR_CPUS") }
    }

    /// The extract with only these limits.
    fn to_text(self) -> String {
        line("CONFIG_HZ", self.hz) + &line("CONFIG_NR_CPUS", self.cpus)
    }
}

fn line(key: &str, value: Option<u32>) -> String {
    value.map_or_else(String::new, |value| format!("{key}={value}\n"))
}

impl GuestKernel {
    /// Absolute paths of all files in its cache directory.
    pub fn files(&self) -> Vec<String> {
        let mut files =
            vec![self.image.clone(), self.sibling_path("manifest"), self.sibling_path("limits")];
        files.extend((self.packaged_image != self.image).then(|| self.packaged_image.clone()));
        files.extend(self.modules.iter().cloned());
        files
    }

    fn sibling_path(&self, name: &str) -> String {
        let folder = self.image.strip_suffix("image").unwrap_or(&self.image);
        format!("{folder}{name}")
    }

    /// One line that records the origin for a result: package, version and hash.
    pub fn origin(&self) -> String {
        format!("{} {} sha256:{}", self.package, self.version, self.sha256)
    }
}

/// Gets the kernel that a metapackage names today, with the modules `wanted` and their
/// dependencies. It is kept in the directory `cache`.
///
/// # Errors
/// [`GuestError`] if apt does not know the package and the cache has none, the download fails, the
/// hash differs from the signed one, or the package lacks a file that a boot needs.
pub fn fetch(cache: &str, flavour: &Flavour, wanted: &[&str]) -> Result<GuestKernel, GuestError> {
    let folder = format!("{cache}/kernels/{flavour}");
    files::make_dirs(&folder)?;
    let _alone = lock_cache(cache)?;
    let apt = Apt::open(cache, flavour)?;
    let updated = apt.update();
    let packages = match apt.resolve(flavour.package) {
        Ok(packages) => packages,
        Err(why) => {
            let why = updated.err().map_or(why.clone(), |first| format!("{why}: {first}"));
            return newest_cached(&folder, wanted)
                .ok_or(GuestError::NoKernel { flavour: flavour.package.into(), why });
        }
    };
    let Some(name) = packages.first() else {
        let why = format!("apt has no package for {flavour}");
        return Err(GuestError::NoKernel { flavour: flavour.package.into(), why });
    };
    let home = format!("{folder}/{}_{}", name.package, name.version.replace(['/', ':'], "_"));
    if let Some(kernel) = load(&home, wanted).filter(|kernel| is_whole(flavour, &home, kernel)) {
        return Ok(kernel);
    }
    let scratch = format!("{home}.partial-{}", process::own_pid());
    let result = unpack(&apt, &packages, flavour, &scratch, wanted).and_then(|()| {
        // Another program may have stored it with other modules.
        if files::exists(&home) {
            files::remove_tree(&home)?;
        }
        files::rename(&scratch, &home)?;
        load(&home, wanted).ok_or_else(|| GuestError::Package {
            package: name.package.clone(),
            why: "the unpacked files cannot be read back".into(),
        })
    });
    if result.is_err() {
        files::remove_tree(&scratch)?;
    }
    result
}

/// Cache entries from before limits and packaged images were stored are fetched again.
fn is_whole(flavour: &Flavour, home: &str, kernel: &GuestKernel) -> bool {
    let is_packed = flavour.isa.is_none() && process::find_program("xz").is_some();
    files::exists(&format!("{home}/limits"))
        && (!is_packed || kernel.packaged_image != kernel.image)
}

/// Waits for the lock of the cache, so that only one process fetches a kernel; apt has a lock too.
pub(super) fn lock_cache(cache: &str) -> Result<Lock, GuestError> {
    let directory = StateDir::open(cache)?;
    loop {
        if let Some(lock) = directory.lock("kernels.lock")? {
            return Ok(lock);
        }
        SystemClock.sleep_ns(TURN_NS);
    }
}

/// Downloads and unpacks into `scratch`, which then contains `image`, `modules/`, `limits`,
/// `manifest`.
fn unpack(
    apt: &Apt,
    packages: &[PackageName],
    flavour: &Flavour,
    scratch: &str,
    wanted: &[&str],
) -> Result<(), GuestError> {
    files::make_dirs(&format!("{scratch}/modules"))?;
    let root = format!("{scratch}/root");
    let mut hashes = Vec::new();
    for name in packages {
        let deb = apt.download(name, scratch)?;
        hashes.push(check_package(name, &deb)?);
        run("dpkg-deb", &["--extract", &deb, &root])?;
        files::remove(&deb)?;
    }
    let Some(name) = packages.first() else { return Ok(()) };
    unpack_image(&root, flavour, scratch, name)?;
    let limits = limits_in(&root)?.to_text();
    files::write_atomic(&format!("{scratch}/limits"), limits.as_bytes())?;
    let order = copy_modules(&root, scratch, wanted, name)?;
    let manifest = [name.package.as_str(), &name.version, &hashes.join("+"), &wanted.join(" ")]
        .into_iter()
        .chain(order.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("\n");
    files::write_atomic(&format!("{scratch}/manifest"), manifest.as_bytes())?;
    Ok(files::remove_tree(&root)?)
}

/// The hash of a package's file; an error if it differs from the signed one.
fn check_package(name: &PackageName, deb: &str) -> Result<String, GuestError> {
    let sha256 = hex(&Sha256::digest(&files::read(deb)?));
    if sha256 == name.sha256 {
        return Ok(sha256);
    }
    Err(GuestError::Package {
        package: name.package.clone(),
        why: format!("its SHA-256 is {sha256}, but the signed metadata lists {}", name.sha256),
    })
}

/// Path of the kernel's image: in `boot`, or since Debian's 7.x next to its modules.
fn image_in(root: &str) -> Result<Option<String>, GuestError> {
    let boot = format!("{root}/boot");
    if files::is_dir(&boot) {
        let names = files::list(&boot)?;
        let file = names
            .into_iter()
            .find(|entry: &String| entry.starts_with("vmlinuz-") || entry.starts_with("vmlinux-"));
        return Ok(file.map(|file| format!("{boot}/{file}")));
    }
    let modules = format!("{root}/usr/lib/modules");
    let mut images = files::list(&modules)?.into_iter().map(|it| format!("{modules}/{it}/vmlinuz"));
    Ok(images.find(|path| files::exists(path)))
}

/// Limits from the kernel's configuration in `boot`.
fn limits_in(root: &str) -> Result<KernelLimits, GuestError> {
    let boot = format!("{root}/boot");
    if !files::is_dir(&boot) {
        return Ok(KernelLimits::default());
    }
    let config = files::list(&boot)?.into_iter().find(|entry| entry.starts_with("config-"));
    let Some(config) = config else { return Ok(KernelLimits::default()) };
    Ok(KernelLimits::parse(&files::read_text(&format!("{boot}/{config}"))?))
}

/// Writes the kernel's image to `image`. An xz-compressed image for the machine's own instruction
/// set is decompressed. Images of other instruction sets are not compressed, but contain the xz
/// magic bytes.
fn unpack_image(
    root: &str,
    flavour: &Flavour,
    scratch: &str,
    name: &PackageName,
) -> Result<(), GuestError> {
    let path = image_in(root)?.ok_or_else(|| GuestError::Package {
        package: name.package.clone(),
        why: "contains no vmlinuz".into(),
    })?;
    let packed = files::read(&path)?;
    let envelope = packed.windows(XZ_MAGIC.len()).position(|window| window == XZ_MAGIC);
    let image = match envelope.filter(|_| flavour.isa.is_none()) {
        Some(start) if process::find_program("xz").is_some() => {
            let payload = format!("{scratch}/payload.xz");
            files::write_atomic(&payload, &packed[start..])?;
            let output = run("xz", &["--decompress", "--stdout", "--single-stream", &payload])?;
            files::remove(&payload)?;
            files::write_atomic(&format!("{scratch}/{PACKAGED}"), &packed)?;
            output
        }
        Some(_) | None => packed,
    };
    files::write_atomic(&format!("{scratch}/image"), &image)?;
    Ok(())
}

/// Copies the requested modules and their dependencies; returns their names in insertion order.
fn copy_modules(
    root: &str,
    scratch: &str,
    wanted: &[&str],
    name: &PackageName,
) -> Result<Vec<String>, GuestError> {
    let mut paths = BTreeMap::new();
    find_modules(&format!("{root}/lib/modules"), &mut paths)?;
    find_modules(&format!("{root}/usr/lib/modules"), &mut paths)?;
    let mut contents: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut open: Vec<String> = wanted.iter().map(|module| (*module).to_owned()).collect();
    while let Some(module) = open.pop() {
        let Some(path) = paths.get(&module) else { continue }; // built in
        if needs.contains_key(&module) {
            continue;
        }
        let bytes = match path.strip_suffix(".xz") {
            Some(_) => run("xz", &["--decompress", "--stdout", path])?,
            None => files::read(path)?,
        };
        let depends = modules::depends(&bytes).map_err(|why| GuestError::Package {
            package: name.package.clone(),
            why: format!("module {module} {why}"),
        })?;
        open.extend(depends.iter().cloned());
        needs.insert(module.clone(), depends);
        contents.insert(module, bytes);
    }
    let order = modules::insertion_order(wanted, &needs);
    for module in &order {
        if let Some(bytes) = contents.get(module) {
            files::write_atomic(&format!("{scratch}/modules/{module}.ko"), bytes)?;
        }
    }
    Ok(order)
}

/// Adds module name (dashes as underscores) → path to `found`.
fn find_modules(folder: &str, found: &mut BTreeMap<String, String>) -> Result<(), GuestError> {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        if !files::is_dir(&folder) {
            continue;
        }
        for entry in files::list(&folder)? {
            let path = format!("{folder}/{entry}");
            let stem = entry.strip_suffix(".xz").unwrap_or(&entry).strip_suffix(".ko");
            match stem {
                Some(stem) => {
                    found.insert(stem.replace('-', "_"), path);
                }
                None if files::is_dir(&path) => open.push(path),
                None => {}
            }
        }
    }
    Ok(())
}

/// Reads a kernel's cache directory; `None` if it is incomplete or has other modules.
fn load(home: &str, wanted: &[&str]) -> Option<GuestKernel> {
    let manifest = files::read(&format!("{home}/manifest")).ok()?;
    let manifest = String::from_utf8(manifest).ok()?;
    let mut lines = manifest.lines().map(str::to_owned);
    let (package, version, sha256) = (lines.next()?, lines.next()?, lines.next()?);
    lines.next().filter(|kept| *kept == wanted.join(" "))?;
    let modules = lines.map(|module| format!("{home}/modules/{module}.ko")).collect();
    let image = format!("{home}/image");
    let packaged = format!("{home}/{PACKAGED}");
    let packaged_image = if files::exists(&packaged) { packaged } else { image.clone() };
    let limits = files::read_text(&format!("{home}/limits")).unwrap_or_default();
    let limits = KernelLimits::parse(&limits);
    let from_cache_only = false;
    Some(GuestKernel {
        package,
        version,
        sha256,
        image,
        packaged_image,
        modules,
        limits,
        from_cache_only,
    })
}

/// The kernel that was unpacked last, for machines on which apt is not available.
fn newest_cached(folder: &str, wanted: &[&str]) -> Option<GuestKernel> {
    let names = files::list(folder).ok()?;
    let mut kernels: Vec<GuestKernel> =
        names.iter().filter_map(|name| load(&format!("{folder}/{name}"), wanted)).collect();
    kernels.sort_by(|a, b| a.version.cmp(&b.version));
    kernels.pop().map(|kernel| GuestKernel { from_cache_only: true, ..kernel })
}

/// Runs a tool to its end and returns its standard output.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<Vec<u8>, GuestError> {
    let output = process::capture(program, arguments, 5 * MINUTE_NS)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(GuestError::Tool {
        program: program.to_owned(),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written() {
        let config =
            "# CONFIG_HZ_100 is not set\nCONFIG_HZ_250=y\nCONFIG_HZ=250\nCONFIG_NR_CPUS=128\n";
        let limits = KernelLimits { hz: Some(250), cpus: Some(128) };
        assert_eq!(KernelLimits::parse(config), limits);
        assert_eq!(KernelLimits::parse(&limits.to_text()), limits);
        assert_eq!(KernelLimits::parse(""), KernelLimits::default());
    }
}

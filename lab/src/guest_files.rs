//! The contents of a host under test: programs with their libraries, in an initramfs that is the
//! guest's root file system. Nothing is installed on this machine.

use std::collections::BTreeMap;

use pinfold_host::{files, process};
use pinfold_model::Isa;
use pinfold_probe::cross_compile;
use pinfold_vm::guest::{
    Cpio, DEMO_MODULES, GuestKernel, emulator_of, fetch_kernel, fetch_root_of_suite, flavour_of,
};

use crate::error::LabError;
use crate::isa::{IDLE_ROM, LEAVING_ROM, idle_rom, leaving_rom};
use crate::origin::{ProgramSource, find_here, program_of_root};
use crate::systemd;

/// `pinload` as init.
const PINLOAD: &str = "rdinit=/init -- agent";
const MINUTE_NS: u64 = 60_000_000_000;
/// Where distributions install QEMU's accelerators, which may be modules.
const QEMU_MODULES: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib64/qemu", "/usr/lib/qemu"];
const ACCELERATOR: &str = "accel-tcg-x86_64.so";

/// Programs for the guest in addition to QEMU and busybox, and their packages.
const PROGRAMS: [(&str, &str); 3] =
    [("strace", "strace"), ("lscpu", "util-linux"), ("chrt", "util-linux")];

/// Firmware that QEMU loads into a PC machine with a given kernel, and its packages.
const FIRMWARE: [(&str, &str); 3] = [
    ("/usr/share/seabios/bios-256k.bin", "seabios"),
    ("/usr/share/qemu/pvh.bin", "qemu-system-data"),
    ("/usr/share/qemu/kvmvapic.bin", "qemu-system-data"),
];

/// The package that `cargo xtask dist` makes, on this machine (from the root of the repository).
const MADE: &str = concat!("target/dist/pinfold_", env!("CARGO_PKG_VERSION"), "_amd64.deb");
/// The package in the guest.
pub(crate) const PACKAGE: &str = "/lab/pinfold.deb";
/// What installs it, and the packages of that.
const INSTALLERS: [(&str, &str); 4] =
    [("dpkg", "dpkg"), ("dpkg-deb", "dpkg"), ("dpkg-split", "dpkg"), ("tar", "tar")];

/// libvirt's daemon and client, and the packages of these.
const LIBVIRT: [(&str, &str); 2] = [("libvirtd", "libvirt-daemon"), ("virsh", "libvirt-clients")];
/// Its driver for QEMU, a module.
const LIBVIRT_DRIVER: &str =
    "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so";
/// The program that saves a domain into a file.
const IO_HELPER: &str = "/usr/lib/libvirt/libvirt_iohelper";
/// Its models of processors, without which the driver does not start.
const CPU_MODELS: &str = "/usr/share/libvirt/cpu_map";

/// Folder of rtla with its own libraries.
pub(crate) const RTLA: &str = "/lab/rtla";

/// Archive of a root with mininet and etcd.
pub(crate) const NETWORK: &str = "/lab/network.tar";
/// The packages of that root; mininet itself depends on few of the programs that it runs.
const NETWORK_PACKAGES: [&str; 14] = [
    "bash",
    "bridge-utils",
    "coreutils",
    "dash",
    "debianutils",
    "etcd-client",
    "etcd-server",
    "ethtool",
    "grep",
    "iproute2",
    "mininet",
    "net-tools",
    "procps",
    "python3",
];

/// Folder of the guest's modules that a case inserts itself; `list` has them in order.
pub(crate) const MODULES: &str = "/lab/modules";

/// The files of a host under test, by their path in it.
#[derive(Clone, Debug)]
pub struct GuestFiles {
    files: BTreeMap<String, Vec<u8>>,
    origin: ProgramSource,
    /// The init parameters of the kernel command line.
    pub(crate) init: &'static str,
    /// Image of a disk that outlives the boots of a host, for `/etc` and `/var/lib`.
    pub(crate) disk: Option<String>,
}

impl GuestFiles {
    /// Loads `pinfold` (a path of this machine) and the other files for a host under test. With
    /// another instruction set, the programs are downloaded into `cache`, and Pinfold is built for
    /// it.
    ///
    /// # Errors
    /// [`LabError::Missing`] with the package to install, [`LabError::Kernel`] if a package cannot
    /// be downloaded, [`LabError::Command`] if Pinfold cannot be built, [`LabError::Host`].
    pub fn load(pinfold: &str, isa: Option<Isa>, cache: &str) -> Result<Self, LabError> {
        let origin = ProgramSource::open(isa, &PROGRAMS.map(|(_, package)| package), cache)?;
        let init = cross_compile::program(origin.isa, &format!("{cache}/cross"))?;
        let isa = origin.isa;
        let mut cargo = Self { files: BTreeMap::new(), origin, init: PINLOAD, disk: None };
        cargo.files.insert("/init".to_owned(), init);
        let busybox = cargo.origin.find("busybox", "busybox-static")?;
        cargo.files.insert("/bin/busybox".to_owned(), files::read(&busybox)?);
        let pinfold = cargo.origin.pinfold(pinfold)?;
        cargo.program("/usr/bin/pinfold", &pinfold)?;
        let (emulator, package) = emulator_of(isa);
        for (name, package) in PROGRAMS.into_iter().chain([(emulator.as_str(), package)]) {
            let path = cargo.origin.find(name, package)?;
            cargo.program(&format!("/usr/bin/{name}"), &path)?;
        }
        let mut modules = QEMU_MODULES.iter().map(|folder| format!("{folder}/{ACCELERATOR}"));
        if let Some(module) = modules.find(|path| files::exists(&cargo.origin.path_outside(path))) {
            let path = cargo.origin.path_outside(&module);
            cargo.program(&module, &path)?;
        }
        cargo.files.insert(IDLE_ROM.to_owned(), idle_rom(isa));
        cargo.files.extend(leaving_rom(isa).map(|rom| (LEAVING_ROM.to_owned(), rom)));
        Ok(cargo)
    }

    /// Instruction set of the host under test.
    pub(crate) fn isa(&self) -> Isa {
        self.origin.isa
    }

    /// The same files, with systemd as init.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_systemd(&self) -> Result<Self, LabError> {
        let mut cargo = self.clone();
        cargo.init = systemd::COMMAND_LINE;
        for path in systemd::PROGRAMS {
            if !files::exists(path) {
                let hint = "install it: apt-get install systemd".to_owned();
                return Err(LabError::Missing { what: path.to_owned(), hint });
            }
            cargo.program(path, path)?;
        }
        cargo.files.extend(systemd::files());
        Ok(cargo)
    }

    /// As [`GuestFiles::with_systemd`], with Pinfold as a package that is not installed.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_package(&self) -> Result<Self, LabError> {
        if !files::exists(MADE) {
            let hint = "make it: cargo xtask dist".to_owned();
            return Err(LabError::Missing { what: MADE.to_owned(), hint });
        }
        let mut cargo = self.with_systemd()?;
        cargo.files.remove("/usr/bin/pinfold");
        cargo.files.remove(&systemd::recover_unit());
        for (name, package) in INSTALLERS {
            cargo.program(&format!("/usr/bin/{name}"), &find_here(name, package)?)?;
        }
        cargo.files.insert(PACKAGE.to_owned(), files::read(MADE)?);
        cargo.files.insert("/var/lib/dpkg/status".to_owned(), Vec::new());
        Ok(cargo)
    }

    /// As [`GuestFiles::with_systemd`], with `/etc` and `/var/lib` on a new disk at `image`.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_disk(&self, image: &str) -> Result<Self, LabError> {
        let mut cargo = self.with_systemd()?;
        match image.rsplit_once('/') {
            _ if files::exists(image) => files::remove(image)?,
            Some((folder, _)) => files::make_dirs(folder)?,
            None => {}
        }
        let make = find_here("mke2fs", "e2fsprogs")?;
        let arguments = ["-q", "-t", "ext4", "-F", image, systemd::DISK_SIZE];
        let made = process::capture(&make, arguments, MINUTE_NS)?;
        if !made.status.success() {
            return Err(LabError::wrong(make, made.stderr_text()));
        }
        cargo.init = systemd::COMMAND_LINE_ON_DISK;
        cargo.files.extend([systemd::disk_script()]);
        cargo.disk = Some(image.to_owned());
        Ok(cargo)
    }

    /// The same files, with those for Pinfold's own guests: firmware, and a kernel in Pinfold's
    /// cache, because there is no apt in a host under test.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_guests(&self) -> Result<Self, LabError> {
        let mut cargo = self.clone();
        let kernel = fetch_kernel(&files::cache_dir()?, &flavour_of(self.isa()), DEMO_MODULES)?;
        for path in kernel.files() {
            cargo.files.insert(path.clone(), files::read(&path)?);
        }
        for (path, package) in FIRMWARE {
            if !files::exists(path) {
                let hint = format!("install it: apt-get install {package}");
                return Err(LabError::Missing { what: path.to_owned(), hint });
            }
            cargo.files.insert(path.to_owned(), files::read(path)?);
        }
        Ok(cargo)
    }

    /// As [`GuestFiles::with_systemd`], with libvirt's daemon, which is not started.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_libvirt(&self) -> Result<Self, LabError> {
        let mut cargo = self.with_systemd()?;
        for (name, package) in LIBVIRT {
            cargo.program(&format!("/usr/bin/{name}"), &find_here(name, package)?)?;
        }
        if !files::exists(LIBVIRT_DRIVER) {
            let hint = "install it: apt-get install libvirt-daemon-driver-qemu".to_owned();
            return Err(LabError::Missing { what: LIBVIRT_DRIVER.to_owned(), hint });
        }
        for path in [LIBVIRT_DRIVER, IO_HELPER] {
            cargo.program(path, path)?;
        }
        for name in files::list(CPU_MODELS)? {
            let path = format!("{CPU_MODELS}/{name}");
            cargo.files.insert(path.clone(), files::read(&path)?);
        }
        Ok(cargo)
    }

    /// The same files, with `runqslower` of libbpf-tools.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_runqslower(&self) -> Result<Self, LabError> {
        let mut cargo = self.clone();
        cargo.program("/usr/bin/runqslower", &find_here("runqslower", "libbpf-tools")?)?;
        Ok(cargo)
    }

    /// The same files, with `rtla` of Debian 13 and its libraries in [`RTLA`]: that of Debian 12 has
    /// no analysis of its own.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_rtla(&self) -> Result<Self, LabError> {
        let mut cargo = self.clone();
        let root = fetch_root_of_suite(&files::cache_dir()?, "trixie", &["rtla"])?;
        let program = format!("{root}/usr/bin/rtla");
        let mut paths = program_of_root(&root, &program)?;
        paths.push(program);
        for path in paths {
            let name = path.rsplit('/').next().unwrap_or(&path);
            cargo.files.insert(format!("{RTLA}/{name}"), files::read(&path)?);
        }
        Ok(cargo)
    }

    /// The same files, with mininet and etcd of Debian 12 as the archive [`NETWORK`]: an archive has
    /// links, and its C library may be older than that of this machine.
    ///
    /// # Errors
    /// As [`GuestFiles::load`].
    pub(crate) fn with_network(&self) -> Result<Self, LabError> {
        let mut cargo = self.clone();
        let root = fetch_root_of_suite(&files::cache_dir()?, "bookworm", &NETWORK_PACKAGES)?;
        let tar = find_here("tar", "tar")?;
        let arguments = ["--create", "--exclude=./usr/share", "--directory", &root, "."];
        let packed = process::capture(&tar, arguments, MINUTE_NS)?;
        if !packed.status.success() {
            return Err(LabError::wrong(tar, packed.stderr_text()));
        }
        cargo.files.insert(NETWORK.to_owned(), packed.stdout);
        Ok(cargo)
    }

    /// Adds a dynamic program and its libraries.
    fn program(&mut self, inside: &str, path: &str) -> Result<(), LabError> {
        for library in self.origin.libraries(path)? {
            if !self.files.contains_key(&library) {
                let content = files::read(&self.origin.path_outside(&library))?;
                self.files.insert(library, content);
            }
        }
        self.files.insert(inside.to_owned(), files::read(path)?);
        Ok(())
    }

    /// The initramfs for a kernel: `pinload` as init, the modules of its port, the cargo.
    ///
    /// # Errors
    /// [`LabError::Host`] if a module cannot be read.
    pub fn initramfs(&self, kernel: &GuestKernel) -> Result<Vec<u8>, LabError> {
        let mut files = self.files.clone();
        let (mut list, mut others) = (String::new(), String::new());
        for path in &kernel.modules {
            let file = path.rsplit('/').next().unwrap_or(path);
            if !file.contains("virtio") {
                files.insert(format!("{MODULES}/{file}"), files::read(path)?);
                others.push_str(&format!("{MODULES}/{file}\n"));
                continue;
            }
            let inside = format!("/pinload/modules/{file}");
            files.insert(inside.clone(), files::read(path)?);
            list.push_str(&format!("{inside}\n"));
        }
        files.insert("/pinload/modules.list".to_owned(), list.into_bytes());
        files.insert(format!("{MODULES}/list"), others.into_bytes());
        let mut archive = Cpio::new();
        let mut folders: Vec<String> = vec!["dev", "proc", "sys", "tmp", "run", "sbin", "usr/sbin"]
            .into_iter()
            .map(str::to_owned)
            .collect();
        folders.extend(files.keys().filter_map(|path| {
            path.rsplit_once('/').map(|(folder, _)| folder.trim_start_matches('/').to_owned())
        }));
        for folder in with_parents(&folders) {
            archive.directory(&folder);
        }
        for (path, content) in &files {
            archive.program(path.trim_start_matches('/'), content);
        }
        Ok(archive.finish())
    }
}

/// Each folder once, after its parents.
fn with_parents(folders: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for folder in folders {
        let ends = folder.match_indices('/').map(|(end, _)| end).chain([folder.len()]);
        for end in ends.filter(|end| *end > 0) {
            let part = folder[..end].to_owned();
            if !all.contains(&part) {
                all.push(part);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::with_parents;

    #[test]
    fn folders_come_after_their_parents() {
        let folders = ["usr/lib/x".to_owned(), "usr/bin".to_owned()];
        assert_eq!(with_parents(&folders), ["usr", "usr/lib", "usr/lib/x", "usr/bin"]);
    }
}

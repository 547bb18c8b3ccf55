//! What a host under test is made of: this machine's programs with their libraries, in an
//! initramfs.
//!
//! Which libraries a program needs is asked of the dynamic loader, which prints lines such as
//! `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f9a7381e000)`; each is put at the same
//! path. The initramfs is the guest's root file system, so nothing is installed anywhere.

use std::collections::BTreeMap;

use pinfold_host::{process, user};
use pinfold_probe::pinload;
use pinfold_vm::guest::{Cpio, GuestKernel};

use crate::error::LabError;
use crate::systemd;

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// `pinload` as init.
const PINLOAD: &str = "rdinit=/init -- agent";
const LOADER_NS: u64 = 20_000_000_000;
/// QEMU's accelerator may be a module; where distributions keep it.
const QEMU_MODULES: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib64/qemu", "/usr/lib/qemu"];
const ACCELERATOR: &str = "accel-tcg-x86_64.so";

/// A program of this machine that goes into the guest, and the package that has it.
const PROGRAMS: [(&str, &str); 4] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("strace", "strace"),
    ("lscpu", "util-linux"),
    ("chrt", "util-linux"),
];

/// Folder of the guest's modules that a case inserts itself; `list` has them in order.
pub(crate) const MODULES: &str = "/lab/modules";
/// Path of the guest's firmware for the machines inside it.
pub(crate) const IDLE_ROM: &str = "/lab/idle.rom";

/// The files of a host under test, by their path in it.
#[derive(Clone, Debug)]
pub struct Cargo {
    files: BTreeMap<String, Vec<u8>>,
    /// What the kernel's command line says of init.
    pub(crate) init: &'static str,
}

impl Cargo {
    /// Loads `pinfold` (a path of this machine) and what a host under test needs beside it.
    ///
    /// # Errors
    /// [`LabError::Missing`] with the package to install, [`LabError::Host`].
    pub fn load(pinfold: &str) -> Result<Self, LabError> {
        let mut cargo = Self { files: BTreeMap::new(), init: PINLOAD };
        let busybox = find("busybox", "busybox-static")?;
        cargo.files.insert("/bin/busybox".to_owned(), user::read(&busybox)?);
        cargo.program("/usr/bin/pinfold", pinfold)?;
        for (name, package) in PROGRAMS {
            let path = find(name, package)?;
            cargo.program(&format!("/usr/bin/{name}"), &path)?;
        }
        let mut modules = QEMU_MODULES.iter().map(|folder| format!("{folder}/{ACCELERATOR}"));
        if let Some(module) = modules.find(|path| user::exists(path)) {
            cargo.program(&module, &module)?;
        }
        cargo.files.insert(IDLE_ROM.to_owned(), idle_rom());
        Ok(cargo)
    }

    /// The same with systemd as init.
    ///
    /// # Errors
    /// As [`Cargo::load`].
    pub(crate) fn with_systemd(&self) -> Result<Self, LabError> {
        let mut cargo = self.clone();
        cargo.init = systemd::COMMAND_LINE;
        for path in systemd::PROGRAMS {
            if !user::exists(path) {
                let hint = "install it: apt-get install systemd".to_owned();
                return Err(LabError::Missing { what: path.to_owned(), hint });
            }
            cargo.program(path, path)?;
        }
        cargo.files.extend(systemd::files());
        Ok(cargo)
    }

    /// A dynamic program and its libraries.
    fn program(&mut self, inside: &str, path: &str) -> Result<(), LabError> {
        for library in libraries(path)? {
            if !self.files.contains_key(&library) {
                self.files.insert(library.clone(), user::read(&library)?);
            }
        }
        self.files.insert(inside.to_owned(), user::read(path)?);
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
                files.insert(format!("{MODULES}/{file}"), user::read(path)?);
                others.push_str(&format!("{MODULES}/{file}\n"));
                continue;
            }
            let inside = format!("/pinload/modules/{file}");
            files.insert(inside.clone(), user::read(path)?);
            list.push_str(&format!("{inside}\n"));
        }
        files.insert("/pinload/modules.list".to_owned(), list.into_bytes());
        files.insert(format!("{MODULES}/list"), others.into_bytes());
        files.insert("/init".to_owned(), pinload::BINARY.to_vec());
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

/// Each folder after its parents, once.
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

fn find(program: &str, package: &str) -> Result<String, LabError> {
    process::find_program(program).ok_or_else(|| LabError::Missing {
        what: program.to_owned(),
        hint: format!("install it: apt-get install {package}"),
    })
}

/// The libraries that the loader would load for a program, the loader among them.
fn libraries(program: &str) -> Result<Vec<String>, LabError> {
    if !user::exists(LOADER) {
        return Err(LabError::Missing {
            what: LOADER.to_owned(),
            hint: "the lab needs an x86-64 machine with glibc".to_owned(),
        });
    }
    let output = process::capture(LOADER, ["--list", program], LOADER_NS)?;
    if !output.status.success() {
        return Err(LabError::Command {
            command: format!("{LOADER} --list {program}"),
            how: process::describe(output.status),
            output: output.stderr_text(),
        });
    }
    Ok(listed(&output.stdout_text()))
}

/// Paths of the loader's list; the kernel's own `linux-vdso` has none.
fn listed(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let right = line.rsplit("=>").next().unwrap_or(line);
            let path = right.split_whitespace().next()?;
            path.starts_with('/').then(|| path.to_owned())
        })
        .collect()
}

/// Firmware of which every vCPU halts in its first instruction: the cheapest real machine.
///
/// The reset vector of x86 is 16 bytes below the ROM's end: `cli; hlt; jmp` back to the `hlt`.
fn idle_rom() -> Vec<u8> {
    const SIZE: usize = 64 * 1024;
    let mut rom = vec![0xf4; SIZE];
    rom[SIZE - 16..SIZE - 12].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    rom
}

#[cfg(test)]
mod tests {
    use super::{listed, with_parents};

    #[test]
    fn the_loaders_list_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007f9a)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f9a)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f9b)\n";
        assert_eq!(
            listed(text),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert!(listed("\tstatically linked\n").is_empty());
    }

    #[test]
    fn folders_come_after_their_parents() {
        let folders = ["usr/lib/x".to_owned(), "usr/bin".to_owned()];
        assert_eq!(with_parents(&folders), ["usr", "usr/lib", "usr/lib/x", "usr/bin"]);
    }
}

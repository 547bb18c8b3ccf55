//! Locates the programs for a host under test: on this machine, or for another instruction set in a
//! folder of unpacked Debian packages.
//!
//! The dynamic loader lists the libraries of a program in lines such as
//! `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f9a7381e000)`; each library gets the same
//! path in the guest. The loader of another instruction set is run by QEMU's user mode. Pinfold
//! itself is then built from this workspace against the libraries of that folder.

use pinfold_host::files;
use pinfold_host::process::{self, Spawn};
use pinfold_model::Isa;
use pinfold_vm::guest::{emulator_of, fetch_root};

use crate::error::LabError;

const LOADER_NS: u64 = 20_000_000_000;
/// Timeout to build all of Pinfold's dependencies on a busy machine.
const BUILD_NS: u64 = 7_200_000_000_000;
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Programs of an instruction set.
#[derive(Clone, Debug)]
pub(crate) struct ProgramSource {
    pub(crate) isa: Isa,
    /// The folder that is their root: empty for this machine.
    root: String,
}

impl ProgramSource {
    /// The programs of this machine, or those of another instruction set; `packages` and the
    /// libraries that Pinfold is linked with are then downloaded into `cache`.
    pub(crate) fn open(isa: Option<Isa>, packages: &[&str], cache: &str) -> Result<Self, LabError> {
        let Some(isa) = isa else { return Ok(Self { isa: Isa::X86, root: String::new() }) };
        let linked =
            ["libhwloc-dev", "libudev-dev", "libc6-dev", "busybox-static", emulator_of(isa).1];
        let packages = [packages, &linked].concat();
        Ok(Self { isa, root: fetch_root(cache, isa, &packages)? })
    }

    /// Path on this machine of a program from `package`.
    pub(crate) fn find(&self, program: &str, package: &str) -> Result<String, LabError> {
        if self.root.is_empty() {
            return find_here(program, package);
        }
        let path = self.path_outside(&format!("/usr/bin/{program}"));
        if files::exists(&path) {
            Ok(path)
        } else {
            Err(LabError::wrong(path, format!("{package} does not have it")))
        }
    }

    /// Path on this machine of the file at `path` in the host under test.
    pub(crate) fn path_outside(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// Paths in the host under test of the libraries of a program of this machine, including the
    /// loader.
    pub(crate) fn libraries(&self, program: &str) -> Result<Vec<String>, LabError> {
        let loader = self.path_outside(match self.isa {
            Isa::X86 => "/lib64/ld-linux-x86-64.so.2",
            Isa::Arm => "/lib/ld-linux-aarch64.so.1",
            Isa::Riscv => "/lib/ld-linux-riscv64-lp64d.so.1",
        });
        if !files::exists(&loader) {
            return Err(LabError::Missing {
                what: loader,
                hint: "the lab needs an x86-64 machine with glibc".to_owned(),
            });
        }
        let mut words = vec![loader, "--list".to_owned(), program.to_owned()];
        if !self.root.is_empty() {
            let user_mode = format!("qemu-{}", self.isa.gnu_name());
            let user_mode = find_here(&user_mode, "qemu-user")?;
            words.splice(0..0, [user_mode, "-L".to_owned(), self.root.clone()]);
        }
        let output = process::capture(&words[0], &words[1..], LOADER_NS)?;
        if !output.status.success() {
            return Err(LabError::Command {
                command: words.join(" "),
                how: process::describe(output.status),
                output: output.stderr_text(),
            });
        }
        Ok(list_values(&output.stdout_text()))
    }

    /// Pinfold for this instruction set: `own` on this machine, else built now unless it is up to
    /// date.
    pub(crate) fn pinfold(&self, own: &str) -> Result<String, LabError> {
        if self.root.is_empty() {
            return Ok(own.to_owned());
        }
        let gnu = self.isa.gnu_name();
        let target = match self.isa {
            Isa::X86 => "x86_64-unknown-linux-gnu",
            Isa::Arm => "aarch64-unknown-linux-gnu",
            Isa::Riscv => "riscv64gc-unknown-linux-gnu",
        };
        needs_target(target)?;
        let compiler = find_here(&format!("{gnu}-linux-gnu-gcc"), &format!("gcc-{gnu}-linux-gnu"))?;
        let low = target.replace('-', "_");
        let high = low.to_uppercase();
        let sysroot = format!("--sysroot={}", self.root);
        let libraries = format!("{}/usr/lib/{gnu}-linux-gnu/pkgconfig", self.root);
        let output = Spawn::new("cargo")
            .args(["build", "--release", "--quiet", "--package", "pinfold", "--target", target])
            .current_dir(WORKSPACE)
            .env("PKG_CONFIG_ALLOW_CROSS", "1")
            .env("PKG_CONFIG_LIBDIR", &libraries)
            .env("PKG_CONFIG_SYSROOT_DIR", &self.root)
            .env(&format!("CC_{low}"), &compiler)
            .env(&format!("CFLAGS_{low}"), &sysroot)
            .env(&format!("CARGO_TARGET_{high}_LINKER"), &compiler)
            .env(&format!("CARGO_TARGET_{high}_RUSTFLAGS"), &format!("-Clink-arg={sysroot}"))
            .env("CARGO_TARGET_DIR", &target_folder())
            .capture(BUILD_NS)?;
        if !output.status.success() {
            return Err(LabError::Command {
                command: format!("cargo build --package pinfold --target {target}"),
                how: process::describe(output.status),
                output: output.stderr_text(),
            });
        }
        Ok(format!("{}/{target}/release/pinfold", target_folder()))
    }
}

/// Cargo's target folder: `CARGO_TARGET_DIR`, or the default.
fn target_folder() -> String {
    std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{WORKSPACE}/target"))
}

/// Fails unless Rust's standard library for a target is installed.
fn needs_target(target: &str) -> Result<(), LabError> {
    let words = ["--print", "target-libdir", "--target", target];
    let output = Spawn::new("rustc").args(words).current_dir(WORKSPACE).capture(LOADER_NS)?;
    if files::is_dir(output.stdout_text().trim()) {
        Ok(())
    } else {
        Err(LabError::Missing {
            what: format!("Rust's library for {target}"),
            hint: format!("install it: rustup target add {target}"),
        })
    }
}

/// A program of this machine.
pub(crate) fn find_here(program: &str, package: &str) -> Result<String, LabError> {
    process::find_program(program).ok_or_else(|| LabError::Missing {
        what: program.to_owned(),
        hint: format!("install it: apt-get install {package}"),
    })
}

/// A program of a root folder of this machine's instruction set, and its libraries: their paths on
/// this machine, the loader first.
pub(crate) fn program_of_root(root: &str, program: &str) -> Result<Vec<String>, LabError> {
    let libraries = format!("{root}/usr/lib/x86_64-linux-gnu");
    let loader = format!("{libraries}/ld-linux-x86-64.so.2");
    let words = ["--library-path", &libraries, "--list", program];
    let output = process::capture(&loader, words, LOADER_NS)?;
    if !output.status.success() {
        return Err(LabError::Command {
            command: format!("{loader} {}", words.join(" ")),
            how: process::describe(output.status),
            output: output.stderr_text(),
        });
    }
    let list = list_values(&output.stdout_text());
    let others = list.into_iter().filter(|path| !path.contains("/ld-linux"));
    Ok([loader].into_iter().chain(others).collect())
}

/// Paths in the loader's list; `linux-vdso` of the kernel has none, and the loader itself may have
/// its path on this machine after the one in the guest.
fn list_values(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().filter(|word| word.starts_with('/'));
            words.next().map(str::to_owned)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::list_values;

    #[test]
    fn the_loaders_list_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007f9a)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f9a)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f9b)\n\t/lib/ld-linux-aarch64.so.1 => /c/root/lib/ld-linux-aarch64.so.1 (0x0055)\n";
        assert_eq!(
            list_values(text),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2",
                "/lib/ld-linux-aarch64.so.1"
            ]
        );
        assert!(list_values("\tstatically linked\n").is_empty());
    }
}

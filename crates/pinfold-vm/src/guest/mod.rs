//! The demo guest: a Debian kernel, an initramfs whose only program is `pinload`, and the QEMU
//! command line that boots it.
//!
//! ```text
//! apt ──► package.rs ──► kernel.rs (cache) ──► initramfs.rs ──► command.rs ──► launch
//! ```
//! The guest has no disk image, no network and no shell. Its init is `pinload agent`, which serves
//! framed messages over the virtio-serial port [`AGENT_PORT`]. It has two memory-backed block
//! devices for measurements: one on an AHCI controller, which QEMU must emulate in its main loop
//! (as in Lindroth 2017), and one on virtio.

mod command;
mod cpio;
mod flavour;
mod initramfs;
mod kernel;
mod modules;
mod package;
mod root;

pub use command::{DemoGuest, GuestDisks, agent_port};
pub use cpio::Cpio;
pub use flavour::Flavour;
pub use initramfs::build as build_initramfs;
pub use kernel::{GuestKernel, KernelLimits, fetch as fetch_kernel};
pub use root::{fetch as fetch_root, fetch_of_suite as fetch_root_of_suite};

use pinfold_host::{HostError, process};
use pinfold_model::Isa;

/// Name of the virtio-serial port that the agent uses.
pub const AGENT_PORT: &str = "org.pinfold.agent";

/// The metapackage of the demo guest's kernel. The `cloud` flavour boots faster, but it has
/// no AHCI driver.
pub const DEMO_FLAVOUR: Flavour = Flavour { package: "linux-image-amd64", suite: None, isa: None };

/// The metapackage of a kernel with PREEMPT_RT and the tracers of latencies (`hwlat`, `osnoise`,
/// `timerlat`), which Debian's other kernels lack.
pub const REAL_TIME_FLAVOUR: Flavour =
    Flavour { package: "linux-image-rt-amd64", suite: Some("bookworm-backports"), isa: None };

/// Timeout of QEMU's `--version`.
const VERSION_NS: u64 = 10_000_000_000;

/// Maximum number of vCPUs of a guest: the limit of Debian's kernel for RISC-V (`NR_CPUS`) and of
/// OpenSBI. It applies to all instruction sets, so that they can be compared.
pub const MOST_VCPUS: u32 = 128;

/// The metapackage of the kernel for an instruction set: the demo guest's for x86-64, Debian 13's
/// for others.
pub const fn flavour_of(isa: Isa) -> Flavour {
    match isa {
        Isa::X86 => DEMO_FLAVOUR,
        Isa::Riscv => foreign("linux-image-riscv64", isa),
        Isa::Arm => foreign("linux-image-arm64", isa),
    }
}

const fn foreign(package: &'static str, isa: Isa) -> Flavour {
    Flavour { package, suite: Some("trixie"), isa: Some(isa) }
}

/// QEMU's program for an instruction set, and the Debian package that contains it.
pub fn emulator_of(isa: Isa) -> (String, &'static str) {
    let package = match isa {
        Isa::X86 => "qemu-system-x86",
        Isa::Riscv => "qemu-system-misc",
        Isa::Arm => "qemu-system-arm",
    };
    (format!("qemu-system-{}", isa.gnu_name()), package)
}

/// Version of the installed QEMU for an instruction set, such as `7.2.22`.
pub fn emulator_version(isa: Isa) -> Option<String> {
    let output = process::capture(&emulator_of(isa).0, ["--version"], VERSION_NS).ok()?;
    let text = output.stdout_text();
    text.lines().next()?.strip_prefix("QEMU emulator version ").map(str::to_owned)
}

/// The modules that the demo guest needs. AHCI is last, because its probing takes longest and
/// continues while the agent already answers.
pub const DEMO_MODULES: &[&str] = &["virtio_pci", "virtio_console", "virtio_blk", "sd_mod", "ahci"];

/// Why the demo guest cannot be provided.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Neither apt nor the cache has a kernel.
    #[error("there is no kernel for the demo guest: {why}")]
    NoKernel {
        /// Name of the metapackage.
        flavour: String,
        /// apt's message.
        why: String,
    },
    /// A package is not as expected.
    #[error("package {package}: {why}")]
    Package {
        /// Name of the package.
        package: String,
        /// The fault in the package.
        why: String,
    },
    /// A tool failed.
    #[error("`{program}` failed: {message}")]
    Tool {
        /// Name of the tool.
        program: String,
        /// The tool's message.
        message: String,
    },
    /// A file or process operation failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl GuestError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            GuestError::NoKernel { flavour, .. } => Some(format!(
                "run `apt-get update` and see `apt-cache policy {flavour}`; without Debian's \
                 packages, tune your own guest: `pinfold tune -- qemu-system-x86_64 …`"
            )),
            GuestError::Package { .. } => {
                Some("run `apt-get update` and try again; the cache was left as it was".to_owned())
            }
            GuestError::Tool { program, .. } if program.starts_with("apt-get") => {
                Some("is the package mirror reachable? Run `apt-get update`".to_owned())
            }
            GuestError::Tool { .. } | GuestError::Host(_) => None,
        }
    }
}

//! The demo guest: a Debian kernel, an initramfs whose only program is `pinload`, and the
//! QEMU command line that boots it.
//!
//! ```text
//! apt ──► package.rs ──► kernel.rs (cache) ──► initramfs.rs ──► command.rs ──► launch
//! ```
//! The guest has no disk image, no network and no shell. Its init is `pinload agent`,
//! which serves framed messages over the virtio-serial port [`AGENT_PORT`]. Two block
//! devices backed by memory are there to be measured: one on an AHCI controller, which
//! QEMU must emulate in its main loop (as Lindroth 2017 chose), and one on virtio.

mod command;
mod cpio;
mod initramfs;
mod kernel;
mod modules;
mod package;

pub use command::{DemoGuest, GuestDisks, agent_port};
pub use cpio::Cpio;
pub use initramfs::build as build_initramfs;
pub use kernel::{Flavour, GuestKernel, fetch as fetch_kernel};

use pinfold_host::HostError;

/// Name of the virtio-serial port on which the agent serves.
pub const AGENT_PORT: &str = "org.pinfold.agent";

/// The metapackage of the demo guest's kernel. The `cloud` flavour boots faster, but it has
/// no AHCI driver.
pub const DEMO_FLAVOUR: Flavour = Flavour { package: "linux-image-amd64", suite: None };

/// The modules that the demo guest needs; AHCI last, because its probing takes longest and
/// goes on while the agent already answers.
pub const DEMO_MODULES: &[&str] = &["virtio_pci", "virtio_console", "virtio_blk", "sd_mod", "ahci"];

/// Why there is no demo guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Neither apt nor the cache has a kernel.
    #[error("there is no kernel for the demo guest: {why}")]
    NoKernel {
        /// The metapackage.
        flavour: String,
        /// What apt said.
        why: String,
    },
    /// A package is not what it should be.
    #[error("package {package}: {why}")]
    Package {
        /// Its name.
        package: String,
        /// What is wrong.
        why: String,
    },
    /// A tool failed.
    #[error("`{program}` failed: {message}")]
    Tool {
        /// The program.
        program: String,
        /// What it said.
        message: String,
    },
    /// A file or process operation failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl GuestError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            GuestError::NoKernel { flavour, .. } => Some(format!(
                "run `apt-get update` and see `apt-cache policy {flavour}`; without Debian's packages, tune a guest of your own: `pinfold tune -- qemu-system-x86_64 …`"
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

//! The lab: QEMU guests as *hosts under test*, in which the real `pinfold` changes a whole host.
//!
//! ```text
//! kernel, programs ──► ship ──► guest (boots, runs commands) ──► stage (groups, bystanders, a VM)
//!                                                                  │
//!                    verdict ◄── cases ◄── snapshot (before, after) ┘
//! ```
//!
//! `origin` locates the programs for the instruction set of the host under test; the differences
//! between instruction sets are in `isa`. The machine that runs the tests is not changed: what
//! `--isolate host` moves exists only inside the guest. Guests run under TCG, so the lab makes no
//! statements about time. All assertions use data read in the guest by busybox and util-linux, not
//! by Pinfold.

mod acpi;
mod actuators;
pub mod cases;
mod error;
mod guest;
mod guest_files;
mod isa;
mod origin;
mod snapshot;
mod stage;
mod systemd;
mod table;

pub use cases::{Case, Extent, Verdict};
pub use error::LabError;
pub use guest::{Guest, Shape};
pub use guest_files::GuestFiles;
pub use stage::Cgroups;
pub use table::{Row, markdown, record};

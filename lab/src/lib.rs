//! The lab: QEMU guests as *hosts under test*, in which the real `pinfold` changes a whole host.
//!
//! ```text
//! kernel, programs ──► ship ──► guest (boots, runs commands) ──► stage (groups, bystanders, a VM)
//!                                                                  │
//!                    verdict ◄── cases ◄── snapshot (before, after) ┘
//! ```
//! Programs come from where `origin` says, of the instruction set of the host under test; what
//! differs between those is in `isa`.
//! On the machine that runs the tests nothing is changed: what `--isolate host` moves lives and
//! ends inside the guest. Guests run under TCG, so nothing here says anything about time.
//! Whatever a case asserts is read in the guest by busybox and util-linux, not by Pinfold.

mod acpi;
mod actuators;
pub mod cases;
mod error;
mod guest;
mod isa;
mod origin;
mod ship;
mod snapshot;
mod stage;
mod systemd;
mod table;

pub use cases::{Case, Extent, Verdict};
pub use error::LabError;
pub use guest::{Guest, Shape};
pub use ship::Cargo;
pub use stage::Cgroups;
pub use table::{Row, markdown, record};

//! Command lines of QEMU, as data: what they say about the machine, and the same command line with
//! another guest topology.
//!
//! Stability: semantic versioning, as `pinfold-model`.
//!
//! A pure function of text: [`parse`] gives a [`QemuCommand`], from which scripts are written and
//! machines are described. Starting one is in `pinfold-vm`.

mod command;
mod parse;
mod program;
mod threads;
mod wrappers;

pub use command::{QemuCommand, QemuOption};
pub use parse::{is_handed_over, parse, set_smp, without_machine_smp};
pub use program::is_qemu;
pub use threads::{accelerator_of, role_of};

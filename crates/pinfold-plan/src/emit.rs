//! A plan in the languages of others: libvirt's XML, a QEMU start script.
//!
//! What a language cannot say (libvirt does not keep the host's tasks off a PU, QEMU
//! has no affinity option) is said in a comment beside it, never left out in silence.
//! Texts that came from outside (names, ids, reasons of a plan from a file) are
//! escaped so that they stay data.

mod libvirt;
mod qemu;

pub use libvirt::libvirt;
pub use qemu::qemu;

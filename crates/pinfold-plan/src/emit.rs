//! A plan in the languages of others: libvirt's XML, a QEMU start script.
//!
//! What a language cannot say (libvirt does not keep the host's tasks off a CPU, QEMU
//! has no affinity option) is said in a comment beside it, never left out in silence.
//! Texts that came from outside (names, ids, reasons of a plan from a file) are
//! escaped so that they stay data.

pub(crate) mod cmdline;
mod common;
mod kernel_files;
mod kubevirt;
pub(crate) mod libvirt;
pub(crate) mod libvirt_merge;
mod nova;
mod proxmox;
mod qemu;
pub(crate) mod said;
mod systemd;
mod tuned;
mod virsh;

pub use cmdline::cmdline;
pub use kubevirt::kubevirt;
pub use libvirt::libvirt;
pub use libvirt_merge::{Merged, libvirt_into};
pub use nova::nova;
pub use proxmox::proxmox;
pub use qemu::qemu;
pub use systemd::systemd;
pub use tuned::tuned;
pub use virsh::virsh;

//! Writes a plan in the formats of other tools: libvirt's XML, a QEMU start script and others.
//!
//! Stability: for other programs; semantic versioning, checked by `cargo semver-checks`.
//!
//! What a format cannot express (libvirt does not exclude the host's tasks from a CPU, QEMU has no
//! affinity option) is stated in a comment, never omitted silently. Text from outside (names, IDs,
//! reasons of a plan from a file) is escaped so that it remains data.

mod board;
mod cloud_hypervisor;
mod cmdline;
mod common;
mod format;
mod kubevirt;
mod libvirt;
mod libvirt_merge;
mod nova;
mod proxmox;
mod qemu;
mod systemd;
#[cfg(test)]
mod tests;
mod tunable_answers;
mod tuned;
mod virsh;

pub use cmdline::cmdline;
pub use format::Format;
#[cfg(test)]
pub(crate) use format::table;
pub use kubevirt::kubevirt;
pub use libvirt::{PASSTHROUGH, TOPOEXT, libvirt, memnode_line, mode_of_nodes};
pub use libvirt_merge::edits::Edits;
pub use libvirt_merge::{Merged, merge_libvirt_domain};
pub use nova::nova;
pub use proxmox::proxmox;
pub use qemu::qemu;
pub use systemd::systemd;
pub use tuned::tuned_profile;
pub use virsh::virsh;

/// All output formats, in the order of the help. The command line, the tests and the fuzzer use
/// this table.
///
/// ```
/// let names: Vec<&str> = pinfold_emit::FORMATS.iter().map(|format| format.name).collect();
/// assert!(names.contains(&"libvirt"));
/// assert!(pinfold_emit::format("word").is_none());
/// ```
pub static FORMATS: [Format; 10] = [
    libvirt::FORMAT,
    qemu::FORMAT,
    virsh::FORMAT,
    cmdline::FORMAT,
    systemd::FORMAT,
    tuned::FORMAT,
    proxmox::FORMAT,
    kubevirt::FORMAT,
    nova::FORMAT,
    cloud_hypervisor::FORMAT,
];

/// The format of this name.
#[must_use]
pub fn format(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

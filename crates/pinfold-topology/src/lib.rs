//! Host to topology and findings, with hwloc and sysfs.
//!
//! Stability: for other programs; semantic versioning, checked by `cargo semver-checks`.
//!
//! ```text
//! hwloc (live, XML, synthetic) ──► tree ──┐
//!                                         ├──► tables, fingerprint, findings = Topology
//! kernel files (through Host) ──► facts ──┘
//! ```
//!
//! [`discover`] examines a host, [`read_input`] a file, a folder or a description. [`capture`]
//! creates such a file, [`render_tree`] and [`schema`] show the result, and [`capabilities`]
//! reports which features of a host Pinfold can use.
//!
//! Only `hwloc.rs` uses hwloc. Only `facts.rs`, `groups.rs`, `sysfs.rs`, `origin.rs` and
//! `capabilities` read a host; everything else is pure. Nothing here changes a host.

mod build;
mod capabilities;
mod capture;
mod error;
mod facts;
mod findings;
mod fingerprint;
mod fsroot;
mod gathered_cpuset;
mod groups;
mod hwloc;
mod hypervisor;
mod input;
mod kinds;
mod origin;
mod reader;
mod render;
pub mod schema;
mod synthetic;
mod sysfs;
mod tables;
mod virsh_capabilities;
mod xml;

pub use capabilities::{
    Capability, NOT_IN_CAPTURE, Verdict, capabilities, captured_capabilities,
    has_required_capabilities, kvm_capability,
};
pub use capture::capture;
pub use error::TopologyError;
pub use input::{describe_source, discover, read_capture, read_input};
pub use origin::origin;
pub use reader::cpu_has_flag;
pub use render::{headline, render_tree};

#[cfg(test)]
mod tests;

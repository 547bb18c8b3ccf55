//! Hypervisors: find the threads of a virtual machine, and start one that is pinned from its first
//! instruction.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! - [`hypervisor`] has the traits of a hypervisor, of a command line that starts a machine, and of
//!   a machine's control interface.
//! - [`hypervisors`] is the table of hypervisors.
//! - [`qemu`] is QEMU: command lines, QMP, names of threads.
//! - [`libvirt`] finds domains and changes their pins through libvirt's own interface; it reaches
//!   QEMU through `virsh`.
//! - [`threads`] determines the role of every thread of a machine.
//! - [`launch`] starts a machine stopped, so that it can be placed before its first instruction.
//!
//! Nothing here changes the placement of a thread, except through libvirt: the crate that applies
//! plans changes affinities and cgroups.

mod detect_only;
mod display_strings;
mod error;
pub mod guest;
pub mod hypervisor;
pub mod hypervisors;
pub mod launch;
pub mod libvirt;
pub mod qemu;
pub mod threads;

pub use display_strings::DisplayStrings;
pub use error::{AnyDriverError, DriverError, ErrorClass, VmError};
pub use hypervisor::{CpuInstanceProperties, Hypervisor, MachineCommand, Monitor, VmSelector};
pub use threads::{DiscoveredVm, VmThread, discover};

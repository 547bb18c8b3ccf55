//! QEMU and libvirt: find the threads of a virtual machine, start one pinned without a race.
//!
//! - [`argv`] reads and changes QEMU command lines (pure text).
//! - [`Monitor`] is what a virtual machine answers to: [`Qmp`] speaks to a QEMU of our own or
//!   to a socket of the user's, [`libvirt::DomainMonitor`] goes through `virsh`.
//! - [`threads`] tells the role of every thread of a QEMU process.
//! - [`launch`] starts QEMU stopped, so that it can be placed before its first instruction.
//! - [`libvirt`] finds domains and changes their pins through libvirt's own interface.
//!
//! Nothing here changes the placement of a thread, except what libvirt is asked to do:
//! affinities and cgroups are the business of the crate that applies plans.

pub mod argv;
mod control;
mod error;
pub mod guest;
pub mod launch;
pub mod libvirt;
pub mod qmp;
pub mod threads;

pub use control::{GuestPlace, IothreadInfo, Monitor, QemuVersion, RunState, VcpuInfo, VmInfo};
pub use error::{LibvirtError, QmpError, VmError};
pub use qmp::{Event, Qmp};
pub use threads::{Found, VmThread, discover};

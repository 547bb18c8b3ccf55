//! QEMU and libvirt: find the threads of a virtual machine, and start one that is pinned from its
//! first instruction.
//!
//! - [`argv`] parses and changes QEMU command lines (pure text).
//! - [`Monitor`] is the control interface of a virtual machine: [`Qmp`] connects to a QMP socket,
//!   of a QEMU that Pinfold started or of the user's; [`libvirt::DomainMonitor`] uses `virsh`.
//! - [`threads`] determines the role of every thread of a QEMU process.
//! - [`launch`] starts QEMU stopped, so that it can be placed before its first instruction.
//! - [`libvirt`] finds domains and changes their pins through libvirt's own interface.
//!
//! Nothing here changes the placement of a thread, except through libvirt: the crate that applies
//! plans changes affinities and cgroups.

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

//! Emulates slower CPUs: virtual nodes whose cores are as slow as asked, and how true that is.
//!
//! ```text
//! Node (cores, speeds, method) ──► Enclosure: its groups, as steps ──► start ──► Emulation
//!                                                                                  │ set, turn, observe, stop
//! Outside (a witness in the groups, burners) ◄── calibration ◄─────────────────────┘
//! ```
//!
//! Each [`Method`](pinfold_model::Method) is one file behind the trait [`Emulation`]. What a
//! method changes on the host for as long as it works is a step, which the caller takes and
//! undoes; what it changes again and again lies in groups of its own, which go with them.
//!
//! This crate reaches the machine only through `pinfold-host` and starts no program itself: the
//! [`HelperSpawner`] does. It knows nothing of platform files, journals or sockets.

mod calibrate;
mod cleanup;
mod controller;
mod emulation;
mod error;
mod frequency;
mod hierarchies;
mod kept;
mod methods;
mod profiles;
mod record;
mod renewal;
mod vnode_cgroup;

pub use calibrate::{
    Burner, Cost, HelperSpawner, ReferenceRun, Throughput, Watchdog, Window, Witness,
};
pub use cleanup::{Cleanup, release};
pub use controller::{CoreStatus, Node, NodeStatus, ProfileRow, VnodeController};
pub use emulation::{CoreAccount, Emulation};
pub use error::SpeedError;
pub use hierarchies::Hierarchies;
pub use kept::{CALIBRATION_HOLDS_NS, Calibration, Calibrations};
pub use methods::{Facts, METHODS, MethodInfo, at_work, best, cautions, info, refusal};
pub use record::{Load, record};
pub use vnode_cgroup::{GROUP_PREFIX, Part, VnodeCgroup};

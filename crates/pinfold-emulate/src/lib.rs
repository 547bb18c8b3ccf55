//! Emulates slower CPUs: virtual nodes whose cores have a requested speed, with a measured error.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! ```text
//! Node (cores, speeds, method) ──► VnodeCgroup: its groups, as steps ──► start ──► Emulation
//!                                                             set, turn, observe, stop │
//! HelperSpawner (reference runs, burners) ◄── calibration ◄────────────────────────────┘
//! ```
//!
//! Each [`Method`](pinfold_model::Method) is one file and implements the trait [`Emulation`]. What
//! a method changes on the host for its whole run time is a step, which the caller executes and
//! undoes. What it changes repeatedly is in its own groups, which are removed with their steps.
//!
//! This crate accesses the machine only through `pinfold-host` and starts no program itself: a
//! [`HelperSpawner`] does. It does not use platform files, journals or sockets.

mod calibrate;
mod cleanup;
mod controller;
mod cost;
mod emulation;
mod error;
mod frequency;
mod helper_spawner;
mod hierarchies;
mod methods;
mod node;
mod profiles;
mod recalibration;
mod record;
mod stored_costs;
mod units;
mod vnode_cgroup;

pub use cleanup::{Cleanup, release};
pub use controller::{CoreStatus, NodeStatus, VnodeController};
pub use cost::Cost;
pub use emulation::{CoreAccount, Emulation};
pub use error::SpeedError;
pub use helper_spawner::{
    BackgroundReferenceRun, Burner, Effort, HelperSpawner, ReferenceRun, Throughput, Watchdog,
    Window,
};
pub use hierarchies::Hierarchies;
pub use methods::{
    Facts, METHODS, MethodInfo, best, cautions, check_period, describe_effects, info, refusal,
};
pub use node::{Node, ProfileRow};
pub use record::{Load, record};
pub use stored_costs::{CALIBRATION_HOLDS_NS, Calibration, Calibrations};
pub use vnode_cgroup::{GROUP_PREFIX, Part, VnodeCgroup, limited_disk};

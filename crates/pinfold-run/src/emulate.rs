//! A platform of virtual nodes: its supervisor, the protocol of its socket, its helper processes.
//!
//! Slowing itself is in `pinfold_emulate`: this module has the processes around it.
//!
//! ```no_run
//! use pinfold_emulate::Effort;
//! use pinfold_run::emulate::supervisor::{PlatformFile, start_child};
//! use pinfold_run::{HelperProgram, Session, host};
//!
//! let (state, program) = (host::state(None)?, HelperProgram::at("/usr/bin/pinfold"));
//! let file = PlatformFile {
//!     path: "two-vnodes.toml",
//!     share_housekeeping: false,
//!     ignore_claims: false,
//!     effort: Effort::Brief,
//! };
//! println!("{}", start_child(&file, Session { state: &state, program: &program })?);
//! # Ok::<(), pinfold_run::Failure>(())
//! ```

pub mod attach;
mod attachments;
pub mod capability;
mod disk_limit;
pub mod exec;
pub mod helpers;
pub mod ipc;
mod join_vnode;
pub mod profile_ratio;
pub mod status;
pub mod steps;
pub mod stored_costs;
pub mod supervisor;
pub mod verify;

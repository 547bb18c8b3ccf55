//! A platform of virtual nodes: its supervisor, the protocol of its socket, its helper processes.
//!
//! Slowing itself is in `pinfold_emulate`: this module has the processes around it.

pub mod capability;
pub mod exec;
pub mod helpers;
pub mod ipc;
pub mod status;
pub mod steps;
pub mod stored_costs;
pub mod supervisor;
pub mod verify;

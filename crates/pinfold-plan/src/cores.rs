//! The CPUs and cores that a request may use, and how they are chosen.

pub mod alternatives;
pub(crate) mod available;
pub(crate) mod available_core;
pub mod boot;
pub mod capacity;
pub(crate) mod emulator_cpus;
pub(crate) mod host_share;
pub mod online;
pub(crate) mod parts;
pub(crate) mod request_check;
pub(crate) mod select;

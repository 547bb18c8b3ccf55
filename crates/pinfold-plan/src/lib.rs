//! Placement strategies: pure functions from a topology and a request to a plan.
//!
//! [`plan`] runs one named strategy; [`explain`] describes in words what a plan gives and costs;
//! [`validate()`] compares a plan, perhaps one from a file, with a topology; [`lint`] finds faults
//! of an existing placement, in a plan or in a libvirt [domain file](domain_file); [`emit`] writes
//! a plan in the formats of other tools; [`schema`] in the JSON that later versions of Pinfold read
//! too; [`resolve_platform`] gives virtual nodes their CPUs, and each CPU its speed.
//!
//! Nothing here accesses a host, a clock or randomness. The same input gives the same plan, on any
//! machine.

mod available;
mod available_core;
mod avoidable;
mod board;
mod boot;
mod capacity;
pub mod command;
mod definition;
pub mod domain_file;
mod domains;
pub mod emit;
mod error;
mod exclusive_cores;
mod explain;
mod fit;
mod group_words;
mod guest;
mod guest_cache;
mod guest_cells;
mod guest_numa;
mod hints;
mod home;
mod linear;
pub mod lint;
mod locality;
mod online;
mod parts;
mod pin_analysis;
mod pins;
mod plan;
mod plan_builder;
mod platform;
mod policies;
mod prefer;
mod request_check;
mod rows;
pub mod schema;
mod select;
mod sheet;
mod starvation;
mod strategies;
#[cfg(test)]
mod tests;
mod text;
mod validate;
mod vnode_builder;

pub use error::PlanError;
pub use explain::{explain, outline};
pub use fit::{Fit, fit};
pub use plan::plan;
pub use platform::{FrequencyError, PlatformError, resolve_platform, speed_on};
pub use strategies::{Strategy, strategies};
pub use validate::validate;

//! Placement strategies: pure functions from a topology and a request to a plan.
//!
//! Stability: for other programs; semantic versioning, checked by `cargo semver-checks`.
//!
//! [`plan`] runs one named strategy; [`explain`] describes in words what a plan gives and costs;
//! [`validate()`] compares a plan, perhaps one from a file, with a topology; [`schema`] writes it
//! in the JSON that later versions of Pinfold read too; [`resolve_platform`] gives virtual nodes
//! their CPUs, and each CPU its speed. [`layout`] is an existing placement: of a plan, of a libvirt
//! [domain file](domain_file) or of a running machine.
//!
//! The output formats of other tools (`pinfold-emit`) and the checks of existing placements
//! (`pinfold-lint`) use what is derived here for a guest: its [NUMA cells](guest_numa), its
//! [caches](guest_cache), the kernel's [boot parameters](boot).
//!
//! Nothing here accesses a host, a clock or randomness. The same input gives the same plan, on any
//! machine.

mod available;
mod available_core;
pub mod avoidable;
pub mod boot;
pub mod capacity;
pub mod command;
pub mod definition;
pub mod domain_file;
mod domains;
mod error;
mod exclusive_cores;
mod explain;
mod fit;
mod group_words;
mod guest;
pub mod guest_cache;
pub mod guest_cells;
pub mod guest_numa;
mod hints;
mod home;
pub mod layout;
mod linear;
pub mod locality;
pub mod online;
mod parts;
mod picture;
mod pin_analysis;
mod pinned;
mod pins;
mod plan;
mod plan_builder;
mod platform;
mod policies;
mod prefer;
mod request_check;
mod rest_isolation;
mod rows;
pub mod schema;
mod select;
mod sheet;
mod starvation;
mod strategies;
#[cfg(test)]
mod tests;
pub mod text;
mod validate;
mod vnode_builder;

pub use available::{Index, usable_for_vcpus};
pub use error::PlanError;
pub use explain::{explain, outline};
pub use fit::{Fit, fit};
pub use picture::picture;
pub use pinned::pinned;
pub use plan::{fill, plan, plan_if_possible};
pub use plan_builder::NOT_ISOLATED;
pub use platform::{FrequencyError, PlatformError, resolve_platform, speed_on};
pub use sheet::Sheet;
pub use strategies::{Strategy, strategies};
pub use validate::validate;

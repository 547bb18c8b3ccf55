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
//! The modules, in an order in which each imports only those before it (`cargo xtask tidy` finds
//! cycles between them):
//!
//! 1. `error`, [`text`]: the refusals, and words for numbers and CPUs
//! 2. `cores`: the CPUs that a request may use, and how they are chosen
//! 3. `guest`: what a guest is shown of them
//! 4. `analysis`: properties of placements, as findings
//! 5. `placement`: what several strategies use to place threads
//! 6. `strategies`: the table of strategies
//! 7. [`domain_file`], [`layout`]: existing placements
//! 8. `messages`: plans in text, with hints and commands
//! 9. [`node_advice`], `plan`, `pinned`, `platform`, [`replan`], [`schema`]
//!
//! Nothing here accesses a host, a clock or randomness. The same input gives the same plan, on any
//! machine.

mod error;
pub mod text;

mod cores;
mod guest;

mod analysis;
mod placement;
mod strategies;

pub mod domain_file;
pub mod layout;

mod messages;

pub mod node_advice;
mod pinned;
mod plan;
mod platform;
pub mod replan;
pub mod schema;

#[cfg(test)]
mod tests;

pub use analysis::host_match::{HostMatch, fit};
pub use analysis::locality;
pub use analysis::validate::validate;
pub use cores::available::{Index, usable_for_vcpus};
pub use cores::{alternatives, boot, capacity, online};
pub use error::PlanError;
pub use guest::{cache as guest_cache, numa as guest_numa};
pub use messages::command;
pub use messages::core_map::picture;
pub use messages::explain::{explain, outline};
pub use messages::sheet::Sheet;
pub use pinned::pin_vcpus;
pub use placement::builder::NOT_ISOLATED;
pub use placement::cells as guest_cells;
pub use plan::{fill, kept_free, plan, plan_if_possible};
pub use platform::{FrequencyError, PlatformError, resolve_platform, speed_on};
pub use strategies::{
    Strategy, TrialOrder, definition, has_pins, in_turn, pins_nothing, strategies,
};

//! Placement strategies: pure functions from a topology and a request to a plan.
//!
//! [`plan`] asks one named strategy; [`explain`] says in words what a plan gives and
//! costs; [`check`] holds a plan, perhaps one from a file, against a topology;
//! [`review`] says what is wrong with a placement that a person wrote, in a plan or in a libvirt
//! [domain file](domain_file); [`emit`] turns a plan into the languages of other tools; [`schema`]
//! into the JSON that Pinfold promises to read again; [`requests`] reads what people ask for,
//! [`platforms`] the virtual nodes that a machine is divided into.
//!
//! Nothing here touches a host, a clock or randomness. The same input gives the same
//! plan, on a machine that is not this one as well.

mod avoidable;
mod board;
mod boot;
mod guest_cache;
mod capacity;
mod guest_numa;
mod validate;
pub mod command;
mod definition;
mod request_check;
pub mod domain_file;
mod domains;
mod plan_builder;
pub mod emit;
mod exclusive_cores;
mod error;
mod explain;
mod fit;
mod available;
mod group_words;
mod guest;
mod guest_cells;
mod hints;
mod home;
mod linear;
mod suggest;
mod locality;
mod online;
mod parts;
mod pins;
pub mod platforms;
mod policies;
mod prefer;
pub mod requests;
pub mod lint;
mod rows;
pub mod schema;
mod select;
mod sheet;
mod pin_analysis;
mod strategies;
#[cfg(test)]
mod tests;
mod tunables;

pub use validate::check;
pub use error::PlanError;
pub use explain::{explain, outline};
pub use fit::{Fit, fit};
pub use suggest::nearest;
pub use strategies::{Strategy, plan, strategies};
pub use tunables::{Tunable, tunables};

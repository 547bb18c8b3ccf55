//! Placement strategies: pure functions from a topology and a request to a plan.
//!
//! [`plan`] asks one named strategy; [`explain`] says in words what a plan gives and
//! costs; [`check`] holds a plan, perhaps one from a file, against a topology;
//! [`lint`] says what is wrong with a placement that a person wrote, in a plan or in a libvirt
//! [domain file](domain_file); [`emit`] turns a plan into the languages of other tools; [`schema`]
//! into the JSON that Pinfold promises to read again; [`requests`] reads what people ask for,
//! [`platforms`] the virtual nodes that a machine is divided into.
//!
//! Nothing here touches a host, a clock or randomness. The same input gives the same
//! plan, on a machine that is not this one as well.

mod available;
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
mod plan_builder;
pub mod platforms;
mod policies;
mod prefer;
mod request_check;
pub mod requests;
mod rows;
pub mod schema;
mod select;
mod sheet;
mod strategies;
mod suggest;
#[cfg(test)]
mod tests;
mod tunables;
mod validate;

pub use error::PlanError;
pub use explain::{explain, outline};
pub use fit::{Fit, fit};
pub use strategies::{Strategy, plan, strategies};
pub use suggest::nearest;
pub use tunables::{Tunable, tunables};
pub use validate::validate;

//! The map of claims: which owner has which CPUs of a host, how exclusively, and where this is
//! recorded.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! - [`owners`] is the table of kinds of owners: a row and a file for each. A file has a parser,
//!   which is a pure function of text, and a reader, which finds the text through a [`Host`], so
//!   that captured and simulated hosts have claims too.
//! - [`Claims`] is the map: it reports CPUs that are used twice.
//! - [`schema`] is its JSON, [`render`] its text.
//!
//! Everything here only warns. What cannot be read or parsed is a [`Finding`] with file, line and
//! value, and no claim.
//!
//! [`Host`]: pinfold_host::Host
//! [`Finding`]: pinfold_model::Finding

mod capture;
mod claim;
mod claim_set;
mod conflicts;
mod context;
pub mod owners;
mod processes;
mod programs;
mod reading;
pub mod render;
pub mod schema;

pub use capture::{for_capture, read_captured};
pub use claim::{BoundThread, Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
pub use claim_set::{Claims, CpuUsage};
pub use conflicts::{Conflict, SharedCpus, USED_TWICE, merge_shared, with_verb};
pub use context::Context;

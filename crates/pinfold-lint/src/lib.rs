//! Finds faults in an existing placement, with replacements.
//!
//! Stability: for other programs; semantic versioning, checked by `cargo semver-checks`.
//!
//! A placement comes from a plan, a libvirt domain file or a running machine. Each becomes a
//! [`Layout`](pinfold_plan::layout::Layout) that records where every value is written. [`lint()`]
//! checks one or several layouts of one host against its topology, and the other latency-related
//! parts of a domain file. Each [`Diagnostic`] states the fault, its position, its cost and the
//! replacement, in the language of the layout. The advice is one placement that was planned for
//! this layout and checked again, so that applying all of it gives a file without warnings:
//! [`fix()`] writes it. Only facts of topology and layout are checked; costs in numbers need a
//! measurement.

mod advice;
mod backing;
mod capacity;
mod cores;
mod descriptions;
mod devices;
mod diagnostic;
mod enlightenments;
mod file;
mod fix;
mod fix_command;
mod floating;
mod guest;
mod host;
mod lint;
mod lookup;
mod manager;
mod masks;
mod memory;
mod one_layout;
mod overlap;
mod own_pins;
mod pages;
mod placement;
mod processor;
mod properties;
mod quotas;
mod render;
mod repair;
mod replan_command;
mod resized;
mod review;
mod target;
#[cfg(test)]
mod tests;
mod text;
mod timers;

pub use diagnostic::Diagnostic;
pub use fix::{RepairedFile, fix};
pub use fix_command::next;
pub use lint::{LintReport, lint, lint_under};
pub use render::{counts, render};
pub use replan_command::plan_again_command;
pub use review::Review;

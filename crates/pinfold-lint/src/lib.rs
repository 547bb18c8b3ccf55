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
mod again;
mod backing;
mod cores;
mod devices;
mod diagnostic;
mod enlightenments;
mod file;
mod fix;
mod floating;
mod guest;
mod host;
mod lint;
mod lookup;
mod manager;
mod masks;
mod memory;
mod next;
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
mod resized;
mod review;
mod room;
mod target;
#[cfg(test)]
mod tests;
mod text;
mod timers;
mod words;

pub use again::plan_again_command;
pub use diagnostic::Diagnostic;
pub use fix::{RepairedFile, fix};
pub use lint::{LintReport, lint, lint_under};
pub use next::next;
pub use render::{counts, render};
pub use review::Review;

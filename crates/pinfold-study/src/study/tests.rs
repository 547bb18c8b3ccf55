//! Tests of studies, on a simulated runner.

mod bad;
mod guests;
mod runs;
pub(super) mod world;

//! Tests of studies, on a simulated runner.

mod bad;
mod guests;
mod presets;
mod published;
mod runs;
mod shown;
pub(super) mod world;

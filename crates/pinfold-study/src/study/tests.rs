//! Tests of studies, on a simulated runner.

mod bad;
mod runs;
mod world;

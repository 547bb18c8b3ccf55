//! Design, store, statistics and tuning of measurements.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! - [`store`]: one SQLite file with every start and its raw samples.
//! - [`measured`]: the figures of one probe with their origin, as a file.
//! - [`study`]: factors × repetitions of workloads from a file, run, resumed, analysed.
//! - [`tune`]: finds the best placement of one virtual machine on one host: a randomised, blocked
//!   experiment over candidate plans, and its analysis.
//!
//! One engine runs studies and tuning: it starts, retries, saves and resumes. Starting and
//! measuring a virtual machine is behind [`tune::Starter`], placing and running a workload behind
//! [`study::Runner`]; this crate does not know QEMU and does not access the host, except for the
//! store's own file. All randomness comes from a recorded seed through
//! [`pinfold_stats::random::Pcg32`].

mod engine;
mod error;
#[cfg(test)]
extern crate self as pinfold_study; // tests share a file with the crate above
#[cfg(test)]
#[path = "tests/fixture.rs"]
mod fixture;
pub mod measured;
mod schema;
pub mod store;
pub mod study;
pub mod tune;

pub use error::RunError;
pub use schema::SchemaError;

//! Design, store, statistics and tuning of measurements.
//!
//! - [`stats`]: what numbers say and how sure one may be; pure, deterministic.
//! - [`store`]: one SQLite file that holds every start with its raw samples.
//! - [`measured`]: one probe's figures with where they came from, saved and read again.
//! - [`compare`]: two sets of figures side by side: ratio, interval, verdict.
//! - [`study`]: factors × repetitions of workloads from a file, run, resumed, analysed.
//! - [`tune`]: finds the best placement of one virtual machine on one host: a
//!   randomised, blocked experiment over candidate plans, and its analysis.
//!
//! Studies and tuning are run by one engine, which starts, retries, saves and goes on. What really
//! starts a virtual machine and measures it stands behind [`tune::Starter`], what places and runs
//! a workload behind [`study::Runner`]; this crate neither knows QEMU nor touches the host, apart
//! from the store's own file. Everything that is random comes from a recorded
//! seed through [`random::Pcg32`].

pub mod compare;
mod engine;
#[cfg(test)]
mod fixture;
pub mod measured;
pub mod random;
mod schema;
pub mod stats;
pub mod store;
pub mod study;
pub mod tune;

pub use schema::SchemaError;

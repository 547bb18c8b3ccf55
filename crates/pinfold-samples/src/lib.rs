//! Machines, requests and plans for the tests of the crates that plan, emit and check.
//!
//! Stability: none; only for the tests of this repository.
//!
//! [`machine`] builds topologies of known machines, [`hosts`] reads those of `fixtures/hosts`.
//! The functions `any_…` are strategies of proptest. Only tests use this crate: a function panics
//! if its input is not as the tests say.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "only tests use it, and fail by that")]

mod golden;
mod hosts;
pub mod machine;
mod plans;
mod requests;

pub use golden::golden;
pub use hosts::{HOSTS, from_description, hosts, read};
pub use machine::set;
pub use plans::{any_plan, emulator, finds, pins, shape};
pub use requests::{
    any_request, any_requests, any_topology, auto, exactly, iothreads, number_cpus, some_of,
};

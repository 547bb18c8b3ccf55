//! Measurements, from inside a workload with `pinload` and from the host.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! `pinload` is what runs inside the workload (benchmarks and loads): one static C program, built
//! with this crate and embedded in it ([`pinload`]).
//!
//! - [`benchmarks`] turns the settings of a benchmark into its arguments and its output into
//!   [`pinfold_model::Series`].
//! - [`loads`] keeps loads running on the host while their supervisor sends heartbeats.
//! - [`agent`] communicates with the `pinload` that is the init of a guest.
//! - [`roles`] works without `pinload`: it reads the kernel's per-thread statistics before and
//!   after.
//! - [`cpu_speed`] measures, in the workload, the apparent speed of its CPUs.
//! - [`figures`] reads the output of all other `pinload` commands; [`memory`], [`os`] and
//!   [`parallel`] hold their settings.
//! - [`profile`] reads the scores of a machine by kind of work (`pinload profile`).
//! - [`registry`] lists every probe that can be run alone, and [`job`] runs one.
//! - [`reference_tools`] runs other tools that measure the same, and [`interference`] records the
//!   interference during a measurement.
//! - [`cross_compile`] compiles `pinload` for guests of another instruction set.
//! - [`sched_latency`], [`counters`], [`locks`] and [`futex_cycles`] observe the threads of a
//!   workload from outside.
//!
//! This crate does not decide about placement, and knows neither plans nor QEMU.

pub mod agent;
pub mod benchmarks;
pub mod counters;
pub mod cpu_speed;
pub mod cross_compile;
pub mod figures;
pub mod futex_cycles;
pub mod gaps;
pub mod histogram;
pub mod interference;
pub mod job;
pub mod loads;
pub mod locks;
pub mod memory;
pub mod os;
pub mod parallel;
pub mod pinload;
pub mod profile;
mod quotas;
pub mod reference_tools;
pub mod registry;
pub mod roles;
pub mod run_delay;
pub mod sched_latency;
pub mod settings;
pub mod symbols;
mod traced_threads;

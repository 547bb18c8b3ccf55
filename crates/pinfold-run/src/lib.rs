//! Whole tasks, made of the stages: what a command does after its arguments are read.
//!
//! - [`apply_session`]: applies a plan with its journal and undoes it; [`rt_watchdog`] ends its
//!   real-time policies with this process, [`run_monitor`] keeps the threads as planned.
//! - [`target`], [`vcpus`], [`qemu_line`]: the machine that is meant, and the request for it.
//! - [`inputs`], [`host`]: plans, requests and lists of CPUs, checked against this host.
//! - [`emulate`]: platforms of slowed virtual nodes.
//! - [`leftovers`]: what killed processes left.
//! - [`guest`], [`tune`], [`study`], [`measure`]: the runners of experiments.
//! - [`interrupt`]: the request to stop, as a flag.
//!
//! The stages do not know each other; this crate knows them all, and no command line. It prints
//! nothing: a [`message`] goes to the program that uses it, an error is a [`Failure`].

pub mod apply_session;
pub mod emulate;
mod failure;
pub mod guest;
pub mod host;
pub mod inputs;
pub mod interrupt;
pub mod leftovers;
pub mod measure;
pub mod message;
pub mod qemu_line;
pub mod rt_watchdog;
pub mod run_monitor;
pub mod study;
pub mod target;
pub mod time;
pub mod tune;
pub mod vcpus;

pub use failure::{Exit, Failure};

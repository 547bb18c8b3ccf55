//! Whole tasks, made of the stages: what a command does after its arguments are read.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! - [`apply_session`]: applies a plan with its journal and undoes it; [`rt_watchdog`] ends its
//!   real-time policies with this process, [`run_monitor`] keeps the
//!   threads of one machine as planned, [`watch`] those of all active placements; [`replan`] makes
//!   the plan of a machine that has changed meanwhile.
//! - [`target`], [`vcpus`], [`machine_request`]: the machine that is meant, and the request for it;
//!   [`running_layout`]: its placement, for the checks.
//! - [`inputs`], [`plans`], [`host`]: plans, requests and lists of CPUs, checked against this host.
//! - [`claims`]: which CPUs of this host belong to which placement or platform.
//! - [`completions`]: what an argument may be on this host, for completions.
//! - [`status`], [`undo`], [`leftovers`]: compares and reverts placements, and removes what killed processes left.
//! - [`machine_run`]: starts a machine under a plan; [`ready`]: when its guest has booted.
//! - [`gate`]: any command, placed like a machine; [`libvirt_hook`]: domains as libvirt starts them.
//! - [`profile`], [`jobs`], [`noise`]: the tunables of a profile, several commands at once, and how quiet
//!   their CPUs were.
//! - [`domains`], [`start_plan`], [`new_machines`]: what is asked for a machine that is planned at its start, and its
//!   plan.
//! - [`exits`]: the VM exits of a machine; [`tune_page`]: the report of a tuning run.
//! - [`emulate`]: platforms of slowed virtual nodes.
//! - [`guest`], [`tune`], [`study`], [`measure`]: the runners of experiments.
//! - [`interrupt`]: the request to stop, as a flag.
//! - [`ended_placements`], [`end_waiter`]: placements end with their machines.
//! - [`HelperProgram`]: the program that runs as watchdog, waiter, gate, supervisor or micro-guest.
//!
//! The stages do not know each other; this crate knows them all, and no command line. It prints
//! nothing: a [`message`] goes to the program that uses it, an error is a [`Failure`].

pub mod advise;
pub mod apply_session;
pub mod booting;
mod cgroup_tree;
pub mod claims;
pub mod completions;
mod descendants;
pub mod domains;
pub mod emulate;
pub mod end_waiter;
pub mod ended_placements;
pub mod exits;
mod failure;
pub mod gate;
pub mod guest;
mod helper_program;
pub mod host;
pub mod inputs;
pub mod interrupt;
pub mod jobs;
pub mod leftovers;
pub mod libvirt_hook;
pub mod machine_request;
pub mod machine_run;
pub mod measure;
pub mod message;
pub mod metrics;
pub mod new_machines;
pub mod noise;
mod planning;
pub mod plans;
pub mod profile;
pub mod ready;
pub mod replan;
pub mod rt_watchdog;
pub mod run_monitor;
pub mod running_layout;
pub mod start_lock;
pub mod start_memory;
pub mod start_plan;
pub mod status;
pub mod study;
pub mod target;
pub mod time;
pub mod top;
pub mod tune;
pub mod tune_page;
pub mod undo;
pub mod vcpus;
pub mod watch;
mod watched;

pub use descendants::OnLeft;
pub use failure::{Exit, Failure};
pub use helper_program::{HelperProgram, HookEvent, Session};

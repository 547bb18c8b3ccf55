//! Measurements, from inside a workload through pinload and from the host.
//!
//! What runs inside the workload (rulers and loads) is `pinload`, one static C program,
//! built with this crate and embedded in it ([`pinload`]). [`benchmarks`] turns a ruler's
//! settings into its arguments and its output into [`pinfold_model::Series`]; [`loads`]
//! keeps loads running on the host for as long as somebody beats; [`agent`] speaks to the
//! `pinload` that is a guest's init. [`roles`] needs none of it: it reads the kernel's
//! per-thread statistics before and after. [`cpu_speed`] measure, in the workload, how fast its
//! CPUs seem to be.
//! [`figures`] reads what every other instrument of `pinload` prints; [`memory`], [`os`] and
//! [`parallel`] hold their settings. [`registry`] lists every probe that can be taken by itself,
//! and [`job`] takes one; [`reference_tools`] runs other people's instruments beside it, and
//! [`surroundings`] tells what else the machine did meanwhile.
//! [`cross`] compiles `pinload` for guests of another instruction set.
//! [`sched_latency`], [`counters`] and [`locks`] look at a workload's threads from outside.
//! This crate decides nothing about placement and knows neither plans nor QEMU.

pub mod agent;
pub mod benchmarks;
pub mod counters;
pub mod cpu_speed;
pub mod cross_compile;
pub mod exits;
pub mod figures;
pub mod histogram;
pub mod interference;
pub mod job;
pub mod loads;
pub mod locks;
pub mod memory;
pub mod os;
pub mod parallel;
pub mod pinload;
pub mod reference_tools;
pub mod registry;
pub mod roles;
pub mod run_delay;
pub mod sched_latency;
pub mod symbols;
mod traced_threads;

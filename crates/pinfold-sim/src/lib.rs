//! A simulated machine: a tree, threads, cgroups, and the kernel's rules for changing them.
//!
//! Stability: none; only for the tests of this repository.
//!
//! A temporary directory accepts every write and proves nothing. This machine refuses what the
//! kernel refuses, with the kernel's error number, and each file shows what the kernel would show.
//! Apply and undo are tested with it at every step. It simulates cpuset of cgroup v1 and v2
//! (`kernel/cgroup/cpuset.c`), the core rules of both (`kernel/cgroup/cgroup.c`), affinity and
//! policy (`kernel/sched/syscalls.c`), and tunables under `/proc/sys`, `/proc/irq` and `/sys` that
//! are declared as writable. The caller is root. Faults can be injected, and every change is
//! counted, so that a test can stop at each.

mod build;
mod host;
mod host_impl;
mod machine;
mod machines;
mod parse;
mod proc_files;
mod setting_backend;
mod task;
#[cfg(test)]
mod tests;
mod write_rule;

pub use build::SimBuilder;
pub use host::SimHost;
pub use machine::cgroup::CgroupVersion;
pub use task::{SimPages, SimTask};
pub use write_rule::WriteRule;

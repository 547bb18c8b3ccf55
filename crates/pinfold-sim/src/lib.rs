//! A simulated machine: a tree, threads, cgroups, and the kernel's rules for changing them.
//!
//! A temporary directory accepts every write and proves nothing. This machine refuses what the
//! kernel refuses, with the kernel's error number, and each file shows what the kernel would show.
//! Apply and undo are tested with it at every step. It simulates cpuset of cgroup v1 and v2
//! (`kernel/cgroup/cpuset.c`), the core rules of both (`kernel/cgroup/cgroup.c`), affinity and
//! policy (`kernel/sched/syscalls.c`), and tunables under `/proc/sys`, `/proc/irq` and `/sys` that
//! are declared as writable. The caller is root. Faults can be injected, and every change is
//! counted, so that a test can stop at each.

mod bandwidth;
mod build;
mod cgroup;
mod domains;
mod freezer;
mod host;
mod host_impl;
mod knob;
mod machines;
mod parse;
mod proc_files;
mod real_time;
mod resctrl;
mod setting_backend;
mod state;
mod task;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

pub use build::SimBuilder;
pub use cgroup::CgroupVersion;
pub use host::SimHost;
pub use knob::Knob;
pub use task::{SimPages, SimTask};

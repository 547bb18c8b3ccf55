//! A simulated machine: a tree, threads, cgroups, and the kernel's rules for changing them.
//!
//! A plain temporary folder takes every write and proves nothing; this one refuses what the
//! kernel refuses, with the kernel's error number, and shows in every file what the kernel
//! would show. It is how apply and undo are proven at every step.
//! What it knows: cpuset of cgroup v1 and v2 (`kernel/cgroup/cpuset.c`), the core rules of
//! both (`kernel/cgroup/cgroup.c`), affinity and policy (`kernel/sched/syscalls.c`), and knobs
//! under `/proc/sys`, `/proc/irq` and `/sys` that are named as writable.

use pinfold_model::{CpuSet, Policy, TaskId, Tid};

use crate::{Host, HostError, HostMut, TreeHost, sealed};

/// Which cgroup version has cpuset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A cpuset hierarchy of its own, and an empty v2 beside it (a hybrid mount).
    V1,
    /// The unified hierarchy.
    V2,
}

/// What a writable file takes, and how it shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Any text.
    Text,
    /// A whole number; anything else is `EINVAL`.
    Integer,
    /// A hexadecimal mask of PUs; none that is online is `EINVAL`.
    Mask,
    /// A list of PUs; none that is online is `EINVAL`.
    List,
}

/// A thread of the simulated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimTask {
    /// Thread id.
    pub tid: Tid,
    /// Its process; the same as `tid` for a process's first thread.
    pub tgid: Tid,
    /// Its parent process.
    pub ppid: Tid,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Arguments, shown by `cmdline`; empty for kernel threads.
    pub cmdline: Vec<String>,
    /// `PF_` flags.
    pub flags: u32,
    /// The mask that was asked for with `sched_setaffinity`; `None` if never.
    pub asked: Option<CpuSet>,
    /// Its policy.
    pub policy: Policy,
    /// Its cpuset group, below the hierarchy's mount.
    pub group: String,
}

/// Builds a simulated machine.
#[derive(Clone, Debug)]
pub struct SimBuilder {}

/// A simulated machine.
#[derive(Debug)]
pub struct SimHost {}

//! All access to the kernel.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! The other crates read a machine through [`Host`] and change it through [`HostMut`]; nothing else
//! in Pinfold opens a kernel file, makes a scheduling system call, reads a clock or starts a
//! process. There are four implementations: [`LiveHost`], [`SnapshotHost`] (a captured machine, in
//! memory), `pinfold_sim::SimHost` (for tests: a tree plus the kernel's rules) and
//! [`RecordingHost`] (records every access). Only live and simulated hosts implement [`HostMut`]:
//! code that changes a capture does not compile.

mod access;
mod bpf;
mod cgroup_ids;
mod clock;
mod control_socket;
mod counter;
mod error;
mod event_poll;
mod exit_names;
mod fd;
pub mod files;
mod futex_sampler;
mod futex_trace;
mod gap_trace;
mod kvm_exits;
mod live;
pub mod log;
mod micro_vm;
mod open_kernel_file;
pub mod paths;
mod proc;
pub mod process;
mod raw;
mod recording;
mod sched_trace;
mod setting_backend;
mod snapshot;
mod stall;
mod thread_set;
mod tracefs;
mod wait_trace;

pub(crate) use access::lossy;
pub use access::{EachFile, Host, HostMut, Writable};
pub use cgroup_ids::{CgroupPaths, cpu_hierarchy};
pub use clock::{Clock, SimClock, SystemClock};
pub use control_socket::ControlSocket;
pub use counter::{Counter, CounterError, CounterEvent, CounterReading, Side};
pub use error::{HostError, with_causes};
pub use event_poll::{EventWatcher, Events};
pub use exit_names::userspace_exit_name;
pub use futex_sampler::{FutexSampler, FutexSamples, SampledClock};
pub use futex_trace::{FutexCallSite, FutexKind, FutexReading, FutexTracer, OpenCall};
pub use gap_trace::{
    BUCKETS as GAP_BUCKETS, FunctionKind, GapKind, GapSlice, GapTotals, GapTracer, Occupant,
    OtherTask, RawGap, ShortGaps, TracedThread, WakerTask,
};
pub use kvm_exits::{
    Address, DurationStats, ExitCounter, ExitKey, ExitScope, ExitSource, ThreadExits,
};
pub use live::LiveHost;
pub use micro_vm::{MicroGuest, VcpuRun, Work};
pub use open_kernel_file::OpenKernelFile;
pub use proc::{
    ProcError, cpu_groups, maps, memory_numa_stat, mountinfo, node_meminfo, numa_maps, osrelease,
    proc_cgroup, proc_stat, proc_status, schedstat, uptime,
};
pub use recording::{Access, Operation, RecordingHost};
pub use sched_trace::{
    BUCKETS as WAIT_BUCKETS, Runner, SchedAccount, SchedReading, SchedTracer, Slice, WorstWait,
};
pub use setting_backend::{SettingBackend, Systemd};
pub use snapshot::{SnapshotHost, TreeError};
pub use stall::{Stall, StallAccount, StallConfig};
pub use thread_set::{ThreadList, ThreadSet};
pub use tracefs::{Field, Format, Tracefs};
pub use wait_trace::{FirstState, ThreadWait, WaitCause, WaitReading, WaitTotals, WaitTracer};

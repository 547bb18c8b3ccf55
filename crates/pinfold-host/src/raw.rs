//! All unsafe code of Pinfold: system calls that rustix does not provide.
//!
//! These are `sched_setattr(2)`/`sched_getattr(2)` (wrapped neither by rustix nor by libc, whose
//! `sched_attr` is the 48-byte first version), `sched_setaffinity(2)`/`sched_getaffinity(2)` with
//! masks of any length (the fixed `cpu_set_t` ends at 1024 CPUs), `migrate_pages(2)`,
//! `set_mempolicy(2)`, `perf_event_open(2)`, the memory of a KVM guest, and the hook between `fork`
//! and `exec`. They use `syscall(2)` directly, because musl's scheduler wrappers return `ENOSYS`.

#![expect(
    unsafe_code,
    reason = "the one room for unsafe: one operation per block, each with its conditions"
)]

mod bpf_maps;
mod cgroup_handle;
mod clone_event;
mod event;
mod exits;
mod gaps;
#[cfg(target_arch = "x86_64")]
mod guest_memory;
mod mapping;
pub(crate) mod pipe_signal;
mod shared_word;
mod timer;
mod waits;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use pinfold_model::policy::DEFAULT_SLICES_NS;
use pinfold_model::{CpuSet, MAX_PUS, MAX_WORDS, NodeId, Policy, Tid};

pub(crate) use bpf_maps::{
    Call, FutexAccount, Place, RawRunner, WAIT_BUCKETS, WaitAccount, Waiting, Waker,
};
pub(crate) use cgroup_handle::open_cgroup;
pub(crate) use clone_event::TaskEvents;
pub(crate) use event::{Probe, TaskCounter, TaskSampler};
pub(crate) use exits::{AddressKey, ExitThread, Key, Sums};
pub(crate) use gaps::{GAP_BUCKETS, GapThread};
#[cfg(target_arch = "x86_64")]
pub(crate) use guest_memory::GuestMemory;
pub(crate) use shared_word::SharedWord;
pub(crate) use timer::{Account, StallSpec, Timer};
pub(crate) use waits::{Entry, RawCause, RawOccupant, RawThread, read_map};

/// `SCHED_FLAG_RESET_ON_FORK` of `include/uapi/linux/sched.h`.
const RESET_ON_FORK: u64 = 0x01;

/// `struct sched_attr`, version 1 (56 bytes, since Linux 5.3). Older kernels accept it because the
/// fields that they do not know are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
    util_min: u32,
    util_max: u32,
}

const SCHED_ATTR_SIZE: u32 = 56;
const _: () = assert!(size_of::<SchedAttr>() == SCHED_ATTR_SIZE as usize);

impl SchedAttr {
    /// The attributes that give a thread this policy. Attributes that the policy does not define
    /// (the reset-on-fork flag, the nice value of an idle thread) stay as in `current`.
    pub(crate) fn with_policy(self, policy: Policy) -> Self {
        let base = Self {
            size: SCHED_ATTR_SIZE,
            flags: self.flags & RESET_ON_FORK,
            nice: self.nice,
            ..Self::default()
        };
        match policy {
            Policy::Other { nice } => Self { policy: OTHER, nice: nice.into(), ..base },
            Policy::Batch { nice } => Self { policy: BATCH, nice: nice.into(), ..base },
            Policy::Idle => Self { policy: IDLE, ..base },
            Policy::Fifo { priority } => {
                Self { policy: FIFO, priority: priority.into(), nice: 0, ..base }
            }
            Policy::RoundRobin { priority } => {
                Self { policy: ROUND_ROBIN, priority: priority.into(), nice: 0, ..base }
            }
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Self { policy: DEADLINE, runtime_ns, deadline_ns, period_ns, nice: 0, ..base }
            }
            Policy::Slice { nice, slice_ns } => Self {
                policy: OTHER,
                nice: nice.map_or(self.nice, Into::into),
                runtime_ns: slice_ns,
                ..base
            },
            Policy::Unknown { number } => Self { policy: number, ..base },
        }
    }

    /// The same attributes with reset-on-fork: new threads and children get the default policy.
    pub(crate) fn not_inherited(self) -> Self {
        Self { flags: self.flags | RESET_ON_FORK, ..self }
    }

    /// False for a slice of 0, which kernels before Linux 6.12 return, and for one by default.
    fn has_own_slice(self) -> bool {
        self.runtime_ns != 0
            && !DEFAULT_SLICES_NS.contains(&self.runtime_ns)
            && self.runtime_ns != default_slice_ns()
    }

    /// The policy of these attributes.
    pub(crate) fn policy(self) -> Policy {
        let nice = i8::try_from(self.nice.clamp(-20, 19)).unwrap_or(0);
        let priority = u8::try_from(self.priority).unwrap_or(u8::MAX);
        match self.policy {
            OTHER if self.has_own_slice() => {
                Policy::Slice { nice: Some(nice), slice_ns: self.runtime_ns }
            }
            OTHER => Policy::Other { nice },
            BATCH => Policy::Batch { nice },
            IDLE => Policy::Idle,
            FIFO => Policy::Fifo { priority },
            ROUND_ROBIN => Policy::RoundRobin { priority },
            DEADLINE => Policy::Deadline {
                runtime_ns: self.runtime_ns,
                deadline_ns: self.deadline_ns,
                period_ns: self.period_ns,
            },
            number => Policy::Unknown { number },
        }
    }
}

/// The slice of a new thread that asks for none: administrators can change it in debugfs.
fn default_slice_ns() -> u64 {
    static DEFAULT: OnceLock<u64> = OnceLock::new();
    *DEFAULT.get_or_init(|| thread::spawn(reset_slice).join().map_or(0, Result::unwrap_or_default))
}

fn reset_slice() -> io::Result<u64> {
    let current = sched_getattr(Tid(0))?;
    sched_setattr(Tid(0), &current.with_policy(Policy::Other { nice: 0 }))?;
    Ok(sched_getattr(Tid(0))?.runtime_ns)
}

const OTHER: u32 = 0;
const FIFO: u32 = 1;
const ROUND_ROBIN: u32 = 2;
const BATCH: u32 = 3;
const IDLE: u32 = 5;
const DEADLINE: u32 = 6;

/// `sched_getattr(2)`; tid 0 is the caller.
pub(crate) fn sched_getattr(tid: Tid) -> io::Result<SchedAttr> {
    let mut attr = SchedAttr { size: SCHED_ATTR_SIZE, ..SchedAttr::default() };
    // SAFETY:
    // - `attr` is writable for the 56 bytes that are passed as its size, and outlives the call;
    // - the kernel writes no more than that size, and any bit pattern is a valid `SchedAttr`;
    // - every argument has the width of a register.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            libc::c_long::from(tid.0),
            &raw mut attr,
            libc::c_ulong::from(SCHED_ATTR_SIZE),
            0 as libc::c_ulong,
        )
    };
    answer(result).map(|_| attr)
}

/// `sched_setattr(2)`; tid 0 is the caller. Does not allocate.
pub(crate) fn sched_setattr(tid: Tid, attr: &SchedAttr) -> io::Result<()> {
    // SAFETY:
    // - `attr` is readable for the 56 bytes that its `size` field specifies, and outlives the call;
    // - the kernel only reads it;
    // - every argument has the width of a register.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            libc::c_long::from(tid.0),
            &raw const *attr,
            0 as libc::c_ulong,
        )
    };
    answer(result).map(|_| ())
}

/// `sched_setaffinity(2)` with a mask of any length; tid 0 is the caller. Does not allocate.
pub(crate) fn sched_setaffinity(tid: Tid, mask: &CpuSet) -> io::Result<()> {
    let mut buffer = [0; MAX_WORDS];
    let words = mask.write_words(&mut buffer);
    // SAFETY:
    // - the pointer and the byte length describe all of a live slice of `u64` (the kernel's
    //   `unsigned long` on every 64-bit target);
    // - the kernel only reads it and pads a shorter mask with zeros;
    // - every argument has the width of a register.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            libc::c_long::from(tid.0),
            size_of_val(words),
            words.as_ptr(),
        )
    };
    answer(result).map(|_| ())
}

/// `sched_getaffinity(2)`, with a buffer that grows until the kernel's mask fits.
pub(crate) fn sched_getaffinity(tid: Tid) -> io::Result<CpuSet> {
    let mut words = vec![0_u64; 16];
    loop {
        // SAFETY:
        // - the pointer and the byte length describe all of a live, writable `Vec<u64>` (the
        //   kernel's `unsigned long` on every 64-bit target);
        // - the kernel writes no more than that length, and any bit pattern is a valid `u64`;
        // - every argument has the width of a register.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                libc::c_long::from(tid.0),
                size_of_val(words.as_slice()),
                words.as_mut_ptr(),
            )
        };
        match answer(result) {
            Ok(_) => return Ok(CpuSet::from_words(&words)),
            // EINVAL means that the kernel has more CPUs than the buffer has bits.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && words.len() < MAX_PUS as usize / 64 =>
            {
                words.resize(words.len() * 2, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Bits of the kernel's largest node mask (`MAX_NUMNODES` with `CONFIG_NODES_SHIFT=10`).
const NODE_BITS: u32 = 1024;

/// `migrate_pages(2)`; returns the number of pages that could not be moved.
pub(crate) fn migrate_pages(pid: Tid, from: &[NodeId], to: &[NodeId]) -> io::Result<u64> {
    let (from, to) = (node_mask(from)?, node_mask(to)?);
    // SAFETY:
    // - both pointers refer to live arrays of 1,024 bits; the kernel reads one bit less than the
    //   number that it is given (`get_nodes`), so 1,025 covers exactly the whole array;
    // - the kernel only reads them; bits of nodes that it does not have are zero or refused;
    // - every argument has the width of a register.
    let result = unsafe {
        libc::syscall(
            libc::SYS_migrate_pages,
            libc::c_long::from(pid.0),
            libc::c_ulong::from(NODE_BITS + 1),
            from.as_ptr(),
            to.as_ptr(),
        )
    };
    answer(result).map(i64::unsigned_abs)
}

/// `set_mempolicy(2)` with `MPOL_BIND` for the calling thread: memory is allocated on this node
/// only. Kept across `exec` and inherited by children. Does not allocate.
pub(crate) fn bind_memory(node: NodeId) -> io::Result<()> {
    let mask = node_mask(&[node])?;
    // SAFETY:
    // - the pointer refers to a live array of 1,024 bits; the kernel reads one bit less than the
    //   number that it is given (`get_nodes`), so 1,025 covers exactly the whole array;
    // - the kernel only reads it; a node that it does not have is refused;
    // - every argument has the width of a register.
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::c_long::from(libc::MPOL_BIND),
            mask.as_ptr(),
            libc::c_ulong::from(NODE_BITS + 1),
        )
    };
    answer(result).map(|_| ())
}

fn node_mask(nodes: &[NodeId]) -> io::Result<[u64; NODE_BITS as usize / 64]> {
    let mut words = [0; NODE_BITS as usize / 64];
    for NodeId(node) in nodes {
        let word = words.get_mut(*node as usize / 64);
        *word.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (node % 64);
    }
    Ok(words)
}

/// Marks all descriptors but the standard streams to be closed at `exec`. A kernel before 5.11
/// cannot, and they stay open.
pub(crate) fn close_at_exec() {
    // SAFETY: the call only sets a flag of the descriptors of this process; it takes no pointer.
    let _result =
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Runs `hook` in the child between `fork` and `exec`.
///
/// The only caller (`process::spawn`) guarantees what this function cannot check: the hook only
/// makes system calls with values prepared before the fork; it neither allocates nor takes a lock.
pub(crate) fn before_exec<F>(command: &mut Command, hook: F)
where
    F: FnMut() -> io::Result<()> + Send + Sync + 'static,
{
    // SAFETY:
    // - only async-signal-safe operations are allowed between fork and exec: the hook only makes
    //   raw system calls (prctl, getppid, setsid, close_range, write, sched_setaffinity,
    //   set_mempolicy, sched_setattr) and creates its errors from error numbers, which does not allocate;
    // - everything that it uses is moved into it, so no reference dangles in the child.
    unsafe { command.pre_exec(hook) };
}

fn answer(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `ru_nivcsw` of `getrusage(RUSAGE_CHILDREN)`; 0 if the kernel refuses, which it never does for
/// valid arguments.
pub(crate) fn involuntary_switches_of_children() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for a write of one `rusage`, for the time of the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: zero bytes are a valid `rusage`, and the kernel has written all of it.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

#[cfg(test)]
mod tests;

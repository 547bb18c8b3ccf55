//! How CPUs are used: scheduling policies of threads, and which tasks are excluded.

use std::fmt;
use std::ops::RangeInclusive;

/// Which tasks are excluded from the CPUs that a plan reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum IsolationScope {
    /// None.
    None,
    /// Only tasks that Pinfold itself started, such as its loads.
    Own,
    /// Every movable task of the host.
    Host,
}

impl fmt::Display for IsolationScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsolationScope::None => "none",
            IsolationScope::Own => "own",
            IsolationScope::Host => "host",
        })
    }
}

/// Scheduling policy of a thread (`sched(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum Policy {
    /// `SCHED_OTHER` with this nice value, -20 to 19.
    Other {
        /// Nice value.
        nice: i8,
    },
    /// `SCHED_BATCH` with this nice value.
    Batch {
        /// Nice value.
        nice: i8,
    },
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO` with this priority, 1 to 99.
    Fifo {
        /// Real-time priority.
        priority: u8,
    },
    /// `SCHED_RR` with this priority, 1 to 99.
    RoundRobin {
        /// Real-time priority.
        priority: u8,
    },
    /// `SCHED_DEADLINE`; times in nanoseconds.
    Deadline {
        /// Run time per period.
        runtime_ns: u64,
        /// Relative deadline.
        deadline_ns: u64,
        /// Period.
        period_ns: u64,
    },
    /// `SCHED_OTHER` with a slice of its own, since Linux 6.12.
    Slice {
        /// Nice value. `None` in a plan: threads under `SCHED_OTHER` keep theirs, and threads under
        /// another policy stay as they are.
        nice: Option<i8>,
        /// How long it runs before others get their turn, in nanoseconds.
        slice_ns: u64,
    },
    /// A policy without a name here.
    Unknown {
        /// The kernel's number.
        number: u32,
    },
}

impl Policy {
    /// True for `SCHED_FIFO` and `SCHED_RR`: such a thread keeps a CPU until it blocks or yields.
    /// `SCHED_DEADLINE` is limited by its run time.
    #[must_use]
    pub fn is_real_time(self) -> bool {
        match self {
            Policy::Fifo { .. } | Policy::RoundRobin { .. } => true,
            Policy::Other { .. }
            | Policy::Batch { .. }
            | Policy::Idle
            | Policy::Deadline { .. }
            | Policy::Slice { .. }
            | Policy::Unknown { .. } => false,
        }
    }

    /// Its nice value; `None` of policies that do not use one. The kernel keeps that of the thread
    /// beside them.
    #[must_use]
    pub fn nice(self) -> Option<i8> {
        match self {
            Policy::Other { nice } | Policy::Batch { nice } => Some(nice),
            Policy::Slice { nice, .. } => nice,
            Policy::Idle
            | Policy::Fifo { .. }
            | Policy::RoundRobin { .. }
            | Policy::Deadline { .. }
            | Policy::Unknown { .. } => None,
        }
    }

    /// The policy that this one gives to a thread which has `now`.
    #[must_use]
    pub fn for_thread(self, now: Policy) -> Policy {
        match (self, now) {
            (
                Policy::Slice { nice: None, slice_ns },
                Policy::Other { nice } | Policy::Slice { nice: Some(nice), .. },
            ) => Policy::Slice { nice: Some(nice), slice_ns },
            (Policy::Slice { nice: None, .. }, other) => other,
            (policy, _) => policy,
        }
    }
}

/// The slices that a thread can have, in nanoseconds (`kernel/sched/syscalls.c`).
pub const SLICES_NS: RangeInclusive<u64> = 100_000..=100_000_000;

/// The slices of threads that have none of their own, in nanoseconds: 0.7 or 0.75 ms, by the
/// kernel's version, times 1 to 4, by the number of CPUs. The kernel does not tell whether a thread
/// that has one of them asked for it.
pub const DEFAULT_SLICES_NS: [u64; 8] =
    [700_000, 750_000, 1_400_000, 1_500_000, 2_100_000, 2_250_000, 2_800_000, 3_000_000];

impl Default for Policy {
    fn default() -> Self {
        Policy::Other { nice: 0 }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Other { nice: 0 } => f.write_str("other"),
            Policy::Other { nice } => write!(f, "other nice {nice}"),
            Policy::Batch { nice } => write!(f, "batch nice {nice}"),
            Policy::Idle => f.write_str("idle"),
            Policy::Fifo { priority } => write!(f, "fifo {priority}"),
            Policy::RoundRobin { priority } => write!(f, "rr {priority}"),
            Policy::Deadline { runtime_ns, period_ns, .. } => {
                write!(f, "deadline {runtime_ns}/{period_ns} ns")
            }
            Policy::Slice { nice, slice_ns } => {
                if let Some(nice) = nice {
                    write!(f, "{}, ", Policy::Other { nice: *nice })?;
                }
                write!(f, "slice {} us", slice_ns / 1000)
            }
            Policy::Unknown { number } => write!(f, "policy {number}"),
        }
    }
}

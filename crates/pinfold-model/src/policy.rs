//! How CPUs are used: scheduling policies of threads, and which tasks are excluded.

use std::fmt;

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
            | Policy::Unknown { .. } => false,
        }
    }
}

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
            Policy::Unknown { number } => write!(f, "policy {number}"),
        }
    }
}

//! The causes of gaps, with their names.

use std::fmt;

use pinfold_model::escape;
use serde::{Deserialize, Serialize};

/// What kept a thread from running.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Cause {
    /// An interrupt of a device.
    Interrupt {
        /// Its number.
        number: u64,
        /// Its drivers, as in `/proc/interrupts`.
        device: String,
    },
    /// An interrupt of the processor: the local timer, or one from another CPU.
    Processor {
        /// Its name.
        name: String,
        /// The function of the timer.
        function: Option<String>,
    },
    /// A softirq.
    Softirq {
        /// Its name.
        name: String,
        /// The function of the timer or tasklet.
        function: Option<String>,
    },
    /// Another task.
    Thread {
        /// Its name.
        name: String,
        /// Its thread ID.
        tid: u32,
        /// Scheduling policy, such as `other` or `fifo:50`.
        policy: String,
        /// Path of its cgroup, if it was still there to be read.
        cgroup: Option<String>,
        /// The machine of which it is.
        machine: Option<String>,
        /// True if it is a thread of the same process.
        is_own: bool,
    },
    /// A work item of a kernel worker.
    KernelWork {
        /// Its function.
        function: Option<String>,
        /// Name of the worker.
        worker: String,
    },
    /// The CPU had to leave an idle state.
    IdleExit {
        /// Index of the state, if it was seen.
        state: Option<u64>,
    },
    /// Its group, or one above, had used up its quota.
    Quota {
        /// Directory of that group.
        group: String,
        /// True for cgroup v1.
        is_v1: bool,
    },
    /// It waited in the queue of a CPU by the kernel's own account, and what ran there was not
    /// recorded.
    Queued,
    /// Stopped by a signal, a debugger or a freezer.
    Stopped,
    /// In uninterruptible sleep, as for a page or a disk.
    Blocked {
        /// The task that was on the CPU that ended it.
        waker: Option<String>,
    },
    /// A vCPU slept after an exit to user space, as for a lock of its own QEMU.
    Awaited {
        /// The task that woke it.
        task: Option<String>,
        /// The exit.
        exit: Option<String>,
        /// True if that task is a thread of the same process.
        is_own: bool,
    },
    /// A vCPU was out of the guest, on a CPU.
    Exit {
        /// The exit to user space, or that of the processor; `None` if it is unknown.
        reason: Option<String>,
        /// True if the kernel handled it; also if it has no reason.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_kernel: bool,
    },
    /// The CPU stood still, and Linux saw nothing.
    Unseen,
    /// The same, and the hypervisor below reported that it took the CPU.
    Steal,
}

impl Cause {
    /// All words of [`Cause::word`].
    pub const WORDS: [&str; 12] = [
        "irq",
        "softirq",
        "qemu",
        "thread",
        "queued",
        "kworker",
        "idle-exit",
        "quota",
        "stopped",
        "blocked",
        "exit",
        "below",
    ];

    /// The word for metrics: a fixed list.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Cause::Interrupt { .. } | Cause::Processor { .. } => "irq",
            Cause::Softirq { .. } => "softirq",
            Cause::Thread { is_own: true, .. } | Cause::Awaited { is_own: true, .. } => "qemu",
            Cause::Thread { .. } | Cause::Awaited { .. } => "thread",
            Cause::KernelWork { .. } => "kworker",
            Cause::IdleExit { .. } => "idle-exit",
            Cause::Quota { .. } => "quota",
            Cause::Queued => "queued",
            Cause::Stopped => "stopped",
            Cause::Blocked { .. } => "blocked",
            Cause::Exit { .. } => "exit",
            Cause::Unseen | Cause::Steal => "below",
        }
    }
}

fn with_function(f: &mut fmt::Formatter<'_>, what: &str, function: Option<&String>) -> fmt::Result {
    match function {
        Some(function) => write!(f, "{what}: {}", escape::name(function)),
        None => f.write_str(what),
    }
}

fn write_exit(f: &mut fmt::Formatter<'_>, reason: Option<&str>, is_kernel: bool) -> fmt::Result {
    let place = if is_kernel { "the kernel" } else { "user space" };
    match reason {
        Some(reason) => write!(f, "exit {} handled in {place}", escape::name(reason)),
        // Records of earlier versions do not say where.
        None => f.write_str("exit handled in the kernel"),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Interrupt { number, device } => {
                write!(f, "interrupt {number} ({})", escape::name(device))
            }
            Cause::Processor { name, function } => {
                with_function(f, &escape::name(name), function.as_ref())
            }
            Cause::Softirq { name, function } => {
                let what = format!("softirq {}", escape::name(name));
                with_function(f, &what, function.as_ref())
            }
            Cause::Thread { name, tid, policy, cgroup, machine, is_own } => {
                let name = escape::name(name);
                match (is_own, machine) {
                    (true, _) => {
                        write!(f, "own thread {name} ({tid}, {})", escape::name(policy))
                    }
                    (false, Some(machine)) => {
                        write!(f, "machine {}: {name} ({tid})", escape::name(machine))
                    }
                    (false, None) => {
                        write!(f, "{name} ({tid}, {}", escape::name(policy))?;
                        match cgroup {
                            Some(cgroup) => write!(f, ", {})", escape::name(cgroup)),
                            None => f.write_str(")"),
                        }
                    }
                }
            }
            Cause::KernelWork { function, worker } => with_function(
                f,
                &format!("kernel work in {}", escape::name(worker)),
                function.as_ref(),
            ),
            Cause::IdleExit { state: Some(state) } => {
                write!(f, "late wake-up from idle state {state}")
            }
            Cause::IdleExit { state: None } => f.write_str("late wake-up from idle"),
            Cause::Quota { group, .. } => write!(f, "quota of {}", escape::name(group)),
            Cause::Queued => f.write_str("waiting for a CPU, what ran is not recorded"),
            Cause::Stopped => f.write_str("stopped"),
            Cause::Blocked { waker: Some(waker) } => {
                write!(f, "blocked in the kernel until {}", escape::name(waker))
            }
            Cause::Blocked { waker: None } => f.write_str("blocked in the kernel"),
            Cause::Awaited { task, exit, is_own } => {
                let own = if *is_own { "own thread " } else { "" };
                let task = task.as_deref().map_or("another thread".into(), escape::name);
                write!(f, "waiting for {own}{task}")?;
                match exit {
                    Some(exit) => write!(f, " after exit {}", escape::name(exit)),
                    None => Ok(()),
                }
            }
            Cause::Exit { reason, is_kernel } => write_exit(f, reason.as_deref(), *is_kernel),
            Cause::Unseen => f.write_str("not seen by Linux (hypervisor or firmware)"),
            Cause::Steal => f.write_str("steal: the hypervisor ran something else"),
        }
    }
}

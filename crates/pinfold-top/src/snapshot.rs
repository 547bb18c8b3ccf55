//! What was found in one interval, as it is shown, printed and recorded.

use pinfold_model::escape;
use serde::{Deserialize, Serialize};

use crate::units::{milliseconds, per_cent};

/// Name and version of the format.
pub const FORMAT: &str = "pinfold-top/1";

/// One thread of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadSample {
    /// Its TID.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its role: `vcpu(0)`, `emulator`.
    pub role: String,
    /// The CPU on which it ran last.
    pub cpu: u32,
    /// Share of the interval in which it ran.
    pub run_share: f64,
    /// Share of the interval in which it was runnable and waited, as the kernel counted it. A wait
    /// is counted when it ends, so this may exceed 1.
    pub ready_share: f64,
    /// Time for which it has been waiting (ns), at least; `null` if it does not wait.
    pub waiting_ns: Option<u64>,
    /// The most that was counted in one interval of the last minute (ns): not less than the
    /// longest wait that ended in that minute, if the interval is not shorter.
    pub worst_ns: u64,
    /// Number of times in the last minute that it was found on another CPU.
    pub moves: u64,
    /// The task that ran on its CPU while it waited, or the quota.
    pub because_of: Option<String>,
}

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSample {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Share of the interval for which the quotas of its cgroups stopped it, summed over the CPUs;
    /// `null` if no cgroup has a quota or it cannot be read.
    pub throttled_share: Option<f64>,
    /// State of its placement: `as planned`, `drifted`; `null` without one.
    pub placement: Option<String>,
    /// Its threads, vCPUs first.
    pub threads: Vec<ThreadSample>,
}

/// One CPU of a vnode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VnodeSample {
    /// Name of the vnode.
    pub name: String,
    /// The CPU.
    pub cpu: u32,
    /// The speed that was requested, as a share of full speed.
    pub requested: f64,
    /// The speed of the last second; `null` if it was not measured.
    pub achieved: Option<f64>,
}

/// All machines in one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`FORMAT`].
    pub format: String,
    /// Time since the start of the observation (ns).
    pub at_ns: u64,
    /// Length of the interval (ns).
    pub interval_ns: u64,
    /// Share of the interval in which this process itself ran.
    pub own_share: f64,
    /// What could not be read, in sentences.
    pub notes: Vec<String>,
    /// The machines.
    pub machines: Vec<MachineSample>,
    /// The vnodes.
    pub vnodes: Vec<VnodeSample>,
    /// The owner of each CPU, as `pinfold claims` prints it; empty if it was not read anew.
    pub claims: Vec<String>,
}

impl ThreadSample {
    /// How much it waits now, for sorting: the present wait counts in full.
    #[must_use]
    pub fn wait_score(&self) -> f64 {
        let waiting = self.waiting_ns.map_or(0.0, |ns| ns as f64 / 1e9);
        self.ready_share.max(waiting)
    }
}

impl ThreadSample {
    /// `43.2 % for 120 ms: stress (4711)`, with `before` before the cause.
    pub(crate) fn to_words(&self, before: &str) -> String {
        let since = match self.waiting_ns {
            Some(ns) => format!(" for {}", milliseconds(ns)),
            None => String::new(),
        };
        let because = match &self.because_of {
            Some(cause) => format!("{before}{}", escape::name(cause)),
            None => String::new(),
        };
        format!("{} %{since}{because}", per_cent(self.ready_share))
    }

    /// True if it waits now, or waited for a notable share of the interval.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.wait_score() >= 0.001
    }
}

impl MachineSample {
    /// True if one of its threads waits now and has not run for a while.
    #[must_use]
    pub fn is_starving(&self) -> bool {
        self.threads.iter().any(|thread| thread.waiting_ns.is_some())
    }

    /// The thread that waits most.
    #[must_use]
    pub fn worst(&self) -> Option<&ThreadSample> {
        self.threads.iter().max_by(|a, b| a.wait_score().total_cmp(&b.wait_score()))
    }

    /// Sum of the run time of its threads, in CPUs.
    #[must_use]
    pub fn run(&self) -> f64 {
        self.threads.iter().fold(0.0, |sum, thread| sum + thread.run_share)
    }

    /// Sum of the waits of its threads, in CPUs.
    #[must_use]
    pub fn ready(&self) -> f64 {
        self.threads.iter().fold(0.0, |sum, thread| sum + thread.ready_share)
    }

    /// The longest wait of its threads in the last minute (ns).
    #[must_use]
    pub fn worst_ns(&self) -> u64 {
        self.threads.iter().map(|thread| thread.worst_ns).max().unwrap_or(0)
    }

    /// Number of moves of its threads in the last minute.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.threads.iter().map(|thread| thread.moves).sum()
    }
}

impl Snapshot {
    /// The longest wait of all machines, in a sentence; `None` if no thread waits.
    #[must_use]
    pub fn worst(&self) -> Option<String> {
        let machine =
            self.machines.iter().max_by(|a, b| badness_of(a).total_cmp(&badness_of(b)))?;
        let thread = machine.worst().filter(|thread| thread.is_waiting())?;
        let (name, role) = (escape::name(&machine.name), escape::name(&thread.role));
        let mark = if thread.waiting_ns.is_some() { "! " } else { "" };
        Some(format!(
            "{mark}{name} waits longest: {role} on CPU {}, {}",
            thread.cpu,
            thread.to_words(", because of ")
        ))
    }

    /// Sorts the machines by their worst wait, longest first, then by name.
    pub fn sort(&mut self) {
        self.machines.sort_by(|a, b| {
            badness_of(b).total_cmp(&badness_of(a)).then_with(|| a.name.cmp(&b.name))
        });
    }
}

fn badness_of(machine: &MachineSample) -> f64 {
    machine.worst().map_or(0.0, ThreadSample::wait_score)
}

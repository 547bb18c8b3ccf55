//! What was found in one interval, as it is shown, printed and recorded.

use pinfold_model::escape;
use pinfold_model::text::count_noun;
use serde::{Deserialize, Serialize};

use crate::units::{milliseconds, per_cent};

/// Name and version of the format.
pub const FORMAT: &str = "pinfold-top/1";
/// A thread that waits for longer starves.
const STARVING_NS: u64 = 100_000_000;

/// How threads are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By a BPF program at the scheduler's events.
    Bpf,
    /// From `/proc`.
    Proc,
}

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
    /// Share of the interval in which it was runnable and waited. Without BPF a wait is counted when
    /// it ends, so this may exceed 1.
    pub ready_share: f64,
    /// Time for which it has been waiting (ns); `null` if it does not wait. Without BPF it is found
    /// only after a whole interval without run time, and is a lower bound.
    pub waiting_ns: Option<u64>,
    /// The longest wait of the last minute (ns). Without BPF the most that was counted in one
    /// interval, in which waits are added up.
    pub worst_ns: u64,
    /// Number of migrations in the last minute. Without BPF the number of times that it was found
    /// on another CPU.
    pub moves: u64,
    /// The task that ran longest on its CPU while it waited, or the quota. Without BPF the task with
    /// the most CPU time there in the interval.
    pub because_of: Option<String>,
    /// Share of its waits of this interval in which that task ran; `null` without BPF.
    pub because_share: Option<f64>,
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
    /// Exits of its vCPUs in a second, as KVM counts them, over the last seconds; `null` without
    /// KVM or root.
    pub exits_per_second: Option<f64>,
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
    /// How the threads are read; `null` in records of older versions.
    pub method: Option<Method>,
    /// Share of the interval in which this process itself ran.
    pub own_share: f64,
    /// Share of a CPU that the BPF program takes, on all CPUs together; `null` without it, or if the
    /// kernel does not count it.
    pub kernel_share: Option<f64>,
    /// Events that the BPF program missed and waits of which only the last cause is known, since it
    /// was loaded; `null` without it.
    pub lost: Option<u64>,
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
    /// `2.3 s` if it starves, else `43.2 %`.
    fn length(&self) -> String {
        match self.waiting_ns {
            Some(ns) if self.is_starving() => milliseconds(ns),
            Some(_) | None => format!("{} %", per_cent(self.ready_share)),
        }
    }

    /// `2.3 s: stress (4711)`, with `before` before the cause.
    pub(crate) fn to_words(&self, before: &str) -> String {
        let because = match &self.because_of {
            Some(cause) => format!("{before}{}", escape::name(cause)),
            None => String::new(),
        };
        self.length() + &because
    }

    /// True while it waits and has not run for a tenth of a second.
    #[must_use]
    pub fn is_starving(&self) -> bool {
        self.waiting_ns.is_some_and(|ns| ns >= STARVING_NS)
    }

    /// True if it waits now, or waited for a notable share of the interval.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.wait_score() >= 0.001
    }
}

impl MachineSample {
    /// True while one of its threads starves.
    #[must_use]
    pub fn is_starving(&self) -> bool {
        self.threads.iter().any(ThreadSample::is_starving)
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
        self.threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.moves))
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
        let words = thread.to_words(", because of ");
        let cpu = thread.cpu;
        Some(if thread.is_starving() {
            format!("starving now: {name}, {role} on CPU {cpu}, for {words}")
        } else {
            format!("{name} waits longest: {role} on CPU {cpu}, {words}")
        })
    }

    /// What the observation itself costs, and what it has missed.
    #[must_use]
    pub fn cost(&self) -> String {
        let own = format!("{} % of a CPU", per_cent(self.own_share));
        let kernel = self.kernel_share.map(|share| format!(", and {} % in BPF", per_cent(share)));
        let lost = self.lost.map(|lost| format!("; {} lost", count_noun(lost, "event")));
        own + &kernel.unwrap_or_default() + &lost.unwrap_or_default()
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

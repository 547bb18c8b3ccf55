//! Gaps of the threads of all watched machines, by role and by cause.
//!
//! A thread of this process observes all of them for [`WINDOW_NS`], adds the result to the sums,
//! and begins again: threads and machines that are new are then included, and nothing grows. Gaps
//! while the programs are loaded again are not seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::{Role, RoleKind, TaskId, Tid};
use pinfold_probe::gaps::{self, Cause, GapReport, GapWatch, GapsError};

use super::exposition::{head, line, seconds};
use super::label;
use crate::Failure;
use crate::measure::machine_names;
use crate::message::say;

/// Length of one observation (ns).
const WINDOW_NS: u64 = 15_000_000_000;
/// Pause while there is nothing to observe (ns).
const PAUSE_NS: u64 = 1_000_000_000;
/// Pause after the kernel refused to load the programs (ns).
const AGAIN_NS: u64 = 60_000_000_000;
/// Upper bounds of the histogram: powers of two of a nanosecond, from 66 µs to 1.07 s.
const BOUNDS: [u32; 8] = [16, 18, 20, 22, 24, 26, 28, 30];
/// Time of a gap that no part explains.
const UNKNOWN: &str = "unknown";

/// Gaps of the threads of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RoleGaps {
    /// Their number by the first bound that they do not exceed; the last is without a bound.
    buckets: [u64; BOUNDS.len() + 1],
    sum_ns: u64,
    /// The longest of the latest observation.
    longest_ns: u64,
}

impl RoleGaps {
    /// Adds gaps of at least 2 to the power of this number of nanoseconds, and less than twice that.
    fn add(&mut self, power: u32, count: u64) {
        let at = BOUNDS.iter().position(|bound| power < *bound).unwrap_or(BOUNDS.len());
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket = bucket.saturating_add(count);
        }
    }
}

/// Gaps of a machine since the watch began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineGaps {
    /// By name of the role's kind.
    roles: BTreeMap<&'static str, RoleGaps>,
    /// Time (ns) by word of the cause, of gaps above the bound.
    causes: BTreeMap<&'static str, u64>,
    /// Of it the time (ns) in which threads of another machine ran, by its name.
    machines: BTreeMap<String, u64>,
}

/// A thread to observe.
#[derive(Clone, Debug)]
pub struct GapThread {
    /// The thread.
    pub task: TaskId,
    /// Its role.
    pub role: Role,
    /// ID of its placement.
    pub id: String,
}

#[derive(Debug, Default)]
struct Sums {
    threads: Vec<GapThread>,
    /// Names of the watched machines by process.
    names: BTreeMap<Tid, String>,
    machines: BTreeMap<String, MachineGaps>,
}

impl Sums {
    /// Adds an observation of these threads, and of those that they created.
    fn add(&mut self, report: &GapReport, threads: &[GapThread]) {
        let owners: BTreeMap<Tid, &str> = threads
            .iter()
            .chain(&self.threads)
            .map(|one| (one.task.tid, one.id.as_str()))
            .collect();
        for machine in self.machines.values_mut() {
            machine.roles.values_mut().for_each(|role| role.longest_ns = 0);
        }
        for thread in &report.summary.threads {
            let Some(id) = owners.get(&Tid(thread.tid)) else { continue };
            let Some(kind) = RoleKind::of_text(&thread.role) else { continue };
            let machine = self.machines.entry((*id).to_owned()).or_default();
            let role = machine.roles.entry(kind.name).or_default();
            for (power, count) in (0_u32..).zip(&thread.histogram) {
                role.add(power, *count);
            }
            role.sum_ns = role.sum_ns.saturating_add(thread.shorter_ns);
        }
        for gap in &report.gaps {
            let Some(id) = owners.get(&Tid(gap.tid)) else { continue };
            let Some(kind) = RoleKind::of_text(&gap.role) else { continue };
            let machine = self.machines.entry((*id).to_owned()).or_default();
            let role = machine.roles.entry(kind.name).or_default();
            role.add(gap.length_ns.checked_ilog2().unwrap_or(0), 1);
            role.sum_ns = role.sum_ns.saturating_add(gap.length_ns);
            role.longest_ns = role.longest_ns.max(gap.length_ns);
            for part in &gap.parts {
                let Cause::Thread { machine: Some(name), is_own: false, .. } = &part.cause else {
                    continue;
                };
                let sum = machine.machines.entry(name.clone()).or_default();
                *sum = sum.saturating_add(part.ns);
            }
            let parts = gap.parts.iter().map(|part| (part.cause.word(), part.ns));
            for (word, ns) in parts.chain([(UNKNOWN, gap.unexplained_ns())]) {
                let sum = machine.causes.entry(word).or_default();
                *sum = sum.saturating_add(ns);
            }
        }
    }
}

/// The observation of all watched machines.
#[derive(Debug)]
pub struct GapMetrics(Arc<Mutex<Sums>>);

impl GapMetrics {
    /// Starts to observe gaps of at least `over_ns`. If the kernel refuses, this is reported once.
    ///
    /// # Errors
    /// [`Failure`] if the host cannot be read.
    pub fn start(over_ns: u64) -> Result<Self, Failure> {
        let host = LiveHost::new()?;
        let sums = Arc::new(Mutex::new(Sums::default()));
        let shared = Arc::clone(&sums);
        thread::spawn(move || observe(&host, &shared, over_ns));
        Ok(Self(sums))
    }

    /// Observes these threads from the next observation on. `names` are those of their machines by
    /// process.
    pub fn follow(&self, threads: Vec<GapThread>, names: BTreeMap<Tid, String>) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (sums.threads, sums.names) = (threads, names);
    }

    /// The gaps of a placement; `None` before its first observation has ended.
    pub fn of(&self, id: &str) -> Option<MachineGaps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).machines.get(id).cloned()
    }
}

/// Observes until the process ends. An error is reported once, and tried again.
fn observe(host: &LiveHost, sums: &Mutex<Sums>, over_ns: u64) -> ! {
    let mut reported = None;
    loop {
        let threads = sums.lock().unwrap_or_else(PoisonError::into_inner).threads.clone();
        match observe_once(host, &threads, sums, over_ns) {
            Ok(report) => {
                sums.lock().unwrap_or_else(PoisonError::into_inner).add(&report, &threads);
                reported = None;
            }
            // There is none, or all have ended.
            Err(GapsError::Watch(_)) => SystemClock.sleep_ns(PAUSE_NS),
            Err(error @ GapsError::Unavailable { .. }) => {
                let why = error.to_string();
                if reported.as_ref() != Some(&why) {
                    say(&format!("warning: no metrics of gaps: {why}"));
                }
                reported = Some(why);
                SystemClock.sleep_ns(AGAIN_NS);
            }
        }
    }
}

fn observe_once(
    host: &LiveHost,
    threads: &[GapThread],
    sums: &Mutex<Sums>,
    over_ns: u64,
) -> Result<GapReport, GapsError> {
    let tasks: Vec<_> = threads.iter().map(|one| (one.task, one.role.clone())).collect();
    let all = [gaps::Subject::of_threads(tasks)];
    let mut watch = gaps::start(host, &SystemClock, &all, over_ns)?;
    let end = SystemClock.now_ns().saturating_add(WINDOW_NS);
    while SystemClock.now_ns() < end {
        SystemClock.sleep_ns(GapWatch::POLL_NS);
        watch.poll(host, &SystemClock);
    }
    let mut names = machine_names(host);
    names.extend(sums.lock().unwrap_or_else(PoisonError::into_inner).names.clone());
    let report = watch.stop(host, &SystemClock, names);
    report.map_err(|error| GapsError::Watch(error.into()))
}

/// The part of the page about gaps. `machines` are the labels of each with its gaps.
pub(super) fn page(text: &mut String, machines: &BTreeMap<String, &MachineGaps>) {
    let name = "pinfold_vm_gap_seconds";
    head(text, name, "histogram", "Gaps in which threads of a role could run and did not");
    for (labels, gaps) in machines {
        for (role, gaps) in &gaps.roles {
            let labels = format!("{labels},role=\"{role}\"");
            let mut count = 0_u64;
            let bounds = BOUNDS.iter().map(|bound| seconds(1 << bound));
            for (bucket, bound) in gaps.buckets.iter().zip(bounds.chain(["+Inf".to_owned()])) {
                count = count.saturating_add(*bucket);
                let labels = format!("{labels},le=\"{bound}\"");
                line(text, &format!("{name}_bucket"), &labels, &count.to_string());
            }
            line(text, &format!("{name}_sum"), &labels, &seconds(gaps.sum_ns));
            line(text, &format!("{name}_count"), &labels, &count.to_string());
        }
    }
    let name = "pinfold_vm_longest_gap_seconds";
    head(
        text,
        name,
        "gauge",
        "Longest gap of a role in the latest 15 s, 0 below the bound of --gaps",
    );
    for (labels, gaps) in machines {
        for (role, gaps) in &gaps.roles {
            line(text, name, &format!("{labels},role=\"{role}\""), &seconds(gaps.longest_ns));
        }
    }
    let name = "pinfold_gap_cause_seconds_total";
    head(text, name, "counter", "Time of gaps above the bound of --gaps, by cause");
    for (labels, gaps) in machines {
        for word in Cause::WORDS.into_iter().chain([UNKNOWN]) {
            let ns = gaps.causes.get(word).copied().unwrap_or(0);
            line(text, name, &format!("{labels},cause=\"{word}\""), &seconds(ns));
        }
    }
    let name = "pinfold_gap_machine_seconds_total";
    head(text, name, "counter", "Time of these gaps in which another machine ran, by its name");
    for (labels, gaps) in machines {
        for (other, ns) in &gaps.machines {
            line(text, name, &format!("{labels},by=\"{}\"", label(other)), &seconds(*ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_probe::gaps::{Gap, Part, Summary, ThreadGaps};

    use super::*;

    fn thread(tid: u32, role: Role, id: &str) -> GapThread {
        let task = TaskId { tid: Tid(tid), start_time: 1 };
        GapThread { task, role, id: id.to_owned() }
    }

    fn of_machine(name: &str) -> Cause {
        Cause::Thread {
            name: "CPU 0/TCG".to_owned(),
            tid: 20,
            policy: "other".to_owned(),
            cgroup: None,
            machine: Some(name.to_owned()),
            is_own: false,
        }
    }

    #[test]
    fn gaps_are_summed_by_role_and_cause() {
        let threads = [thread(7, Role::Vcpu(0), "a"), thread(8, Role::Emulator, "b")];
        let short = ThreadGaps {
            subject: String::new(),
            tid: 7,
            role: "vcpu(0)".to_owned(),
            has_ended: false,
            shorter: 3,
            shorter_ns: 30_000,
            histogram: [vec![0; 13], vec![3]].concat(),
        };
        let gap = Gap {
            subject: String::new(),
            tid: 7,
            role: "vcpu(0)".to_owned(),
            at_ns: 0,
            length_ns: 5_000_000,
            cpu: 0,
            moves: 0,
            is_open: false,
            is_at_least: false,
            parts: vec![
                Part { cause: Cause::Stopped, ns: 4_000_000 },
                Part { cause: of_machine("db"), ns: 700_000 },
            ],
        };
        let summary = Summary { threads: vec![short], ..Summary::default() };
        let report = GapReport { summary, gaps: vec![gap] };
        let mut sums = Sums::default();
        sums.add(&report, &threads);
        sums.add(&report, &threads);
        assert!(!sums.machines.contains_key("b"), "nothing was seen of it");
        let labels = "id=\"a\"".to_owned();
        let mut text = String::new();
        page(&mut text, &BTreeMap::from([(labels, &sums.machines["a"])]));
        for line in [
            "pinfold_vm_gap_seconds_bucket{id=\"a\",role=\"vcpu\",le=\"0.000065536\"} 6",
            "pinfold_vm_gap_seconds_bucket{id=\"a\",role=\"vcpu\",le=\"0.004194304\"} 6",
            "pinfold_vm_gap_seconds_bucket{id=\"a\",role=\"vcpu\",le=\"0.016777216\"} 8",
            "pinfold_vm_gap_seconds_bucket{id=\"a\",role=\"vcpu\",le=\"+Inf\"} 8",
            "pinfold_vm_gap_seconds_sum{id=\"a\",role=\"vcpu\"} 0.010060000",
            "pinfold_vm_gap_seconds_count{id=\"a\",role=\"vcpu\"} 8",
            "pinfold_vm_longest_gap_seconds{id=\"a\",role=\"vcpu\"} 0.005000000",
            "pinfold_gap_cause_seconds_total{id=\"a\",cause=\"stopped\"} 0.008000000",
            "pinfold_gap_cause_seconds_total{id=\"a\",cause=\"thread\"} 0.001400000",
            "pinfold_gap_cause_seconds_total{id=\"a\",cause=\"unknown\"} 0.000600000",
            "pinfold_gap_machine_seconds_total{id=\"a\",by=\"db\"} 0.001400000",
            "pinfold_gap_cause_seconds_total{id=\"a\",cause=\"quota\"} 0.000000000",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
    }
}

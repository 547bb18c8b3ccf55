//! Threads that are bound to one CPU and keep it busy, whatever their names are.
//!
//! One reading shows only what a thread has used since its start, so the caller takes two, some time
//! apart, and adds what they show: [`Sample::add_busy`].

use std::collections::BTreeMap;

use pinfold_host::{Host, paths, proc_stat, process, schedstat, uptime};
use pinfold_model::{CpuSet, Tid};

use crate::claim::{BoundThread, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;

/// A busy thread.
pub const KIND: Kind = Kind { name: "thread", noun: "busy thread", sort: OwnerCategory::Program };

/// What is read.
pub const READS: &str = "run times of threads that are bound to one CPU";

/// A thread is busy if it runs for this share of the time, in percent.
const BUSY_PERCENT: u64 = 90;

/// Nothing: one reading shows no busy thread.
pub fn read(_: &Context<'_>, _: &mut Claims) {}

/// The run times of all threads that are bound to one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    threads: BTreeMap<Tid, SampledThread>,
}

/// One thread of a sample, which is bound to one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// Its process.
    pub process: Tid,
    /// Its name.
    pub name: String,
    /// Its CPU.
    pub cpu: CpuSet,
    /// Run time since its start, in nanoseconds.
    pub run_ns: u64,
}

impl Sample {
    /// Reads the threads of processes without a claim. Kernel threads have no arguments and are
    /// left out.
    #[must_use]
    pub fn read(host: &dyn Host, claims: &Claims) -> Self {
        let context = Context::new(host);
        let mut threads = BTreeMap::new();
        // On a host with one CPU, each thread is bound to it.
        let processes = if context.online.len() > 1 { context.processes() } else { &[] };
        for process in processes {
            let mut single = process.threads(host);
            single.retain(|thread| thread.cpus.len() == 1);
            if single.is_empty() || context.belongs(process.pid, claims) {
                continue;
            }
            for thread in single {
                let path = paths::task_schedstat(process.pid, thread.tid);
                let Ok(text) = host.read_text(&path) else { continue };
                let Ok(stat) = schedstat::parse(&text) else { continue };
                let bound = SampledThread {
                    process: process.pid,
                    name: thread.name,
                    cpu: thread.cpus,
                    run_ns: stat.run_ns,
                };
                threads.insert(thread.tid, bound);
            }
        }
        Self { threads }
    }

    /// A sample of these threads.
    pub fn from_threads(threads: impl IntoIterator<Item = (Tid, SampledThread)>) -> Self {
        Self { threads: threads.into_iter().collect() }
    }

    /// Adds the threads that were busy on one CPU until a later sample, but not those on a CPU of an
    /// owner whose processes are not known: they are probably its own.
    pub fn add_busy(&self, later: &Self, elapsed_ns: u64, claims: &mut Claims) {
        let mut unknown = CpuSet::new();
        for claim in claims.all().iter().filter(|claim| claim.active) {
            if claim.exclusivity.is_exclusive() && claim.owner.process.is_none() {
                unknown.add(&claim.cpus);
            }
        }
        for (tid, bound) in &later.threads {
            let Some(before) = self.threads.get(tid) else { continue };
            let same = before.process == bound.process && before.cpu == bound.cpu;
            let ran = bound.run_ns.saturating_sub(before.run_ns);
            let is_known = !bound.cpu.is_subset(&unknown);
            if same && is_known && elapsed_ns > 0 && ran / (elapsed_ns / 100).max(1) >= BUSY_PERCENT
            {
                let owner = Owner::new(&KIND, &bound.name).of_process(bound.process);
                let source = Source::process(*tid);
                claims.add(&owner, bound.cpu.clone(), Exclusivity::Dedicated, &source);
            }
        }
    }
}

/// The threads of processes without a claim that are bound to one CPU and have used a tenth of it or
/// more since they started, at least a second ago. One reading shows that.
#[must_use]
pub fn read_bound(host: &dyn Host, claims: &Claims) -> Vec<BoundThread> {
    let context = Context::new(host);
    let (Ok(now), Ok(names)) = (uptime::read_ticks(host), host.list(&paths::proc_dir())) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let pids = names.iter().filter_map(|name| name.parse().ok()).map(Tid);
    for pid in pids.filter(|pid| *pid != process::own_pid()) {
        let tasks = host.list(&paths::task_dir(pid)).unwrap_or_default();
        for tid in tasks.iter().filter_map(|name| name.parse().ok()).map(Tid) {
            let Ok(cpu) = host.affinity(tid) else { continue };
            if cpu.len() != 1 || context.online.len() < 2 {
                continue;
            }
            let Ok(Some(stat)) = proc_stat::at(host, &paths::task_file(pid, tid, "stat")) else {
                continue;
            };
            let age = now.saturating_sub(stat.start_time);
            let is_busy = age.saturating_mul(uptime::TICK_NS) >= 1_000_000_000
                && stat.cpu_ticks.saturating_mul(10) >= age;
            let is_own = stat.is_kernel_thread() || stat.has_ended();
            if is_busy && !is_own && !context.belongs(pid, claims) {
                found.push(BoundThread { process: pid, name: stat.comm, cpu });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;

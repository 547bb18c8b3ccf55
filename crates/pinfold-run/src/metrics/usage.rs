//! How long the threads of each machine ran, waited for a CPU and were throttled, and how the CPUs
//! of the host are used.
//!
//! ```text
//! /proc/4242/task/4250/schedstat               81352041 1206913 327
//! /sys/fs/cgroup/machine.slice/a.scope/cpu.stat    throttled_usec 1200
//! ```
//! Times are those of the kernel, from the start of each thread. A thread that ends keeps its part,
//! so that the sum of a role never falls while its placement is watched.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::Target;
use pinfold_claims::CpuUsage;
use pinfold_host::{Host, cpu_groups, mountinfo, paths, schedstat};
use pinfold_model::{Role, Tid};

use super::exposition::{head, line, seconds};
use super::{MachineGaps, gaps, kernel, label};

/// Two pages within this time have the same times (ns): each reads the files of all threads.
const FRESH_NS: u64 = 1_000_000_000;

/// Interval at which the cgroups of a machine are looked up anew (ns): it is moved seldom.
const GROUPS_NS: u64 = 30_000_000_000;

/// Times of threads, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// On a CPU.
    pub run_ns: u64,
    /// Runnable, but waiting for a CPU.
    pub ready_ns: u64,
    /// How often they were moved to another CPU; `None` if the kernel does not report it.
    pub migrations: Option<u64>,
}

impl ThreadTimes {
    fn add(&mut self, other: Self) {
        self.run_ns = self.run_ns.saturating_add(other.run_ns);
        self.ready_ns = self.ready_ns.saturating_add(other.ready_ns);
        let sum = self.migrations.unwrap_or(0).saturating_add(other.migrations.unwrap_or(0));
        self.migrations = self.migrations.or(other.migrations).map(|_| sum);
    }
}

/// Times of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineTimes {
    /// By role.
    pub roles: BTreeMap<Role, ThreadTimes>,
    /// For how long its cgroups had used up their quotas (ns); `None` if none has statistics.
    pub throttled_ns: Option<u64>,
    /// Exits of its vCPUs by reason.
    pub exits: BTreeMap<String, u64>,
}

impl MachineTimes {
    /// Sums by the name of the role's kind.
    pub(super) fn by_kind(&self) -> BTreeMap<&'static str, ThreadTimes> {
        let mut kinds: BTreeMap<&'static str, ThreadTimes> = BTreeMap::new();
        for (role, times) in &self.roles {
            kinds.entry(role.kind().name).or_default().add(*times);
        }
        kinds
    }
}

/// One placement on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineUse {
    /// ID of the placement.
    pub id: String,
    /// Name of the machine.
    pub vm: String,
    /// Its strategy.
    pub strategy: String,
    /// True if it is not as planned: another owner uses its CPUs too, or it cannot be corrected.
    pub is_degraded: bool,
    /// Its times.
    pub times: MachineTimes,
    /// Its gaps; `None` if they are not observed, or not yet.
    pub gaps: Option<MachineGaps>,
}

/// A thread at the last sample.
#[derive(Clone, Debug)]
struct ThreadSample {
    role: Role,
    times: ThreadTimes,
}

/// Reads the times of one machine again and again.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    threads: BTreeMap<Tid, ThreadSample>,
    ended: BTreeMap<Role, ThreadTimes>,
    latest: MachineTimes,
    at: Option<u64>,
    // Its cgroups, and when they were looked up.
    groups: Option<(u64, BTreeSet<String>)>,
}

impl Sampler {
    /// The times at `now`, or those of a sample shortly before.
    pub fn sample(&mut self, host: &dyn Host, target: &Target, now: u64) -> &MachineTimes {
        if self.at.is_none_or(|at| now.saturating_sub(at) >= FRESH_NS) {
            self.at = Some(now);
            self.count(read_threads(host, target));
            // A group that ended meanwhile took its statistics with it.
            let throttled_ns = self.throttled_ns(host, target.pid, now);
            let throttled_ns = throttled_ns.max(self.latest.throttled_ns);
            let mut roles = self.ended.clone();
            for ThreadSample { role, times } in self.threads.values() {
                roles.entry(role.clone()).or_default().add(*times);
            }
            let exits = kernel::exits(host, target.pid);
            self.latest = MachineTimes { roles, throttled_ns, exits };
        }
        &self.latest
    }

    /// For how long the cgroups of a process were throttled; `None` if none has statistics.
    fn throttled_ns(&mut self, host: &dyn Host, pid: Tid, now: u64) -> Option<u64> {
        let known = self.groups.take().filter(|(at, _)| now.saturating_sub(*at) < GROUPS_NS);
        let (_, groups) = self
            .groups
            .insert(known.unwrap_or_else(|| (now, groups_of(host, pid).unwrap_or_default())));
        let times = groups.iter().filter_map(|group| {
            let text = host.read_text(&paths::cpu_stat(group)).ok()?;
            Some(cpu_groups::throttling(&text)?.ns)
        });
        times.reduce(u64::saturating_add)
    }

    /// Takes over what was read; threads that ended, or whose ID another has now, keep their part.
    fn count(&mut self, found: BTreeMap<Tid, ThreadSample>) {
        for (tid, known) in std::mem::replace(&mut self.threads, found) {
            let is_same = self.threads.get(&tid).is_some_and(|now| {
                now.role == known.role && now.times.run_ns >= known.times.run_ns
            });
            if !is_same {
                self.ended.entry(known.role).or_default().add(known.times);
            }
        }
    }
}

/// The threads of a machine with their times. Those that nothing reports follow the emulator, or
/// are part of the process group.
fn read_threads(host: &dyn Host, target: &Target) -> BTreeMap<Tid, ThreadSample> {
    let roles: BTreeMap<Tid, &Role> =
        target.threads.iter().map(|(task, role)| (task.tid, role)).collect();
    let is_group = target.threads.iter().any(|(_, role)| *role == Role::Task);
    let other = if is_group { Role::Task } else { Role::Emulator };
    let mut found = BTreeMap::new();
    let mut add = |tid: Tid, text: &str| {
        if let Ok(stat) = schedstat::parse(text) {
            let role = roles.get(&tid).map_or(&other, |role| *role).clone();
            let times =
                ThreadTimes { run_ns: stat.run_ns, ready_ns: stat.delay_ns, migrations: None };
            found.insert(tid, ThreadSample { role, times });
        }
    };
    let folder = paths::task_dir(target.pid);
    let names = host.list(&folder).unwrap_or_default();
    let read = host.read_each(&folder, &names, "schedstat", &mut |name, bytes| {
        if let Ok(tid) = name.parse() {
            add(Tid(tid), &String::from_utf8_lossy(bytes));
        }
        Ok(())
    });
    // The machine has ended: what was read counts.
    let (Ok(()) | Err(_)) = read;
    // vhost threads before Linux 6.4, and the other processes of a group.
    let own: BTreeSet<Tid> = names.iter().filter_map(|name| name.parse().ok().map(Tid)).collect();
    for tid in roles.keys().filter(|tid| !own.contains(tid)) {
        if let Ok(text) = host.read_text(&paths::process_file(*tid, "schedstat")) {
            add(*tid, &text);
        }
    }
    let read = host.read_each(&folder, &names, "sched", &mut |name, bytes| {
        if let Some(known) = name.parse().ok().and_then(|tid| found.get_mut(&Tid(tid))) {
            known.times.migrations = kernel::migrations(&String::from_utf8_lossy(bytes));
        }
        Ok(())
    });
    // Not all kernels have this file.
    let (Ok(()) | Err(_)) = read;
    found
}

/// The cgroups of the threads of a process and those above, without slices, which are not its own.
fn groups_of(host: &dyn Host, pid: Tid) -> Option<BTreeSet<String>> {
    let mount = mountinfo::controller(host, "cpu").ok()??;
    let mut groups = BTreeSet::new();
    let folder = paths::task_dir(pid);
    let names = host.list(&folder).ok()?;
    let read = host.read_each(&folder, &names, "cgroup", &mut |_, bytes| {
        let text = String::from_utf8_lossy(bytes);
        let dirs = cpu_groups::dirs(&mount, &text).into_iter();
        groups.extend(dirs.take_while(|dir| !dir.ends_with(".slice")));
        Ok(())
    });
    read.ok()?;
    Some(groups)
}

/// The part of the page about the CPUs of the host and the machines.
pub(super) fn page(pool: Option<&CpuUsage>, machines: &[MachineUse]) -> String {
    let mut text = String::new();
    pool_part(&mut text, pool);
    head(&mut text, "pinfold_vm_info", "gauge", "Strategy of a placement");
    for one in machines {
        let (labels, strategy) = (labels(one), label(&one.strategy));
        line(&mut text, "pinfold_vm_info", &format!("{labels},strategy=\"{strategy}\""), "1");
    }
    let help = "1 if a placement is not as planned: another owner uses its CPUs, a vCPU has no CPU of \
                its own, threads are left as another program set them, or it cannot be checked";
    head(&mut text, "pinfold_vm_degraded", "gauge", help);
    for one in machines {
        let value = if one.is_degraded { "1" } else { "0" };
        line(&mut text, "pinfold_vm_degraded", &labels(one), value);
    }
    let name = "pinfold_vm_throttled_seconds_total";
    head(&mut text, name, "counter", "Time for which quotas stopped the cgroups of a machine");
    for one in machines {
        if let Some(throttled) = one.times.throttled_ns {
            line(&mut text, name, &labels(one), &seconds(throttled));
        }
    }
    let name = "pinfold_vcpu_ready_seconds_total";
    head(&mut text, name, "counter", "Time for which a vCPU was runnable and waited for a CPU");
    for one in machines {
        for (role, times) in &one.times.roles {
            if let Some(vcpu) = role.vcpu() {
                let labels = format!("{},vcpu=\"{vcpu}\"", labels(one));
                line(&mut text, name, &labels, &seconds(times.ready_ns));
            }
        }
    }
    role_part(&mut text, machines);
    let with_gaps = machines.iter().filter_map(|one| Some((labels(one), one.gaps.as_ref()?)));
    gaps::page(&mut text, &with_gaps.collect());
    text
}

fn pool_part(text: &mut String, pool: Option<&CpuUsage>) {
    head(text, "pinfold_pool_cpus", "gauge", "Online CPUs by their owners");
    if let Some(pool) = pool {
        let states = [("free", &pool.free), ("exclusive", &pool.owned), ("shared", &pool.shared)];
        for (state, cpus) in states {
            let count = cpus.len().to_string();
            line(text, "pinfold_pool_cpus", &format!("state=\"{state}\""), &count);
        }
    }
    let name = "pinfold_pool_cpus_used_twice";
    head(
        text,
        name,
        "gauge",
        "CPUs that two owners use although one of them needs them exclusively",
    );
    if let Some(pool) = pool {
        text.push_str(&format!("{name} {}\n", pool.twice.len()));
    }
}

/// Sums of the threads of a role.
fn role_part(text: &mut String, machines: &[MachineUse]) {
    let run = ("pinfold_thread_run_seconds_total", "Time on a CPU of the threads of a role");
    let ready = (
        "pinfold_thread_ready_seconds_total",
        "Time for which the threads of a role were runnable and waited for a CPU",
    );
    for (is_run, (name, help)) in [(true, run), (false, ready)] {
        head(text, name, "counter", help);
        for one in machines {
            for (kind, times) in one.times.by_kind() {
                let value = if is_run { times.run_ns } else { times.ready_ns };
                let labels = format!("{},role=\"{kind}\"", labels(one));
                line(text, name, &labels, &seconds(value));
            }
        }
    }
}

pub(super) fn labels(one: &MachineUse) -> String {
    format!("id=\"{}\",vm=\"{}\"", label(&one.id), label(&one.vm))
}

#[cfg(test)]
mod tests;

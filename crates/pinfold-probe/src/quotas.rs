//! When the quotas of the groups of threads stopped them: `cpu.stat` of each group and all above.

use std::collections::BTreeMap;

use pinfold_host::mountinfo::{self, ControllerMount, Version};
use pinfold_host::{Host, cpu_groups, paths};

pub use pinfold_host::cpu_groups::Throttling;
use pinfold_model::{CpuSet, Tid};

/// Between two samples a group was stopped for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Time of the sample before (ns).
    pub from_ns: u64,
    /// Time of the sample after.
    pub until_ns: u64,
    /// How often and for how long it was stopped, summed over its CPUs. The kernel adds a time at
    /// its end.
    pub throttled: Throttling,
}

#[derive(Clone, Debug, Default)]
struct Group {
    last: Option<(u64, Throttling)>,
    phases: Vec<Phase>,
}

/// The groups of threads.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    mount: Option<ControllerMount>,
    threads: BTreeMap<Tid, Vec<String>>,
    groups: BTreeMap<String, Group>,
    /// Number of CPUs that are online; 0 if it is unknown.
    cpus: u64,
    began_ns: Option<u64>,
    ended_ns: u64,
    /// Why quotas are not seen, as a sentence.
    pub absent: Option<String>,
}

impl Quotas {
    /// Without any thread yet.
    pub fn new(host: &dyn Host) -> Self {
        let (mount, absent) = match mountinfo::controller(host, "cpu") {
            Ok(Some(mount)) => (Some(mount), None),
            Ok(None) => (None, Some("no cgroup has the controller cpu".to_owned())),
            Err(error) => (None, Some(error.to_string())),
        };
        let absent = absent.map(|why| format!("quotas are not seen: {why}"));
        let online = host.read_text(&paths::cpu_online()).unwrap_or_default();
        let cpus = CpuSet::parse_list(online.trim()).unwrap_or_default().iter().count();
        Self { mount, absent, cpus: u64::try_from(cpus).unwrap_or(0), ..Self::default() }
    }

    /// Adds a thread once; its groups stay known when it ends.
    pub fn add(&mut self, host: &dyn Host, tid: Tid) {
        let Some(mount) = &self.mount else { return };
        if self.threads.contains_key(&tid) {
            return;
        }
        let text = host.read_text(&paths::process_file(tid, "cgroup")).unwrap_or_default();
        let dirs = cpu_groups::dirs(mount, &text);
        for dir in &dirs {
            self.groups.entry(dir.clone()).or_default();
        }
        self.threads.insert(tid, dirs);
    }

    /// True if the quotas are those of cgroup v1.
    pub fn is_v1(&self) -> bool {
        self.mount.as_ref().is_some_and(|mount| mount.version == Version::V1)
    }

    /// Reads `cpu.stat` of all groups.
    pub fn sample(&mut self, host: &dyn Host, now_ns: u64) {
        self.began_ns.get_or_insert(now_ns);
        self.ended_ns = now_ns;
        for (dir, group) in &mut self.groups {
            let text = host.read_text(&paths::cpu_stat(dir)).unwrap_or_default();
            let Some(found) = cpu_groups::throttling(&text) else { continue };
            if let Some((at, last)) = group.last
                && (found.ns > last.ns || found.periods > last.periods)
            {
                let throttled = Throttling {
                    periods: found.periods.saturating_sub(last.periods),
                    ns: found.ns.saturating_sub(last.ns),
                };
                group.phases.push(Phase { from_ns: at, until_ns: now_ns, throttled });
            }
            group.last = Some((now_ns, found));
        }
    }

    /// The group that was stopped longest around the end of a gap of a thread, and for how long.
    pub fn longest(&self, tid: Tid, from_ns: u64, until_ns: u64) -> Option<(&str, u64)> {
        let dirs = self.threads.get(&tid)?;
        let all = dirs.iter().filter_map(|dir| {
            let phases = &self.groups.get(dir)?.phases;
            let first = phases.partition_point(|phase| phase.until_ns < from_ns);
            let of_gap = phases[first..].iter().take_while(|phase| phase.from_ns <= until_ns);
            let ns = of_gap.fold(0_u64, |sum, phase| sum.saturating_add(phase.throttled.ns));
            Some((dir.as_str(), ns))
        });
        // Of equals the innermost, which is first.
        all.rev().max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0)
    }

    /// The groups that were stopped, with their sums. The kernel counts a time when it ends, with
    /// what was before the first sample: a sum is at most the time of all CPUs since then.
    pub fn stopped_groups(&self) -> Vec<(String, Throttling)> {
        let length_ns = self.ended_ns.saturating_sub(self.began_ns.unwrap_or(self.ended_ns));
        let most_ns = match self.cpus {
            0 => u64::MAX,
            cpus => length_ns.saturating_mul(cpus),
        };
        let sums = self.groups.iter().map(|(dir, group)| {
            let sum = group.phases.iter().fold(Throttling::default(), |sum, phase| Throttling {
                periods: sum.periods.saturating_add(phase.throttled.periods),
                ns: sum.ns.saturating_add(phase.throttled.ns),
            });
            (dir.clone(), Throttling { ns: sum.ns.min(most_ns), ..sum })
        });
        sums.filter(|(_, sum)| *sum != Throttling::default()).collect()
    }

    /// With this history of a group of a thread, for tests of the attribution.
    #[cfg(test)]
    pub fn with(tid: Tid, dirs: &[&str], phases: &[(usize, Phase)]) -> Self {
        let mut quotas = Self::default();
        quotas.threads.insert(tid, dirs.iter().map(|&dir| dir.to_owned()).collect());
        for (at, phase) in phases {
            quotas.groups.entry(dirs[*at].to_owned()).or_default().phases.push(*phase);
        }
        quotas
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    const MOUNTS: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn host(throttled_us: u64) -> SnapshotHost {
        let stat = format!("nr_periods 9\nnr_throttled 2\nthrottled_usec {throttled_us}\n");
        SnapshotHost::from_files([
            (paths::own_mountinfo().as_str(), MOUNTS),
            ("/sys/fs/cgroup/cgroup.controllers", "cpu\n"),
            (paths::cpu_online().as_str(), "0-1\n"),
            (paths::process_file(Tid(7), "cgroup").as_str(), "0::/vm\n"),
            (paths::cpu_stat("/sys/fs/cgroup/vm").as_str(), stat.as_str()),
        ])
    }

    #[test]
    fn a_stop_that_began_before_the_first_sample_counts_from_there() {
        let (before, after) = (host(0), host(4_990_000));
        let mut quotas = Quotas::new(&before);
        quotas.add(&before, Tid(7));
        quotas.sample(&before, 1_000_000_000);
        quotas.sample(&after, 3_000_000_000);
        let stopped = quotas.stopped_groups();
        // Two seconds of two CPUs.
        let expected = Throttling { periods: 0, ns: 4_000_000_000 };
        assert_eq!(stopped, [("/sys/fs/cgroup/vm".to_owned(), expected)]);
    }
}

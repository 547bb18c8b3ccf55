//! The kernel's per-thread statistics between two moments, summed by role.
//!
//! For each thread of a process (and each other task that has a role, such as the vhost workers of
//! an old kernel) a [`Snapshot`] holds run time and run delay from
//! [`schedstat`](https://docs.kernel.org/scheduler/sched-stats.html), context switches from
//! `status`, and migrations from `sched`, which not every kernel has. The counters are cumulative,
//! so they cover everything between the two moments, except the time of threads that ended: those
//! are counted in [`RoleStats::lost_threads`]. A thread that was created in between counts from its
//! creation.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, paths, proc_stat, proc_status, schedstat};
use pinfold_model::{Role, RoleStats, TaskId, Tid};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    run_ns: u64,
    delay_ns: u64,
    voluntary: u64,
    involuntary: u64,
    migrations: Option<u64>,
}

/// The counters of all threads at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    threads: BTreeMap<TaskId, (Role, Counters)>,
}

/// Reads the counters of every thread of the process and of every task in `roles`.
///
/// A thread without an entry in `roles` counts as [`Role::Emulator`]. Threads that end while they
/// are read are left out.
///
/// # Errors
/// [`HostError`] if the process is gone, or a file cannot be read or parsed.
pub fn snapshot(
    host: &dyn Host,
    pid: Tid,
    roles: &[(TaskId, Role)],
) -> Result<Snapshot, HostError> {
    let mut threads = BTreeMap::new();
    let mut add = |process: Tid, tid: Tid| match read_thread(host, process, tid) {
        Ok((task, counters)) => {
            let role = roles.iter().find(|(known, _)| *known == task);
            let role = role.map_or(Role::Emulator, |(_, role)| role.clone());
            threads.insert(task, (role, counters));
            Ok(())
        }
        // The thread is gone only if its `stat` is gone too; a kernel without schedstat lacks only
        // that file.
        Err(error) if error.is_gone() && !host.exists(&paths::task_stat(process, tid)) => Ok(()),
        Err(error) => Err(error),
    };
    let listed: Vec<Tid> = host
        .list(&paths::task_dir(pid))?
        .iter()
        .filter_map(|name| name.parse().ok().map(Tid))
        .collect();
    for tid in &listed {
        add(pid, *tid)?;
    }
    for (task, _) in roles.iter().filter(|(task, _)| !listed.contains(&task.tid)) {
        add(task.tid, task.tid)?;
    }
    // The number was reused by another task, which is neither in the process nor in `roles`.
    threads.retain(|task, _| {
        listed.contains(&task.tid) || roles.iter().any(|(known, _)| known == task)
    });
    Ok(Snapshot { threads })
}

impl Snapshot {
    /// Number of threads.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// True if there is no thread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Time (ns) that the counters cover since an earlier snapshot; `elapsed_ns` is the time by the
    /// clock.
    ///
    /// The kernel adds run delay when a wait ends, and run time at ticks and switches. The first
    /// snapshot can lack a part of what came before it, which is then counted later. So the result
    /// is at least the largest sum of run time and run delay of any thread.
    pub fn covers_ns(&self, earlier: &Snapshot, elapsed_ns: u64) -> u64 {
        let longest = self.threads.iter().map(|(task, (_, now))| {
            let before = earlier.threads.get(task).map(|(_, counters)| *counters);
            let before = before.unwrap_or_default();
            now.run_ns.saturating_sub(before.run_ns) + now.delay_ns.saturating_sub(before.delay_ns)
        });
        longest.max().unwrap_or(0).max(elapsed_ns)
    }

    /// The statistics of each role since an earlier snapshot, by ascending role.
    pub fn since(&self, earlier: &Snapshot) -> Vec<RoleStats> {
        let mut sums: BTreeMap<Role, RoleStats> = BTreeMap::new();
        for (task, (role, now)) in &self.threads {
            // Created in between: its counters and its migrations started at zero.
            let born = Counters { migrations: Some(0), ..Counters::default() };
            let before = earlier.threads.get(task).map_or(born, |(_, counters)| *counters);
            let sum = sums.entry(role.clone()).or_insert_with(|| nothing(role));
            sum.threads = sum.threads.saturating_add(1);
            sum.run_ns += now.run_ns.saturating_sub(before.run_ns);
            sum.run_delay_ns += now.delay_ns.saturating_sub(before.delay_ns);
            sum.voluntary_switches += now.voluntary.saturating_sub(before.voluntary);
            sum.involuntary_switches += now.involuntary.saturating_sub(before.involuntary);
            sum.migrations = match (sum.migrations, now.migrations, before.migrations) {
                (Some(sum), Some(now), Some(before)) => Some(sum + now.saturating_sub(before)),
                (None, _, _) | (_, None, _) | (_, _, None) => None,
            };
        }
        for (task, (role, _)) in &earlier.threads {
            if !self.threads.contains_key(task) {
                let sum = sums.entry(role.clone()).or_insert_with(|| nothing(role));
                sum.lost_threads = sum.lost_threads.saturating_add(1);
            }
        }
        sums.into_values().collect()
    }
}

fn nothing(role: &Role) -> RoleStats {
    RoleStats {
        role: role.clone(),
        threads: 0,
        run_ns: 0,
        run_delay_ns: 0,
        migrations: Some(0),
        voluntary_switches: 0,
        involuntary_switches: 0,
        lost_threads: 0,
    }
}

fn read_thread(host: &dyn Host, pid: Tid, tid: Tid) -> Result<(TaskId, Counters), HostError> {
    let stat_path = paths::task_stat(pid, tid);
    let stat = proc_stat::parse(&host.read_text(&stat_path)?).map_err(|e| e.at(&stat_path))?;
    let times_path = paths::task_schedstat(pid, tid);
    let times = schedstat::parse(&host.read_text(&times_path)?).map_err(|e| e.at(&times_path))?;
    let status_path = paths::task_status(pid, tid);
    let status =
        proc_status::parse(&host.read_text(&status_path)?).map_err(|e| e.at(&status_path))?;
    let missing = || HostError::Unexpected {
        path: status_path.clone(),
        why: "does not report the context switches".to_owned(),
    };
    let counters = Counters {
        run_ns: times.run_ns,
        delay_ns: times.delay_ns,
        voluntary: status.voluntary_switches.ok_or_else(missing)?,
        involuntary: status.involuntary_switches.ok_or_else(missing)?,
        migrations: read_migrations(host, pid, tid)?,
    };
    Ok((stat.task(), counters))
}

/// `se.nr_migrations : 12` of the `sched` file, which needs `CONFIG_SCHED_DEBUG`.
pub(crate) fn read_migrations(
    host: &dyn Host,
    pid: Tid,
    tid: Tid,
) -> Result<Option<u64>, HostError> {
    let path = paths::task_sched(pid, tid);
    match host.read_text(&path) {
        Ok(text) => Ok(text
            .lines()
            .find_map(|line| line.strip_prefix("se.nr_migrations"))
            .and_then(|rest| rest.trim_start().strip_prefix(':'))
            .and_then(|number| number.trim().parse().ok())),
        Err(error) if error.is_gone() && host.exists(&paths::task_stat(pid, tid)) => Ok(None),
        Err(error) => Err(error),
    }
}

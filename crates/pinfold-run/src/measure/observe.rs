//! Observes threads from outside for some time.

use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat, process};
use pinfold_model::{Role, TaskId, Tid};
use pinfold_probe::counters::{self, Counters, Quantity};
use pinfold_probe::locks::{self, Locks};
use pinfold_probe::sched_latency::{self, SchedLatency};

use crate::message::say;
use crate::{Exit, Failure};

/// Interval of checking that the workload still exists.
const LOOK_NS: u64 = 100_000_000;

/// The threads of processes.
///
/// # Errors
/// [`Failure`] if there is no such process.
pub fn threads_of(host: &LiveHost, pids: &[u32]) -> Result<Vec<(TaskId, Role)>, Failure> {
    let mut threads = Vec::new();
    for pid in pids {
        let names =
            host.list(&paths::task_dir(Tid(*pid))).map_err(|error| match error.is_gone() {
                true => {
                    Failure::new(Exit::Input, format!("--process {pid}: there is no such process"))
                }
                false => Failure::from(error),
            })?;
        for tid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
            let stat = proc_stat::of(host, tid)?;
            threads.extend(stat.map(|stat| (stat.task(), Role::Task)));
        }
    }
    Ok(threads)
}

/// Waits until the time is over or no thread is left.
fn watch(host: &LiveHost, threads: &[(TaskId, Role)], duration_ns: u64) -> Result<(), Failure> {
    let end = SystemClock.now_ns().saturating_add(duration_ns);
    loop {
        let left = end.saturating_sub(SystemClock.now_ns());
        if left == 0 {
            return Ok(());
        }
        SystemClock.sleep_ns(left.min(LOOK_NS));
        let mut alive = false;
        for (task, _) in threads {
            alive |= process::task_alive(host, *task)?;
            if alive {
                break;
            }
        }
        if !alive {
            say("warning: all of the threads have ended meanwhile");
            return Ok(());
        }
    }
}

fn watch_failure(error: sched_latency::WatchError) -> Failure {
    match error {
        sched_latency::WatchError::Host(error) => Failure::from(error),
        sched_latency::WatchError::Nobody | sched_latency::WatchError::Gone { .. } => {
            Failure::new(Exit::Vm, error.to_string())
        }
    }
}

/// How long threads wait for a CPU, observed for this time.
///
/// # Errors
/// [`Failure`] if they cannot be observed.
pub fn sched(
    host: &LiveHost,
    threads: &[(TaskId, Role)],
    duration_ns: u64,
) -> Result<SchedLatency, Failure> {
    let watching = sched_latency::start(host, &SystemClock, threads);
    let watching = watching.map_err(watch_failure)?;
    watch(host, threads, duration_ns)?;
    watching.stop(host, &SystemClock).map_err(Failure::from)
}

/// The quantities on the command line, in the order of tables; all if there are none.
///
/// # Errors
/// [`Failure`] for an unknown name.
pub fn quantities(names: &[String]) -> Result<Vec<Quantity>, Failure> {
    if let Some(name) = names.iter().find(|name| Quantity::from_name(name).is_none()) {
        let known = Quantity::ALL.map(Quantity::name).join(", ");
        return Err(Failure::new(Exit::Input, format!("--quantities: there is no {name:?}"))
            .with_hint(format!("known are {known}")));
    }
    let is_wanted = |one: &Quantity| names.is_empty() || names.iter().any(|n| n == one.name());
    Ok(Quantity::ALL.into_iter().filter(is_wanted).collect())
}

/// Performance counters of threads, for this time.
///
/// # Errors
/// [`Failure`] if they cannot be counted.
pub fn counted(
    host: &LiveHost,
    (threads, quantities): (&[(TaskId, Role)], &[Quantity]),
    duration_ns: u64,
) -> Result<Counters, Failure> {
    let counting = counters::start(host, &SystemClock, threads, quantities);
    let counting = counting.map_err(watch_failure)?;
    watch(host, threads, duration_ns)?;
    counting.stop(host, &SystemClock).map_err(Failure::from)
}

/// How long threads wait for locks, observed for this time; with call sites if asked for.
///
/// # Errors
/// [`Failure`] if they cannot be observed.
pub fn locked(
    host: &LiveHost,
    (threads, sites): (&[(TaskId, Role)], bool),
    duration_ns: u64,
) -> Result<Locks, Failure> {
    let watching = locks::start(host, threads, sites).map_err(|error| match error {
        locks::LocksError::Watch(error) => watch_failure(error),
        locks::LocksError::Unavailable { .. } => Failure::new(Exit::Host, error.to_string())
            .with_hint("it takes CAP_BPF and CAP_PERFMON, as root has them"),
    })?;
    watch(host, threads, duration_ns)?;
    watching.stop(host).map_err(Failure::from)
}

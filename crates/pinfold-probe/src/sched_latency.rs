//! How long the threads of each role waited for a CPU, as seen from the host alone.
//!
//! With BPF ([`pinfold_host::SchedTracer`]), each wait is recorded: from the moment that a thread
//! becomes runnable to the moment that it runs. Where BPF is refused, the kernel's sums
//! (`/proc/PID/task/TID/schedstat`) are read before and after: then there is no distribution, no
//! maximum, and no names of other tasks. [`SchedLatency::level`] says which method was used and
//! why.
//!
//! The result covers only waits for a CPU of the host. It does not cover what happens inside the
//! guest, or between QEMU's threads while none of them is runnable. The time that a thread waits
//! for a lock is measured by [`crate::locks`].

mod figures;
mod schedstat;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use pinfold_host::{
    Clock, Host, HostError, SchedAccount, SchedReading, SchedTracer, WorstWait, with_causes,
};
use pinfold_model::text::count_noun;
use pinfold_model::{PuId, Role, TaskId, Tid, escape};

use self::schedstat::Sums;
use crate::histogram::Histogram;
use crate::quotas::Quotas;
pub use crate::quotas::Throttling;
use crate::traced_threads::TracedThreads;
pub use crate::traced_threads::WatchError;

/// The method of measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every wait, recorded by BPF programs on the scheduler's tracepoints.
    Tracepoints,
    /// The kernel's sums per thread.
    Schedstat {
        /// Why the tracepoints could not be used.
        why: String,
    },
}

/// A task that ran on a CPU while a thread waited there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningTask {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its thread id; 0 if the CPU was idle.
    pub tid: Tid,
    /// Time that it ran during the wait (ns).
    pub ns: u64,
    /// The machine of which it is, if another one.
    pub machine: Option<String>,
}

impl RunningTask {
    /// True if no task ran: the CPU first had to leave an idle state, or the thread was throttled
    /// by a quota.
    pub fn is_idle(&self) -> bool {
        self.tid == Tid(0)
    }
}

/// The longest wait of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongestWait {
    /// The thread that waited.
    pub tid: Tid,
    /// Length of the wait (ns).
    pub wait_ns: u64,
    /// End of the wait, from the start of the observation (ns).
    pub at_ns: u64,
    /// The CPU on which the thread then ran.
    pub pu: PuId,
    /// Migrations during the wait.
    pub moves: u64,
    /// The part of the wait on that CPU (ns).
    pub wait_on_cpu_ns: u64,
    /// Tasks that ran on that CPU during that part, the longest first. Only the last sixteen time
    /// slices are recorded.
    pub tasks_on_cpu: Vec<RunningTask>,
}

impl LongestWait {
    /// The task that ran there longest.
    pub fn culprit(&self) -> Option<&RunningTask> {
        self.tasks_on_cpu.first()
    }
}

impl fmt::Display for LongestWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} ms of thread {} on CPU {}, {:.3} ms after the start",
            ms(self.wait_ns),
            self.tid,
            self.pu,
            ms(self.at_ns)
        )?;
        match self.culprit() {
            Some(idle) if idle.is_idle() => write!(f, "; the CPU was idle"),
            Some(one) => {
                let of = of_machine(one.machine.as_deref());
                write!(f, "; {of}{} ({}) ran {:.3} ms", one.name, one.tid, ms(one.ns))
            }
            None => write!(f, "; the task that ran is unknown"),
        }?;
        if self.moves > 0 {
            write!(
                f,
                "; it moved {}, {:.3} ms were here",
                count_noun(self.moves, "time"),
                ms(self.wait_on_cpu_ns)
            )?;
        }
        Ok(())
    }
}

/// `machine web: ` before the name of a thread of another machine.
pub fn of_machine(machine: Option<&str>) -> String {
    machine.map_or_else(String::new, |name| format!("machine {}: ", escape::escape_text(name)))
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Tasks of one name that ran directly before threads of a role that had waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanInstead {
    /// Common name of the tasks.
    pub name: String,
    /// The last task with that name; 0 for the idle task.
    pub tid: Tid,
    /// Number of waits that ended when such a task left the CPU.
    pub count: u64,
    /// How long these tasks ran while the threads waited there (ns), without the time of tasks that
    /// ran earlier.
    pub ns: u64,
    /// The machine of which the last is, if another one.
    pub machine: Option<String>,
}

/// Statistics that only the tracepoints provide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The waits that ended.
    pub histogram: Histogram,
    /// Number of waits that began with a preemption; the others began with a wake-up.
    pub preempted: u64,
    /// Number of waits of which only the end was seen, or only the start.
    pub unseen: u64,
    /// Migrations during waits.
    pub moves: u64,
    /// The longest wait.
    pub worst: Option<LongestWait>,
    /// Waits that had not ended at the end of the observation: thread and length so far (ns).
    pub open: Vec<(Tid, u64)>,
    /// Wake-ups by the name of the task that was running on the CPU that issued the wake-up: the
    /// waker, or the task that an interrupt stopped there. `swapper/N` means an interrupt on an
    /// idle CPU.
    pub wakers: Vec<(String, u64)>,
    /// Tasks that ran instead, the longest first.
    pub instead: Vec<RanInstead>,
}

/// The waits of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleLatency {
    /// Role of the threads.
    pub role: Role,
    /// Number of threads that were observed.
    pub threads: u32,
    /// Number of those that were created during the observation.
    pub born: u32,
    /// Number of those that ended during the observation.
    pub ended: u32,
    /// Number of waits that ended; for [`Level::Schedstat`] the number of times that a thread was
    /// given a CPU.
    pub count: u64,
    /// Sum of the waits (ns), with what those that had not ended have lasted.
    pub sum_ns: u64,
    /// Number of migrations; `None` where the kernel does not have it.
    pub migrations: Option<u64>,
    /// Statistics of single waits; `None` for [`Level::Schedstat`].
    pub waits: Option<Waits>,
}

/// The result of an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedLatency {
    /// The method of measurement.
    pub level: Level,
    /// Length of the observation (ns).
    pub duration_ns: u64,
    /// The waits of each role, by ascending role.
    pub roles: Vec<RoleLatency>,
    /// The cgroups of the threads, and those above, that were stopped because of their quotas.
    pub quotas: Vec<(String, Throttling)>,
    /// What is missing in the result, as sentences; empty if nothing is missing.
    pub lost: Vec<String>,
}

#[derive(Debug)]
enum LatencySource {
    Tracepoints(Box<SchedTracer>),
    Schedstat { why: String, began_ns: u64, sums: Sums },
}

/// An observation in progress.
#[derive(Debug)]
pub struct Watching {
    watched: TracedThreads,
    quotas: Quotas,
    means: LatencySource,
}

/// Starts to observe these threads, the other threads of their machines, and the threads that they
/// will create.
///
/// # Errors
/// [`WatchError`] if there is no thread, or nothing can be read for them. If BPF is refused, this
/// is not an error: see [`Level::Schedstat`].
pub fn start(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
) -> Result<Watching, WatchError> {
    let watched = TracedThreads::read(host, threads)?;
    let means = match trace(host, &watched) {
        Ok(watch) => LatencySource::Tracepoints(Box::new(watch)),
        Err(why) => {
            let began_ns = clock.now_ns();
            LatencySource::Schedstat { why, began_ns, sums: Sums::read(host, &watched)? }
        }
    };
    let quotas = quotas(host, clock, &watched);
    Ok(Watching { watched, quotas, means })
}

/// As [`start`], without BPF, as on a host that refuses it.
///
/// # Errors
/// As [`start`].
pub fn start_with_schedstat(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
) -> Result<Watching, WatchError> {
    let watched = TracedThreads::read(host, threads)?;
    let sums = Sums::read(host, &watched)?;
    let why = "it was not requested".to_owned();
    let quotas = quotas(host, clock, &watched);
    Ok(Watching {
        watched,
        quotas,
        means: LatencySource::Schedstat { why, began_ns: clock.now_ns(), sums },
    })
}

/// The quotas of the threads at the start.
fn quotas(host: &dyn Host, clock: &dyn Clock, watched: &TracedThreads) -> Quotas {
    let mut quotas = Quotas::new(host);
    watched.tids().into_iter().for_each(|tid| quotas.add(host, tid));
    quotas.sample(host, clock.now_ns());
    quotas
}

fn trace(host: &dyn Host, watched: &TracedThreads) -> Result<SchedTracer, String> {
    if !host.is_live() {
        return Err("this is not the running machine".to_owned());
    }
    let mut watch =
        SchedTracer::open(host, &watched.tids()).map_err(|error| with_causes(&error))?;
    // Threads without a role, and those created since the list was made: from now on new threads
    // are seen.
    for (_, tid) in watched.others(host).map_err(|error| with_causes(&error))? {
        watch.add(tid).map_err(|error| with_causes(&error))?;
    }
    Ok(watch)
}

impl Watching {
    /// True if every wait is recorded.
    pub fn sees_each_wait(&self) -> bool {
        matches!(self.means, LatencySource::Tracepoints(_))
    }

    /// Ends the observation. For threads that have ended, the result has what was recorded until
    /// then.
    ///
    /// # Errors
    /// [`HostError`] if the statistics cannot be read.
    pub fn stop(mut self, host: &dyn Host, clock: &dyn Clock) -> Result<SchedLatency, HostError> {
        self.quotas.sample(host, clock.now_ns());
        let quotas = self.quotas.stopped_groups();
        let found = match self.means {
            LatencySource::Tracepoints(watch) => {
                // Read before the end: later the threads may be gone.
                let others = self.watched.others(host)?;
                Ok(of_reading(&self.watched, &watch.close(host)?, &others))
            }
            LatencySource::Schedstat { why, began_ns, sums } => {
                let duration_ns = clock.now_ns().saturating_sub(began_ns);
                schedstat::since(host, &self.watched, &sums, why, duration_ns)
            }
        };
        found.map(|found| SchedLatency { quotas, ..found })
    }
}

/// Merges the statistics of the threads into those of their roles.
fn of_reading(
    watched: &TracedThreads,
    reading: &SchedReading,
    others: &[(Tid, Tid)],
) -> SchedLatency {
    let mut roles: BTreeMap<Role, (RoleLatency, Waits)> = BTreeMap::new();
    let mut strangers = 0_u32;
    let mut owners: Vec<Option<Role>> = Vec::new();
    for account in &reading.accounts {
        let owner = owner(watched, account, &owners);
        owners.push(owner.clone());
        let Some(role) = owner else {
            strangers = strangers.saturating_add(1);
            continue;
        };
        let (latency, waits) = roles
            .entry(role.clone())
            .or_insert_with(|| (RoleLatency::nothing(role), Waits::default()));
        join(latency, waits, account, reading.began_ns);
    }
    let mut lost = Vec::new();
    let gone = "that had exited before the observation began";
    report(watched.gone.into(), "thread", gone, &mut lost);
    report(
        strangers.into(),
        "thread",
        "of child processes of the machine, not counted as its own",
        &mut lost,
    );
    report(
        reading.lost_new_threads,
        "thread",
        "created during the measurement beyond the size of the table",
        &mut lost,
    );
    let nameless = "of wakers or running tasks beyond the size of the table";
    report(reading.nameless, "name", nameless, &mut lost);
    report(unseen(reading), "wait", "whose start or end was not seen", &mut lost);
    report(
        reading.missed,
        "event",
        "of the host that occurred while another BPF program ran on its CPU",
        &mut lost,
    );
    let missing = others
        .iter()
        .filter(|(_, tid)| !reading.accounts.iter().any(|account| account.tid == *tid))
        .count();
    report(missing as u64, "thread", "of the machine, never seen", &mut lost);
    SchedLatency {
        level: Level::Tracepoints,
        duration_ns: reading.ended_ns.saturating_sub(reading.began_ns),
        roles: roles
            .into_values()
            .map(|(role, mut waits)| {
                waits.instead.sort_by(|one, other| {
                    (other.ns, other.count, &one.name).cmp(&(one.ns, one.count, &other.name))
                });
                waits.wakers.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
                RoleLatency { waits: Some(waits), ..role }
            })
            .collect(),
        quotas: Vec::new(),
        lost,
    }
}

fn report(count: u64, noun: &str, what: &str, lost: &mut Vec<String>) {
    if count > 0 {
        lost.push(format!("{} {what}", count_noun(count, noun)));
    }
}

fn unseen(reading: &SchedReading) -> u64 {
    reading.accounts.iter().map(|account| account.unseen).sum()
}

/// The role of a thread; `None` for the threads of a machine's child processes.
fn owner(watched: &TracedThreads, account: &SchedAccount, owners: &[Option<Role>]) -> Option<Role> {
    if let (None, Some(role)) = (account.creator, watched.role(account.tid)) {
        return Some(role.clone());
    }
    let Some((maker, makers_process)) = account.creator else {
        return Some(Role::Emulator); // Added as a thread of a machine without a role.
    };
    if owners.get(maker)?.as_ref()? == &Role::Task {
        return Some(Role::Task);
    }
    let same = account.process.is_none_or(|process| process == makers_process);
    same.then(|| watched.role_of_others(makers_process))
}

fn join(role: &mut RoleLatency, waits: &mut Waits, account: &SchedAccount, began_ns: u64) {
    role.threads = role.threads.saturating_add(1);
    role.born = role.born.saturating_add(u32::from(account.creator.is_some()));
    role.ended = role.ended.saturating_add(u32::from(account.has_ended));
    role.count += account.count;
    role.sum_ns += account.sum_ns;
    role.migrations = role.migrations.map(|sum| sum + account.moves);
    let max_ns = account.worst.as_ref().map_or(0, |worst| worst.wait_ns);
    waits.histogram.add(&account.buckets, account.count, account.sum_ns, max_ns);
    waits.preempted += account.preempted;
    waits.unseen += account.unseen;
    waits.moves += account.moves_waiting;
    if let Some(worst) = &account.worst
        && waits.worst.as_ref().is_none_or(|known| known.wait_ns < worst.wait_ns)
    {
        waits.worst = Some(worst_of(account.tid, worst, began_ns));
    }
    if let Some(open) = account.open_ns.filter(|open| *open > 0) {
        role.sum_ns += open;
        waits.open.push((account.tid, open));
    }
    for (name, count) in &account.wakers {
        match waits.wakers.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => waits.wakers.push((name.clone(), *count)),
        }
    }
    for runner in &account.runners {
        match waits.instead.iter_mut().find(|known| known.name == runner.name) {
            Some(known) => {
                known.count += runner.count;
                known.ns += runner.ns;
            }
            None => waits.instead.push(RanInstead {
                name: runner.name.clone(),
                tid: runner.tid,
                count: runner.count,
                ns: runner.ns,
                machine: None,
            }),
        }
    }
}

/// Sums the tasks that ran on the CPU from the thread's arrival there to the end of the wait.
fn worst_of(tid: Tid, worst: &WorstWait, began_ns: u64) -> LongestWait {
    let mut tenants: Vec<RunningTask> = Vec::new();
    for slice in &worst.slices {
        let from = slice.from_ns.max(worst.arrived_ns);
        let ns = slice.until_ns.min(worst.until_ns).saturating_sub(from);
        if ns == 0 {
            continue;
        }
        match tenants.iter_mut().find(|known| known.tid == slice.tid && known.name == slice.name) {
            Some(known) => known.ns += ns,
            None => {
                let (name, machine) = (slice.name.clone(), None);
                tenants.push(RunningTask { name, tid: slice.tid, ns, machine });
            }
        }
    }
    tenants.sort_by(|one, other| other.ns.cmp(&one.ns).then(one.tid.cmp(&other.tid)));
    LongestWait {
        tid,
        wait_ns: worst.wait_ns,
        at_ns: worst.until_ns.saturating_sub(began_ns),
        pu: worst.pu,
        moves: worst.moves,
        wait_on_cpu_ns: worst.until_ns.saturating_sub(worst.arrived_ns),
        tasks_on_cpu: tenants,
    }
}

impl SchedLatency {
    /// Names the machines of other tasks; `machine` returns that of a thread.
    pub fn name_machines(&mut self, machine: &dyn Fn(Tid) -> Option<String>) {
        for waits in self.roles.iter_mut().filter_map(|role| role.waits.as_mut()) {
            waits.instead.iter_mut().for_each(|one| one.machine = machine(one.tid));
            let tenants = waits.worst.iter_mut().flat_map(|worst| &mut worst.tasks_on_cpu);
            tenants.for_each(|one| one.machine = machine(one.tid));
        }
    }

    /// Number of waits of which only the end was seen, or only the start.
    pub fn unseen(&self) -> u64 {
        self.roles.iter().filter_map(|role| Some(role.waits.as_ref()?.unseen)).sum()
    }
}

impl RoleLatency {
    fn nothing(role: Role) -> Self {
        Self {
            role,
            threads: 0,
            born: 0,
            ended: 0,
            count: 0,
            sum_ns: 0,
            migrations: Some(0),
            waits: None,
        }
    }

    /// Share of the threads' time for which they waited, 0 to 1; `None` without time or threads.
    #[must_use]
    pub fn share(&self, duration_ns: u64) -> Option<f64> {
        let time = duration_ns as f64 * f64::from(self.threads);
        (time > 0.0).then(|| self.sum_ns as f64 / time)
    }
}

//! How long the threads of each role waited for a PU, seen from the host alone.
//!
//! With BPF ([`pinfold_host::SchedTracer`]) each wait is seen: from the moment that a thread can
//! run to the moment that it does. Where that is refused the kernel's own sums
//! (`/proc/PID/task/TID/schedstat`) are read before and after: no distribution, no maximum, no
//! names; [`SchedLatency::level`] says which it was and why.
//!
//! A thread's wait is the host's doing: what happens in the guest, or between QEMU's threads
//! while none of them can run, is not in it. A thread that only *wants* a lock does not wait here
//! but in [`crate::locks`].

mod figures;
mod schedstat;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use pinfold_host::{
    Clock, Host, HostError, SchedAccount, SchedReading, SchedTracer, WorstWait, with_causes,
};
use pinfold_model::{PuId, Role, TaskId, Tid};

use self::schedstat::Sums;
use crate::histogram::Histogram;
pub use crate::traced_threads::WatchError;
use crate::traced_threads::Watched;

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every wait, by BPF programs on the scheduler's tracepoints.
    Tracepoints,
    /// The kernel's sums per thread, because of this.
    Schedstat {
        /// Why not every wait.
        why: String,
    },
}

/// Who ran on a PU while a thread waited there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its number; 0 if the PU was idle.
    pub tid: Tid,
    /// For how long during the wait (ns).
    pub ns: u64,
}

impl Tenant {
    /// True if nobody ran: the PU had to wake up first, or the thread was held back by a quota.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tid == Tid(0)
    }
}

/// The longest wait of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worst {
    /// Whose.
    pub tid: Tid,
    /// How long (ns).
    pub wait_ns: u64,
    /// When it ended, from the start of the observation (ns).
    pub at_ns: u64,
    /// The PU on which the thread then ran.
    pub pu: PuId,
    /// Migrations during the wait.
    pub moves: u64,
    /// Part of the wait on that PU (ns).
    pub here_ns: u64,
    /// Who ran on that PU during that part, the longest first. Sixteen slices are remembered;
    /// what ran before them is missing.
    pub tenants: Vec<Tenant>,
}

impl Worst {
    /// Who ran there longest.
    #[must_use]
    pub fn culprit(&self) -> Option<&Tenant> {
        self.tenants.first()
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{:.3} ms of thread {} on PU {}, {:.3} ms after the start",
            ms(self.wait_ns),
            self.tid,
            self.pu,
            ms(self.at_ns)
        )?;
        match self.culprit() {
            Some(idle) if idle.is_idle() => write!(f, "; the PU was idle"),
            Some(one) => write!(f, "; {} ({}) ran {:.3} ms", one.name, one.tid, ms(one.ns)),
            None => write!(f, "; who ran is not known"),
        }?;
        if self.moves > 0 {
            write!(f, "; it moved {} times, {:.3} ms were here", self.moves, ms(self.here_ns))?;
        }
        Ok(())
    }
}

/// Who ran directly before threads of a role that had waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanInstead {
    /// Its name.
    pub name: String,
    /// The last task of that name; 0 for the idle one.
    pub tid: Tid,
    /// Number of waits that ended when it left the PU.
    pub count: u64,
    /// How long it ran while they waited there (ns); what others ran before it is not in it.
    pub ns: u64,
}

/// What only the tracepoints tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The waits that ended.
    pub histogram: Histogram,
    /// Those that began because another took the PU; the others began with a wake-up.
    pub preempted: u64,
    /// Times that a thread got a PU after a wait whose beginning was not seen.
    pub unseen: u64,
    /// Migrations during waits.
    pub moves: u64,
    /// The longest.
    pub worst: Option<Worst>,
    /// Waits that had not ended when the observation did: thread and length so far (ns).
    pub open: Vec<(Tid, u64)>,
    /// Wake-ups by the name of the task that ran where they came from: the waker, or whom an
    /// interrupt stopped there; `swapper/N` is the interrupt of an idle PU.
    pub wakers: Vec<(String, u64)>,
    /// Who ran instead, the longest first.
    pub instead: Vec<RanInstead>,
}

/// The account of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleLatency {
    /// The role.
    pub role: Role,
    /// Threads that were watched.
    pub threads: u32,
    /// Those of them that were born meanwhile.
    pub born: u32,
    /// Those that ended meanwhile.
    pub ended: u32,
    /// Waits that ended; for [`Level::Schedstat`] the times that a thread was given a PU.
    pub count: u64,
    /// Their sum (ns).
    pub sum_ns: u64,
    /// Migrations; `None` where the kernel does not tell.
    pub migrations: Option<u64>,
    /// Each wait; `None` for [`Level::Schedstat`].
    pub waits: Option<Waits>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedLatency {
    /// How it was measured.
    pub level: Level,
    /// Length of the observation (ns).
    pub duration_ns: u64,
    /// By ascending role.
    pub roles: Vec<RoleLatency>,
    /// What is not in it, in words; empty if nothing is missing.
    pub lost: Vec<String>,
}

#[derive(Debug)]
enum Means {
    Tracepoints(Box<SchedTracer>),
    Schedstat { why: String, began_ns: u64, sums: Sums },
}

/// An observation that has begun.
#[derive(Debug)]
pub struct Watching {
    watched: Watched,
    means: Means,
}

/// Begins to watch these threads, the further threads of their machines, and those that they
/// will make.
///
/// # Errors
/// [`WatchError`] if there is nobody to watch or nothing can be read of them. That BPF is refused
/// is no error: see [`Level::Schedstat`].
pub fn start(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
) -> Result<Watching, WatchError> {
    start_by(host, clock, threads, SchedTracer::open)
}

/// The same by the records of the kernel's events, as where the kernel does not describe its types.
///
/// # Errors
/// As [`start`].
pub fn start_at_records(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
) -> Result<Watching, WatchError> {
    start_by(host, clock, threads, SchedTracer::open_at_records)
}

type Opener = fn(&dyn Host, &[Tid]) -> Result<SchedTracer, HostError>;

fn start_by(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
    open: Opener,
) -> Result<Watching, WatchError> {
    let watched = Watched::of(host, threads)?;
    let means = match trace(host, &watched, open) {
        Ok(watch) => Means::Tracepoints(Box::new(watch)),
        Err(why) => {
            let began_ns = clock.now_ns();
            Means::Schedstat { why, began_ns, sums: Sums::read(host, &watched)? }
        }
    };
    Ok(Watching { watched, means })
}

/// The same without BPF, as on a host that refuses it.
///
/// # Errors
/// As [`start`].
pub fn start_with_schedstat(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
) -> Result<Watching, WatchError> {
    let watched = Watched::of(host, threads)?;
    let sums = Sums::read(host, &watched)?;
    let why = "it was not asked for".to_owned();
    Ok(Watching { watched, means: Means::Schedstat { why, began_ns: clock.now_ns(), sums } })
}

fn trace(host: &dyn Host, watched: &Watched, open: Opener) -> Result<SchedTracer, String> {
    if !host.is_live() {
        return Err("this is not the running machine".to_owned());
    }
    let mut watch = open(host, &watched.tids()).map_err(|error| with_causes(&error))?;
    // Threads without a role, and those born since the list was made: from now on births are seen.
    for (_, tid) in watched.others(host).map_err(|error| with_causes(&error))? {
        watch.add(tid).map_err(|error| with_causes(&error))?;
    }
    Ok(watch)
}

impl Watching {
    /// True if every wait is seen.
    #[must_use]
    pub fn sees_each_wait(&self) -> bool {
        matches!(self.means, Means::Tracepoints(_))
    }

    /// Ends the observation. Threads that have ended meanwhile are in it as far as it knows them.
    ///
    /// # Errors
    /// [`HostError`] if the accounts cannot be read.
    pub fn stop(self, host: &dyn Host, clock: &dyn Clock) -> Result<SchedLatency, HostError> {
        match self.means {
            Means::Tracepoints(watch) => {
                // Asked before the end: later they may be gone.
                let others = self.watched.others(host)?;
                Ok(of_reading(&self.watched, &watch.close(host)?, &others))
            }
            Means::Schedstat { why, began_ns, sums } => {
                let duration_ns = clock.now_ns().saturating_sub(began_ns);
                schedstat::since(host, &self.watched, &sums, why, duration_ns)
            }
        }
    }
}

/// Joins the accounts of the threads into those of their roles.
fn of_reading(watched: &Watched, reading: &SchedReading, others: &[(Tid, Tid)]) -> SchedLatency {
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
        let entry = roles
            .entry(role.clone())
            .or_insert_with(|| (RoleLatency::nothing(role), Waits::default()));
        join(entry, account, reading.began_ns);
    }
    let mut lost = Vec::new();
    let mut report = |count: u64, what: &str| {
        if count > 0 {
            lost.push(format!("{count} {what}"));
        }
    };
    report(watched.gone.into(), "threads had ended before the observation began");
    report(strangers.into(), "child processes of the machine, which are not of it");
    report(reading.unborn, "threads created meanwhile, for which there was no room");
    report(reading.nameless, "times that a waker or a runner found no room");
    report(unseen(reading), "waits whose beginning was not seen");
    report(
        reading.missed,
        "events of the host came while another BPF program was at work on their PU",
    );
    let is_seen = |tid: Tid| reading.accounts.iter().any(|account| account.tid == tid);
    let missing = others.iter().filter(|(_, tid)| !is_seen(*tid)).count();
    report(missing as u64, "threads of the machine that were never seen");
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
        lost,
    }
}

fn unseen(reading: &SchedReading) -> u64 {
    reading.accounts.iter().map(|account| account.unseen).sum()
}

/// Whose a thread is; `None` for the threads of a machine's child processes.
fn owner(watched: &Watched, account: &SchedAccount, owners: &[Option<Role>]) -> Option<Role> {
    if let (None, Some(role)) = (account.maker, watched.role(account.tid)) {
        return Some(role.clone());
    }
    let Some((maker, makers_process)) = account.maker else {
        return Some(Role::Emulator); // Added as one of a machine's without a role.
    };
    match owners.get(maker)?.as_ref()? {
        Role::Task => Some(Role::Task),
        Role::Vcpu(_) | Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker => {
            let same = account.process.is_none_or(|process| process == makers_process);
            same.then(|| watched.role_of_others(makers_process))
        }
    }
}

fn join((role, waits): &mut (RoleLatency, Waits), account: &SchedAccount, began_ns: u64) {
    role.threads = role.threads.saturating_add(1);
    role.born = role.born.saturating_add(u32::from(account.maker.is_some()));
    role.ended = role.ended.saturating_add(u32::from(account.has_ended));
    role.count += account.count;
    role.sum_ns += account.sum_ns;
    role.migrations = role.migrations.map(|sum| sum + account.moves);
    let max_ns = account.worst.as_ref().map_or(0, |worst| worst.wait_ns);
    waits.histogram.add(&account.buckets, (account.count, account.sum_ns, max_ns));
    waits.preempted += account.preempted;
    waits.unseen += account.unseen;
    waits.moves += account.moves_waiting;
    if let Some(worst) = &account.worst
        && waits.worst.as_ref().is_none_or(|known| known.wait_ns < worst.wait_ns)
    {
        waits.worst = Some(worst_of(account.tid, worst, began_ns));
    }
    if let Some(open) = account.open_ns {
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
            }),
        }
    }
}

/// Adds up who ran on the PU from the thread's arrival there to the end of the wait.
fn worst_of(tid: Tid, worst: &WorstWait, began_ns: u64) -> Worst {
    let mut tenants: Vec<Tenant> = Vec::new();
    for slice in &worst.slices {
        let from = slice.from_ns.max(worst.arrived_ns);
        let ns = slice.until_ns.min(worst.until_ns).saturating_sub(from);
        if ns == 0 {
            continue;
        }
        match tenants.iter_mut().find(|known| known.tid == slice.tid && known.name == slice.name) {
            Some(known) => known.ns += ns,
            None => tenants.push(Tenant { name: slice.name.clone(), tid: slice.tid, ns }),
        }
    }
    tenants.sort_by(|one, other| other.ns.cmp(&one.ns).then(one.tid.cmp(&other.tid)));
    Worst {
        tid,
        wait_ns: worst.wait_ns,
        at_ns: worst.until_ns.saturating_sub(began_ns),
        pu: worst.pu,
        moves: worst.moves,
        here_ns: worst.until_ns.saturating_sub(worst.arrived_ns),
        tenants,
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

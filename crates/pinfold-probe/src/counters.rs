//! Counters of the threads of each role: migrations, context switches, page faults, cycles,
//! instructions, cache misses.
//!
//! Each counter is read with `perf_event_open(2)`. If that is refused, it is read from the kernel's
//! statistics in `/proc`, if they have it; [`Counted::source`] is the source. A counter that
//! neither source has is [`Outcome::Absent`] with the reason, because 0 cycles would be wrong on a
//! machine without a PMU. If the PMU has fewer counters than requested, each of them counts for a
//! part of the time. The value is then scaled up, and [`Counted::running_share`] is the part of the
//! time that was counted.

mod proc;
mod reasons;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pinfold_host::{
    Clock, Counter, CounterError, CounterEvent, CounterReading, Host, HostError, Side, with_causes,
};
use pinfold_model::{Family, Figure, Role, TaskId, Tid, Unit};

use self::proc::ThreadTotals;
use crate::traced_threads::TracedThreads;
pub use crate::traced_threads::WatchError;

/// Name of the probe.
pub const PROBE: &str = "counters";

/// A quantity that can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// Time on a CPU (ns).
    RunTime,
    /// Migrations from one CPU to another.
    Migrations,
    /// Context switches, voluntary or not.
    ContextSwitches,
    /// Page faults, minor and major.
    PageFaults,
    /// Core cycles, in guest and host mode.
    Cycles,
    /// Core cycles in guest mode.
    GuestCycles,
    /// Core cycles in host mode, on behalf of the guest or not.
    HostCycles,
    /// Retired instructions, in guest and host mode.
    Instructions,
    /// Retired instructions in guest mode.
    GuestInstructions,
    /// Retired instructions in host mode.
    HostInstructions,
    /// Loads that missed the L1 data cache.
    L1dMisses,
    /// Loads that missed the last-level cache.
    LlcMisses,
}

impl Quantity {
    /// All quantities, in the order of tables.
    pub const ALL: [Quantity; 12] = [
        Quantity::RunTime,
        Quantity::Migrations,
        Quantity::ContextSwitches,
        Quantity::PageFaults,
        Quantity::Cycles,
        Quantity::GuestCycles,
        Quantity::HostCycles,
        Quantity::Instructions,
        Quantity::GuestInstructions,
        Quantity::HostInstructions,
        Quantity::L1dMisses,
        Quantity::LlcMisses,
    ];

    /// Stable name, used in figures and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Quantity::RunTime => "run-time",
            Quantity::Migrations => "migrations",
            Quantity::ContextSwitches => "context-switches",
            Quantity::PageFaults => "page-faults",
            Quantity::Cycles => "cycles",
            Quantity::GuestCycles => "cycles:guest",
            Quantity::HostCycles => "cycles:host",
            Quantity::Instructions => "instructions",
            Quantity::GuestInstructions => "instructions:guest",
            Quantity::HostInstructions => "instructions:host",
            Quantity::L1dMisses => "l1d-load-misses",
            Quantity::LlcMisses => "llc-load-misses",
        }
    }

    /// The quantity with this name.
    pub fn from_name(name: &str) -> Option<Quantity> {
        Quantity::ALL.into_iter().find(|quantity| quantity.name() == name)
    }

    /// Unit of its values.
    #[must_use]
    pub fn unit(self) -> Unit {
        if self == Quantity::RunTime { Unit::Nanoseconds } else { Unit::Count }
    }

    /// True if the quantity needs a PMU.
    #[must_use]
    pub fn needs_pmu(self) -> bool {
        matches!(self.event().0, CounterEvent::Hardware(_) | CounterEvent::Cache(_))
    }

    fn event(self) -> (CounterEvent, Side) {
        match self {
            Quantity::RunTime => (CounterEvent::TASK_CLOCK, Side::Both),
            Quantity::Migrations => (CounterEvent::MIGRATIONS, Side::Both),
            Quantity::ContextSwitches => (CounterEvent::CONTEXT_SWITCHES, Side::Both),
            Quantity::PageFaults => (CounterEvent::PAGE_FAULTS, Side::Both),
            Quantity::Cycles => (CounterEvent::CYCLES, Side::Both),
            Quantity::GuestCycles => (CounterEvent::CYCLES, Side::Guest),
            Quantity::HostCycles => (CounterEvent::CYCLES, Side::Host),
            Quantity::Instructions => (CounterEvent::INSTRUCTIONS, Side::Both),
            Quantity::GuestInstructions => (CounterEvent::INSTRUCTIONS, Side::Guest),
            Quantity::HostInstructions => (CounterEvent::INSTRUCTIONS, Side::Host),
            Quantity::L1dMisses => (CounterEvent::L1D_LOAD_MISSES, Side::Both),
            Quantity::LlcMisses => (CounterEvent::LLC_LOAD_MISSES, Side::Both),
        }
    }
}

/// Source of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `perf_event_open(2)`; threads that were created during the observation are included.
    Perf,
    /// `perf_event_open(2)` before Linux 5.13: threads that were created during the observation are
    /// missing.
    PerfExistingThreads,
    /// `/proc/PID/task/TID/schedstat`.
    Schedstat,
    /// `se.nr_migrations` in `/proc/PID/task/TID/sched`.
    Sched,
    /// `/proc/PID/task/TID/status`.
    Status,
    /// `/proc/PID/task/TID/stat`.
    Stat,
}

impl Source {
    /// Stable name, used in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Perf => "perf",
            Source::PerfExistingThreads => "perf-without-births",
            Source::Schedstat => "schedstat",
            Source::Sched => "sched",
            Source::Status => "status",
            Source::Stat => "stat",
        }
    }
}

/// A counted value.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// The value, scaled up if it was counted for a part of the time.
    pub value: u64,
    /// Source of the value.
    pub source: Source,
    /// Time for which the event had a counter, divided by the time for which it was enabled, 0 to
    /// 1. Below 1, the PMU was shared with other events.
    pub running_share: f64,
    /// Why the first source was refused, if the value is from another one.
    pub instead_of: Option<String>,
}

/// Result for one quantity.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The quantity was counted.
    Counted(Counted),
    /// The quantity is not available, for this reason.
    Absent(String),
}

/// The counters of one role.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleCounters {
    /// Role of the threads.
    pub role: Role,
    /// Number of its threads at the start.
    pub threads: u32,
    /// Number of those threads that had ended at the end; their statistics in `/proc` are lost.
    pub ended: u32,
    /// One outcome for each requested quantity, in the order of the request.
    pub outcomes: Vec<(Quantity, Outcome)>,
}

/// The counters of an observation.
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    /// Length of the observation (ns).
    pub duration_ns: u64,
    /// True if threads were still being created in each attempt to open the counters: some of them
    /// may be missing in some of the counts.
    pub threads_kept_changing: bool,
    /// The counters of each role, by ascending role.
    pub roles: Vec<RoleCounters>,
}

#[derive(Debug)]
enum CounterSource {
    Perf(Vec<Counter>),
    Proc { why: String },
    Absent(String),
}

/// An observation in progress.
#[derive(Debug)]
pub struct Counting {
    began_ns: u64,
    roles: BTreeMap<Role, Vec<Tid>>,
    means: BTreeMap<Role, Vec<(Quantity, CounterSource)>>,
    before: BTreeMap<Tid, ThreadTotals>,
    restless: bool,
}

/// Number of attempts to open the counters. They are opened again if threads were created or ended
/// during an attempt: a thread that is created while the counters of its parent are being opened
/// would be in some of them only.
const ROUNDS: u32 = 8;

/// Starts to count these quantities for these threads and the other threads of their machines.
///
/// # Errors
/// [`WatchError`] if there is no thread, or nothing can be read for them. A refused counter is not
/// an error: see [`Outcome::Absent`].
pub fn start(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
    quantities: &[Quantity],
) -> Result<Counting, WatchError> {
    let watched = TracedThreads::read(host, threads)?;
    let machine = reasons::Machine::read(host);
    let mut others = watched.others(host)?;
    for _ in 0..ROUNDS {
        let counting = begin(host, clock, watched.with_others(&others), quantities, &machine)?;
        let now = watched.others(host)?;
        if now == others {
            return Ok(counting);
        }
        others = now;
    }
    let restless = true;
    let threads = watched.with_others(&others);
    Ok(Counting { restless, ..begin(host, clock, threads, quantities, &machine)? })
}

/// Opens the counters of these threads.
fn begin(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: impl Iterator<Item = (Tid, Role)>,
    quantities: &[Quantity],
    machine: &reasons::Machine,
) -> Result<Counting, HostError> {
    let mut roles: BTreeMap<Role, Vec<Tid>> = BTreeMap::new();
    let mut before = BTreeMap::new();
    for (tid, role) in threads {
        if let Some(standing) = proc::read(host, tid)? {
            before.insert(tid, standing);
            roles.entry(role).or_default().push(tid);
        }
    }
    let mut means: BTreeMap<Role, Vec<(Quantity, CounterSource)>> = BTreeMap::new();
    let began_ns = clock.now_ns();
    for (role, tids) in &roles {
        let of_role = means.entry(role.clone()).or_default();
        for quantity in quantities {
            of_role.push((*quantity, choose(host, *quantity, tids, machine)));
        }
    }
    Ok(Counting { began_ns, roles, means, before, restless: false })
}

/// A counter for each of the threads, or the `/proc` statistics instead.
fn choose(
    host: &dyn Host,
    quantity: Quantity,
    tids: &[Tid],
    machine: &reasons::Machine,
) -> CounterSource {
    let why = if host.is_live() {
        match open_all(quantity, tids) {
            Ok(counters) => return CounterSource::Perf(counters),
            Err(error) => machine.why(&error),
        }
    } else {
        "this is not the running machine".to_owned()
    };
    if proc::has(quantity) { CounterSource::Proc { why } } else { CounterSource::Absent(why) }
}

/// Opens a counter for each thread. Threads that have ended are left out.
fn open_all(quantity: Quantity, tids: &[Tid]) -> Result<Vec<Counter>, CounterError> {
    let (event, side) = quantity.event();
    let mut counters = Vec::new();
    for tid in tids {
        match Counter::open(*tid, event, side) {
            Ok(counter) => counters.push(counter),
            Err(CounterError::Ended) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(counters)
}

impl Counting {
    /// Ends the observation.
    ///
    /// # Errors
    /// [`HostError`] if a statistic of the kernel cannot be read.
    pub fn stop(self, host: &dyn Host, clock: &dyn Clock) -> Result<Counters, HostError> {
        let mut perf: BTreeMap<Role, Vec<Option<Outcome>>> = BTreeMap::new();
        for (role, means) in &self.means {
            let outcomes = means.iter().map(|(_, means)| match means {
                CounterSource::Perf(counters) => Some(read_all(counters)),
                CounterSource::Absent(why) => Some(Outcome::Absent(why.clone())),
                CounterSource::Proc { .. } => None,
            });
            perf.insert(role.clone(), outcomes.collect());
        }
        let duration_ns = clock.now_ns().saturating_sub(self.began_ns);
        let mut roles = Vec::new();
        for (role, tids) in &self.roles {
            let mut pairs: Vec<(ThreadTotals, ThreadTotals)> = Vec::new();
            let mut ended = 0_u32;
            for tid in tids {
                match (self.before.get(tid), proc::read(host, *tid)?) {
                    (Some(before), Some(now)) => pairs.push((*before, now)),
                    (None, _) | (_, None) => ended = ended.saturating_add(1),
                }
            }
            let outcomes = perf.remove(role).unwrap_or_default().into_iter();
            let means = self.means.get(role).into_iter().flatten();
            let outcomes = means.zip(outcomes).map(|((quantity, means), outcome)| {
                let outcome = outcome.unwrap_or_else(|| {
                    let why = if let CounterSource::Proc { why } = means {
                        why.clone()
                    } else {
                        String::new()
                    };
                    proc::since(*quantity, &pairs, why)
                });
                (*quantity, outcome)
            });
            roles.push(RoleCounters {
                role: role.clone(),
                threads: u32::try_from(tids.len()).unwrap_or(u32::MAX),
                ended,
                outcomes: outcomes.collect(),
            });
        }
        Ok(Counters { duration_ns, threads_kept_changing: self.restless, roles })
    }
}

/// Stops and sums the counters of a role's threads.
fn read_all(counters: &[Counter]) -> Outcome {
    let mut readings = Vec::new();
    for counter in counters {
        match counter.disable().and_then(|()| counter.read()) {
            Ok(reading) => readings.push(reading),
            Err(error) => return Outcome::Absent(format!("it failed: {}", with_causes(&error))),
        }
    }
    if counters.is_empty() {
        return Outcome::Absent("all threads of this role had exited".to_owned());
    }
    let follows = counters.iter().all(Counter::follows_clone_events);
    join_readings(&readings, if follows { Source::Perf } else { Source::PerfExistingThreads })
}

/// The sum of the readings of the threads' counters. If a counter was enabled but never had a PMU
/// counter, the sum is unknown; a thread that did not run has counted 0.
fn join_readings(readings: &[CounterReading], source: Source) -> Outcome {
    let mut value: u128 = 0;
    let (mut enabled, mut running) = (0_u128, 0_u128);
    for reading in readings {
        enabled += u128::from(reading.enabled_ns);
        running += u128::from(reading.running_ns);
        if reading.running_ns == 0 {
            if reading.enabled_ns > 0 {
                let why = "the PMU had no counter left for it next to the other events: request \
                    fewer (--quantities)";
                return Outcome::Absent(why.to_owned());
            }
            continue;
        }
        let scaled = u128::from(reading.value) * u128::from(reading.enabled_ns);
        value += scaled / u128::from(reading.running_ns);
    }
    Outcome::Counted(Counted {
        value: u64::try_from(value).unwrap_or(u64::MAX),
        source,
        running_share: if enabled == 0 { 1.0 } else { running as f64 / enabled as f64 },
        instead_of: None,
    })
}

impl Counters {
    /// One figure for each value; an absent quantity has none.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for role in &self.roles {
            for (quantity, outcome) in &role.outcomes {
                let Outcome::Counted(counted) = outcome else { continue };
                figures.push(self.figure(role, *quantity, counted));
            }
        }
        figures
    }

    fn figure(&self, role: &RoleCounters, quantity: Quantity, counted: &Counted) -> Figure {
        let mut flags = Vec::new();
        if counted.running_share < 1.0 {
            flags.push(format!(
                "multiplexed: counted {:.1} % of the time",
                counted.running_share * 100.0
            ));
        }
        if let Some(why) = &counted.instead_of {
            flags.push(format!("stands in: {why}"));
        }
        if self.threads_kept_changing {
            flags.push("births-while-opened".to_owned());
        }
        if role.ended > 0 && !matches!(counted.source, Source::Perf | Source::PerfExistingThreads) {
            flags.push(format!("lost-threads {}", role.ended));
        }
        Figure {
            probe: PROBE.to_owned(),
            labels: BTreeMap::from([
                ("role".to_owned(), role.role.to_string()),
                ("quantity".to_owned(), quantity.name().to_owned()),
                ("source".to_owned(), counted.source.name().to_owned()),
            ]),
            unit: quantity.unit(),
            family: Family::Count,
            cpu: None,
            duration_ns: self.duration_ns,
            samples: vec![counted.value as f64],
            dropped: 0,
            disturbed: 0,
            flags,
        }
    }

    /// The absent quantities, once for each quantity and reason: the quantity, the reason, the
    /// roles.
    pub fn absent(&self) -> Vec<(Quantity, String, Vec<Role>)> {
        let mut absent: Vec<(Quantity, String, Vec<Role>)> = Vec::new();
        for role in &self.roles {
            for (quantity, outcome) in &role.outcomes {
                let Outcome::Absent(why) = outcome else { continue };
                match absent
                    .iter_mut()
                    .find(|(known, known_why, _)| known == quantity && known_why == why)
                {
                    Some((_, _, roles)) => roles.push(role.role.clone()),
                    None => absent.push((*quantity, why.clone(), vec![role.role.clone()])),
                }
            }
        }
        absent
    }
}

//! Observations during a trial: CPU times of its CPUs, counters and lock time of its threads.
//!
//! For a guest, the threads are those of its vCPUs, or all of QEMU's; for a process, its own and
//! those of its children. A probe that the host does not provide becomes a figure without samples,
//! with the reason in its flag.

use std::collections::BTreeSet;

use pinfold_host::{
    Clock as _, FutexKind, Host as _, HostError, LiveHost, SystemClock, paths, proc_stat, process,
};
use pinfold_model::{Accelerator, CpuSet, Figure, Finding, PuId, Role, TaskId, Unit};
use pinfold_probe::counters::{self, Counting, Outcome, Quantity, RoleCounters};
use pinfold_probe::locks::{self, Locks, LocksError, Watching};
use pinfold_study::study::{ABSENT, APPLY, FINDING, Probe, TrialError, TrialResult};

use super::figure::{absent, one_figure};
use super::futex_cycles::{FutexWatch, NO_SAMPLES};
use crate::Failure;

/// CPU times in `/proc/stat`.
#[derive(Clone, Copy, Default)]
struct Clocks {
    busy: u64,
    stolen: u64,
}

/// Whether locks are observed.
enum LockWatch {
    Unwanted,
    Refused(String),
    Begun(Box<Watching>),
}

/// An observation in progress.
pub struct Observation {
    probes: Vec<Probe>,
    pus: CpuSet,
    began_ns: u64,
    clocks: Clocks,
    counting: Option<Counting>,
    locks: LockWatch,
    futexes: FutexWatch,
}

/// True if threads must be known before the work starts.
pub fn need_threads(probes: &[Probe]) -> bool {
    let of_threads = [Probe::LockTime, Probe::FutexCycles, Probe::FutexLock];
    probes.iter().any(|probe| quantity(*probe).is_some() || of_threads.contains(probe))
}

/// The quantity that a probe counts.
fn quantity(probe: Probe) -> Option<Quantity> {
    match probe {
        Probe::Steal
        | Probe::Busy
        | Probe::LockTime
        | Probe::FutexCycles
        | Probe::FutexLock
        | Probe::Exits => None,
        Probe::Migrations | Probe::ProcessMigrations => Some(Quantity::Migrations),
        Probe::Switches | Probe::ProcessSwitches => Some(Quantity::ContextSwitches),
        Probe::L1dMisses | Probe::ProcessL1dMisses => Some(Quantity::L1dMisses),
    }
}

/// True if a probe counts the threads of this role.
fn counts(probe: Probe, role: &Role) -> bool {
    match probe {
        Probe::ProcessMigrations
        | Probe::ProcessSwitches
        | Probe::ProcessL1dMisses
        | Probe::FutexCycles
        | Probe::FutexLock => true,
        Probe::Steal
        | Probe::Busy
        | Probe::Migrations
        | Probe::Switches
        | Probe::L1dMisses
        | Probe::LockTime
        | Probe::Exits => role.runs_work(),
    }
}

fn probe_error(error: &dyn std::fmt::Display) -> TrialError {
    TrialError::from_message(format!("it cannot be observed: {error}"))
}

impl Observation {
    /// Starts the observation.
    pub fn begin(
        host: &LiveHost,
        probes: &[Probe],
        pus: &CpuSet,
        threads: &[(TaskId, Role)],
    ) -> Result<Self, TrialError> {
        let quantities: BTreeSet<Quantity> = probes.iter().copied().filter_map(quantity).collect();
        let quantities: Vec<Quantity> = quantities.into_iter().collect();
        let counting = if quantities.is_empty() {
            None
        } else {
            Some(
                counters::start(host, &SystemClock, threads, &quantities)
                    .map_err(|error| probe_error(&error))?,
            )
        };
        let locks = if probes.contains(&Probe::LockTime) {
            match locks::start(host, threads, false) {
                Ok(watching) => LockWatch::Begun(Box::new(watching)),
                Err(LocksError::Unavailable { why }) => LockWatch::Refused(why),
                Err(error @ LocksError::Watch(_)) => return Err(probe_error(&error)),
            }
        } else {
            LockWatch::Unwanted
        };
        let futexes = FutexWatch::begin(host, probes, threads)?;
        let clocks =
            clocks(host, pus).map_err(|error| probe_error(&Failure::from(error).message))?;
        let began_ns = SystemClock.now_ns();
        let (probes, pus) = (probes.to_vec(), pus.clone());
        Ok(Self { probes, pus, began_ns, clocks, counting, locks, futexes })
    }

    /// The program begins or ends its region of interest.
    pub fn mark(&mut self) -> Result<(), TrialError> {
        self.futexes.mark()
    }

    /// Ends the observation.
    pub fn end(self, host: &LiveHost) -> Result<Vec<Figure>, TrialError> {
        let elapsed_ns = SystemClock.now_ns().saturating_sub(self.began_ns).max(1);
        let after =
            clocks(host, &self.pus).map_err(|error| probe_error(&Failure::from(error).message))?;
        let counted = self.counting.map(|counting| counting.stop(host, &SystemClock));
        let counted = counted.transpose().map_err(|error| probe_error(&error))?;
        let locks = match self.locks {
            LockWatch::Unwanted => Err(String::new()),
            LockWatch::Refused(why) => Err(why),
            LockWatch::Begun(watching) => {
                let locks = watching.stop(host).map_err(|error| probe_error(&error))?;
                Ok(lock_share(&locks))
            }
        };
        let (futexes, findings) = self.futexes.end(host)?;
        // The kernel counts in units of 10 ms here.
        let all = elapsed_ns as f64 / 1e7 * self.pus.len().max(1) as f64;
        let sample = |probe: &Probe| match probe {
            Probe::Steal => {
                Ok((after.stolen.saturating_sub(self.clocks.stolen) as f64 / all).min(1.0))
            }
            Probe::Busy => Ok((after.busy.saturating_sub(self.clocks.busy) as f64 / all).min(1.0)),
            Probe::LockTime => locks.clone(),
            Probe::FutexCycles | Probe::FutexLock | Probe::Exits => Err(String::new()),
            Probe::Migrations
            | Probe::Switches
            | Probe::L1dMisses
            | Probe::ProcessMigrations
            | Probe::ProcessSwitches
            | Probe::ProcessL1dMisses => {
                sum_of(*probe, counted.as_ref().map_or(&[][..], |it| it.roles.as_slice()))
            }
        };
        let figure = |probe: &Probe| {
            let unit = match quantity(*probe) {
                Some(quantity) => quantity.unit(),
                None => Unit::Share,
            };
            match sample(probe) {
                Ok(sample) => one_figure(probe.name(), unit, sample, elapsed_ns),
                Err(why) => absent(probe.name(), unit, &why),
            }
        };
        // Exits are observed by the caller that has a guest.
        let others = [Probe::FutexCycles, Probe::FutexLock, Probe::Exits];
        let own = self.probes.iter().filter(|probe| !others.contains(probe));
        let findings = (!findings.is_empty()).then(|| finding_figure(&findings));
        Ok(own.map(figure).chain(futexes).chain(findings).collect())
    }
}

/// The probes that this host does not provide, with the reason: each is tried on this process.
pub fn absent_here(host: &LiveHost, probes: &[Probe]) -> Result<Vec<(String, String)>, TrialError> {
    let own = proc_stat::read(host, process::own_tid()).map_err(|error| probe_error(&error))?;
    let threads: Vec<(TaskId, Role)> = own.iter().map(|stat| (stat.task(), Role::Task)).collect();
    let figures = Observation::begin(host, probes, &CpuSet::new(), &threads)?.end(host)?;
    // This process does not work during the attempt.
    let absent = figures.into_iter().filter_map(|figure: Figure| {
        let why = figure.flags.iter().find_map(|flag| flag.strip_prefix(ABSENT))?.to_owned();
        Some((figure.probe, why))
    });
    Ok(absent.filter(|(_, why)| !NO_SAMPLES.contains(&why.as_str())).collect())
}

/// The sum of a probe over the threads that it counts.
fn sum_of(probe: Probe, roles: &[RoleCounters]) -> Result<f64, String> {
    let outcomes = roles.iter().filter(|role| counts(probe, &role.role));
    let outcomes = outcomes.flat_map(|role| &role.outcomes);
    sum(outcomes.filter(|(one, _)| quantity(probe) == Some(*one)).map(|(_, it)| it))
}

fn sum<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> Result<f64, String> {
    let mut all = None;
    for outcome in outcomes {
        match outcome {
            Outcome::Counted(counted) => *all.get_or_insert(0.0) += counted.value as f64,
            Outcome::Absent(why) => return Err(why.clone()),
        }
    }
    all.ok_or_else(|| "there were no threads to count".to_owned())
}

fn lock_share(locks: &Locks) -> f64 {
    let (mut spent, mut time) = (0.0, 0.0);
    for role in locks.roles.iter().filter(|role| role.role.runs_work()) {
        spent += role.spent.get(&FutexKind::Lock).map_or(0.0, |spent| spent.sum_ns as f64);
        time += locks.duration_ns as f64 * f64::from(role.threads);
    }
    if time > 0.0 { (spent / time).min(1.0) } else { 0.0 }
}

/// The result of a trial with the findings of its placement: a figure without samples, or a part
/// of the error.
pub fn with_findings(
    result: Result<TrialResult, TrialError>,
    findings: &[Finding],
) -> Result<TrialResult, TrialError> {
    if findings.is_empty() {
        return result;
    }
    match result {
        Ok(mut result) => {
            result.figures.push(finding_figure(findings));
            Ok(result)
        }
        Err(error) => {
            let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
            let message = format!("{}; its placement: {}", error.message, texts.join("; "));
            Err(TrialError { message, ..error })
        }
    }
}

/// The figure without samples that holds findings of a trial.
fn finding_figure(findings: &[Finding]) -> Figure {
    let flags = findings.iter().map(|finding| format!("{FINDING}{finding}")).collect();
    Figure { samples: Vec::new(), flags, ..one_figure(APPLY, Unit::Count, 0.0, 0) }
}

/// The observation of the exits of a guest's vCPUs during a trial, or why it is not possible.
pub struct Exits(Result<pinfold_exits::Watch, String>);

impl Exits {
    /// Starts the observation, if it was requested.
    pub fn begin(
        host: &LiveHost,
        probes: &[Probe],
        accelerator: Accelerator,
        threads: &[(TaskId, Role)],
    ) -> Option<Self> {
        /// Even an idle guest has some exits in this time.
        const LOOK_NS: u64 = 500_000_000;
        if !probes.contains(&Probe::Exits) {
            return None;
        }
        if accelerator != Accelerator::Kvm {
            let why = "a guest in QEMU's translator (TCG) makes no exits";
            return Some(Self(Err(why.to_owned())));
        }
        let vcpus: Vec<pinfold_exits::VcpuThread> = threads
            .iter()
            .filter_map(|(task, role)| {
                Some(pinfold_exits::VcpuThread { vcpu: role.vcpu()?, task: *task })
            })
            .collect();
        let clock = &SystemClock;
        let watch =
            pinfold_exits::detect_exit_source(host, clock, &vcpus, LOOK_NS).and_then(|source| {
                pinfold_exits::Watch::begin(host, clock, pinfold_exits::from_source(source), &vcpus)
            });
        Some(Self(watch.map_err(|error| error.to_string())))
    }

    /// Ends the observation: the rows of all vCPUs together.
    pub fn end(self, host: &LiveHost) -> Vec<Figure> {
        let table = self
            .0
            .and_then(|watch| watch.finish(host, &SystemClock).map_err(|error| error.to_string()));
        match table {
            Err(why) => vec![absent(Probe::Exits.name(), Unit::Count, &why)],
            Ok(table) => {
                let mut figures = pinfold_exits::figures(&table);
                figures.retain(|figure| figure.labels.get("vcpu").is_some_and(|it| it == "all"));
                for figure in &mut figures {
                    figure.labels.remove("vcpu");
                }
                figures
            }
        }
    }
}

/// The times of these CPUs, in the kernel's ticks.
fn clocks(host: &LiveHost, pus: &CpuSet) -> Result<Clocks, HostError> {
    Ok(sums(&host.read_text(&paths::kernel_stat())?, pus))
}

fn sums(text: &str, pus: &CpuSet) -> Clocks {
    let mut clocks = Clocks::default();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let pu = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok()).map(PuId);
        if !pu.is_some_and(|pu| pus.contains(pu)) {
            continue;
        }
        let numbers: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        clocks.busy += field_at(0, &numbers)
            + field_at(1, &numbers)
            + field_at(2, &numbers)
            + field_at(5, &numbers)
            + field_at(6, &numbers);
        clocks.stolen += field_at(7, &numbers);
    }
    clocks
}

fn field_at(index: usize, numbers: &[u64]) -> u64 {
    numbers.get(index).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_probe::counters::{Counted, Source};

    #[test]
    fn probes_of_the_process_count_all_its_threads() {
        let roles = [
            role(Role::Vcpu(0), 1),
            role(Role::Vcpu(1), 2),
            role(Role::Emulator, 40),
            role(Role::Worker, 500),
        ];
        assert_eq!(sum_of(Probe::Migrations, &roles), Ok(3.0));
        assert_eq!(sum_of(Probe::ProcessMigrations, &roles), Ok(543.0));
        assert_eq!(sum_of(Probe::ProcessL1dMisses, &roles), Err("no PMU".to_owned()));
        let none = Err("there were no threads to count".to_owned());
        assert_eq!(sum_of(Probe::ProcessSwitches, &roles), none);
    }

    fn role(role: Role, value: u64) -> RoleCounters {
        RoleCounters {
            role,
            threads: 1,
            ended: 0,
            outcomes: vec![
                (
                    Quantity::Migrations,
                    Outcome::Counted(Counted {
                        value,
                        source: Source::Perf,
                        running_share: 1.0,
                        instead_of: None,
                    }),
                ),
                (Quantity::L1dMisses, Outcome::Absent("no PMU".to_owned())),
            ],
        }
    }

    #[test]
    fn findings_stay_with_their_trial() {
        let findings = [Finding::warning("governor", "CPU 1 kept ondemand")];
        let measured = TrialResult { figures: Vec::new(), work_ns: 1 };
        assert_eq!(with_findings(Ok(measured.clone()), &[]).unwrap(), measured);
        let kept = with_findings(Ok(measured), &findings).unwrap();
        assert_eq!(kept.figures[0].flags, ["finding: warning: governor: CPU 1 kept ondemand"]);
        assert!(kept.figures[0].samples.is_empty());
        let failed =
            with_findings(Err(TrialError::from_message("exit code 3")), &findings).unwrap_err();
        let message = "exit code 3; its placement: warning: governor: CPU 1 kept ondemand";
        assert_eq!(failed.message, message);
    }

    #[test]
    fn clocks_are_those_of_the_pus() {
        let text =
            "cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 10 20 30 40 50 60 70 80\n";
        let check = |list: &str, busy: u64, stolen: u64| {
            let clocks = sums(text, &CpuSet::parse_list(list).unwrap());
            assert_eq!((clocks.busy, clocks.stolen), (busy, stolen), "{list}");
        };
        check("0", 19, 8);
        check("0-1", 209, 88);
        check("2", 0, 0);
    }
}

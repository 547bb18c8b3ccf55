//! Observes threads from outside for some time.

use std::collections::BTreeMap;

use pinfold_host::{
    Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat, proc_status, process,
};
use pinfold_model::text::count_noun as count_of;
use pinfold_model::{Figure, Role, TaskId, Tid, escape};
use pinfold_probe::counters::{self, Counters, Quantity};
use pinfold_probe::gaps::{self, GapReport, GapWatch, SubjectName};
use pinfold_probe::interference;
use pinfold_probe::locks::{self, Locks};
use pinfold_probe::sched_latency::{self, SchedLatency};
use pinfold_study::measured::MeasuredBlock;
use pinfold_vm::{VmSelector, hypervisors};

use super::{MeasurementContext, stopped};
use crate::cgroup_tree;
use crate::message::say;
use crate::target::{self, Vm};
use crate::{Exit, Failure, exits, interrupt, time};

/// The least bound of gaps (ns).
const SHORTEST_GAP_NS: u64 = 10_000;
/// Interval of checking that the workload still exists.
const LOOK_NS: u64 = 100_000_000;

/// An instrument that observes from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// How long threads wait for a CPU.
    Sched,
    /// Performance counters of the threads.
    Counters,
    /// How long threads wait for locks.
    Locks,
    /// VM exits.
    Exits,
    /// Gaps, with their causes.
    Gaps,
}

impl Instrument {
    /// All instruments.
    pub const ALL: [Instrument; 5] = [
        Instrument::Sched,
        Instrument::Counters,
        Instrument::Locks,
        Instrument::Exits,
        Instrument::Gaps,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Instrument::Sched => "sched",
            Instrument::Counters => "counters",
            Instrument::Locks => "locks",
            Instrument::Exits => "exits",
            Instrument::Gaps => "gaps",
        }
    }

    /// What it measures, in one line.
    pub fn what(self) -> &'static str {
        match self {
            Instrument::Sched => {
                "waits of a machine's threads for a CPU, and which task ran instead"
            }
            Instrument::Counters => "switches, migrations, faults, cycles and misses by role",
            Instrument::Locks => {
                "time that a machine's threads spend in futex, by lock and call site"
            }
            Instrument::Exits => "why a KVM machine exits, and how long each exit takes",
            Instrument::Gaps => "times for which threads could not run, each with its cause",
        }
    }

    /// The labels of its figures.
    pub fn by(self) -> &'static str {
        match self {
            Instrument::Sched | Instrument::Counters | Instrument::Locks | Instrument::Gaps => {
                "by role"
            }
            Instrument::Exits => "by type",
        }
    }

    /// The instrument with this name.
    pub fn find(name: &str) -> Option<Instrument> {
        Self::ALL.into_iter().find(|instrument| instrument.name() == name)
    }
}

/// What is to be observed.
#[derive(Clone, Debug)]
pub enum ObservationTarget {
    /// A machine.
    Machine(VmSelector),
    /// All machines of this host.
    AllMachines,
    /// A process.
    Process(u32),
    /// The tasks of a cgroup, by its path or by its unit, and of the groups below it.
    Group(String),
}

/// What is observed, and how.
pub struct ObserveRequest<'a> {
    /// The machines, processes and groups; only [`Instrument::Gaps`] can observe several machines.
    pub targets: &'a [ObservationTarget],
    /// What is counted.
    pub quantities: &'a [Quantity],
    /// True for the call sites of waits too.
    pub sites: bool,
    /// How exits are observed.
    pub exits: &'a exits::ObservationSettings,
    /// True for the exits of each vCPU too.
    pub per_vcpu: bool,
    /// Gaps shorter than this are only counted (ns).
    pub over_ns: u64,
    /// Duration of a block.
    pub seconds: f64,
    /// The same (ns).
    pub duration_ns: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// Result of an instrument.
pub enum ObservationResult {
    /// How long threads waited for a CPU.
    Sched(SchedLatency),
    /// Their counters.
    Counters(Counters),
    /// How long they waited for locks.
    Locks(Locks),
    /// The exits of a machine.
    Exits(Box<exits::Answer>),
    /// The gaps of threads.
    Gaps(Box<GapReport>),
}

impl ObservationResult {
    fn figures(&self, request: &ObserveRequest<'_>) -> Vec<Figure> {
        match self {
            ObservationResult::Sched(found) => found.figures(),
            ObservationResult::Counters(found) => found.figures(),
            ObservationResult::Locks(found) => found.figures(),
            ObservationResult::Exits(answer) => answer.figures(request.per_vcpu),
            ObservationResult::Gaps(report) => report.figures(),
        }
    }

    /// Why there is no figure, if the instrument knows.
    fn absence(&self) -> Option<String> {
        match self {
            ObservationResult::Counters(found) => {
                found.absent().into_iter().next().map(|(_, why, _)| why)
            }
            ObservationResult::Sched(_)
            | ObservationResult::Locks(_)
            | ObservationResult::Exits(_)
            | ObservationResult::Gaps(_) => None,
        }
    }

    /// True if no thread is left to observe.
    fn is_last(&self) -> bool {
        matches!(self, ObservationResult::Exits(answer) if answer.has_ended)
    }

    /// The failure, if there is one in addition to the results.
    ///
    /// # Errors
    /// [`Failure`]: the machine has ended, or made no exits.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self {
            ObservationResult::Sched(_)
            | ObservationResult::Counters(_)
            | ObservationResult::Locks(_)
            | ObservationResult::Gaps(_) => Ok(()),
            ObservationResult::Exits(answer) => answer.verdict(),
        }
    }
}

/// Observes block by block; returns the subject and the result of each block.
///
/// # Errors
/// [`Failure`] if there is no such subject, or nothing was seen.
pub fn observe(
    bench: &MeasurementContext,
    instrument: Instrument,
    request: &ObserveRequest<'_>,
) -> Result<(String, Vec<ObservationResult>, Vec<MeasuredBlock>), Failure> {
    let online = bench.topology.online();
    let moment = || interference::now(&bench.host, &online).map_err(Failure::from);
    // What was seen until a signal is shown and stored.
    interrupt::install()?;
    let (mut name, mut seen, mut blocks) = (String::new(), Vec::new(), Vec::new());
    let count = request.blocks;
    for block in 1..=count {
        // Threads may have been created or ended since the last block.
        let subject = Observed::find(&bench.host, instrument, request.targets)?;
        name = subject.name();
        let times = if count == 1 { String::new() } else { format!("block {block} of {count}: ") };
        let threads = count_of(subject.threads().len(), "thread");
        let seconds = request.seconds;
        say(&format!("{times}observing {threads} of {name} for {seconds} s …"));
        if block == 1 {
            for one in &subject.0 {
                let found = stopped::report(&bench.host, &one.name(), &one.threads());
                found.iter().for_each(|text| say(&format!("warning: {text}")));
            }
        }
        let before = moment()?;
        let one = instrument.observe_subject(&bench.host, subject, request)?;
        let surroundings = moment()?.since(&before);
        let figures = one.figures(request);
        if figures.is_empty() {
            one.verdict()?;
            let why = one.absence().map_or_else(String::new, |why| format!(", because {why}"));
            return Err(Failure::new(Exit::No, format!("{name}: nothing was observed{why}")));
        }
        let is_last = one.is_last() || interrupt::is_requested();
        blocks.push(MeasuredBlock { figures, surroundings });
        seen.push(one);
        if is_last {
            break;
        }
    }
    // Once, at the end of the observation.
    if let Some(ObservationResult::Exits(answer)) = seen.last_mut() {
        answer.measure_cost(&bench.host, &bench.program);
    }
    Ok((name, seen, blocks))
}

/// A machine, a process or a group.
enum Subject {
    Machine(Box<Vm>),
    Process(u32, Vec<(TaskId, Role)>),
    Group(String, Vec<(TaskId, Role)>),
}

impl Subject {
    /// Description of the subject.
    fn description(&self) -> String {
        match self {
            Subject::Machine(vm) => format!("machine {} ({})", vm.name, vm.asked),
            Subject::Process(..) | Subject::Group(..) => self.name(),
        }
    }

    /// Short name.
    fn name(&self) -> String {
        match self {
            Subject::Machine(vm) => vm.name.clone(),
            Subject::Process(pid, _) => format!("process {pid}"),
            Subject::Group(name, _) => format!("group {}", escape::name(name)),
        }
    }

    /// The options that name it for `apply`.
    fn selector(&self) -> String {
        match self {
            Subject::Machine(vm) => vm.asked.clone(),
            Subject::Process(..) | Subject::Group(..) => String::new(),
        }
    }

    /// Its threads with their roles.
    fn threads(&self) -> Vec<(TaskId, Role)> {
        match self {
            Subject::Machine(vm) => vm.found.tasks(),
            Subject::Process(_, threads) | Subject::Group(_, threads) => threads.clone(),
        }
    }
}

impl Instrument {
    /// A machine to observe. Only counting exits asks its monitor; else other programs may use it
    /// meanwhile.
    fn machine(self, mut vm: Vm) -> Subject {
        if self != Instrument::Exits {
            vm.monitor = None;
        }
        Subject::Machine(Box::new(vm))
    }
}

/// All that is observed at the same time.
struct Observed(Vec<Subject>);

impl Observed {
    fn find(
        host: &LiveHost,
        instrument: Instrument,
        targets: &[ObservationTarget],
    ) -> Result<Self, Failure> {
        let mut subjects = Vec::new();
        for target in targets {
            match target {
                ObservationTarget::Machine(by) => {
                    subjects.push(instrument.machine(Vm::find(host, by)?));
                }
                ObservationTarget::AllMachines => {
                    let all = Vm::find_all(host)?.into_iter();
                    subjects.extend(all.map(|vm| instrument.machine(vm)));
                }
                ObservationTarget::Process(pid) => {
                    subjects.push(Subject::Process(*pid, threads_of(host, *pid)?));
                }
                ObservationTarget::Group(name) => {
                    subjects.push(Subject::Group(name.clone(), threads_of_group(host, name)?));
                }
            }
        }
        if subjects.is_empty() {
            return Err(target::no_machine_runs(host));
        }
        let machines =
            subjects.iter().filter(|subject| matches!(subject, Subject::Machine(_))).count();
        if instrument != Instrument::Gaps && machines > 0 && subjects.len() > 1 {
            let text = format!("{} observes one machine at a time", instrument.name());
            return Err(Failure::new(Exit::Input, text)
                .with_hint("name one, or use `pinfold measure gaps`, which takes several"));
        }
        Ok(Self(subjects))
    }

    /// Description of all.
    fn name(&self) -> String {
        let names: Vec<String> = self.0.iter().map(Subject::description).collect();
        names.join(", ")
    }

    /// The threads of all.
    fn threads(&self) -> Vec<(TaskId, Role)> {
        self.0.iter().flat_map(Subject::threads).collect()
    }

    /// True for the process of one of its machines.
    fn has(&self, pid: Tid) -> bool {
        self.0.iter().any(|subject| match subject {
            Subject::Machine(vm) => vm.found.pid == pid,
            Subject::Process(own, _) => *own == pid.0,
            Subject::Group(..) => false,
        })
    }

    /// The same for the observation of gaps.
    fn gap_subjects(&self) -> Vec<gaps::Subject> {
        self.0.iter().map(|subject| self.gap_subject(subject)).collect()
    }

    /// Machines with the same name are distinguished by their options.
    fn gap_subject(&self, subject: &Subject) -> gaps::Subject {
        let name = subject.name();
        let is_unique = self.0.iter().filter(|other| other.name() == name).count() == 1;
        let name = if is_unique { name } else { subject.description() };
        let name = SubjectName { name, selector: subject.selector() };
        gaps::Subject { name, threads: subject.threads() }
    }
}

impl Instrument {
    fn observe_subject(
        self,
        host: &LiveHost,
        mut subject: Observed,
        request: &ObserveRequest<'_>,
    ) -> Result<ObservationResult, Failure> {
        let (threads, duration_ns) = (subject.threads(), request.duration_ns);
        match self {
            Instrument::Sched => {
                let mut found = sched(host, &threads, duration_ns)?;
                let mut machines = machine_names(host);
                machines.retain(|pid, _| !subject.has(*pid));
                found.name_machines(&|tid| {
                    let text = host.read_text(&paths::process_status(tid)).ok()?;
                    machines.get(&proc_status::parse(&text).ok()?.tgid).cloned()
                });
                Ok(ObservationResult::Sched(found))
            }
            Instrument::Gaps => gaps(host, &subject, request)
                .map(|report| ObservationResult::Gaps(Box::new(report))),
            Instrument::Counters => count_events(host, &threads, request.quantities, duration_ns)
                .map(ObservationResult::Counters),
            Instrument::Locks => observe_locks(host, &threads, request.sites, duration_ns)
                .map(ObservationResult::Locks),
            Instrument::Exits => match subject.0.pop() {
                Some(Subject::Machine(vm)) => {
                    let answer = exits::of_machine(host, *vm, request.exits)?;
                    Ok(ObservationResult::Exits(Box::new(answer)))
                }
                Some(Subject::Process(..) | Subject::Group(..)) | None => {
                    Err(Failure::new(Exit::Input, "only virtual machines have exits"))
                }
            },
        }
    }
}

/// The threads of a process.
fn threads_of(host: &LiveHost, pid: u32) -> Result<Vec<(TaskId, Role)>, Failure> {
    let names = host.list(&paths::task_dir(Tid(pid))).map_err(|error| {
        if error.is_gone() {
            Failure::new(Exit::Input, format!("--process {pid}: there is no such process"))
        } else {
            Failure::from(error)
        }
    })?;
    let tids: Vec<Tid> = names.iter().filter_map(|name| name.parse().ok().map(Tid)).collect();
    tasks_of(host, &tids)
}

/// The threads of a cgroup, and of those below it.
fn threads_of_group(host: &LiveHost, name: &str) -> Result<Vec<(TaskId, Role)>, Failure> {
    let directory = cgroup_tree::find(host, name)?;
    let threads = tasks_of(host, &cgroup_tree::tids(host, &directory))?;
    if threads.is_empty() {
        return Err(Failure::new(Exit::Input, format!("--group {directory}: it has no tasks"))
            .with_hint("start its program first"));
    }
    Ok(threads)
}

fn tasks_of(host: &LiveHost, tids: &[Tid]) -> Result<Vec<(TaskId, Role)>, Failure> {
    let mut threads = Vec::new();
    for tid in tids {
        let stat = proc_stat::read(host, *tid)?;
        threads.extend(stat.map(|stat| (stat.task(), Role::Task)));
    }
    Ok(threads)
}

/// Waits until the time is over, no thread is left, or a signal ends the observation.
fn watch(host: &LiveHost, threads: &[(TaskId, Role)], duration_ns: u64) -> Result<(), Failure> {
    watch_by(host, threads, duration_ns, LOOK_NS, &mut || {})
}

/// The same, in such steps, after each of which `each` is called.
fn watch_by(
    host: &LiveHost,
    threads: &[(TaskId, Role)],
    duration_ns: u64,
    step_ns: u64,
    each: &mut dyn FnMut(),
) -> Result<(), Failure> {
    let end = SystemClock.now_ns().saturating_add(duration_ns);
    loop {
        let left = end.saturating_sub(SystemClock.now_ns());
        if left == 0 || interrupt::is_requested() {
            return Ok(());
        }
        SystemClock.sleep_ns(left.min(step_ns));
        each();
        let mut alive = false;
        for (task, _) in threads {
            alive |= process::task_alive(host, *task)?;
            if alive {
                break;
            }
        }
        if !alive {
            say("warning: all threads exited during the measurement");
            return Ok(());
        }
    }
}

/// The failure of an observation that cannot begin.
pub(crate) fn watch_failure(error: sched_latency::WatchError) -> Failure {
    match error {
        sched_latency::WatchError::Host(error) => Failure::from(error),
        sched_latency::WatchError::NoThreads | sched_latency::WatchError::Gone { .. } => {
            Failure::new(Exit::Vm, error.to_string())
        }
    }
}

/// How long threads wait for a CPU, observed for this time.
///
/// # Errors
/// [`Failure`] if they cannot be observed.
fn sched(
    host: &LiveHost,
    threads: &[(TaskId, Role)],
    duration_ns: u64,
) -> Result<SchedLatency, Failure> {
    let watching = sched_latency::start(host, &SystemClock, threads);
    let watching = watching.map_err(watch_failure)?;
    watch(host, threads, duration_ns)?;
    watching.stop(host, &SystemClock).map_err(Failure::from)
}

/// The bound of gaps from an option of the command line.
///
/// # Errors
/// [`Failure`] if it is no time, or below the cost of observing.
pub fn gap_bound(option: &str, text: &str) -> Result<u64, Failure> {
    let over_ns = time::parse_ns(option, text)?;
    if over_ns < SHORTEST_GAP_NS {
        return Err(Failure::new(Exit::Input, format!("{option} {text}: too short"))
            .with_hint("give 10us or more: observing itself adds some µs to each gap"));
    }
    Ok(over_ns)
}

/// The gaps of threads, observed for this time.
///
/// # Errors
/// [`Failure`] if they cannot be observed.
fn gaps(
    host: &LiveHost,
    subject: &Observed,
    request: &ObserveRequest<'_>,
) -> Result<GapReport, Failure> {
    let threads = subject.threads();
    let started = gaps::start(host, &SystemClock, &subject.gap_subjects(), request.over_ns);
    let mut watching = started.map_err(|error| match error {
        gaps::GapsError::Watch(error) => watch_failure(error),
        gaps::GapsError::Unavailable { .. } => Failure::new(Exit::Host, error.to_string())
            .with_hint("it needs CAP_BPF and CAP_PERFMON, or root, and a kernel with BTF"),
    })?;
    watching.name_exits(exits::name_of_reason);
    watch_by(host, &threads, request.duration_ns, GapWatch::POLL_NS, &mut || {
        watching.poll(host, &SystemClock);
    })?;
    let mut report = watching.stop(host, &SystemClock, machine_names(host))?;
    report.summary.subject = subject.name();
    report.summary.cpus = host.read_text(&paths::cpu_online())?.trim().to_owned();
    Ok(report)
}

/// The names of the machines of this host by process.
pub fn machine_names(host: &LiveHost) -> BTreeMap<Tid, String> {
    let running = hypervisors::list_vm_processes(host).unwrap_or_default().into_iter();
    running
        .map(|machine| {
            let name = machine.plain_name().map(str::to_owned);
            (machine.pid, name.unwrap_or_else(|| format!("of process {}", machine.pid)))
        })
        .collect()
}

/// The quantities on the command line, in the order of tables; all if there are none.
///
/// # Errors
/// [`Failure`] for an unknown name.
pub fn quantities(names: &[String]) -> Result<Vec<Quantity>, Failure> {
    if let Some(name) = names.iter().find(|name| Quantity::from_name(name).is_none()) {
        let known = Quantity::ALL.map(Quantity::name).join(", ");
        return Err(Failure::new(Exit::Input, format!("--quantities: there is no {name:?}"))
            .with_hint(format!("quantities are {known}")));
    }
    Ok(Quantity::ALL
        .into_iter()
        .filter(|one: &Quantity| names.is_empty() || names.iter().any(|n| n == one.name()))
        .collect())
}

/// Performance counters of threads, for this time.
///
/// # Errors
/// [`Failure`] if they cannot be counted.
fn count_events(
    host: &LiveHost,
    threads: &[(TaskId, Role)],
    quantities: &[Quantity],
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
fn observe_locks(
    host: &LiveHost,
    threads: &[(TaskId, Role)],
    sites: bool,
    duration_ns: u64,
) -> Result<Locks, Failure> {
    let watching = locks::start(host, threads, sites).map_err(|error| match error {
        locks::LocksError::Watch(error) => watch_failure(error),
        locks::LocksError::Unavailable { .. } => Failure::new(Exit::Host, error.to_string())
            .with_hint("it needs CAP_BPF and CAP_PERFMON, or root"),
    })?;
    watch(host, threads, duration_ns)?;
    watching.stop(host).map_err(Failure::from)
}

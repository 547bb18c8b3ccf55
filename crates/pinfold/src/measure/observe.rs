//! `pinfold measure sched|counters|locks|exits`: observes a machine or a process group from
//! outside.
//!
//! Nothing runs in the workload: its threads are observed for some time. `docs/scheduling.md` and
//! `docs/exits.md` describe what each instrument measures, and what it loses without privileges.

mod json;
mod text;

use pinfold_host::{LiveHost, files};
use pinfold_model::{Figure, Role, TaskId};
use pinfold_probe::counters::Counters;
use pinfold_probe::interference;
use pinfold_probe::locks::Locks;
use pinfold_probe::sched_latency::SchedLatency;
use pinfold_run::measure::{Bench, counted, locked, quantities, sched, threads_of};
use pinfold_run::{Exit, Failure, target::Vm};
use pinfold_study::measured::{MeasuredBlock, Measurement, to_json};
use serde_json::{Value, json};

use crate::cli::measure::MeasureArgs;
use crate::commands::exits;
use crate::output::{data, say};
use crate::{common, screen};

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
}

impl Instrument {
    /// All instruments.
    pub const ALL: [Instrument; 4] =
        [Instrument::Sched, Instrument::Counters, Instrument::Locks, Instrument::Exits];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Instrument::Sched => "sched",
            Instrument::Counters => "counters",
            Instrument::Locks => "locks",
            Instrument::Exits => "exits",
        }
    }

    /// What it measures, in one line.
    pub fn what(self) -> &'static str {
        match self {
            Instrument::Sched => "waits of a machine's threads for a PU, and who ran instead",
            Instrument::Counters => "switches, migrations, faults, cycles and misses by role",
            Instrument::Locks => "time of a machine's threads in futex, by lock and call site",
            Instrument::Exits => "what makes a machine of KVM leave the processor, how long",
        }
    }

    /// The labels of its figures.
    pub fn by(self) -> &'static str {
        match self {
            Instrument::Sched | Instrument::Counters | Instrument::Locks => "by role",
            Instrument::Exits => "by type",
        }
    }

    /// The instrument with this name.
    pub fn find(name: &str) -> Option<Instrument> {
        Self::ALL.into_iter().find(|instrument| instrument.name() == name)
    }
}

/// Result of an instrument.
enum Seen {
    Sched(SchedLatency),
    Counters(Counters),
    Locks(Locks),
    Exits(Box<pinfold_run::exits::Answer>),
}

impl Seen {
    fn figures(&self, arguments: &MeasureArgs) -> Vec<Figure> {
        match self {
            Seen::Sched(found) => found.figures(),
            Seen::Counters(found) => found.figures(),
            Seen::Locks(found) => found.figures(),
            Seen::Exits(answer) => answer.figures(arguments.exits.per_vcpu),
        }
    }

    fn text(&self, arguments: &MeasureArgs) -> String {
        match self {
            Seen::Sched(found) => text::sched(found),
            Seen::Counters(found) => text::counters(found),
            Seen::Locks(found) => text::locks(found),
            Seen::Exits(answer) => exits::text::table(answer, &arguments.exits),
        }
    }

    /// The results that are not in the figures.
    fn json(&self) -> Value {
        match self {
            Seen::Sched(found) => json::sched(found),
            Seen::Counters(found) => json::counters(found),
            Seen::Locks(found) => json::locks(found),
            Seen::Exits(answer) => exits::text::json(answer),
        }
    }

    /// Why there is no figure, if the instrument knows.
    fn absence(&self) -> Option<String> {
        match self {
            Seen::Counters(found) => found.absent().into_iter().next().map(|(_, why, _)| why),
            Seen::Sched(_) | Seen::Locks(_) | Seen::Exits(_) => None,
        }
    }

    /// True if no thread is left to observe.
    fn is_last(&self) -> bool {
        matches!(self, Seen::Exits(answer) if answer.has_ended)
    }

    /// The failure, if there is one in addition to the results.
    fn verdict(&self) -> Result<(), Failure> {
        match self {
            Seen::Sched(_) | Seen::Counters(_) | Seen::Locks(_) => Ok(()),
            Seen::Exits(answer) => answer.verdict(),
        }
    }
}

/// Measures and prints.
pub fn measure(instrument: Instrument, arguments: &MeasureArgs) -> Result<(), Failure> {
    refuse_others(instrument, arguments)?;
    quantities(&arguments.quantities)?;
    let bench = super::bench(arguments.seed)?;
    let seconds = arguments.how.seconds;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err(Failure::new(Exit::Input, format!("--seconds {seconds}: is out of range"))
            .with_hint("from 0.01 to 86400"));
    }
    let duration = std::time::Duration::from_secs_f64(seconds);
    let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (name, seen, blocks) = observed(&bench, instrument, (arguments, duration_ns))?;
    let tool = format!("pinfold {}", env!("CARGO_PKG_VERSION"));
    let measurement = bench.measurement(instrument.name(), (name, tool), blocks, None)?;
    let saved = to_json(&measurement)
        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
    if let Some(path) = &arguments.save {
        files::write_atomic(path, saved.as_bytes())?;
        say(&format!("saved to {path}; `pinfold compare` takes two of them"));
    }
    show(instrument, arguments, (&measurement, &saved), &seen)?;
    seen.iter().try_for_each(Seen::verdict)
}

/// Runs the blocks; returns the subject and the result of each block.
fn observed(
    bench: &Bench,
    instrument: Instrument,
    (arguments, duration_ns): (&MeasureArgs, u64),
) -> Result<(String, Vec<Seen>, Vec<MeasuredBlock>), Failure> {
    let online = bench.topology.online();
    let moment = || interference::now(&bench.host, &online).map_err(Failure::from);
    let (mut name, mut seen, mut blocks) = (String::new(), Vec::new(), Vec::new());
    let count = arguments.blocks.unwrap_or(1);
    for block in 1..=count {
        // Threads may have been created or ended since the last block.
        let subject = Subject::find(&bench.host, arguments)?;
        name = subject.name();
        let times = if count == 1 { String::new() } else { format!("block {block} of {count}: ") };
        let threads = pinfold_model::text::counted(subject.threads().len(), "thread");
        let seconds = arguments.how.seconds;
        say(&format!("{times}watching {threads} of {name} for {seconds} s …"));
        let before = moment()?;
        let one = instrument.look(&bench.host, subject, (arguments, duration_ns))?;
        let surroundings = moment()?.since(&before);
        let figures = one.figures(arguments);
        if figures.is_empty() {
            one.verdict()?;
            let why = one.absence().map_or_else(String::new, |why| format!(", because {why}"));
            return Err(Failure::new(Exit::No, format!("{name}: nothing was seen{why}")));
        }
        let is_last = one.is_last();
        blocks.push(MeasuredBlock { figures, surroundings });
        seen.push(one);
        if is_last {
            break;
        }
    }
    // Once, at the end of the observation.
    if let Some(Seen::Exits(answer)) = seen.last_mut() {
        answer.measure_cost(&bench.host);
    }
    Ok((name, seen, blocks))
}

fn show(
    instrument: Instrument,
    arguments: &MeasureArgs,
    (measurement, saved): (&Measurement, &str),
    seen: &[Seen],
) -> Result<(), Failure> {
    let (own, what) = (instrument.name(), instrument.what());
    if arguments.json {
        let saved: Value = serde_json::from_str(saved)
            .map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        let found: Vec<Value> = seen.iter().map(Seen::json).collect();
        let all = json!({
            "format": "pinfold-observed/2", "what": what, "found": found, "measurement": saved,
        });
        data(&all.to_string());
        return Ok(());
    }
    let mut text = format!("{own}: {what}\n{}\n", measurement.place);
    for (index, one) in seen.iter().enumerate() {
        if seen.len() > 1 {
            text.push_str(&format!("\nblock {} of {}\n", index + 1, seen.len()));
        }
        text.push_str(&format!("\n{}", one.text(arguments)));
    }
    data(&screen::fitted(&text));
    Ok(())
}

/// Rejects options of the probes that run in the workload, and of other instruments.
fn refuse_others(instrument: Instrument, arguments: &MeasureArgs) -> Result<(), Failure> {
    let how = &arguments.how;
    let is_exits = instrument == Instrument::Exits;
    let given = [
        (how.cpus.is_some(), "--cpus"),
        (how.node.is_some(), "--node"),
        (how.policy.is_some(), "--policy"),
        (how.period.is_some(), "--period"),
        (how.duty.is_some(), "--duty"),
        (how.keep_awake, "--keep-awake"),
        (how.file.is_some(), "--file"),
        (!how.more.is_empty(), "INSTRUMENT-OPTIONS"),
        (arguments.plan.is_some(), "--plan"),
        (arguments.vnode.is_some(), "--vnode"),
        (arguments.guest.is_some(), "--guest"),
        (arguments.against.is_some(), "--against"),
        (arguments.sites && instrument != Instrument::Locks, "--sites"),
        (!arguments.quantities.is_empty() && instrument != Instrument::Counters, "--quantities"),
    ];
    let of_exits = arguments.exits.given().map(|(given, option)| (given && !is_exits, option));
    let name = instrument.name();
    if is_exits && !arguments.processes.is_empty() {
        return Err(Failure::new(Exit::Input, "--process: only virtual machines make exits")
            .with_hint("name a machine with --qmp, --libvirt or --pid"));
    }
    match given.iter().chain(&of_exits).find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, option)) => Err(Failure::new(
            Exit::Input,
            format!("{option} is of no use to {name}, which looks at threads from outside"),
        )
        .with_hint("name a machine with --qmp, --libvirt or --pid, or processes with --process")),
    }
}

/// What is observed.
enum Subject {
    Machine(Box<Vm>),
    Processes(Vec<u32>, Vec<(TaskId, Role)>),
}

impl Subject {
    fn find(host: &LiveHost, arguments: &MeasureArgs) -> Result<Self, Failure> {
        if arguments.processes.is_empty() {
            return Ok(Subject::Machine(Box::new(Vm::find(
                host,
                &common::vm(&arguments.machine)?,
            )?)));
        }
        let threads = threads_of(host, &arguments.processes)?;
        Ok(Subject::Processes(arguments.processes.clone(), threads))
    }

    /// Description of the subject.
    fn name(&self) -> String {
        match self {
            Subject::Machine(vm) => format!("machine {} ({})", vm.name, vm.asked),
            Subject::Processes(pids, _) => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                format!("process {}", pids.join(", "))
            }
        }
    }

    /// Its threads with their roles.
    fn threads(&self) -> Vec<(TaskId, Role)> {
        match self {
            Subject::Machine(vm) => vm.found.tasks(),
            Subject::Processes(_, threads) => threads.clone(),
        }
    }
}

impl Instrument {
    fn look(
        self,
        host: &LiveHost,
        subject: Subject,
        (arguments, duration_ns): (&MeasureArgs, u64),
    ) -> Result<Seen, Failure> {
        let threads = subject.threads();
        match (self, subject) {
            (Instrument::Sched, _) => sched(host, &threads, duration_ns).map(Seen::Sched),
            (Instrument::Counters, _) => {
                let wanted = quantities(&arguments.quantities)?;
                counted(host, (&threads, &wanted), duration_ns).map(Seen::Counters)
            }
            (Instrument::Locks, _) => {
                locked(host, (&threads, arguments.sites), duration_ns).map(Seen::Locks)
            }
            (Instrument::Exits, Subject::Machine(vm)) => {
                let wish = exits::wish(&arguments.exits, duration_ns)?;
                let answer = pinfold_run::exits::of_machine(host, *vm, &wish)?;
                Ok(Seen::Exits(Box::new(answer)))
            }
            (Instrument::Exits, Subject::Processes(..)) => {
                Err(Failure::new(Exit::Input, "only virtual machines make exits"))
            }
        }
    }
}

//! Several commands at the same time, each on its part of one plan.

use std::io::IsTerminal as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitStatus;

use pinfold_host::process::{self, Child, ProcessEnd, Signaled};
use pinfold_host::{EventWatcher, Host, LiveHost, files, paths, proc_stat, proc_status};
use pinfold_model::{CpuSet, Plan, TaskId, Tid};
use pinfold_plan::schema;

use crate::gate::{Gate, WaitingCommand};
use crate::helper_program::Session;
use crate::message::say;
use crate::noise::{self, Counters, Noise, ObservedCommand, Observer};
use crate::{Failure, host, interrupt};

/// Maximum wait for a job; signals and the end of one interrupt it.
const LONGEST_WAIT_NS: u64 = 5_000_000_000;

/// Name of the file of the plan, before and after the PID of its process.
const PLAN: (&str, &str) = ("quiet-", ".json");

/// True for the name of a plan whose process has ended without removing it.
pub(crate) fn is_left(host: &dyn Host, name: &str) -> bool {
    let (prefix, suffix) = PLAN;
    let pid = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
    let pid = pid.and_then(|pid| pid.parse().ok()).map(Tid);
    pid.is_some_and(|pid| !host.exists(&paths::process_stat(pid)))
}

/// A command with the name of its part of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The name.
    pub name: String,
    /// The command.
    pub command: Vec<String>,
}

/// The jobs, when all have ended.
#[derive(Debug)]
pub struct EndedJobs {
    /// The status of the first that failed.
    pub status: ExitStatus,
    /// What disturbed each job, by its name; empty if a job ended before all were placed.
    pub noise: Vec<(String, Noise)>,
}

/// A job that was started.
struct StartedJob {
    name: String,
    /// The CPUs of its part of the plan.
    cpus: CpuSet,
    /// The `pinfold run` that places it.
    runner: Child,
    status: Option<ExitStatus>,
    /// Switches from the job to other tasks, when it has ended.
    switches: u64,
    /// `None` when its command has come to it.
    gate: Option<Gate>,
    waiting: Option<WaitingCommand>,
}

/// Runs each job under `pinfold run` until all have ended. All are placed before the first one runs.
/// If one fails, the others are terminated, and its status is returned.
///
/// # Errors
/// [`Failure`] if a job cannot be started.
pub fn run(session: Session<'_>, plan: &Plan, jobs: &[Job]) -> Result<EndedJobs, Failure> {
    interrupt::install_forward()?;
    interrupt::install_child()?;
    let host = host::live()?;
    let (prefix, suffix) = PLAN;
    let path = session.state.path_of(&format!("{prefix}{}{suffix}", process::own_pid()));
    // Each job would print them again.
    plan.findings.iter().for_each(|finding| say(&finding.to_string()));
    let plan = &Plan { findings: Vec::new(), ..plan.clone() };
    files::write_atomic(&path, schema::to_json(plan).as_bytes())?;
    let mut started = StartedJobs::new(&host);
    let ended = match jobs.iter().try_for_each(|job| started.start(session, plan, job, &path)) {
        Ok(()) => started.run(plan),
        // The others revert their part.
        Err(error) => started.end().and(Err(error)),
    };
    files::remove(&path)?;
    ended
}

struct StartedJobs<'h> {
    host: &'h LiveHost,
    jobs: Vec<StartedJob>,
    watcher: EventWatcher,
    is_terminated: bool,
}

impl<'h> StartedJobs<'h> {
    fn new(host: &'h LiveHost) -> Self {
        Self { host, jobs: Vec::new(), watcher: EventWatcher::default(), is_terminated: false }
    }

    fn start(
        &mut self,
        Session { state, program }: Session<'_>,
        plan: &Plan,
        job: &Job,
        path: &str,
    ) -> Result<(), Failure> {
        let gate = Gate::open(state, self.jobs.len())?;
        let words =
            ["--state-dir", state.path(), "run", "--plan", path, "--vnode", &job.name, "--"];
        let command = gate.words(program, &job.command);
        let runner = program.start().args(words).args(&command).start()?;
        self.jobs.push(StartedJob {
            name: job.name.clone(),
            cpus: plan.part_for(&[&job.name]).pus(),
            runner,
            status: None,
            switches: 0,
            gate: Some(gate),
            waiting: None,
        });
        Ok(())
    }

    /// Lets the commands go when all are placed, and waits until all have ended.
    fn run(mut self, plan: &Plan) -> Result<EndedJobs, Failure> {
        self.check()?;
        while self.jobs.iter().any(|job| job.status.is_none() && job.waiting.is_none()) {
            self.pause(&[])?;
            self.check()?;
        }
        if self.jobs.iter().any(|job| job.status.is_some()) {
            return Ok(EndedJobs { status: self.end()?, noise: Vec::new() });
        }
        let mut observation = Observation::start(self.host, plan, &self.jobs);
        for waiting in self.jobs.iter_mut().filter_map(|job| job.waiting.take()) {
            match waiting.release() {
                // A command that ended at its gate has a status.
                Ok(()) | Err(_) => {}
            }
        }
        while self.jobs.iter().any(|job| job.status.is_none()) {
            let ends = observation.iter().flat_map(Observation::ends).collect::<Vec<_>>();
            self.pause(&ends)?;
            self.check()?;
            if let Ok(observation) = &mut observation {
                observation.read_ends(self.host)?;
            }
        }
        let noise = observation?.stop(self.host, &self.jobs)?;
        Ok(EndedJobs { status: self.status(), noise })
    }

    /// Terminates all jobs, and waits until they have reverted their part.
    fn end(mut self) -> Result<ExitStatus, Failure> {
        self.terminate()?;
        self.check()?;
        while self.jobs.iter().any(|job| job.status.is_none()) {
            self.pause(&[])?;
            self.check()?;
        }
        Ok(self.status())
    }

    /// The status of the first job that failed.
    fn status(&self) -> ExitStatus {
        let mut ended = self.jobs.iter().filter_map(|job| job.status);
        ended.find(|status| !status.success()).unwrap_or_default()
    }

    /// Forwards signals, takes the commands that have come to their gates, reaps the jobs that have
    /// ended, and terminates the others if one failed.
    fn check(&mut self) -> Result<(), Failure> {
        // Ctrl-C of a terminal reaches the jobs directly.
        let mut signals = interrupt::take_forwarded();
        if std::io::stdin().is_terminal() {
            signals.retain(|signal| *signal != Signaled::Interrupt);
        }
        for job in &mut self.jobs {
            job.reap(self.host)?;
            job.take_command(self.host)?;
            signals.iter().try_for_each(|signal| job.signal(*signal))?;
        }
        if self.status().success() { Ok(()) } else { self.terminate() }
    }

    fn terminate(&mut self) -> Result<(), Failure> {
        if self.is_terminated {
            return Ok(());
        }
        self.is_terminated = true;
        self.jobs.iter().try_for_each(|job| job.signal(Signaled::Terminate))
    }

    /// Waits for a signal, the end of a job, or a command that comes to its gate.
    fn pause(&mut self, others: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        let gates = self.jobs.iter().filter_map(|job| job.gate.as_ref()).map(AsFd::as_fd);
        let all = interrupt::signal_fd().into_iter().chain(gates).chain(others.iter().copied());
        self.watcher.wait(LONGEST_WAIT_NS, &all.collect::<Vec<_>>())?;
        interrupt::drain_signal_pipe();
        Ok(())
    }
}

impl StartedJob {
    /// The command at its gate is a child of the process that places it.
    fn take_command(&mut self, host: &LiveHost) -> Result<(), Failure> {
        let runner = self.runner.pid();
        let Some(gate) = &self.gate else { return Ok(()) };
        self.waiting = gate.accept(&|pid| {
            let stat = proc_stat::read(host, pid)?;
            Ok(stat.filter(|stat| stat.ppid == runner).map(|stat| stat.task()))
        })?;
        if self.waiting.is_some() || self.status.is_some() {
            self.gate = None;
        }
        Ok(())
    }

    /// The kernel adds the switches of a process and of its children when it is reaped; those of
    /// the process that places the job are not of the job.
    fn reap(&mut self, host: &LiveHost) -> Result<(), Failure> {
        if self.status.is_some() {
            return Ok(());
        }
        let own = host.read_text(&paths::process_status(self.runner.pid()));
        let own = own.ok().and_then(|text| proc_status::parse(&text).ok());
        let before = process::involuntary_switches_of_children();
        self.status = self.runner.try_wait()?;
        if self.status.is_some() {
            let all = process::involuntary_switches_of_children().saturating_sub(before);
            let own = own.and_then(|own| own.involuntary_switches).unwrap_or_default();
            self.switches = all.saturating_sub(own);
        }
        Ok(())
    }

    /// Sends it a signal, unless it has ended.
    fn signal(&self, signal: Signaled) -> Result<(), Failure> {
        match self.status {
            Some(_) => Ok(()),
            // Not reaped, so its PID is not reused.
            None => Ok(process::signal(self.runner.pid(), signal)?),
        }
    }
}

/// An observation of all jobs.
struct Observation {
    observer: Observer,
    commands: Vec<RunningCommand>,
}

/// A command that was let go.
struct RunningCommand {
    task: TaskId,
    cpus: CpuSet,
    end: Option<ProcessEnd>,
    before: Counters,
    after: Option<Counters>,
}

impl Observation {
    /// Starts it. All processes of Pinfold leave the CPUs of the plan: those that place the jobs
    /// only wait from now on.
    fn start(host: &LiveHost, plan: &Plan, jobs: &[StartedJob]) -> Result<Self, Failure> {
        let mut is_off = true;
        for process in jobs.iter().map(|job| job.runner.pid()).chain([process::own_pid()]) {
            is_off &= noise::leave_cores(host, process, plan)?;
        }
        if !is_off {
            say(&noise::shares_cpus().to_string());
        }
        let commands = jobs.iter().filter_map(|job| {
            let task = job.waiting.as_ref()?.task;
            Some(ObservedCommand { name: job.name.clone(), task, cpus: job.cpus.clone() })
        });
        let commands: Vec<ObservedCommand> = commands.collect();
        let observer = Observer::start(commands.clone())?;
        let running = commands.into_iter().map(|command| RunningCommand::read(host, command));
        Ok(Self { observer, commands: running.collect::<Result<_, _>>()? })
    }

    /// Descriptors that are readable when a command has ended.
    fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.commands.iter().filter_map(|command| command.end.as_ref()).map(AsFd::as_fd)
    }

    /// Reads the counters of commands that have ended.
    fn read_ends(&mut self, host: &LiveHost) -> Result<(), Failure> {
        for command in self.commands.iter_mut().filter(|command| command.after.is_none()) {
            if !process::task_alive(host, command.task)? {
                command.end = None;
                command.after = Some(Counters::read(host, &command.cpus)?);
            }
        }
        Ok(())
    }

    fn stop(self, host: &LiveHost, jobs: &[StartedJob]) -> Result<Vec<(String, Noise)>, Failure> {
        let observed = self.observer.stop();
        let mut noise = Vec::new();
        for ((command, observed), job) in self.commands.into_iter().zip(observed).zip(jobs) {
            let after = command.after.map_or_else(|| Counters::read(host, &command.cpus), Ok)?;
            let of_job = after.since(&command.before).with(Some(observed));
            noise.push((job.name.clone(), of_job.with_switches(job.switches)));
        }
        Ok(noise)
    }
}

impl RunningCommand {
    fn read(host: &LiveHost, command: ObservedCommand) -> Result<Self, Failure> {
        let ObservedCommand { task, cpus, .. } = command;
        let (end, before) = (ProcessEnd::read(host, task)?, Counters::read(host, &cpus)?);
        Ok(Self { task, cpus, end, before, after: None })
    }
}

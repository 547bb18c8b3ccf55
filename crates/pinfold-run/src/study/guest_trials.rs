//! The trials of a start with a guest: each runs in the guest through its agent, with the loads of
//! its cell on both sides.
//!
//! A program that takes too long is killed, and its trial has failed. A guest that does not respond
//! ends the start, and the remaining trials have failed with its last output lines.

use std::collections::BTreeMap;

use pinfold_host::{Clock as _, SystemClock, files};
use pinfold_model::{CpuSet, Figure, Unit};
use pinfold_probe::agent::{Agent, AgentError, ChannelId, Exit as GuestExit};
use pinfold_study::study::{
    BOOT, FactorEffect, Finished, NextStep, Program, StartRequest, TrialError, TrialRequest,
    TrialResult,
};

use super::figure::one_figure;
use super::job::JobResult;
use super::probes::{Exits, Observation, with_findings};
use super::trials::{figures, words};
use crate::guest::loads::GuestLoads;
use crate::guest::{Facts, Running};
use crate::{Exit, Failure, interrupt};

/// The disk that the guest's reader load reads.
const DISK: &str = "/dev/vda";
/// Time for loads to start or to end.
const SETTLE_NS: u64 = 150_000_000;
/// Interval of checking for a stop request.
const TURN_NS: u64 = 100_000_000;
/// What `pinload parallel --mark-roi` prints where its region of interest begins and ends.
const ROI_MARKS: [&str; 2] = ["roi begins\n", "roi ends\n"];
/// A program that was killed ends within this time, or its guest hangs.
const KILL_TIMEOUT_NS: u64 = 20_000_000_000;
const SIGKILL: u8 = 9;

/// A running guest, with its environment.
pub struct TrialGuest<'a> {
    pub running: &'a Running<'a>,
    pub facts: &'a Facts,
    pub kernel: String,
    pub pus: CpuSet,
    /// The machines that run the measured program too.
    pub copies: Vec<&'a Agent>,
    /// Programs that were sent: their path in the guest and on the host.
    pub sent: BTreeMap<String, String>,
}

/// What stopped a trial, other than itself.
enum Stopped {
    /// A stop request of the user.
    Interrupted,
    /// The guest is lost.
    Lost(Failure),
}

type TrialOutcome<T> = Result<Result<T, TrialError>, Stopped>;

fn lost_agent(error: &AgentError) -> Stopped {
    Stopped::Lost(Failure::from_error(Exit::Vm, error, error.hint()))
}

impl TrialGuest<'_> {
    /// Runs the trials.
    pub fn trials(
        &mut self,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), Failure> {
        let Some(agent) = self.running.agent.clone() else {
            return Err(Failure::new(Exit::Vm, "the guest has no agent"));
        };
        for (index, wanted) in request.requests().enumerate() {
            let result = match self.trial(&agent, wanted) {
                Ok(result) => result,
                Err(Stopped::Interrupted) => return Ok(()),
                Err(Stopped::Lost(failure)) => {
                    let error = TrialError::from_message(self.with_last_lines(&failure));
                    return match finished(index, Err(error)) {
                        NextStep::GoOn => Err(failure),
                        NextStep::Stop => Ok(()),
                    };
                }
            };
            let boot = (index == 0).then(|| self.boot());
            let result = result.map(|mut result| {
                result.figures.extend(boot);
                result
            });
            let result = with_findings(result, &self.facts.findings);
            if finished(index, result) == NextStep::Stop {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The error that ended the guest, with the last lines of its console.
    fn with_last_lines(&self, failure: &Failure) -> String {
        // The kernel's last lines appear when QEMU has ended, at the latest.
        SystemClock.sleep_ns(SETTLE_NS);
        match self.running.last_lines() {
            lines if lines.is_empty() => failure.message.clone(),
            lines => format!("{}; the guest printed: {lines}", failure.message),
        }
    }

    /// The time from the start of QEMU to the agent's HELLO, labelled with what was booted.
    fn boot(&self) -> Figure {
        let boot_ns = self.facts.boot_ns;
        let labels = [
            ("accelerator", self.facts.accelerator.to_string()),
            ("qemu", self.facts.qemu.clone()),
            ("kernel", self.kernel.clone()),
        ];
        Figure {
            labels: labels.map(|(name, text)| (name.to_owned(), text)).into(),
            ..one_figure(BOOT, Unit::Nanoseconds, boot_ns as f64, boot_ns)
        }
    }

    fn trial(&mut self, agent: &Agent, wanted: TrialRequest<'_>) -> TrialOutcome<TrialResult> {
        let argv = match self.argv(agent, wanted) {
            Ok(Ok(argv)) => argv,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(stopped) => return Err(stopped),
        };
        let load = |acts| {
            wanted.cell.level_with_effect(wanted.study, &acts).map(|level| level.text.as_str())
        };
        let is_host_loaded = load(FactorEffect::HostLoad) == Some("loaded");
        let host_side = self.running.host_side;
        let set = |is_loaded| {
            host_side
                .set(is_loaded)
                .map_err(|e| Stopped::Lost(Failure::from_error(Exit::Host, &e, e.hint())))
        };
        set(is_host_loaded)?;
        let vcpus = self.running.vcpus;
        let side = match load(FactorEffect::GuestLoad) {
            Some("loaded") => Some(GuestLoads::start(agent, vcpus, Some(DISK))),
            Some("loaded-no-disk") => Some(GuestLoads::start(agent, vcpus, None)),
            Some(_) | None => None,
        };
        let side = side.transpose().map_err(|error| lost_agent(&error))?;
        if side.is_some() || is_host_loaded {
            SystemClock.sleep_ns(SETTLE_NS);
        }
        let result = self.run_measured(agent, wanted, &argv)?;
        let all_ran = side.as_ref().is_none_or(|side| side.all_run(agent));
        if let Some(side) = side {
            side.stop(agent).map_err(|error| lost_agent(&error))?;
        }
        set(false)?;
        Ok(if all_ran {
            result
        } else {
            Err(TrialError::from_message("a load in the guest exited during the measurement"))
        })
    }

    /// The warm-up runs and the measured one.
    fn run_measured(
        &self,
        agent: &Agent,
        wanted: TrialRequest<'_>,
        argv: &[String],
    ) -> TrialOutcome<TrialResult> {
        let limit_ns = wanted.cell.workload(wanted.study).time_limit_ns;
        let mut work_ns = 0;
        for _ in 0..wanted.study.warm_up {
            match self.run(agent, argv, limit_ns, None)? {
                Ok(ended) => work_ns += ended.elapsed_ns,
                Err(error) => return Ok(Err(error)),
            }
        }
        let (host, tasks) = (self.running.host, self.running.found.tasks());
        let probes = &wanted.study.probes;
        let mut observation = match Observation::begin(host, probes, &self.pus, &tasks) {
            Ok(observation) => observation,
            Err(error) => return Ok(Err(error)),
        };
        let exits = Exits::begin(host, probes, self.facts.accelerator, &tasks);
        let ended = match self.run(agent, argv, limit_ns, Some(&mut observation))? {
            Ok(ended) => ended,
            Err(error) => return Ok(Err(error)),
        };
        work_ns += ended.elapsed_ns;
        let seen = observation.end(host);
        let exits = exits.map(|exits| exits.end(host));
        Ok(figures(wanted, &ended).and_then(|mut figures| {
            figures.extend(seen?);
            figures.extend(exits.into_iter().flatten());
            Ok(TrialResult { figures, work_ns })
        }))
    }

    /// The command with its paths in the guest.
    fn argv(&mut self, agent: &Agent, wanted: TrialRequest<'_>) -> TrialOutcome<Vec<String>> {
        let mut words = match words(wanted, &agent.hello().cpus_online, None) {
            Ok(words) => words,
            Err(error) => return Ok(Err(error)),
        };
        let workload = wanted.cell.workload(wanted.study);
        let path = match (&workload.program, wanted.cell.guest_program(wanted.study)) {
            (Program::Pinload(_), _) => return Ok(Ok(words)),
            (Program::Command(_), Ok(Some(path))) => path,
            (Program::Command(_), Ok(None)) => {
                return Ok(Err(TrialError::from_message(
                    "its command is not a program of the guest",
                )));
            }
            (Program::Command(_), Err(why)) => return Ok(Err(TrialError::fatal(why))),
        };
        // The file name is kept: some programs depend on it.
        let inside = format!("/tmp/{}", path.rsplit('/').next().unwrap_or(&path));
        if self.sent.get(&inside) != Some(&path) {
            let bytes = match files::read(&path) {
                Ok(bytes) => bytes,
                Err(error) => return Ok(Err(TrialError::from_message(error.to_string()))),
            };
            for agent in [&[agent], self.copies.as_slice()].concat() {
                agent.send_file(&inside, 0o755, &bytes).map_err(|error| lost_agent(&error))?;
            }
            self.sent.insert(inside.clone(), path);
        }
        if let Some(program) = words.first_mut() {
            *program = inside;
        }
        Ok(Ok(words))
    }

    /// Runs the program, in all machines that run it together. Returns what the measured one
    /// printed.
    fn run(
        &self,
        agent: &Agent,
        argv: &[String],
        limit_ns: u64,
        observation: Option<&mut Observation>,
    ) -> TrialOutcome<JobResult> {
        let mut copies = Vec::new();
        for copy in &self.copies {
            copies.push(Started::new(copy, argv)?);
        }
        let mut ended = Started::new(agent, argv)?.end(limit_ns, observation)?;
        for copy in copies {
            let copied = copy.end(limit_ns, None)?.map_err(|error| {
                TrialError::from_message(format!("in another machine: {}", error.message))
            });
            ended = ended.and_then(|ended| copied.map(|_| ended));
        }
        Ok(ended)
    }
}

/// A program that runs in a machine.
struct Started<'a> {
    agent: &'a Agent,
    channel: ChannelId,
    began_ns: u64,
}

impl<'a> Started<'a> {
    fn new(agent: &'a Agent, argv: &[String]) -> Result<Self, Stopped> {
        let began_ns = SystemClock.now_ns();
        let channel = agent.start(argv).map_err(|error| lost_agent(&error))?;
        agent.close(channel).map_err(|error| lost_agent(&error))?;
        Ok(Self { agent, channel, began_ns })
    }

    /// Waits for its end, and kills it after this time. The observation learns when the region of
    /// interest begins and ends.
    fn end(
        self,
        limit_ns: u64,
        mut observation: Option<&mut Observation>,
    ) -> TrialOutcome<JobResult> {
        let Self { agent, channel, began_ns } = self;
        let so_far = || SystemClock.now_ns().saturating_sub(began_ns);
        let mut marks = ROI_MARKS.iter().peekable();
        loop {
            if let (Some(mark), Some(observation)) = (marks.peek(), &mut observation) {
                if agent.prints_within(
                    channel,
                    mark,
                    TURN_NS.min(limit_ns.saturating_sub(so_far())),
                ) {
                    marks.next();
                    if let Err(error) = observation.mark() {
                        return Ok(Err(error));
                    }
                }
            } else if agent.ends_within(channel, TURN_NS.min(limit_ns.saturating_sub(so_far()))) {
                break;
            }
            if agent.has_ended(channel) {
                break;
            }
            if interrupt::is_requested() {
                return Err(Stopped::Interrupted);
            }
            if so_far() < limit_ns {
                continue;
            }
            let limit = limit_ns as f64 / 1e9;
            agent.kill(channel, SIGKILL).map_err(|error| lost_agent(&error))?;
            if !agent.ends_within(channel, KILL_TIMEOUT_NS) {
                let why = format!("it did not finish within {limit} s, and the guest hangs");
                return Err(Stopped::Lost(Failure::new(Exit::Vm, why)));
            }
            // Its output is discarded.
            agent.wait(channel, 0).map_err(|error| lost_agent(&error))?;
            let why = format!("it did not finish within {limit} s in the guest");
            return Ok(Err(TrialError::from_message(why)));
        }
        let elapsed_ns = so_far();
        let output = match agent.wait(channel, 0) {
            Ok(output) => output,
            Err(error @ AgentError::Refused { .. }) => {
                return Ok(Err(TrialError::from_message(error.to_string())));
            }
            Err(error) => return Err(lost_agent(&error)),
        };
        if output.exit == GuestExit::Code(0) {
            let (stdout, stderr) = (output.stdout_text(), output.stderr_text());
            return Ok(Ok(JobResult { stdout, stderr, elapsed_ns }));
        }
        let said = output.stderr_text();
        let said = said.trim().lines().next_back().unwrap_or("").to_owned();
        let said = if said.is_empty() { said } else { format!(": {said}") };
        Ok(Err(TrialError::from_message(format!("{}{said}", output.exit))))
    }
}
